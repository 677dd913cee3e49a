from collections.abc import Awaitable
from dataclasses import dataclass

import pytest

from skyroute.broker.handlers.replies import PUSH_TIMEOUT_S, ReplyHandlers
from skyroute.message.properties import join_properties, split_properties
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import SCHEDULE_TOPIC
from skyroute.remoting.dispatch import Answer, DeferredResponse, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.send import decode_pushed_reply, decode_send_receipt, encode_send
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from tests.unit.broker.clients import a_beat, a_peer
from tests.unit.broker.state import State

TOPIC = "DefaultCluster_REPLY_TOPIC"
STORED = Response(
    fields={"msgId": "AB", "queueId": "0", "queueOffset": "7", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
)


async def later(response: Response) -> Response:
    return response


def given_later(response: Response) -> DeferredResponse:
    answer = DeferredResponse()
    answer.give(response)
    return answer


@dataclass
class Room:
    state: State

    def __post_init__(self) -> None:
        self.asker, self.line = a_peer(1)
        self.line.answer = Response()
        self.replier, _ = a_peer(2)
        self.stored: list[Request] = []
        self.store_answer: Answer = STORED
        self.state.clients.beat(self.asker, a_beat("asker", producers=["p"]), "JAVA", 479, 0.0)
        self._on = ReplyHandlers(
            self.state.clients,
            self.state.topics,
            self._store,
            self.state.identity,
            self.state.config,
            self.state.clock,
        )

    def _store(self, request: Request, _peer: Peer) -> Answer:
        self.stored.append(request)
        return self.store_answer

    async def reply(self, topic: str = TOPIC, *, queue_id: int = 0, **properties: str) -> Response:
        text = join_properties({"CORRELATION_ID": "id", **properties})
        queue = QueueRef(topic, "broker-a", queue_id)
        request = encode_send("repliers", queue, b"answer", properties=text, born_at_ms=5, flag=3, reply=True)
        return await self._on.reply(request, self.replier)


@pytest.fixture
def room(state: State) -> Room:
    return Room(state)


async def test_a_reply_message_is_forwarded_to_the_requesting_client(room: Room) -> None:
    response = await room.reply(REPLY_TO_CLIENT="asker")
    assert response.code == ResponseCode.SUCCESS
    ((pushed, timeout_s),) = room.line.calls
    assert (pushed.code, timeout_s) == (326, PUSH_TIMEOUT_S)
    reply = decode_pushed_reply(pushed)
    assert (reply.topic, reply.body, reply.flag, reply.queue_id) == (TOPIC, b"answer", 3, 0)
    assert (reply.born_at_ms, reply.stored_at_ms) == (5, room.state.now_ms())
    assert (reply.born_host, reply.store_host) == (room.replier.address, "127.0.0.1:10911")
    assert split_properties(reply.properties) == {
        "CORRELATION_ID": "id",
        "REPLY_TO_CLIENT": "asker",
        "PUSH_REPLY_TIME": str(room.state.now_ms()),
    }
    assert pushed.fields.keys() >= {"producerGroup", "defaultTopic", "defaultTopicQueueNums", "unitMode"}


@pytest.mark.parametrize(
    "how", [lambda answer: answer, later, given_later, lambda answer: OrderedResponse(later(answer))]
)
async def test_a_reply_message_is_stored_and_the_response_has_its_offset(room: Room, how: object) -> None:
    assert callable(how)
    room.store_answer = how(STORED)
    receipt = decode_send_receipt(await room.reply(REPLY_TO_CLIENT="asker"))
    assert (receipt.offset_id, receipt.queue_offset) == ("AB", 7)
    assert [request.code for request in room.stored] == [325]


async def test_storing_reply_messages_can_be_disabled(room: Room) -> None:
    room.state.config.store_replies = False
    receipt = decode_send_receipt(await room.reply(REPLY_TO_CLIENT="asker"))
    assert (receipt.offset_id, receipt.queue_id, receipt.queue_offset) == ("0", 0, 0)
    assert room.stored == []


async def test_a_full_disk_does_not_stop_reply_messages(room: Room) -> None:
    async def refuse() -> Response:
        raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "full")

    for answer in (Response.error("full", ResponseCode.SERVICE_NOT_AVAILABLE), refuse()):
        assert isinstance(answer, Response | Awaitable)
        room.store_answer = answer
        receipt = decode_send_receipt(await room.reply(REPLY_TO_CLIENT="asker"))
        assert receipt.offset_id == "0"


async def test_a_reply_message_without_a_connected_client_is_refused(room: Room) -> None:
    response = await room.reply()
    assert (response.code, response.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "reply message properties[REPLY_TO_CLIENT] is null",
    )
    response = await room.reply(REPLY_TO_CLIENT="stranger")
    assert (response.code, response.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "push reply message fail, channel of <stranger> not found.",
    )


@pytest.mark.parametrize("answer", [None, Response.error("no request has this id")])
async def test_a_reply_message_that_is_not_delivered_is_refused(room: Room, answer: Response | None) -> None:
    room.line.answer = answer
    response = await room.reply(REPLY_TO_CLIENT="asker")
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark is not None
    assert response.remark.startswith("push reply message to asker fail.")


@pytest.mark.parametrize(
    ("topic", "queue_id", "code"),
    [
        ("Other_REPLY_TOPIC", 0, ResponseCode.TOPIC_NOT_EXIST),
        ("", 0, ResponseCode.INVALID_PARAMETER),
        ("a b", 0, ResponseCode.INVALID_PARAMETER),
        (TOPIC, 1, ResponseCode.INVALID_PARAMETER),
        (SCHEDULE_TOPIC, 0, ResponseCode.NO_PERMISSION),
        ("Ordered", 0, ResponseCode.NO_PERMISSION),
    ],
)
async def test_a_reply_message_that_a_send_would_refuse_is_not_forwarded(
    room: Room, topic: str, queue_id: int, code: ResponseCode
) -> None:
    room.state.topics.put(TopicConfig("Ordered", ordered=True))
    room.state.config.broker_permission = 4
    with pytest.raises(RefusedError) as refused:
        await room.reply(topic, queue_id=queue_id, REPLY_TO_CLIENT="asker")
    assert refused.value.code == code
    assert (room.line.calls, room.stored) == ([], [])


async def test_the_broker_chooses_a_queue_for_a_reply_message_without_one(room: Room) -> None:
    assert (await room.reply(queue_id=-1, REPLY_TO_CLIENT="asker")).code == ResponseCode.SUCCESS
