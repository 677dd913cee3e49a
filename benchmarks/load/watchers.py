"""A crowd that watches routes of one name server, and says when each of them heard of a change.

`python -m benchmarks.load.watchers HOST:PORT COUNT sessions|lines TOPICS`. It writes `ready` when all wait; then a line
with a number on its standard input makes it wait until all have heard of so many queues, and write the times, as JSON.

Sessions are our client, whole. Lines do the same on the wire with as little as it takes, so that a large crowd measures
the server and not itself: they watch, ask for the route when they are told, note the time, and watch again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from functools import partial
from typing import cast

from skyroute.client.session.session import Session
from skyroute.remoting.loops import loop_factory
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.clients import ConsumerData
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.calls.watch import Bookmark, WatchQuery, decode_watch_answer, encode_watch
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import as_response, decode_command, encode_request

CONNECTING_AT_ONCE = 50


class Heard:
    """When who heard of which number of queues."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._times: dict[int, list[float]] = {}
        self._news = asyncio.Event()

    def note(self, queues: int) -> None:
        self._times.setdefault(queues, []).append(time.monotonic())
        self._news.set()

    async def of(self, queues: int) -> list[float]:
        while len(self._times.get(queues, ())) < self._count:
            self._news.clear()
            await self._news.wait()
        return self._times.pop(queues)


class LineWatcher(asyncio.Protocol):
    """One connection that waits for one topic."""

    def __init__(self, topic: str, heard: Heard) -> None:
        self._topic = topic
        self._heard = heard
        self._decoder = FrameDecoder()
        self._transport = cast("asyncio.Transport", None)
        self._bookmark: Bookmark | None = None
        self._queues = 0
        self._asks_for_route = False
        self.waits = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            response = as_response(decode_command(frame))
            if not self._asks_for_route:
                self._bookmark = decode_watch_answer(response).now
                self._asks_for_route = True
                self._send(encode_route_query(self._topic))
                continue
            self._asks_for_route = False
            queues = decode_route(response.body).queues[0].settings.read_queues
            if queues != self._queues:
                self._queues = queues
                self._heard.note(queues)
            self._watch()

    def _watch(self) -> None:
        self._send(encode_watch(WatchQuery((self._topic,), self._bookmark, 60_000)))
        if self._bookmark is not None and not self.waits.done():
            self.waits.set_result(None)

    def _send(self, request: Request) -> None:
        self._transport.write(encode_request(request, 1 if request.code == RequestCode.WATCH_ROUTES else 2))


class User:
    """A member of a session that uses one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def producer_groups(self) -> Iterable[str]:
        return ()

    def consumer_data(self) -> Iterable[ConsumerData]:
        return ()

    def topics(self) -> Iterable[str]:
        return (self._topic,)


async def _start_session(address: str, topic: str, heard: Heard) -> Session:
    session = Session(address, request_timeout_s=60.0, connect_timeout_s=60.0)
    session.routes.listeners.add(partial(_note, heard))
    await session.start()
    session.heartbeats.add(User(topic))
    await session.routes.find(topic)
    while session.watch is None or not session.watch.is_active:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.01)
    return session


def _note(heard: Heard, _topic: str, _before: TopicRoute | None, route: TopicRoute) -> None:
    heard.note(route.queues[0].settings.read_queues)


async def _watch(address: str, count: int, kind: str, topics: list[str]) -> None:
    loop, turns, heard = asyncio.get_running_loop(), asyncio.Semaphore(CONNECTING_AT_ONCE), Heard(count)
    host, _, port = address.rpartition(":")

    async def start(number: int) -> object:
        topic = topics[number % len(topics)]
        async with turns:
            if kind == "sessions":
                return await _start_session(address, topic, heard)
            transport, watcher = await loop.create_connection(lambda: LineWatcher(topic, heard), host, int(port))
            await watcher.waits
            return transport

    crowd = await asyncio.gather(*map(start, range(count)))
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await heard.of(int(line))), flush=True)
    for each in crowd:
        if isinstance(each, Session):
            await each.stop()


def main() -> None:
    address, count, kind, topics = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_watch(address, int(count), kind, topics.split(",")))


if __name__ == "__main__":
    main()
