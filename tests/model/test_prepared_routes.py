"""Whatever changes, a question for a route is answered by its bytes as it would be without anything kept.

The steps are those of the route table's own model test, and changes of order config and settings. After each, every
topic is asked for in every dialect and form, and each answer is compared with one that is encoded afresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from skyroute.nameserver import prepared_routes
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.handlers.routes import RouteHandlers
from skyroute.nameserver.invalidated_routes import invalidated_by
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.server_events import KvChanged
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Dispatcher, Handler, Peer
from skyroute.remoting.stepwise import StepRunner
from skyroute.routing import discovery
from skyroute.routing.events import BrokerConfirmed, RouteEvent
from skyroute.wire.calls.kv import ORDER_TOPICS
from skyroute.wire.calls.route import encode_route
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Response
from skyroute.wire.fast_path import PreparedResponse
from skyroute.wire.fastjson import Dialect
from skyroute.wire.header import decode_command, response_head
from tests.model.test_route_table import TOPICS, InStepsMachine, RouteTableMachine
from tests.support.clock import ManualClock
from tests.unit.wire.by_hand import BINARY, binary_header, frame, json_header

OLD, NEW = 317, 495
ZONE = {"__ZONE_MODE": "true", "__ZONE_NAME": "z1"}


def questions(number: int, topic: str, version: int, fields: dict[str, str]) -> list[bytes]:
    """One question as several clients write it."""
    fields = {"topic": topic} | fields
    first, last = {"code": 105, "extFields": fields, "flag": 0}, {"language": "JAVA", "version": version}
    return [
        frame(json_header(**first, opaque=number, **last)),
        frame(json_header(opaque=number, **first, **last)),
        frame(json_header(language="GO", **first, opaque=number, version=version)),
        frame(binary_header(105, version=version, request_id=number, fields=fields), form=BINARY),
    ]


class PreparedRoutesMachine(RouteTableMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.kv = KvConfig(Path(self.folder.name) / "kv.json")
        self.config = NameServerConfig()
        self.number = 0
        self.serve()

    def teardown(self) -> None:
        self.folder.cleanup()

    def serve(self) -> None:
        self.served = self.table
        clock = ManualClock()
        self.routes = RouteHandlers(
            self.table, self.kv, self.config, clock=clock, step_runner=StepRunner(BusyPolling(), clock)
        )
        self.routes.is_warm = self.table.unconfirmed_count > 0
        handlers: dict[int, Handler] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: self.routes.get_route}
        self.dispatcher = Dispatcher(handlers, self.routes.fast_path)

    def see(self, events: Iterable[RouteEvent], *args: Any, **kwargs: Any) -> None:
        events = tuple(events)
        super().see(events, *args, **kwargs)
        if self.served is not self.table:
            self.serve()
        self.routes.forget(*invalidated_by(events))
        for event in events:
            if isinstance(event, BrokerConfirmed):
                self.routes.forget((), (event.broker_name,))

    @rule(topic=st.sampled_from(TOPICS), value=st.sampled_from(("a:8", "b:4")))
    def put_order_config(self, topic: str, value: str) -> None:
        before = asyncio.run(self.kv.put(ORDER_TOPICS, topic, value))
        self.routes.forget(*invalidated_by([KvChanged(ORDER_TOPICS, topic, before, value, "10.0.0.9:1")]))

    @rule(acting_master=st.booleans(), order=st.booleans())
    def change_settings(self, *, acting_master: bool, order: bool) -> None:
        self.config.acting_master_enabled, self.config.ordered_topics_enabled = acting_master, order
        self.routes.forget_all()

    @invariant()
    def every_answer_is_what_it_would_be_afresh(self) -> None:
        for topic in (*TOPICS, "unknown"):
            for version, dialect in ((OLD, Dialect.LEGACY), (NEW, Dialect.STRICT)):
                for fields in ({}, {"a": "b"}, ZONE):
                    body = self.encode_afresh(topic, dialect, "z1" if fields is ZONE else None)
                    for form in range(4):
                        self.number += 1
                        self.ask(questions(self.number, topic, version, fields)[form], body)

    def ask(self, question: bytes, body: bytes | None) -> None:
        """Answer a frame as a connection does, and compare."""
        request = decode_command(question)
        known = self.dispatcher.fast_path.find(question)
        if known is not None:
            assert body is not None
            assert b"".join(known) == response_head(Response(body=body), self.number, request.form) + body
            return
        response = self.dispatcher.answer(request, Peer(1, "10.0.0.9:1"))
        assert isinstance(response, Response)
        assert (response.code, response.body) == ((17, b"") if body is None else (0, body))
        if isinstance(response, PreparedResponse) and response.is_cacheable:
            self.dispatcher.keep(question, request, response)

    def encode_afresh(self, topic: str, dialect: Dialect, zone: str | None) -> bytes | None:
        route = discovery.find_route(self.table, topic, acting_master=self.config.acting_master_enabled, zone=zone)
        if route is None:
            return None
        if self.config.ordered_topics_enabled:
            route = replace(route, order_config=self.kv.get(ORDER_TOPICS, topic))
        return encode_route(route, dialect)


TestPreparedRoutes = PreparedRoutesMachine.TestCase
TestPreparedRoutes.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


class SmallRoomMachine(PreparedRoutesMachine):
    """The same with room for a few routes only: they are dropped all the time."""

    def __init__(self) -> None:
        self.bound = prepared_routes.PREPARED_BYTES_MAX
        prepared_routes.PREPARED_BYTES_MAX = 7_000  # type: ignore[misc]  # a bound that only this test lowers
        super().__init__()

    def teardown(self) -> None:
        prepared_routes.PREPARED_BYTES_MAX = self.bound  # type: ignore[misc]  # a bound that only this test lowers
        super().teardown()


TestPreparedRoutesInASmallRoom = SmallRoomMachine.TestCase
TestPreparedRoutesInASmallRoom.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


class InStepsRoutesMachine(InStepsMachine, PreparedRoutesMachine):
    """The same while long registrations are prepared, and the index of topics is swept."""


TestPreparedRoutesInSteps = InStepsRoutesMachine.TestCase
TestPreparedRoutesInSteps.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
