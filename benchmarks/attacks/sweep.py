"""Every question that a server answers, on its largest tables: how long is everyone else silent meanwhile?"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count as count_from
from typing import Final

from benchmarks.attacks.outcomes import SILENCE_MS_MAX, Outcome, attack
from benchmarks.attacks.servers import (
    BROKER,
    CLUSTER,
    PEER_TOPIC,
    Lab,
    Server,
    batch_body,
    fire,
    peer,
    pull_request,
    register,
    send_request,
    write_groups,
    write_offsets,
    write_topics,
)
from tests.support.raw import Request

QUESTIONS: Final = 100
PROBE_S: Final = 30.0
"""How long one probe may last; what costs more than a hundredth of it is asked less often."""
Question = Request | Callable[[int], Request]
"""A request, or what makes one of a number, so that no two are alike."""
WIDE: Final = "wide"
WIDE_QUEUES: Final = 65_536


def _watch(number: int) -> Request:
    topics = [f"topic-{number * 1_000 + each:06}" for each in range(1_000)]
    return Request(21001, {"timeoutMillis": "1"}, json.dumps({"topics": topics}).encode())


NAME_SERVER: Final[Mapping[str, Question]] = {
    "105 route": Request(105, {"topic": "topic-000001"}),
    "105 route of an unknown topic": Request(105, {"topic": "nowhere"}),
    "106 cluster": Request(106),
    "206 all topics": Request(206),
    "224 topics of a cluster": Request(224, {"cluster": CLUSTER}),
    "304 system topics": Request(304),
    "311 unit topics": Request(311),
    "312 unit subscriptions": Request(312),
    "313 unit subscriptions only": Request(313),
    "319 settings": Request(319),
    "219 list of a namespace of 14 MB": Request(219, {"namespace": "attacks"}),
    "322 data version": Request(
        322,
        {"brokerName": BROKER, "brokerAddr": "127.0.0.1:10911", "clusterName": CLUSTER, "brokerId": "0"},
        b'{"counter":1,"stateVersion":0,"timestamp":1}',
    ),
    "901 member group": Request(901, {"clusterName": CLUSTER, "brokerName": BROKER}),
    "904 heartbeat": Request(
        904, {"clusterName": CLUSTER, "brokerName": BROKER, "brokerAddr": "127.0.0.1:10911", "brokerId": "0"}
    ),
    "217 register a topic": Request(
        217,
        {"topic": "topic-000001"},
        json.dumps(
            [{"brokerName": BROKER, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}]
        ).encode(),
    ),
    "205 forbid writes": Request(205, {"brokerName": BROKER}),
    "327 allow writes": Request(327, {"brokerName": BROKER}),
    "216 delete an unknown topic": Request(216, {"topic": "nowhere"}),
    "318 a setting": Request(318, {}, b"enableTopicList=true"),
    "100 put, 14 MB kept": lambda number: Request(100, {"namespace": "attacks", "key": "k", "value": str(number)}),
    "216 delete another topic": lambda number: Request(216, {"topic": f"topic-{number:06}"}),
    "105 route of another topic": lambda number: Request(105, {"topic": f"topic-{number:06}"}),
    "21001 watch 1,000 topics": _watch,
    "104 unregister an unknown broker": Request(
        104, {"brokerName": "x", "brokerAddr": "127.0.0.1:1", "clusterName": CLUSTER, "brokerId": "0"}
    ),
}


def _heartbeat(group: str, topic: str) -> Request:
    subscription = {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1}
    consumer = {"groupName": group, "subscriptionDataSet": [subscription]}
    body = {"clientID": "attacker@1", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "producers"}]}
    return Request(34, {}, json.dumps(body).encode())


def _locks(code: int) -> Request:
    queues = [{"topic": WIDE, "brokerName": BROKER, "queueId": queue} for queue in range(10_000)]
    return Request(code, {}, json.dumps({"consumerGroup": "g-000", "clientId": "attacker@1", "mqSet": queues}).encode())


BROKER_REQUESTS: Final[Mapping[str, Question]] = {
    "21 all topics": Request(21),
    "26 settings": Request(26),
    "28 state": Request(28),
    "30 end of a queue": Request(30, {"topic": PEER_TOPIC, "queueId": "0"}),
    "29 offset by time": Request(29, {"topic": PEER_TOPIC, "queueId": "0", "timestamp": "1"}),
    "32 oldest message": Request(32, {"topic": PEER_TOPIC, "queueId": "0"}),
    "34 heartbeat": _heartbeat("g-000", "t-000"),
    "38 members": Request(38, {"consumerGroup": "g-000"}),
    "41 lock 10,000 queues": _locks(41),
    "42 unlock 10,000 queues": _locks(42),
    "43 all offsets": Request(43),
    "45 delay offsets": Request(45),
    "46 check a client": Request(
        46, {}, json.dumps({"clientId": "c", "group": "g-000", "subscriptionData": {"topic": "t-000"}}).encode()
    ),
    "11 pull": pull_request(PEER_TOPIC, 0, 0),
    "12 query by key": Request(
        12,
        {"topic": PEER_TOPIC, "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9000000000000"},
    ),
    "201 all groups": Request(201),
    "202 topic stats, 65,536 queues": Request(202, {"topic": WIDE}),
    "203 consumers": Request(203, {"consumerGroup": "g-000"}),
    "204 producers": Request(204, {"producerGroup": "producers"}),
    "208 progress of a group": Request(208, {"consumerGroup": "g-000"}),
    "208 progress, 65,536 queues": Request(208, {"consumerGroup": "g-wide", "topic": WIDE}),
    "222 reset, 65,536 queues": Request(
        222, {"topic": WIDE, "group": "g-000", "timestamp": "-1", "isForce": "true", "offset": "-1"}
    ),
    "300 readers of a topic": Request(300, {"topic": "t-000"}),
    "303 time span, 65,536 queues": Request(303, {"group": "g-000", "topic": WIDE}),
    "305 system topics": Request(305),
    "306 clean queues": Request(306),
    "308 corrections": Request(308, {"topic": "t-000", "compareGroup": "g-000"}),
    "308 corrections, 65,536 queues": Request(308, {"topic": WIDE, "compareGroup": "g-000"}),
    "314 clone offsets": Request(314, {"srcGroup": "g-000", "destGroup": "g-new", "topic": "t-000", "offline": "true"}),
    "315 counts": Request(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": PEER_TOPIC}),
    "316 clean topics": Request(316),
    "317 progress of all groups": Request(317, {"isOrder": "false"}),
    "321 units of a queue": Request(
        321, {"topic": PEER_TOPIC, "queueId": "0", "index": "0", "count": "100000", "consumerGroup": "g-000"}
    ),
    "328 all producers": Request(328),
    "329 delete expired": Request(329),
    "343 topics of a group": Request(343, {"group": "g-000"}),
    "345 subscription": Request(345, {"group": "g-000", "topic": "t-000"}),
    "351 topic": Request(351, {"topic": PEER_TOPIC}),
    "352 group": Request(352, {"group": "g-000"}),
    "353 forbid": Request(353, {"group": "g-000", "topic": "t-000", "readable": "false"}),
    "402 request modes": Request(402),
    "17 change a topic": Request(
        17,
        {
            **{"topic": "t-000", "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"},
            **{"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        },
    ),
    "200 change a group": Request(200, {}, b'{"groupName":"g-000","retryQueueNums":2}'),
    "207 delete an unknown group": Request(207, {"groupName": "nobody", "cleanOffset": "true"}),
    "215 delete an unknown topic": Request(215, {"topic": "nowhere"}),
    "25 a setting": Request(25, {}, b"brokerPermission=6"),
    "36 send back": Request(
        36, {"offset": "0", "group": "g-000", "delayLevel": "0", "originTopic": PEER_TOPIC, "originMsgId": "x"}
    ),
    "37 end a transaction": Request(
        37,
        {
            **{"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"},
            **{"fromTransactionCheck": "false", "msgId": "x"},
        },
    ),
    "35 leave": Request(35, {"clientID": "attacker@1", "consumerGroup": "g-000"}),
    "15 commit an offset": Request(
        15, {"consumerGroup": "g-000", "topic": "t-000", "queueId": "0", "commitOffset": "1"}
    ),
    "14 ask for an offset": Request(14, {"consumerGroup": "g-000", "topic": "t-000", "queueId": "0"}),
    "310 send": send_request(PEER_TOPIC, 0, b"x"),
    "320 send a batch of 1,000": send_request(PEER_TOPIC, 0, batch_body([b"x"] * 1000), batch=True),
}


LONG_CONDITION: Final = "a <> 'x' AND " * 2_000 + "a = 'y'"


def _check(number: int) -> Request:
    """Return a request that makes the broker compile a condition that it has not seen before."""
    condition = f"{LONG_CONDITION} OR b = '{number}'"
    subscription = {"topic": "t-000", "subString": condition, "expressionType": "SQL92"}
    body = {"clientId": "c", "group": "g-000", "subscriptionData": subscription}
    return Request(46, {}, json.dumps(body).encode())


def _new_groups(number: int) -> Request:
    groups = [{"groupName": f"n-{number}-{each}", "subscriptionDataSet": []} for each in range(1_000)]
    body = {"clientID": f"c@{number}", "consumerDataSet": groups, "producerDataSet": []}
    return Request(34, {}, json.dumps(body).encode())


def _new_topics(number: int) -> Request:
    queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topics = [{"topicName": f"n-{number}-{each}", **queues} for each in range(100)]
    return Request(18, {}, json.dumps({"topicConfigList": topics}).encode())


def _new_pulls(number: int) -> Request:
    pull = pull_request(PEER_TOPIC, 0, 0)
    condition = {"subscription": f"{LONG_CONDITION} OR b = '{number}'", "expressionType": "SQL92"}
    return Request(11, {**pull.fields, **condition})


BROKER_CHANGING: Final[Mapping[str, Question]] = {
    "46 check of a new condition of 26 KB": _check,
    "11 pull with a new condition of 26 KB": _new_pulls,
    "34 heartbeat with 1,000 new groups": _new_groups,
    "18 create 100 topics": _new_topics,
    "200 a new group": lambda number: Request(200, {}, json.dumps({"groupName": f"n-{number}"}).encode()),
    "215 delete another topic": lambda number: Request(215, {"topic": f"topic-{number:06}"}),
}


def probe(server: Server, name: str, request: Question) -> Iterator[Outcome]:
    """Ask once, then a hundred times at once on one connection, and on fifty."""
    numbers = count_from(0)

    def some(count: int) -> list[Request]:
        return [request(next(numbers)) if callable(request) else request for _ in range(count)]

    with peer(server) as well_behaved:
        began = time.monotonic()
        with server.line(timeout_s=PROBE_S) as line:
            try:
                answer = line.call(some(1)[0])
            except OSError as error:
                yield Outcome("sweep", server.role, f"{name}, once", type(error).__name__)
                return
        once_s = time.monotonic() - began
        yield Outcome(
            "sweep",
            server.role,
            f"{name}, once",
            once_s * 1000,
            "ms",
            note=f"code={answer.code} bytes={len(answer.body)}",
        )
        count = max(2, min(QUESTIONS, int(PROBE_S / 2 / max(once_s, 0.001))))
        for connections in (1, 50):
            each = max(1, count // connections)
            well_behaved.begin()
            time.sleep(0.1)
            fired = fire(server.address, some(each), connections=connections, limit_s=PROBE_S)
            heard = well_behaved.end()
            answered = f"{fired.answered} of {fired.wanted} answered in {fired.took_s:.1f} s"
            yield Outcome(
                *("sweep", server.role, f"{name}, {each * connections} on {connections} connections"),
                *(heard.longest_ms, "ms"),
                at_most=SILENCE_MS_MAX,
                computed_ms=heard.computed_ms,
                note=f"{answered}, {heard.failed} of the peer failed",
            )


@attack("sweep-nameserver")
def sweep_name_server(lab: Lab) -> Iterator[Outcome]:
    """Ask a name server with 100,000 topics everything that it answers."""
    for name, request in NAME_SERVER.items():
        with lab.name_server() as server, register(server, 100_000), server.line() as line:
            for number in range(14):  # of the 16 MB that it keeps at most
                line.call(100, {"namespace": "attacks", "key": f"k{number}", "value": "v" * 1_000_000})
            yield from probe(server, name, request)


@attack("sweep-broker")
def sweep_broker(lab: Lab) -> Iterator[Outcome]:
    """Ask a broker with 50,000 topics, 500 groups and 400,000 offsets everything that it answers."""
    made = lab.folder("sweep")
    topics, groups = [f"t-{number:03}" for number in range(100)], [f"g-{number:03}" for number in range(500)]
    many = {f"topic-{number:06}": 4 for number in range(50_000)}
    write_topics(made, many | dict.fromkeys(topics, 8) | {WIDE: WIDE_QUEUES})
    write_groups(made, [*groups, "g-wide", "readers"])
    write_offsets(made, groups, topics, 8)
    for name, request in {**BROKER_REQUESTS, **BROKER_CHANGING}.items():
        folder = lab.folder("broker")
        shutil.copytree(made, folder, dirs_exist_ok=True)  # a request may leave something behind
        with lab.broker(folder) as server, server.line() as line:
            line.call(_heartbeat("g-000", "t-000"))
            yield from probe(server, name, request)
        shutil.rmtree(folder)
