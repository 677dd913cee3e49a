"""Every call a name server answers, from peers of both generations and in both header forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.cluster import CLUSTER, MASTER, SLAVE, register
from tests.support.connections import connection_to
from tests.support.raw import VERSION_4, VERSION_5, Command, Form, Registration, Request, Topic, compact
from tests.support.servers import Running

ORDERED, UNIT, SUBSCRIBED, BOTH = (
    Topic("Ordered"),
    Topic("Unit", sys_flag=1),
    Topic("Subscribed", sys_flag=2),
    Topic("Both", sys_flag=3),
)
BROKER = MASTER.but(topics=(ORDERED, UNIT, SUBSCRIBED, BOTH))
KNOWN = {"brokerName": "broker-a", "clusterName": CLUSTER, "brokerAddr": "10.0.0.1:10911", "brokerId": "0"}
GROUP = '"brokerName":"broker-a","cluster":"DefaultCluster"'
DATA = f'{{"brokerAddrs":{{0:"10.0.0.1:10911"}},{GROUP},"enableActingMaster":false}}'
QUEUES = '{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}'
ROUTE = f'{{"brokerDatas":[{DATA}],"filterServerTable":{{}},"queueDatas":[{QUEUES}]}}'


@dataclass(frozen=True)
class Call:
    """What is asked of a server that knows `BROKER` and one key-value pair, and what must come back."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    told: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""


CALLS = [
    Call(100, {"namespace": "ns", "key": "other", "value": "1"}),
    Call(101, {"namespace": "ns", "key": "key"}, told={"value": "välue"}),
    Call(102, {"namespace": "ns", "key": "key"}),
    Call(104, KNOWN),
    Call(
        106, answer=f'{{"brokerAddrTable":{{"broker-a":{DATA}}},"clusterAddrTable":{{"DefaultCluster":["broker-a"]}}}}'
    ),
    Call(205, {"brokerName": "broker-a"}, told={"wipeTopicCount": "4"}),
    Call(206, answer='{"topicList":["Ordered","Unit","Subscribed","Both"]}'),
    Call(216, {"topic": "Unit", "clusterName": CLUSTER}),
    Call(217, {"topic": "New"}, f'{{"queueDatas":[{QUEUES}]}}'),
    Call(219, {"namespace": "ns"}, answer='{"table":{"key":"välue"}}'),
    Call(224, {"cluster": CLUSTER}, answer='{"topicList":["Ordered","Unit","Subscribed","Both"]}'),
    Call(304, answer='{"brokerAddr":"10.0.0.1:10911","topicList":["DefaultCluster","broker-a"]}'),
    Call(311, answer='{"topicList":["Unit","Both"]}'),
    Call(312, answer='{"topicList":["Subscribed","Both"]}'),
    Call(313, answer='{"topicList":["Subscribed"]}'),
    Call(318, body="orderMessageEnable=true\n"),
    Call(327, {"brokerName": "broker-a"}, told={"addTopicCount": "4"}),
    Call(
        901,
        {"clusterName": CLUSTER, "brokerName": "broker-a"},
        answer=f'{{"brokerMemberGroup":{{"brokerAddrs":{{0:"10.0.0.1:10911"}},{GROUP}}}}}',
    ),
    Call(904, KNOWN),
]
TOLD_BELOW = {103, 105, 319, 322, 21001, *range(3001, 3011)}
"""Answers that depend on who asks, are too long for a table, or come later (`test_watch.py`, `test_access.py`)."""

PEERS = [(4, "json"), (4, "binary"), (5, "json"), (5, "binary")]
peers = pytest.mark.parametrize(("generation", "form"), PEERS, ids=[f"{number}.x-{form}" for number, form in PEERS])
VERSIONS = {4: VERSION_4, 5: VERSION_5}


async def test_every_call_has_a_test(nameserver: Running) -> None:
    """Whatever code there is, either it is in the list above, or this server does not know it."""
    async with connection_to(nameserver.address) as line:
        unknown = {
            code for code in RequestCode if (await line.call(int(code))).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        }
    assert {call.code for call in CALLS} | TOLD_BELOW == set(RequestCode) - unknown


async def ask(nameserver: Running, generation: int, form: Form, request: Request) -> Command:
    """Prepare the server as a peer of this kind would, and ask."""
    async with connection_to(nameserver.address, form=form) as line:
        await register(line, BROKER.but(generation=generation))
        await line.call(100, {"namespace": "ns", "key": "key", "value": "välue"})
        answer = await line.call(request)
    assert answer.form == form
    assert (answer.flag, answer.language, answer.version) == (1, "JAVA", 479)
    return answer


@peers
@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call.code))
async def test_a_response_has_the_header_form_of_its_request(
    nameserver: Running, call: Call, generation: int, form: Form
) -> None:
    request = Request(call.code, call.fields, call.body.encode(), VERSIONS[generation])
    answer = await ask(nameserver, generation, form, request)
    assert (answer.code, answer.remark, answer.fields, answer.text) == (0, None, call.told, call.answer)


@peers
async def test_a_slave_that_registers_gets_the_address_of_its_master(
    nameserver: Running, generation: int, form: Form
) -> None:
    slave: Registration = SLAVE.but(topics=BROKER.topics, generation=generation)
    answer = await ask(nameserver, generation, form, slave.request)
    assert (answer.code, answer.remark, answer.text) == (0, None, "")
    assert answer.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


@peers
async def test_a_route_is_sent_in_the_dialect_of_the_client(nameserver: Running, generation: int, form: Form) -> None:
    request = Request(105, {"topic": "Ordered"}, version=399 if generation == 4 else VERSION_5)
    answer = await ask(nameserver, generation, form, request)
    expected = ROUTE if generation == 4 else ROUTE.replace('{0:"', '{"0":"')
    assert (answer.code, answer.remark, answer.fields, answer.text) == (0, None, {}, expected)


@peers
async def test_settings_are_sent_as_sorted_lines(nameserver: Running, generation: int, form: Form) -> None:
    answer = await ask(nameserver, generation, form, Request(319, version=VERSIONS[generation]))
    lines = answer.text.splitlines()
    assert (answer.code, answer.remark, answer.fields) == (0, None, {})
    assert [line.partition("=")[0] for line in lines] == sorted(line.partition("=")[0] for line in lines)
    assert {"bindAddress=127.0.0.1", "clusterTest=false", "orderMessageEnable=false"} <= set(lines)


@peers
async def test_a_version_is_compared_and_returned(nameserver: Running, generation: int, form: Form) -> None:
    version = BROKER.data_version.wire(generation)
    same = Request(322, KNOWN, compact(version).encode(), VERSIONS[generation])
    answer = await ask(nameserver, generation, form, same)
    assert (answer.code, answer.remark, answer.fields) == (0, None, {"changed": "false"})
    assert answer.text == '{"counter":1,"stateVersion":0,"timestamp":1758275140000}'
    newer = Request(322, KNOWN, compact({**version, "counter": 7}).encode(), VERSIONS[generation])
    answer = await ask(nameserver, generation, form, newer)
    assert (answer.code, answer.fields) == (0, {"changed": "true"})
    answer = await ask(nameserver, generation, form, Request(322, {**KNOWN, "brokerAddr": "10.9.9.9:1"}))
    assert (answer.code, answer.fields, answer.text) == (0, {"changed": "true"}, "")
