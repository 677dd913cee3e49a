import copy
import logging
import pickle

import pytest

from skyroute.access.errors import RulesError
from skyroute.access.users import PASSWORD_CHARS_MAX, Password, User

SECRET = "top-secret-12345678"


def test_a_password_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    user = User("alice", Password(SECRET))
    shown = [repr(user), str(user), f"{user.password}", repr({"p": user.password})]
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("user=%s password=%r", user, user.password)
    shown.append(caplog.text)
    assert not any(SECRET in text for text in shown)
    assert "******" in shown[0]


def test_a_password_is_not_pickled() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Password(SECRET))
    with pytest.raises(TypeError):
        copy.deepcopy(User("alice", Password(SECRET)))


def test_equal_passwords_are_equal() -> None:
    assert Password(SECRET) == Password(SECRET)
    assert hash(Password(SECRET)) == hash(Password(SECRET))
    assert Password(SECRET) != Password("other")
    assert Password(SECRET) != SECRET


@pytest.mark.parametrize("text", ["", "  ", "x" * (PASSWORD_CHARS_MAX + 1)])
def test_a_password_has_some_characters_but_not_too_many(text: str) -> None:
    with pytest.raises(RulesError) as caught:
        Password(text)
    assert "xxx" not in str(caught.value)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 1000])
def test_a_user_has_a_valid_name(name: str) -> None:
    with pytest.raises(RulesError):
        User(name, Password(SECRET))
