"""Sessions end and have a limit, and so have wrong passwords."""

from skyroute.console.access.sessions import (
    ADDRESSES_MAX,
    ATTEMPTS_MAX,
    FORGET_S,
    SESSION_S,
    SESSIONS_MAX,
    WAIT_S,
    Sessions,
    Visitor,
)
from skyroute.console.access.users import UNKNOWN_USER, Role
from tests.support.clock import ManualClock


def test_a_session_ends_after_its_time() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    secret = sessions.open(UNKNOWN_USER)
    clock.advance(SESSION_S - 1)
    assert sessions.find(secret) is UNKNOWN_USER  # use does not extend it
    clock.advance(2)
    assert sessions.find(secret) is None
    assert sessions.find("") is None


def test_a_session_ends_when_it_is_closed() -> None:
    sessions = Sessions(ManualClock())
    secret, other = sessions.open(UNKNOWN_USER), sessions.open(UNKNOWN_USER)
    assert secret != other
    sessions.close(secret)
    sessions.close(secret)
    assert sessions.find(secret) is None
    assert sessions.find(other) is UNKNOWN_USER


def test_the_least_recently_used_session_is_evicted() -> None:
    sessions = Sessions(ManualClock())
    first, second = sessions.open(UNKNOWN_USER), sessions.open(UNKNOWN_USER)
    for _ in range(SESSIONS_MAX - 2):
        sessions.open(UNKNOWN_USER)
    sessions.find(first)
    sessions.open(UNKNOWN_USER)
    assert sessions.find(first) is UNKNOWN_USER
    assert sessions.find(second) is None


def test_wrong_passwords_are_limited_by_address() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    for _ in range(ATTEMPTS_MAX):
        assert not sessions.must_wait("a")
        sessions.record_attempt("a", right=False)
    assert sessions.must_wait("a")
    assert not sessions.must_wait("b")
    clock.advance(WAIT_S + 1)
    assert not sessions.must_wait("a")
    sessions.record_attempt("a", right=False)
    assert sessions.must_wait("a")  # one more attempt, and it must wait again
    clock.advance(WAIT_S + 1)
    sessions.record_attempt("a", right=True)
    sessions.record_attempt("a", right=False)
    assert sessions.must_wait("a")  # one's own password does not open more guesses at that of another user
    clock.advance(FORGET_S)
    sessions.record_attempt("a", right=False)
    assert not sessions.must_wait("a")


def test_the_number_of_addresses_with_wrong_passwords_has_a_limit() -> None:
    sessions = Sessions(ManualClock())
    for number in range(ADDRESSES_MAX + 1):
        for _ in range(ATTEMPTS_MAX if number == 0 else 1):
            sessions.record_attempt(str(number), right=False)
    assert not sessions.must_wait("0")


def test_only_operators_can_make_changes() -> None:
    may = {role: Visitor("", role, "", "en", "auto").may_change for role in (None, *Role)}
    assert may == {None: False, Role.VIEWER: False, Role.OPERATOR: True}


def test_a_token_belongs_to_one_console() -> None:
    sessions = Sessions(ManualClock())
    secret = sessions.open(UNKNOWN_USER)
    token = sessions.token("session", secret)
    assert token == sessions.token("session", secret)
    others = {
        sessions.token("visitor", secret),
        sessions.token("session", "x"),
        Sessions(ManualClock()).token("session", secret),
    }
    assert token not in others | {secret}
