import logging
from pathlib import Path

import pytest

from skyroute.remoting.signing import Signer
from skyroute.settings.config import ServerConfig
from skyroute.settings.credentials import read_credentials, read_credentials_file, read_user
from skyroute.settings.errors import ConfigError

SECRET = "s3cret-key"


@pytest.mark.parametrize(
    "text",
    [
        f'{{"accessKey": "me", "secretKey": "{SECRET}"}}',
        f"accessKey: me\nsecretKey: {SECRET}\n",
        f"# tools\naccessKey=me\n\nsecretKey='{SECRET}'\n",
    ],
)
def test_a_file_in_each_form_gives_the_same_credentials(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(text)
    path.chmod(0o600)
    assert read_credentials_file(str(path)) == Signer("me", SECRET)
    assert SECRET not in repr(read_credentials_file(str(path)))


@pytest.mark.parametrize(
    "text", ["", "{}", f"secretKey: {SECRET}", f'{{"accessKey": {SECRET}', f"accessKey: me\n{SECRET}", "accessKey: me"]
)
def test_a_wrong_file_is_an_error_that_does_not_show_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_credentials_file(str(path))
    assert SECRET not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(ConfigError) as caught:
        read_credentials_file(str(path))
    assert str(caught.value) == f"credentials: file {path} cannot be read: No such file or directory"


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        read_credentials_file(str(path))
    assert str(caught.value) == f"credentials: file {path} is empty"


def test_a_file_that_others_can_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(f"accessKey: me\nsecretKey: {SECRET}")
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        read_credentials_file(str(path))
    assert "can be read by others" in caplog.text
    assert SECRET not in caplog.text


def test_a_setting_and_its_file_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are both set"):
        read_credentials("{}", str(tmp_path / "x"), "key")
    assert read_credentials("", "", "key") is None
    assert read_credentials("{}", "", "key") is None
    assert read_user('{"username": "root", "password": "p"}', "", "key") == ("root", "p")


def test_secrets_are_in_no_text_of_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    class Config(ServerConfig):
        PATH_FIELD = "rocketmq_home"

    config = Config.load(
        options={
            "innerClientAuthenticationCredentials": f'{{"accessKey":"me","secretKey":"{SECRET}"}}',
            "initAuthenticationUser": f'{{"username":"root","password":"{SECRET}"}}',
        }
    )
    assert config.signer() == Signer("me", SECRET)
    assert config.first_user() == ("root", SECRET)
    with caplog.at_level(logging.INFO):
        config.log_settings()
    for text in (repr(config), config.render(), config.render_all(), caplog.text):
        assert SECRET not in text
