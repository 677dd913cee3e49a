"""Sessions end, make room for others, and guessing has its limit."""

from skyroute.console.guard import visitors
from skyroute.console.guard.users import NOBODY, Role
from skyroute.console.guard.visitors import SESSION_S, SESSIONS_MAX, TRIES_MAX, WAIT_S, Sessions, Visitor
from tests.support.clock import ManualClock


def test_a_session_lasts_its_time_and_no_longer() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    secret = sessions.open(NOBODY)
    clock.advance(SESSION_S - 1)
    assert sessions.find(secret) is NOBODY  # being seen does not make it longer
    clock.advance(2)
    assert sessions.find(secret) is None
    assert sessions.find("") is None


def test_a_session_ends_when_it_is_closed() -> None:
    sessions = Sessions(ManualClock())
    secret, other = sessions.open(NOBODY), sessions.open(NOBODY)
    assert secret != other
    sessions.close(secret)
    sessions.close(secret)
    assert sessions.find(secret) is None
    assert sessions.find(other) is NOBODY


def test_the_longest_unseen_make_room() -> None:
    sessions = Sessions(ManualClock())
    first, second = sessions.open(NOBODY), sessions.open(NOBODY)
    for _ in range(SESSIONS_MAX - 2):
        sessions.open(NOBODY)
    sessions.find(first)
    sessions.open(NOBODY)
    assert sessions.find(first) is NOBODY
    assert sessions.find(second) is None


def test_guessing_has_its_limit_by_address() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    for _ in range(TRIES_MAX):
        assert not sessions.must_wait("a")
        sessions.note_try("a", right=False)
    assert sessions.must_wait("a")
    assert not sessions.must_wait("b")
    clock.advance(WAIT_S + 1)
    assert not sessions.must_wait("a")
    sessions.note_try("a", right=False)
    assert sessions.must_wait("a")  # one try, and another wait
    clock.advance(WAIT_S + 1)
    sessions.note_try("a", right=True)
    sessions.note_try("a", right=False)
    assert not sessions.must_wait("a")


def test_addresses_that_guessed_are_forgotten_when_there_are_too_many() -> None:
    sessions = Sessions(ManualClock())
    for number in range(visitors.ADDRESSES_MAX + 1):
        for _ in range(TRIES_MAX if number == 0 else 1):
            sessions.note_try(str(number), right=False)
    assert not sessions.must_wait("0")


def test_only_operators_may_change_things() -> None:
    may = {role: Visitor("", role, "", "en", "auto").may_change for role in (None, *Role)}
    assert may == {None: False, Role.VIEWER: False, Role.OPERATOR: True}


def test_a_token_is_known_to_one_console_only() -> None:
    sessions = Sessions(ManualClock())
    secret = sessions.open(NOBODY)
    token = sessions.token("session", secret)
    assert token == sessions.token("session", secret)
    others = {
        sessions.token("visitor", secret),
        sessions.token("session", "x"),
        Sessions(ManualClock()).token("session", secret),
    }
    assert token not in others | {secret}
