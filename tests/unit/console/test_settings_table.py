"""The table of settings: search, secrets, and the check of a change."""

import pytest

from skyroute.client.admin.cluster import ServerProperties
from skyroute.console.cluster_data.settings_table import check_applied, find_settings, read_change
from skyroute.console.errors import ConsoleError
from skyroute.settings.secrets import HIDDEN


def texts_of(**settings: str) -> ServerProperties:
    return ServerProperties({"a:1": settings}, {})


def test_a_search_does_not_find_a_secret_by_its_value() -> None:
    texts = texts_of(myToken="geheim", listenPort="9876", sslKeystorePasswd="geheim")
    assert find_settings(texts, "geheim") == []
    assert {row.key for row in find_settings(texts, "") if row.is_secret} == {"myToken", "sslKeystorePasswd"}


def test_a_secret_cannot_be_changed() -> None:
    with pytest.raises(ConsoleError, match="accessKey is a secret"):
        read_change({"key": "accessKey", "value": "x"})


def test_a_hidden_value_counts_as_applied() -> None:
    check_applied(texts_of(extra=HIDDEN), "extra", "1")
    with pytest.raises(ConsoleError, match="still has extra=2"):
        check_applied(texts_of(extra="2"), "extra", "1")
