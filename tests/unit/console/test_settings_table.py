"""The list of settings: what is found in it, and what is not shown."""

import pytest

from skyroute.client.admin.cluster import ServerProperties
from skyroute.console.cluster_data.settings_table import check_took, find_settings, read_change
from skyroute.console.errors import ConsoleError
from skyroute.settings.secrets import HIDDEN


def told(**settings: str) -> ServerProperties:
    return ServerProperties({"a:1": settings}, {})


def test_no_search_finds_a_secret_by_its_value() -> None:
    texts = told(myToken="geheim", listenPort="9876", sslKeystorePasswd="geheim")
    assert find_settings(texts, "geheim") == []
    assert {row.key for row in find_settings(texts, "") if row.is_secret} == {"myToken", "sslKeystorePasswd"}


def test_a_secret_is_not_changed_here() -> None:
    with pytest.raises(ConsoleError, match="accessKey is a secret"):
        read_change({"key": "accessKey", "value": "x"})


def test_a_server_that_hides_a_value_may_have_taken_it() -> None:
    check_took(told(extra=HIDDEN), "extra", "1")
    with pytest.raises(ConsoleError, match="still says extra=2"):
        check_took(told(extra="2"), "extra", "1")
