"""Watchers that do not read, that flood, or that name too many topics."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from skyroute.wire.codes import RequestCode
from tests.adversity.conftest import Start
from tests.adversity.faults import broker, check_survives
from tests.support.codes import SUCCESS, SYSTEM_ERROR
from tests.support.process import ServerProcess
from tests.support.raw import Command, DataVersion, RawConnection, Request, Topic, encode
from tests.support.waiting import wait_until

WATCH, SYSTEM_BUSY = 21001, 2


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest, start: Start) -> ServerProcess:
    return start(loop=request.param)


def watch(heard: Command | None, *topics: str, timeout_ms: int = 60_000) -> Request:
    fields = {"timeoutMillis": str(timeout_ms)}
    if heard is not None:
        fields |= {"life": heard.fields["life"], "revision": heard.fields["revision"]}
    if not topics:
        return Request(WATCH, fields | {"anyTopic": "true"})
    return Request(WATCH, fields, json.dumps({"topics": topics}).encode())


def test_a_watcher_that_does_not_read_delays_no_other_client(server: ServerProcess) -> None:
    with (
        check_survives(server, lines_max=2_000),
        RawConnection(server.address) as mute,
        RawConnection(server.address) as line,
    ):
        names = [f"topic-of-many-{number:04}" for number in range(1_000)]
        heard = mute.call(watch(None))
        # Each of these is answered with many names as soon as something changes, and none is ever read.
        mute.write(b"".join(encode(watch(heard), number) for number in range(1, 5_000)))
        for edition in range(1, 30):
            topics = [Topic(name, read=edition) for name in names]
            assert line.call(broker(topics=topics, data_version=DataVersion(edition)).request).code == SUCCESS
            heard_by_other = line.call(watch(heard, names[0], timeout_ms=0))
            assert len(heard_by_other.value["changes"]) == edition
        assert server.rss_mb < 300


def test_a_flood_of_watches_is_answered_and_bounded(server: ServerProcess) -> None:
    with check_survives(server, lines_max=50), RawConnection(server.address) as line:
        heard = line.call(watch(None, "A"))
        before_mb = server.rss_mb
        for _ in range(20_000):
            line.send(watch(heard, "A", timeout_ms=60_000))
        ended = [line.receive() for _ in range(20_000 - 4)]
        assert {command.code for command in ended} == {SUCCESS}
        assert server.rss_mb - before_mb < 30
        assert line.call(broker(topics=[Topic("A"), Topic("B")]).request).code == SUCCESS
        woken = [*line.strays, *(line.receive() for _ in range(4 - len(line.strays)))]
        assert [change["topics"] for command in woken for change in command.value["changes"]] == [["A"]] * 4


def test_lists_of_topics_are_bounded(server: ServerProcess) -> None:
    with check_survives(server, lines_max=50), RawConnection(server.address) as line:
        heard = line.call(watch(None, "A"))
        for topics in (
            [f"t{number}" for number in range(1_025)],
            [f"t{number}" for number in range(500_000)],
            ["x" * 600],
            ["\x1b[2J"],
        ):
            answer = line.call(watch(heard, *topics))
            assert answer.code == SYSTEM_ERROR
            assert answer.remark is not None
            assert len(answer.remark) < 500
        deep = Request(WATCH, {}, b'{"topics":' + b"[" * 100_000)
        assert line.call(deep).code == SYSTEM_ERROR
        assert line.call(watch(heard, "A", timeout_ms=0)).code == SUCCESS


def test_names_of_all_watches_together_are_bounded(start: Start) -> None:
    server = start()
    with check_survives(server, lines_max=200), ExitStack() as stack:
        names = [f"t{number:04}" for number in range(1_024)]
        codes: list[int] = []
        heard: Command | None = None
        for _ in range(250):
            line = stack.enter_context(RawConnection(server.address))
            heard = heard or line.call(watch(None, "A"))
            # 4 watches a connection, 1,024 names each: the bound of a million is reached before the last of them.
            line.write(b"".join(encode(watch(heard, *names), number) for number in range(100, 104)))
            codes.append(line.call(RequestCode.GET_BROKER_CLUSTER_INFO).code)
            codes += [command.code for command in line.strays]
        assert set(codes) == {SUCCESS, SYSTEM_BUSY}
        assert server.rss_mb < 400
    with RawConnection(server.address) as line:
        wait_until(
            lambda: line.call(watch(heard, *names, timeout_ms=1)).code == SUCCESS,
            "closed connections free their watches",
        )
