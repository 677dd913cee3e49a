"""Apache RocketMQ for the tests of our client: one name server, and brokers that start when a test first needs them."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.peers.client.java_client import JavaClients, Place
from tests.support.apache import (
    APACHE_4,
    SMALL_HEAP,
    ApacheBroker,
    ApacheNameServer,
    NameServerProcess,
)

CLUSTER: Final = "ClientCluster"
DELAY_LEVEL: Final = 2
"""The one delay level that differs from the rest: three seconds, so that a level that was lost is seen."""
DELAY_S: Final = 3.0

SETTINGS: Final = {
    "enablePropertyFilter": "true",
    "timerPrecisionMs": "100",
    # A failed message comes back after a second, whichever its attempt.
    "messageDelayLevel": " ".join("3s" if level == DELAY_LEVEL else "1s" for level in range(1, 19)),
    # A transaction without an outcome is asked about after two seconds. Outcomes are written down in batches: with
    # Apache's own three seconds between those, the broker would ask about what it was told already.
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "100",
}

USER: Final = ("skyroute", "secret-of-skyroute")
OPERATOR: Final = ("operator", "secret-of-operator")


class Certificates:
    """A certificate of loopback, signed by an authority of this run."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        issued = self._authority.issue_cert("127.0.0.1", "localhost")
        for blob in issued.cert_chain_pems:
            blob.write_to_path(self.certificate, append=True)
        issued.private_key_pem.write_to_path(self.key)
        self.authority = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(self.authority)

    def server_options(self, mode: str) -> tuple[str, ...]:
        """What makes a JVM serve with it."""
        settings = {"tls.server.mode": mode, "tls.test.mode.enable": "false", "tls.server.certPath": self.certificate}
        return tuple(f"-D{key}={value}" for key, value in {**settings, "tls.server.keyPath": self.key}.items())

    def trusting(self) -> ssl.SSLContext:
        """A client's context that believes this authority and no other."""
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        return context


@pytest.fixture(scope="package")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="package")
def name_server(
    lib: Path, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NameServerProcess]:
    """Apache's, which talks plainly or in TLS, as it is addressed."""
    options = (*SMALL_HEAP, *certificates.server_options("permissive"))
    with ApacheNameServer("clients' name server", tmp_path_factory.mktemp("ns"), java_options=options) as server:
        yield server


@pytest.fixture(scope="package")
def first_broker(name_server: NameServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    """It alone has the topic of traces, which clients send to any broker that has it, even one that refuses them."""
    settings = SETTINGS | {"traceTopicEnable": "true"}
    home = tmp_path_factory.mktemp("first")
    with ApacheBroker("first", home, [name_server.address], cluster=CLUSTER, config=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def second_broker(
    name_server: NameServerProcess, first_broker: ApacheBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """Another of the same cluster. It makes no topics of its own accord, so that those of other tests stay off it."""
    settings = SETTINGS | {"autoCreateTopicEnable": "false"}
    home = tmp_path_factory.mktemp("second")
    with ApacheBroker("second", home, [name_server.address], cluster=CLUSTER, config=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def place(name_server: NameServerProcess, first_broker: ApacheBroker) -> Place:
    return Place.at(name_server.address, first_broker.address)


@pytest.fixture(scope="package")
def pair(place: Place, second_broker: ApacheBroker) -> Place:
    """The same cluster, for topics that live on both of its brokers."""
    return Place.at(place.name_servers, *place.brokers, second_broker.address)


@pytest.fixture(scope="package")
def guarded(
    name_server: NameServerProcess, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A broker that speaks TLS only, and to known users only; the place is that of its super user."""
    providers = "org.apache.rocketmq.auth.{0}.provider.{1}{2}Provider".format
    settings = SETTINGS | {
        "autoCreateTopicEnable": "false",
        "authenticationEnabled": "true",
        "authenticationProvider": providers("authentication", "Default", "Authentication"),
        "authenticationMetadataProvider": providers("authentication", "Local", "AuthenticationMetadata"),
        "initAuthenticationUser": json.dumps(dict(zip(("username", "password"), OPERATOR, strict=True))),
        "innerClientAuthenticationCredentials": json.dumps(
            dict(zip(("accessKey", "secretKey"), OPERATOR, strict=True))
        ),
        "authorizationEnabled": "true",
        "authorizationProvider": providers("authorization", "Default", "Authorization"),
        "authorizationMetadataProvider": providers("authorization", "Local", "AuthorizationMetadata"),
    }
    home = tmp_path_factory.mktemp("guarded")
    options = (*SMALL_HEAP, *certificates.server_options("enforcing"))
    servers = [name_server.address]
    with ApacheBroker("guarded", home, servers, cluster="Guarded", config=settings, java_options=options) as broker:
        yield Place.at(name_server.address, broker.address).as_user(*OPERATOR).in_tls(certificates.trusting())


@pytest.fixture(scope="package")
def older(name_server: NameServerProcess, lib_4: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A broker of the 4.x line, which knows users by the file that line reads."""
    home = tmp_path_factory.mktemp("older")
    key, secret = OPERATOR
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(
        f"accounts:\n- accessKey: {key}\n  secretKey: {secret}\n  admin: true\n"
    )
    settings = {"autoCreateTopicEnable": "false", "aclEnable": "true", "enablePropertyFilter": "true"}
    settings["messageDelayLevel"] = SETTINGS["messageDelayLevel"]
    servers = [name_server.address]
    with ApacheBroker("older", home, servers, version=APACHE_4, cluster="Older", config=settings) as broker:
        yield Place.at(name_server.address, broker.address).as_user(*OPERATOR)


@pytest.fixture(scope="package")
def java(lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    """Apache's clients, in a JVM that every test shares."""
    with JavaClients("Java's clients", tmp_path_factory.mktemp("java"), lib, java_classes) as clients:
        yield clients
