"""Masters and slaves of both makes in one group: logs equal byte for byte, whoever leads, stops or is killed."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import pull, send
from tests.support.apache import APACHE_4, ApacheBroker, ApacheNameServer, NameServerProcess
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection, Request
from tests.support.waiting import wait_until

FILE_BYTES = 256 * 1024
BODY = b"0123456789abcdef" * 64
IN_A_FILE = FILE_BYTES // (len(BODY) + 200)
SETTINGS = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "slaveReadEnable": "true",
}
Apache4Broker = partial(ApacheBroker, version=APACHE_4)
PAIRS: dict[str, tuple[Callable[..., ApacheBroker], Callable[..., ApacheBroker]]] = {
    "apache-of-ours": (SkyrouteBroker, ApacheBroker),
    "ours-of-apache": (ApacheBroker, SkyrouteBroker),
    "ours-of-ours": (SkyrouteBroker, SkyrouteBroker),
    "apache4-of-ours": (SkyrouteBroker, Apache4Broker),
    "ours-of-apache4": (Apache4Broker, SkyrouteBroker),
}
NEWEST = ("apache-of-ours", "ours-of-apache", "ours-of-ours")
CAUGHT_UP_S = 60.0
"""Apache's slave reports first after five seconds, and waits five seconds before each new connection."""
START_S = 240.0
"""On a busy machine, Apache's broker takes minutes to start."""
KILLS = int(os.environ.get("SKYROUTE_KILLS", "3"))
"""Kills of a master under load; 20 on demand."""


