"""What docs/from-apache.md prints is done here, with Apache's name servers and one of its brokers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skyroute import Message
from skyroute.blocking import Producer
from skyroute.cli.main import main
from tests.support.apache import REGISTERED_S, ApacheBroker, ApacheNameServer, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.shown import ROOT
from tests.support.waiting import wait_until

FIRST, SECOND = "10.0.0.1:9876", "10.0.0.2:9876"


def printed(title: str) -> list[list[str]]:
    """The words of the commands that stand below a heading, block by block."""
    text = (ROOT / "docs" / "from-apache.md").read_text(encoding="utf-8").split(f"\n## {title}\n", 1)[1]
    blocks = re.findall(r"(?s)```sh\n(.*?)```", re.split(r"(?m)^## ", text)[0])
    return [[line.partition("  #")[0].strip() for line in block.splitlines()] for block in blocks]


@pytest.fixture(scope="module")
def cluster(
    lib: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApacheNameServer, ApacheNameServer, ApacheBroker]]:
    """Apache's own, to which each test comes back."""
    home = tmp_path_factory.mktemp("cluster")
    first, second = ApacheNameServer("first", home / "1"), ApacheNameServer("second", home / "2")
    broker = ApacheBroker("broker-a", home / "broker", [first.address, second.address])
    with first, second, broker:
        yield first, second, broker


def test_a_name_server_is_switched_and_back(
    cluster: tuple[ApacheNameServer, ApacheNameServer, ApacheBroker],
) -> None:
    first, second, broker = cluster

    def run(line: str) -> Result:
        for shown, real in ((FIRST, first.address), (SECOND, second.address)):
            line = line.replace(shown, real)
        words = shlex.split(line.replace("conf/namesrv.properties", str(second.config_file)))
        assert words[0] == "skyroute"
        return CliRunner().invoke(main, words[1:])

    def is_well(line: str) -> bool:
        return run(line).exit_code == 0

    before, switch, after, back = printed("Replace a name server")
    assert broker.broker_name in run(before[0]).stdout
    wait_until(lambda: is_well(before[1]), timeout_s=REGISTERED_S, what=before[1])

    settings, stop, start = switch
    assert f"listenPort={second.port}\n" in run(settings).stdout
    assert stop == "sh bin/mqshutdown namesrv"
    second.stop()
    ours = SkyrouteNameServer("ours", second.home, port=second.port)
    assert shlex.split(start)[:3] == ["skyroute", *ours.command()[3:5]]
    with ours:
        for line in after:
            wait_until(partial(is_well, line), timeout_s=REGISTERED_S, what=line)
        assert broker.broker_name in run(after[1]).stdout
        assert broker.broker_name in run(after[2]).stdout
        assert ours.stop() == 0

    start_apaches, compare = back
    assert start_apaches == "nohup sh bin/mqnamesrv -c conf/namesrv.properties &"
    second.start()
    wait_until(lambda: is_well(compare), timeout_s=REGISTERED_S, what=compare)


def test_a_broker_is_switched_and_back(cluster: tuple[ApacheNameServer, ApacheNameServer, ApacheBroker]) -> None:
    first, second, broker = cluster
    servers = [first.address, second.address]

    def invoke(line: str) -> Result:
        line = line.replace(f"{FIRST};{SECOND}", ";".join(servers)).replace("conf/broker.conf", str(broker.config_file))
        return CliRunner().invoke(main, shlex.split(line)[1:])

    def run(line: str) -> str:
        done = invoke(line)
        assert done.exit_code == 0, done.output
        return done.stdout

    def has(*bodies: str) -> bool:
        said = invoke(f"skyroute admin printMsg -n '{FIRST};{SECOND}' -t Orders").stdout
        return all(body in said for body in bodies)

    with Producer("shop", servers) as producer:
        producer.send(Message("Orders", b"one coffee"))
    [[close, progress, stop, settings, start, reopen]] = printed("Replace a broker")
    run(close)
    run(progress)
    assert stop == "sh bin/mqshutdown broker"
    broker.stop()
    assert f"listenPort={broker.port}\n" in run(settings)
    ours = SkyrouteBroker(broker.broker_name, broker.home, servers, port=broker.port)
    assert shlex.split(start)[:3] == ["skyroute", *ours.command()[3:5]]
    with ours:
        run(reopen)
        assert has("one coffee")
        with Producer("shop", servers) as producer:
            producer.send(Message("Orders", b"another"))
        assert ours.stop() == 0
    broker.start()
    wait_until(lambda: has("one coffee", "another"), timeout_s=REGISTERED_S, what="both messages")
