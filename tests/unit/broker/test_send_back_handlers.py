import pytest

from skyroute.broker.appender import Appender
from skyroute.broker.delivery.flush_wait import Flushing
from skyroute.broker.delivery.long_polling import LongPolling
from skyroute.broker.handlers.recall import RecallHandlers
from skyroute.broker.handlers.send_back import SendBackHandlers, redirect_retry
from skyroute.broker.scheduling.delay_levels import DelayLevels
from skyroute.broker.scheduling.timer_check import TimerCheck
from skyroute.broker.scheduling.timers import Timers, recall_handle
from skyroute.broker.store.draft import Appended, Draft
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.message_id import encode_offset_id
from skyroute.message.properties import encode_properties, find_property
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.send_back import (
    RecallHandle,
    decode_recall_handle,
    encode_recall,
    encode_recall_handle,
    encode_send_back,
)
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import OUR_VERSION, ResponseCode
from skyroute.wire.command import Response
from skyroute.wire.errors import FieldError
from tests.unit.broker.state import BROKER, HOST, State

PRODUCER = encode_host("10.0.0.7", 40000)


class Room:
    """The handlers for messages sent back and for recalls, with a real store."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.store = state.store
        flushing = Flushing(self.store, interval_s=1, timeout_s=lambda: 1, on_flushed=lambda: None)
        self.appender = Appender(
            self.store,
            long_polling=LongPolling(state.clock.monotonic),
            flushing=flushing,
            stats=state.stats,
            now_ms=state.now_ms,
        )
        folder = state.folder / "config"
        self.delays = DelayLevels(self.store, self.appender, JsonFile(folder / "delayOffset.json"))
        self.timers = Timers(self.store, self.appender, TimerCheck(folder / "timercheck", 1_000))
        self.appender.use(self.delays, self.timers)
        handlers = SendBackHandlers(
            *(self.store, self.appender, state.topics, state.groups, state.stats),
            *(state.announce, state.config, state.identity),
        )
        recalls = RecallHandlers(self.appender, state.topics, state.config, state.identity)
        self.send_back_handler = handlers.send_back
        self.recall_handler = recalls.recall

    def store_message(self, properties: dict[str, str], topic: str = "Orders", reconsume_times: int = 0) -> Appended:
        raw = encode_properties({"UNIQ_KEY": "U1", **properties})
        draft = Draft(topic, 1, b"coffee", raw, 17, PRODUCER, HOST, flag=3, reconsume_times=reconsume_times)
        return self.appender.put(draft)

    async def send_back(
        self, position: int, *, level: int = 0, times_max: int = 16, version: int = OUR_VERSION
    ) -> Response:
        request = encode_send_back(
            "CG",
            log_position=position,
            delay_level=level,
            origin_message_id="",
            origin_topic="",
            max_reconsume_times=times_max,
            broker_name=BROKER,
        )
        request.version = version
        return await self.state.ask(self.send_back_handler, request)

    def only(self, topic: str, queue_id: int = 0) -> StoredMessage:
        assert self.store.max_offset(topic, queue_id) == 1
        unit = self.store.unit(topic, queue_id, 0)
        assert unit is not None
        record = self.store.record_at(unit[0])
        assert record is not None
        return decode_record(record)

    def pass_s(self, seconds: float) -> None:
        self.state.clock.advance(seconds)
        self.delays.deliver_due(self.state.now_ms())
        while (due_ms := self.timers.step(self.state.now_ms())) is not None and due_ms <= self.state.now_ms():
            pass


@pytest.fixture
def room(state: State) -> Room:
    return Room(state)


# Sending back


async def test_a_message_sent_back_is_stored_in_the_retry_topic(room: Room) -> None:
    stored = room.store_message({"TAGS": "paid"})
    assert (await room.send_back(stored.log_position)).code == ResponseCode.SUCCESS
    assert room.state.announced == [TopicConfig("%RETRY%CG", 1, 1)]
    scheduled = room.only(SCHEDULE_TOPIC, 2)
    assert scheduled.properties == {
        "UNIQ_KEY": "U1",
        "TAGS": "paid",
        "WAIT": "false",
        "RETRY_TOPIC": "Orders",
        "ORIGIN_MESSAGE_ID": encode_offset_id(HOST, stored.log_position),
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%CG",
        "REAL_QID": "0",
    }
    room.pass_s(10)
    message = room.only("%RETRY%CG")
    assert (message.body, message.reconsume_times, message.flag, message.born_at_ms) == (b"coffee", 1, 3, 17)
    assert (message.raw_born_host, message.raw_store_host) == (PRODUCER, HOST)


async def test_a_second_retry_waits_longer_and_keeps_the_original_topic_and_id(room: Room) -> None:
    stored = room.store_message({"RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "FIRST"}, "%RETRY%CG", 4)
    await room.send_back(stored.log_position)
    scheduled = room.only(SCHEDULE_TOPIC, 6)
    assert (scheduled.properties["RETRY_TOPIC"], scheduled.properties["ORIGIN_MESSAGE_ID"]) == ("Orders", "FIRST")
    assert scheduled.reconsume_times == 5


async def test_a_consumer_may_choose_the_delay_level(room: Room) -> None:
    stored = room.store_message({})
    await room.send_back(stored.log_position, level=1)
    assert room.store.max_offset(SCHEDULE_TOPIC, 0) == 1


@pytest.mark.parametrize(
    ("reconsume_times", "level", "times_max", "version", "is_dead"),
    [
        (15, 0, 16, OUR_VERSION, False),
        (16, 0, 16, OUR_VERSION, True),
        (0, -1, 16, OUR_VERSION, True),
        (3, 0, 2, OUR_VERSION, True),
        (3, 0, 2, 120, False),
        (20, 0, 25, OUR_VERSION, False),
    ],
)
async def test_a_message_with_exhausted_retries_becomes_a_dead_letter(
    room: Room, reconsume_times: int, level: int, times_max: int, version: int, is_dead: bool
) -> None:
    stored = room.store_message({}, reconsume_times=reconsume_times)
    await room.send_back(stored.log_position, level=level, times_max=times_max, version=version)
    assert (room.store.max_offset("%DLQ%CG", 0) == 1) == is_dead
    if is_dead:
        letter = room.only("%DLQ%CG")
        assert (letter.properties["DELAY"], letter.reconsume_times) == ("0", reconsume_times + 1)
        assert room.state.announced == [TopicConfig("%RETRY%CG", 1, 1), TopicConfig("%DLQ%CG", 1, 1)]


async def test_a_dead_letter_of_a_timer_message_is_stored_without_delay(room: Room) -> None:
    room.state.topics.create(TopicConfig("Orders", 2, 2))
    room.store_message({"TIMER_DELAY_SEC": "5"})
    room.pass_s(6)
    unit = room.store.unit("Orders", 1, 0)
    assert unit is not None
    await room.send_back(unit[0], level=-1)
    assert room.only("%DLQ%CG").body == b"coffee"


async def test_a_group_without_retry_queues_drops_messages_sent_back(room: Room) -> None:
    room.state.groups.put(GroupConfig("CG", retry_queues=0))
    stored = room.store_message({})
    assert (await room.send_back(stored.log_position)).code == ResponseCode.SUCCESS
    assert room.store.max_position == stored.log_end


async def test_invalid_send_backs_are_refused(state: State) -> None:
    room = Room(state)
    stored = room.store_message({})
    for position in (-1, stored.log_position + 1, 1 << 40):
        answer = await room.send_back(position)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {position}",
        )
    assert state.announced == [TopicConfig("%RETRY%CG", 1, 1)]  # created before the message is read
    state.topics.put(TopicConfig("%RETRY%CG", 1, 1, 4))
    assert (await room.send_back(stored.log_position)).code == ResponseCode.NO_PERMISSION
    state.config.broker_permission = 4
    assert (await room.send_back(stored.log_position)).code == ResponseCode.NO_PERMISSION
    state.config.auto_create_groups = False
    state.groups.delete("CG")
    assert (await room.send_back(stored.log_position)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# Sends to retry topics


@pytest.mark.parametrize(
    ("reconsume_times", "times_max", "version", "is_locked", "is_dead"),
    [
        (16, None, OUR_VERSION, False, False),
        (17, None, OUR_VERSION, False, True),
        (3, 2, OUR_VERSION, False, True),
        (3, 2, 120, False, False),
        (0, None, OUR_VERSION, True, True),
    ],
)
def test_a_send_to_a_retry_topic_may_become_a_dead_letter(
    state: State, reconsume_times: int, times_max: int | None, version: int, is_locked: bool, is_dead: bool
) -> None:
    raw = encode_properties({"DELAY": "5"})
    draft = Draft("%RETRY%CG", 0, b"x", raw, 0, PRODUCER, HOST, reconsume_times=reconsume_times)
    asked: list[str] = []

    def holds_any(group: str) -> bool:
        asked.append(group)
        return is_locked

    stored = redirect_retry(
        draft,
        groups=state.groups,
        topics=state.topics,
        max_reconsume_times=times_max,
        version=version,
        is_locked=holds_any,
    )
    assert set(asked) <= {"CG"}
    if not is_dead:
        assert stored is draft
        return
    assert (stored.topic, stored.queue_id) == ("%DLQ%CG", 0)
    assert find_property(stored.raw_properties, "DELAY") == "-1"
    assert state.topics.get("%DLQ%CG") == TopicConfig("%DLQ%CG", 1, 1)


def test_a_retry_topic_of_no_group_is_refused(state: State) -> None:
    state.config.auto_create_groups = False
    draft = Draft("%RETRY%CG", 0, b"x", b"", 0, PRODUCER, HOST)
    with pytest.raises(RefusedError) as refused:
        redirect_retry(
            draft,
            groups=state.groups,
            topics=state.topics,
            max_reconsume_times=None,
            version=0,
            is_locked=lambda _: False,
        )
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# Recalling


async def test_a_recalled_message_is_never_delivered(room: Room) -> None:
    state = room.state
    state.config.recall_enabled = True
    state.topics.create(TopicConfig("Orders", 2, 2))
    raw = encode_properties({"UNIQ_KEY": "U1", "TIMER_DELAY_SEC": "5"})
    scheduled = room.appender.schedule(Draft("Orders", 1, b"x", raw, 0, PRODUCER, HOST))
    handle = recall_handle(scheduled, BROKER)
    assert handle is not None
    room.appender.put_plain(scheduled)
    answer = await state.ask(room.recall_handler, encode_recall("PG", "Orders", handle))
    assert (answer.code, (answer.fields or {})["msgId"]) == (ResponseCode.SUCCESS, "U1")
    assert room.store.max_offset(TIMER_TOPIC, 0) == 2
    room.pass_s(10)
    assert room.store.max_offset("Orders", 1) == 0
    assert room.store.max_offset("Orders", 0) == 0


@pytest.mark.parametrize(
    ("topic", "handle", "code"),
    [
        ("Orders", "no handle", ResponseCode.ILLEGAL_OPERATION),
        ("Orders", RecallHandle("Invoices", BROKER, 5_000, "U1"), ResponseCode.ILLEGAL_OPERATION),
        ("Orders", RecallHandle("Orders", "broker-b", 5_000, "U1"), ResponseCode.ILLEGAL_OPERATION),
        ("Orders", RecallHandle("Orders", BROKER, 0, "U1"), ResponseCode.ILLEGAL_OPERATION),
        ("Orders", RecallHandle("Orders", BROKER, 259_200_000, "U1"), ResponseCode.ILLEGAL_OPERATION),
        ("Nobody", RecallHandle("Nobody", BROKER, 5_000, "U1"), ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_invalid_recalls_are_refused(room: Room, topic: str, handle: RecallHandle | str, code: int) -> None:
    state = room.state
    state.topics.create(TopicConfig("Orders", 2, 2))
    if isinstance(handle, RecallHandle):
        due_ms = state.now_ms() + handle.due_ms
        handle = encode_recall_handle(RecallHandle(handle.topic, handle.broker_name, due_ms, handle.unique_id))
    request = encode_recall("PG", topic, handle)
    assert (await state.ask(room.recall_handler, request)).code == ResponseCode.NO_PERMISSION
    state.config.recall_enabled = True
    assert (await state.ask(room.recall_handler, request)).code == code


def test_a_recall_handle_has_the_form_of_java() -> None:
    text = "djEgT3JkZXJzIGJyb2tlci1hIDE3NTgyNzUxNDQwMDEgVTE="
    handle = RecallHandle("Orders", "broker-a", 1_758_275_144_001, "U1")
    assert encode_recall_handle(handle) == text
    assert decode_recall_handle(text) == handle


@pytest.mark.parametrize("text", ["", "=", "djE=", "djIgYSBiIDEgYw==", "djEgYSBiIHggYw==", "\x00\xff"])
def test_invalid_recall_handles_are_refused(text: str) -> None:
    with pytest.raises(FieldError):
        decode_recall_handle(text)
