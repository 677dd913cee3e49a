"""A new topic drops no other route with `deleteTopicWithBrokerRegistration` and `enableSingleTopicRegister`."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.apache import ApacheBroker, ApacheNameServer, NameServerProcess, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection

NEW_TOPIC = {
    **{"topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "2", "perm": "6"},
    **{"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
}


@pytest.mark.parametrize(
    ("name_server", "broker"),
    [
        pytest.param(ApacheNameServer, SkyrouteBroker, id="our broker at Apache's name server"),
        pytest.param(SkyrouteNameServer, ApacheBroker, id="Apache's broker at our name server"),
    ],
)
def test_a_new_topic_keeps_the_routes_of_all_others(
    lib: Path, tmp_path: Path, name_server: type[NameServerProcess], broker: type[ApacheBroker]
) -> None:
    deletes = {"deleteTopicWithBrokerRegistration": "true"}
    single = {"enableSingleTopicRegister": "true", "registerNameServerPeriod": "60000"}
    with (
        name_server("name server", tmp_path / "ns", config=deletes) as server,
        broker("single", tmp_path / "broker", [server.address], config=single) as process,
        RawConnection(server.address) as at_server,
        RawConnection(process.address) as at_broker,
    ):
        before = at_server.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).value["topicList"]
        assert {"TBW102", "single"} <= set(before)
        assert at_broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, NEW_TOPIC).code == ResponseCode.SUCCESS
        after = at_server.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).value["topicList"]
        assert sorted(after) == sorted([*before, "Orders"])
        (queues,) = at_server.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"}).value["queueDatas"]
        assert queues == {
            "brokerName": "single",
            **{"perm": 6, "readQueueNums": 3, "writeQueueNums": 2, "topicSysFlag": 0},
        }
