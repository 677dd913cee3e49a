"""Message queries, settings and runtime info of a running broker, through our admin client."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from skyroute.client.admin import Admin
from skyroute.client.admin.base import SomeFailedError
from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.pull_consumer import PullConsumer
from skyroute.client.errors import BrokerRefusedError, ClientError
from skyroute.client.producing.producer import Producer
from skyroute.client.results import SendResult
from skyroute.message.errors import RecordError
from skyroute.message.message import Message, StoredMessage
from skyroute.message.message_id import decode_offset_id
from skyroute.wire.calls.consumers import ConsumeResult
from skyroute.wire.calls.query import UnitsQuery, encode_units_query
from skyroute.wire.calls.settings import decode_broker_stats, encode_broker_stats_query
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request
from tests.network.broker.one_broker import OneBroker, one_broker
from tests.network.client.consumers import Inbox
from tests.network.cluster import register
from tests.support.connections import connection_to
from tests.support.raw import Registration, Topic


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[OneBroker]:
    async with one_broker(tmp_path) as place:
        yield place


@pytest.fixture
async def admin(place: OneBroker) -> AsyncIterator[Admin]:
    async with Admin(place.name_server.address) as admin:
        yield admin


async def send(place: OneBroker, *messages: Message) -> list[SendResult]:
    async with Producer("p", place.name_server.address) as producer:
        return [await producer.send(message) for message in messages]


async def consume(place: OneBroker, ends: AsyncExitStack, count: int) -> tuple[Consumer, Inbox]:
    inbox = Inbox()
    consumer = place.consumer()
    consumer.on("Orders")(inbox)
    await ends.enter_async_context(consumer)
    await inbox.until(count)
    return consumer, inbox


async def test_messages_are_found_by_key_id_and_offset(place: OneBroker, admin: Admin) -> None:
    first, second = await send(
        place, Message("Orders", b"one", keys=("red", "blue")), Message("Orders", b"two", keys="blue")
    )
    found = await admin.messages_by_key("Orders", "blue")
    assert sorted(message.body for message in found) == [b"one", b"two"]
    assert [message.body for message in await admin.messages_by_unique_id("Orders", second.message_id)] == [b"two"]
    assert (await admin.find_message("Orders", first.offset_id)).body == b"one"
    assert (await admin.message_at(first.queue, 1)).body == b"two"


async def test_a_query_returns_matches_of_other_brokers_when_one_does_not_respond(
    place: OneBroker, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    (sent,) = await send(place, Message("Orders", b"one", keys="red"))
    silent = Registration("DefaultCluster", "broker-b", "127.0.0.1:1", [Topic("Orders", 1, 1), Topic("broker-b")])
    async with connection_to(place.name_server.address) as line:
        await register(line, silent)
        for found in (
            await admin.messages_by_key("Orders", "red"),
            await admin.messages_by_unique_id("Orders", sent.message_id),
        ):
            assert [message.body for message in found] == [b"one"]
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len([line for line in said if "broker=127.0.0.1:1" in line]) == 2
        # The broker that failed may have matches.
        with pytest.raises(SomeFailedError, match="1 of 2 failed"):
            await admin.messages_by_key("Orders", "blue")


async def test_copying_offsets_of_an_unknown_group_is_refused(place: OneBroker, admin: Admin) -> None:
    await send(place, Message("Orders", b"one"))
    with pytest.raises(ClientError, match="the group misspelt has no offsets in Orders"):
        await admin.clone_offsets("misspelt", "g", "Orders")


async def test_readers_can_continue_after_a_damaged_record(place: OneBroker, admin: Admin) -> None:
    sent = await send(place, *(Message("Orders", b"%d" % number) for number in range(5)))
    at = decode_offset_id(sent[2].offset_id).log_position + 4
    with next((place.folder / "store" / "commitlog").iterdir()).open("r+b") as log:
        log.seek(at)
        log.write(bytes(4))
    rest = [b"0", b"1", b"3", b"4"]
    read = [message.body async for found in admin.read(sent[0].queue, 0, 5) for message in found]
    assert read == rest
    async with PullConsumer("puller", place.name_server.address) as reader:
        reader.assign([sent[0].queue])
        reader.seek(sent[0].queue, 0)
        assert [message.body for message in await reader.poll()] == rest[:2]
        with pytest.raises(RecordError, match="damaged record at offset 2 of Orders@broker-a:0"):
            await reader.poll()
        reader.seek(sent[0].queue, 3)
        assert [message.body for message in await reader.poll()] == rest[2:]


async def test_units_of_a_consume_queue_are_returned(place: OneBroker, admin: Admin) -> None:
    await send(place, Message("Orders", b"one", tag="a"), Message("Orders", b"two"))
    answer = await admin.session.ask(place.address, encode_units_query(UnitsQuery("Orders", 0, 0, 10)))
    assert answer.body.count(b'"physicOffset"') == 2


async def test_settings_are_read_and_changed(place: OneBroker, admin: Admin) -> None:
    told = await admin.broker_settings(broker=place.address)
    (settings,) = told.by_address.values()
    assert settings["brokerName"] == "broker-a"
    await admin.update_broker_settings({"transactionCheckMax": "4"}, broker=place.address)
    assert place.broker.config.transaction_checks_max == 4
    with pytest.raises(BrokerRefusedError):
        await admin.update_broker_settings({"configBlackList": "x"}, broker=place.address)


async def test_a_read_only_broker_has_no_writable_route(place: OneBroker, admin: Admin) -> None:
    await admin.update_broker_settings({"brokerPermission": "4"}, broker=place.address)
    assert place.name_server.server.table.queues_of("broker-a")["Orders"].permission == 4


async def test_runtime_info_and_statistics_count_messages(place: OneBroker, admin: Admin) -> None:
    await send(place, *(Message("Orders", b"x") for _ in range(5)))
    async with AsyncExitStack() as ends:
        await consume(place, ends, 5)
        state = await admin.broker_state(place.address)
        assert int(state["msgPutTotalTodayNow"]) >= 5
        assert int(state["msgGetTotalTodayNow"]) >= 5
        for name, key, count in (("TOPIC_PUT_NUMS", "Orders", 5), ("GROUP_GET_NUMS", "Orders@g", 5)):
            answer = await admin.session.ask(place.address, encode_broker_stats_query(name, key))
            assert decode_broker_stats(answer.body).day.sum == count


async def test_running_info_of_a_consumer_is_returned_through_the_broker(place: OneBroker, admin: Admin) -> None:
    await send(place, Message("Orders", b"x"))
    async with AsyncExitStack() as ends:
        consumer, _ = await consume(place, ends, 1)
        client_id = consumer.session.client_id
        running = await admin.running_consumer("g", client_id)
        assert [queue.topic for queue in running.queues if queue.topic == "Orders"] == ["Orders"]
        asked = Request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "Orders", "group": "g"})
        answer = await admin.session.ask(place.address, asked)
        assert f'"{client_id}"'.encode() in answer.body
    with pytest.raises(BrokerRefusedError, match="not online") as refused:
        await admin.session.ask(
            place.address,
            Request(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": client_id}),
        )
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


async def test_an_operator_makes_a_consumer_consume_one_message(place: OneBroker, admin: Admin) -> None:
    (sent,) = await send(place, Message("Orders", b"again"))
    async with AsyncExitStack() as ends:
        consumer, inbox = await consume(place, ends, 1)
        message: StoredMessage = await admin.find_message("Orders", sent.offset_id)
        outcome = await admin.consume_directly("g", consumer.session.client_id, message)
        assert outcome.result is ConsumeResult.SUCCESS
        assert await inbox.until(2) == [b"again", b"again"]
