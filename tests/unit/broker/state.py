"""A broker's tables, store and handlers over real files, with a manual clock."""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.long_polling import LongPolling
from skyroute.broker.handlers.consume_status import ConsumeStatusHandlers
from skyroute.broker.handlers.groups import GroupHandlers
from skyroute.broker.handlers.offsets import OffsetHandlers
from skyroute.broker.handlers.topics import TopicHandlers
from skyroute.broker.identity import Identity
from skyroute.broker.stats import Stats
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.broker.tables.request_modes import RequestModes
from skyroute.broker.tables.topics import Topics
from skyroute.message.host import encode_host
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Answer, Dispatcher, Handler, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.command import FORM_JSON, Request, Response
from skyroute.wire.fast_path import PreparedResponse, response_pieces
from tests.support.clock import ManualClock

BROKER = "broker-a"
HOST = encode_host("127.0.0.1", 10911)
SMALL = StoreSettings(log_segment_bytes=1 << 20, queue_segment_units=1000, index_enabled=False)


def settings(**changes: Any) -> BrokerConfig:
    return BrokerConfig(**{"cluster_name": "DefaultCluster", "broker_name": BROKER, **changes})


T = TypeVar("T")


class CountingStepRunner(StepRunner):
    """Counts the steps of long work, and calls `on_step` after each."""

    steps = 0

    def __init__(self, polling: BusyPolling, clock: ManualClock) -> None:
        super().__init__(polling, clock)
        self.on_step: Callable[[], None] = int  # type: ignore[assignment]  # does nothing

    async def run(self, steps: Generator[None, None, T]) -> T:
        return await super().run(self._counted(steps))

    def _counted(self, steps: Generator[None, None, T]) -> Generator[None, None, T]:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            self.steps += 1
            self.on_step()
            yield


def whole(response: Response) -> Response:
    """Return a response with its body in one piece."""
    if not isinstance(response, PreparedResponse):
        return response
    body = b"".join(response_pieces(response, 1, FORM_JSON)[1:])
    return Response(response.code, response.remark, response.fields, body)


@dataclass
class State:
    """The components that handlers need, as a broker creates them."""

    folder: Path
    config: BrokerConfig = field(default_factory=settings)
    clock: ManualClock = field(default_factory=ManualClock)
    announced: list[TopicConfig] = field(default_factory=list)
    peer: Peer = field(default_factory=lambda: Peer(1, "10.0.0.9:1234"))

    def __post_init__(self) -> None:
        folder = self.folder / "config"
        self.topics = Topics(JsonFile(folder / "topics.json"), self.config, self.now_ms)
        self.groups = Groups(JsonFile(folder / "subscriptionGroup.json"), self.config, self.now_ms)
        self.offsets = ConsumerOffsets(JsonFile(folder / "consumerOffset.json"), self.now_ms)
        self.modes = RequestModes(JsonFile(folder / "messageRequestMode.json"))
        self.mappings = QueueMappings(JsonFile(folder / "topicQueueMapping.json"), BROKER, self.now_ms)
        for table in (self.topics, self.groups, self.offsets, self.modes, self.mappings):
            table.load()
        self.store = MessageStore.open(self.folder, SMALL, now_ms=self.now_ms())
        self.clients = ConnectedClients()
        self.long_polling = LongPolling(self.clock.monotonic)
        self.stats = Stats(self.clock)
        self.step_runner = CountingStepRunner(BusyPolling(), self.clock)
        self.identity = Identity("DefaultCluster", BROKER, 0, "127.0.0.1:10911", HOST)

    def now_ms(self) -> int:
        return int(self.clock.wall() * 1000)

    def close(self) -> None:
        self.store.close()

    async def announce(self, configs: Collection[TopicConfig]) -> None:
        self.announced += configs

    def write(self, topic: str, queue_id: int = 0, count: int = 1) -> None:
        """Store messages, one a second."""
        for _ in range(count):
            self.store.append(Draft(topic, queue_id, b"body", b"", self.now_ms(), HOST, HOST), self.now_ms())
            self.clock.advance(1)

    @property
    def on_topics(self) -> TopicHandlers:
        return TopicHandlers(
            self.topics,
            self.offsets,
            self.clients,
            self.store,
            self.stats,
            self.config,
            self.announce,
            self.now_ms,
            self.step_runner,
            self.mappings,
            self.long_polling.complete_queue,
        )

    @property
    def on_groups(self) -> GroupHandlers:
        return GroupHandlers(
            self.groups, self.topics, self.offsets, self.modes, self.stats, self.identity, self.step_runner
        )

    @property
    def on_offsets(self) -> OffsetHandlers:
        return OffsetHandlers(
            self.offsets,
            self.topics,
            self.groups,
            self.clients,
            self.store,
            delay_offsets=lambda: {"offsetTable": {1: 5}},
            young_bytes=1 << 30,
            step_runner=self.step_runner,
        )

    @property
    def on_consume_status(self) -> ConsumeStatusHandlers:
        return ConsumeStatusHandlers(
            self.offsets,
            self.topics,
            self.groups,
            self.clients,
            self.store,
            self.stats,
            self.config,
            self.identity,
            self.now_ms,
            self.long_polling.wake_queue,
            self.step_runner,
            self.mappings,
            lambda _group, _topic: None,
        )

    async def ask(self, handler: Handler, request: Request) -> Response:
        """Handle a request as a connection would."""
        answer: Answer = Dispatcher({request.code: handler}).answer(request, self.peer)
        if isinstance(answer, Response):
            return whole(answer)
        if isinstance(answer, OrderedResponse):
            answer = answer.work
        assert isawaitable(answer)
        try:
            return whole(await answer)
        except RefusedError as error:
            return Response(error.code, str(error))
