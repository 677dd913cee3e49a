"""Name servers of ours with access control, and two brokers at them, Apache's and ours, with the same users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.peers.broker.conftest import go, java, node  # noqa: F401 - fixtures
from tests.peers.client.java_client import Place
from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import APACHE_4, ApacheBroker, NameServerProcess, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.signing import Key

ROOT: Final = Key("operator", "secret-of-operator")
RIGHT: Final = Key("accessible", "secret-of-accessible")
"""May send to and receive from topics and groups that begin with `Access`."""
POOR: Final = Key("poorman", "secret-of-poorman")
"""A user without the right."""
WRONG: Final = Key("accessible", "a-wrong-secret")
STRANGER: Final = Key("stranger", "secret-of-stranger")

_providers = "org.apache.rocketmq.auth.{0}.provider.{1}{2}Provider".format
SETTINGS: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": _providers("authentication", "Default", "Authentication"),
    "authenticationMetadataProvider": _providers("authentication", "Local", "AuthenticationMetadata"),
    "initAuthenticationUser": ROOT.json,
    "innerClientAuthenticationCredentials": ROOT.credentials_json,
    "authorizationEnabled": "true",
    "authorizationProvider": _providers("authorization", "Default", "Authorization"),
    "authorizationMetadataProvider": _providers("authorization", "Local", "AuthorizationMetadata"),
}


@pytest.fixture(scope="package")
def strict(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    """A name server that lets brokers in by key only."""
    with SkyrouteNameServer("strict name server", tmp_path_factory.mktemp("strict"), config=SETTINGS) as server:
        yield server


@pytest.fixture(scope="package")
def mixed(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    """A name server that also lets brokers in by address."""
    settings = SETTINGS | {"brokerSourceAddresses": "127.0.0.1"}
    with SkyrouteNameServer("mixed name server", tmp_path_factory.mktemp("mixed"), config=settings) as server:
        yield server


@pytest.fixture(scope="package")
def theirs(
    strict: NameServerProcess, mixed: NameServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """Apache's broker, which signs its registrations."""
    home, servers = tmp_path_factory.mktemp("theirs"), [strict.address, mixed.address]
    settings = SETTINGS | {"autoCreateTopicEnable": "false"}
    with ApacheBroker("theirs", home, servers, cluster="Guarded", config=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def ours_guarded(
    strict: NameServerProcess, mixed: NameServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """Our broker with the same settings."""
    home, servers = tmp_path_factory.mktemp("ours"), [strict.address, mixed.address]
    settings = SETTINGS | {"autoCreateTopicEnable": "false"}
    with SkyrouteBroker("ours", home, servers, cluster="Guarded", config=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def old(
    strict: NameServerProcess, mixed: NameServerProcess, lib_4: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """A 4.9.7 broker, which cannot sign, and knocks at both name servers."""
    settings = {"namesrvAddr": f"{strict.address};{mixed.address}"}
    home = tmp_path_factory.mktemp("old")
    with ApacheBroker("old", home, [mixed.address], version=APACHE_4, cluster="Old", config=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def places(strict: NameServerProcess, theirs: ApacheBroker, ours_guarded: ApacheBroker) -> dict[str, Place]:
    """Where each broker is, for its super user."""
    both = {"Theirs": theirs, "Ours": ours_guarded}
    return {
        name: Place.at(strict.address, broker.address).as_user(ROOT.name, ROOT.secret) for name, broker in both.items()
    }


@contextmanager
def mqadmin_of(lib: Path, java_classes: Path, home: Path, key: Key | None) -> Iterator[MqAdmin]:
    """Apache's tool, which signs with the key in its `tools.yml`."""
    if key is not None:
        (home / "conf").mkdir()
        (home / "conf" / "tools.yml").write_text(f"accessKey: {key.name}\nsecretKey: {key.secret}\n")
    admin = MqAdmin(lib, java_classes, home, f"-Drocketmq.home.dir={home}")
    try:
        yield admin
    finally:
        admin.close()


@pytest.fixture(scope="package")
def mqadmin(lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    """The tool of the super user."""
    with mqadmin_of(lib, java_classes, tmp_path_factory.mktemp("signing-mqadmin"), ROOT) as admin:
        yield admin


@pytest.fixture(scope="package")
def unsigned_mqadmin(lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with mqadmin_of(lib, java_classes, tmp_path_factory.mktemp("unsigned-mqadmin"), None) as admin:
        yield admin
