"""A slave of either make acts for a dead master of the other: what is due is delivered once, by another broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from skyroute.message.reserved_topics import HALF_TOPIC
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import found_bodies, pull, send
from tests.support.apache import ApacheBroker, ApacheNameServer, NameServerProcess, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection, Request
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

TOPIC = "Due"
DELAY_S = 40
SETTINGS = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "totalReplicas": "2",  # else a starting Apache master takes over nothing
    "slaveReadEnable": "true",
    "messageDelayLevel": f"1s {DELAY_S}s",
    "mappedFileSizeCommitLog": str(1 << 20),
    "defaultTopicQueueNums": "1",
}
NAME_SERVER = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
START_S = 240.0
Kind = Callable[..., ApacheBroker]


def keyed(body: bytes, **properties: str) -> Request:
    properties = {"UNIQ_KEY": body.decode().upper() * 4, **properties}
    return send(TOPIC, body, properties=properties, g=int(time.time() * 1000))


def end_of(broker: ApacheBroker, topic: str) -> int:
    with RawConnection(broker.address) as line:
        answer = line.call(Request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}))
    return int(answer.fields.get("offset", 0))


def bodies(broker: ApacheBroker, topic: str) -> list[bytes]:
    with RawConnection(broker.address) as line:
        return sorted(found_bodies(line.call(pull(topic, 0, group="checker")))) if end_of(broker, topic) else []


def log_end(broker: ApacheBroker) -> int:
    with RawConnection(broker.address) as line:
        answer = line.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(answer.value["table"]["commitLogMaxOffset"]) if answer.code == ResponseCode.SUCCESS else -1


def create_topic(broker: ApacheBroker) -> None:
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    with RawConnection(broker.address) as line:
        assert line.call(Request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | more)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("servers", "masters", "slaves"),
    [
        pytest.param(ApacheNameServer, ApacheBroker, SkyrouteBroker, id="ours-for-apache"),
        pytest.param(SkyrouteNameServer, SkyrouteBroker, ApacheBroker, id="apache-for-ours"),
        pytest.param(ApacheNameServer, SkyrouteBroker, SkyrouteBroker, id="ours-for-ours"),
    ],
)
def test_due_messages_of_a_dead_master_are_delivered_once(
    lib: Path, tmp_path: Path, servers: Callable[..., NameServerProcess], masters: Kind, slaves: Kind
) -> None:
    with ExitStack() as stack:
        names = stack.enter_context(servers("names", tmp_path / "names", config=NAME_SERVER))
        master = masters("pair", tmp_path / "master", [names.address], config=SETTINGS)
        slave = slaves("pair", tmp_path / "slave", [names.address], broker_id=1, config=SETTINGS)
        other = masters("other", tmp_path / "other", [names.address], config=SETTINGS)
        for broker in (master, slave, other):
            broker._start_timeout_s = START_S
            stack.callback(broker.kill)
            broker.start()
        for broker in (master, other):
            create_topic(broker)
        with RawConnection(master.address) as line:
            assert line.call(keyed(b"early", DELAY="1")).code == ResponseCode.SUCCESS
            wait_until(lambda: end_of(master, TOPIC) == 1, "the master delivers", timeout_s=60)
            wait_until(lambda: end_of(slave, TOPIC) == 1, "the slave has the log", timeout_s=60)
            if slaves is ApacheBroker:
                time.sleep(62)  # an Apache slave asks for topics and progress once a minute
            deliver_ms = str(int(time.time() * 1000) + DELAY_S * 1000)
            assert line.call(keyed(b"late", DELAY="2")).code == ResponseCode.SUCCESS
            assert line.call(keyed(b"timed", TIMER_DELIVER_MS=deliver_ms)).code == ResponseCode.SUCCESS
            assert line.call(keyed(b"half", TRAN_MSG="true", PGROUP="p")).code == ResponseCode.SUCCESS
        end = log_end(master)
        wait_until(lambda: log_end(slave) >= end, "the slave has the log", timeout_s=60)
        master.kill()

        wait_until(lambda: bodies(other, TOPIC) == [b"late", b"timed"], "another broker has them", timeout_s=150)
        wait_until(lambda: end_of(other, HALF_TOPIC) >= 1, "and the open transaction", timeout_s=150)
        assert end_of(slave, TOPIC) == 1, "a slave writes nothing itself"
        wait_until(lambda: bodies(slave, TOPIC) == [b"early"], "the slave is read", timeout_s=30)

        time.sleep(12)  # both makes save their progress at an interval
        master.start()
        with RawConnection(master.address) as line:
            wait_until(lambda: line.call(keyed(b"next", DELAY="1")).code == ResponseCode.SUCCESS, timeout_s=60)
        wait_until(lambda: end_of(master, TOPIC) >= 2, "the master delivers again", timeout_s=60)
        time.sleep(5)  # long enough for what must not come
        assert bodies(master, TOPIC) == [b"early", b"next"]
        assert bodies(other, TOPIC) == [b"late", b"timed"]
        end = log_end(master)
        wait_until(lambda: log_end(slave) >= end, "the slave follows again", timeout_s=60)