@pytest.fixture(scope="module")
def names(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    with ApacheNameServer("name server", tmp_path_factory.mktemp("names")) as server:
        yield server


class Pair:
    """A master and a slave of a broker group of their own."""

    _numbers = itertools.count()

    def __init__(self, kinds: str, folder: Path, names: NameServerProcess, stack: ExitStack, **settings: str) -> None:
        self._stack = stack
        name = f"pair{next(self._numbers)}"
        of_master, of_slave = PAIRS[kinds]
        config = SETTINGS | settings
        self.master = of_master(name, folder / "master", [names.address], config=config)
        self.slave = of_slave(name, folder / "slave", [names.address], broker_id=1, config=config)
        for broker in (self.master, self.slave):
            broker._start_timeout_s = START_S
        stack.callback(self.master.kill)
        stack.callback(self.slave.kill)

    def end_of(self, broker: ApacheBroker) -> int:
        return self._span(broker)[1]

    def start_of(self, broker: ApacheBroker) -> int:
        return self._span(broker)[0]

    def _span(self, broker: ApacheBroker) -> tuple[int, int]:
        with RawConnection(broker.address) as line:
            answer = line.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code != ResponseCode.SUCCESS:  # Apache's broker answers so while it starts
            return -1, -1
        state = answer.value["table"]
        return max(int(state["commitLogMinOffset"]), 0), int(state["commitLogMaxOffset"])

    def fill(self, messages: int, topic: str = "Copied") -> None:
        with RawConnection(self.master.address) as line:
            for number in range(messages):
                answer = line.call(send(topic, BODY, queue_id=number % 4))
                assert answer.code == ResponseCode.SUCCESS, answer

    def check_equal(self) -> None:
        """Wait until the slave has all of the master's log, and compare the files."""
        end = self.end_of(self.master)
        wait_until(lambda: self.end_of(self.slave) == end, f"slave has {end}", timeout_s=CAUGHT_UP_S)
        start = max(self.start_of(self.slave), self.start_of(self.master))
        assert start < end or not end
        assert self._checksum(self.master, start, end) == self._checksum(self.slave, start, end)

    def check_messages(self, topic: str = "Copied") -> None:
        """Read all messages of a topic from both, and compare the records."""
        for queue_id in range(4):
            wait_until(partial(self._has_same_records, topic, queue_id), f"queue {queue_id}", timeout_s=90)

    def _has_same_records(self, topic: str, queue_id: int) -> bool:
        copied = self._records(self.slave, topic, queue_id)
        return bool(copied) and self._records(self.master, topic, queue_id).endswith(copied)

    def _records(self, broker: ApacheBroker, topic: str, queue_id: int) -> bytes:
        found = b""
        with RawConnection(broker.address) as line:
            fields = {"topic": topic, "queueId": str(queue_id)}
            offset = int(line.call(Request(RequestCode.GET_MIN_OFFSET, fields)).fields["offset"])
            end = int(line.call(Request(RequestCode.GET_MAX_OFFSET, fields)).fields["offset"])
            while offset < end:
                answer = line.call(pull(topic, offset, queue_id=queue_id, group="checker"))
                if answer.code != ResponseCode.SUCCESS:
                    return b""
                found += answer.body
                offset = int(answer.fields["nextBeginOffset"])
        return found

    def _checksum(self, broker: ApacheBroker, start: int, end: int) -> str:
        found = hashlib.sha256()
        folder = broker.home / "store" / "commitlog"
        for first in range(start - start % FILE_BYTES, end, FILE_BYTES):
            content = (folder / f"{first:020d}").read_bytes()
            found.update(content[max(start - first, 0) : min(end - first, FILE_BYTES)])
        return found.hexdigest()


# With Apache's brokers most tests take a minute or two each.
@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.long) if "apache" in each else each for each in NEWEST])
def kinds(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("kinds", "files"),
    [
        *itertools.product(NEWEST, (1,)),
        *(pytest.param(*each, marks=pytest.mark.long) for each in itertools.product(NEWEST, (0, 3))),
        *(pytest.param(each, 1, marks=pytest.mark.long) for each in ("apache4-of-ours", "ours-of-apache4")),
    ],
)
def test_an_empty_slave_copies_the_log_from_the_last_file_on(
    kinds: str, files: int, names: NameServerProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        pair = Pair(kinds, tmp_path, names, stack)
        pair.master.start()
        pair.fill(files * IN_A_FILE - IN_A_FILE // 2 if files else 0)
        pair.slave.start()
        pair.fill(IN_A_FILE * 2)  # new files while the slave follows
        pair.check_equal()
        pair.check_messages()


def test_a_slave_goes_on_after_kills_and_restarts(kinds: str, names: NameServerProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(kinds, tmp_path, names, stack)
        pair.master.start()
        pair.slave.start()
        pair.fill(10)
        pair.check_equal()
        load = threading.Thread(target=pair.fill, args=(3 * IN_A_FILE,))
        load.start()
        pair.slave.kill()  # amid transfers, which end anywhere in a record
        load.join()
        pair.slave.start()
        pair.check_equal()
        pair.slave.stop()
        pair.fill(IN_A_FILE)
        pair.slave.start()
        pair.check_equal()
        pair.master.restart()
        pair.fill(20)
        pair.check_equal()
        pair.check_messages()


@pytest.mark.parametrize(  # Apache's slave does not notice
    "kinds", [pytest.param("ours-of-apache", marks=pytest.mark.long), "ours-of-ours"]
)
def test_a_slave_ahead_of_its_master_changes_nothing(kinds: str, names: NameServerProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(kinds, tmp_path, names, stack)
        pair.master.start()
        pair.slave.start()
        pair.fill(50)
        pair.check_equal()
        pair.master.stop()
        (pair.master.home / "store").rename(pair.master.home / "old")
        before = {path.name: path.read_bytes() for path in (pair.slave.home / "store" / "commitlog").iterdir()}
        pair.master.start()
        pair.fill(10)
        wait_until(lambda: "behind the master's" in pair.slave.output(), timeout_s=60)
        pair.fill(60)
        wait_until(lambda: "has another history" in pair.slave.output(), timeout_s=60)
        after = {path.name: path.read_bytes() for path in (pair.slave.home / "store" / "commitlog").iterdir()}
        assert after == before


def test_topics_groups_and_offsets_reach_the_slave(kinds: str, names: NameServerProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(kinds, tmp_path, names, stack)
        pair.master.start()
        pair.slave.start()
        pair.fill(4)
        with RawConnection(pair.master.address) as line:
            line.call(Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"readers"}'))
            offset = {"consumerGroup": "readers", "topic": "Copied", "queueId": "1", "commitOffset": "1"}
            assert line.call(Request(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code == ResponseCode.SUCCESS
        with RawConnection(pair.slave.address) as line:
            query = Request(RequestCode.QUERY_CONSUMER_OFFSET, {k: v for k, v in offset.items() if k != "commitOffset"})
            timeout_s = 150.0 if isinstance(pair.slave, SkyrouteBroker) is False else 20.0
            wait_until(lambda: line.call(query).fields.get("offset") == "1", "offsets", timeout_s=timeout_s)
            topics = Request(RequestCode.GET_ALL_TOPIC_CONFIG, {})
            wait_until(lambda: '"Copied"' in line.call(topics).text, "topics", timeout_s=timeout_s)
            groups = Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
            wait_until(lambda: '"readers"' in line.call(groups).text, "groups", timeout_s=timeout_s)


def test_every_acknowledged_message_survives_the_master(kinds: str, names: NameServerProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(kinds, tmp_path, names, stack, brokerRole="SYNC_MASTER", inSyncReplicas="2")
        pair.slave.configure(brokerRole="SLAVE")
        pair.master.start()
        pair.slave.start()
        with RawConnection(pair.master.address) as line:
            wait_until(lambda: line.call(send("Copied", b"first")).code == ResponseCode.SUCCESS, timeout_s=60)
        for _ in range(KILLS):
            acknowledged = self_killed_load(pair)
            assert pair.end_of(pair.slave) > max(acknowledged)
            for position, body in acknowledged.items():
                file = pair.slave.home / "store" / "commitlog" / f"{position - position % FILE_BYTES:020d}"
                with file.open("rb") as stream:
                    stream.seek(position % FILE_BYTES)
                    assert body in stream.read(2000)
            pair.master.start()
            with RawConnection(pair.master.address) as line:
                wait_until(lambda: line.call(send("Copied", b"again")).code == ResponseCode.SUCCESS, timeout_s=60)
        pair.check_equal()


def self_killed_load(pair: Pair) -> dict[int, bytes]:
    """Send until the master is killed; return bodies by log position of the acknowledged messages."""
    acknowledged: dict[int, bytes] = {}
    timer = threading.Timer(1.0, pair.master.kill)
    timer.start()
    try:
        with RawConnection(pair.master.address) as line:
            for number in itertools.count():
                body = b"%08d " % number + BODY
                answer = line.call(send("Copied", body))
                if answer.code == ResponseCode.SUCCESS:
                    acknowledged[int(answer.fields["msgId"][16:], 16)] = body
    except (OSError, EOFError, ValueError):
        pass
    timer.join()
    return acknowledged
