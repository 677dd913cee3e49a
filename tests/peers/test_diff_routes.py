"""`skyroute admin diffRoutes` with an Apache broker between one of Apache's name servers and one of ours."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from skyroute.cli.main import main
from tests.support.apache import ApacheBroker, NameServerProcess
from tests.support.codes import DELETE_TOPIC, GET_ROUTE, NOT_SUPPORTED, SUCCESS, WATCH_ROUTES
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until


def diff(*servers: NameServerProcess) -> tuple[int, dict[str, Any]]:
    where = ";".join(server.address for server in servers)
    result = CliRunner().invoke(main, ["admin", "diffRoutes", "--json", "-n", where])
    assert result.stderr == ""
    return result.exit_code, json.loads(result.stdout)


def test_diff_reports_a_topic_deleted_on_one_name_server(
    apache: NameServerProcess, ours: NameServerProcess, broker: ApacheBroker, *, ours_is_apache: bool
) -> None:
    topic = "SELF_TEST_TOPIC"
    with RawConnection(apache.address) as at_apache, RawConnection(ours.address) as at_ours:
        wait_until(lambda: diff(apache, ours)[0] == 0, what="no difference")
        assert (
            at_apache.call(GET_ROUTE, {"topic": topic}).code
            == at_ours.call(GET_ROUTE, {"topic": topic}).code
            == SUCCESS
        )
        assert at_apache.call(WATCH_ROUTES, {"anyTopic": "true"}).code == NOT_SUPPORTED
        # The broker registers every 30 s and may do so between the two: then the topic is deleted once more.
        reports: list[dict[str, Any]] = []

        def differs_after_deletion() -> bool:
            assert at_ours.call(DELETE_TOPIC, {"topic": topic}).code == SUCCESS
            code, report = diff(apache, ours)
            reports.append(report)
            return code == 1

        wait_until(differs_after_deletion, timeout_s=45.0, what="a difference")
        found = reports[-1]
        (difference,) = [each for each in found["differences"] if each["topic"] == topic]
        assert (difference["broker"], difference["what"]) == (broker.broker_name, "queues")
        assert difference["values"][ours.address] is None
        assert difference["behind"] == [ours.address], "the broker itself still has the topic"
        assert (difference["since_ms"] is None) == ours_is_apache
        # The broker repeats its word, and all is well again.
        wait_until(lambda: diff(apache, ours)[0] == 0, timeout_s=45.0, what="no difference again")
