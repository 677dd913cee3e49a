"""The request of a consumer for its queues of a topic, which a broker assigns."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire import fastjson
from skyroute.wire.calls.clients import MessageModel
from skyroute.wire.calls.topics import read_body, read_request
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import is_name
from skyroute.wire.queue_maps import QueueBody

_PIECE_QUEUES: Final = 512


class AssignmentQuestion(msgspec.Struct, frozen=True, gc=False):
    """A request of a consumer for its queues of a topic, which the broker assigns."""

    group: str
    topic: str
    client_id: str
    strategy: str = "AVG"
    """AVG or AVG_BY_CIRCLE."""
    model: MessageModel = MessageModel.CLUSTERING


class _AssignmentQuestionBody(msgspec.Struct, rename="camel"):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str | None = None


def encode_assignment_query(question: AssignmentQuestion) -> Request:
    """Encode a request for queues."""
    body = _AssignmentQuestionBody(
        question.topic, question.group, question.client_id, question.strategy, question.model.value
    )
    return Request(RequestCode.QUERY_ASSIGNMENT, body=msgspec.json.encode(body))


def decode_assignment_query(request: Request) -> AssignmentQuestion:
    """Decode a request for queues.

    Raises:
        BodyError: the body is malformed.
    """
    body = read_request(request.body, _AssignmentQuestionBody, "a request for queues")
    for name in (body.topic, body.consumer_group, body.client_id):
        if not is_name(name):
            raise BodyError(f"not a request for queues: invalid name {name[:80]!r}")
    if body.message_model is not None and body.message_model not in set(MessageModel):
        raise BodyError(f"not a request for queues: unknown messageModel {body.message_model[:80]!r}")
    model = MessageModel(body.message_model or MessageModel.CLUSTERING)
    return AssignmentQuestion(body.consumer_group, body.topic, body.client_id, body.strategy_name or "", model)


POP_MODE: Final = "POP"
"""Mode of an assigned queue whose messages are popped; otherwise they are pulled."""


class QueueAssignment(msgspec.Struct, frozen=True, gc=False):
    """An assigned queue; with POP and queue id -1, all queues of the topic on that broker."""

    queue: QueueRef
    mode: str = "PULL"


def encode_assignments(assignments: Iterable[QueueAssignment] | None) -> Response:
    """Encode assigned queues; None if the broker cannot assign any now: the consumer keeps its queues."""
    if assignments is None:
        return Response(body=b"{}")
    return Response(body=b"".join(assignment_pieces(assignments)))


def assignment_pieces(assignments: Iterable[QueueAssignment]) -> Iterator[bytes]:
    """Return the body of a response with assigned queues, in pieces: a consumer may get 65,536."""
    left = iter(assignments)
    heads: dict[tuple[str, str, str], tuple[str, str]] = {}
    separator = '{"messageQueueAssignments":['
    while some := list(islice(left, _PIECE_QUEUES)):
        texts = []
        for one in some:
            queue = one.queue
            key = (queue.topic, queue.broker_name, one.mode)
            if key not in heads:
                topic, broker_name, mode = (fastjson.dumps(name, fastjson.Dialect.LEGACY).decode() for name in key)
                heads[key] = (
                    f'{{"messageQueue":{{"brokerName":{broker_name},"queueId":',
                    f',"topic":{topic}}},"mode":{mode}}}',
                )
            head, tail = heads[key]
            texts.append(f"{head}{queue.queue_id}{tail}")
        yield (separator + ",".join(texts)).encode()
        separator = ","
    yield b"]}" if separator == "," else f"{separator}]}}".encode()


class _AssignmentBody(msgspec.Struct, rename="camel"):
    message_queue: QueueBody
    mode: str | None = None
    attachments: Any = None


class _AssignmentsBody(msgspec.Struct, rename="camel"):
    message_queue_assignments: list[_AssignmentBody] | None = None


def decode_assignments(response: Response) -> list[QueueAssignment] | None:
    """Decode assigned queues; None if the consumer shall keep its queues.

    Raises:
        BodyError: the body is malformed.
    """
    body = read_body(response.body, _AssignmentsBody, "assigned queues")
    if body.message_queue_assignments is None:
        return None
    return [
        QueueAssignment(entry.message_queue.value(), entry.mode or "PULL") for entry in body.message_queue_assignments
    ]
