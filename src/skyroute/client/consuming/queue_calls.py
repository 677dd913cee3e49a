"""Requests about one queue: pull messages, query its first and last offset, and query or commit a group's offset.

Topics and groups include the namespace.
"""

import random
from typing import Final

import msgspec

from skyroute.client.consuming.subscription import StartPosition
from skyroute.client.errors import BrokerRefusedError, NoBrokerError, NotFoundError, refusal
from skyroute.client.session.session import Session
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.remoting.errors import RemotingError
from skyroute.routing.topology import MASTER_ID
from skyroute.wire.calls.clients import StartFrom, decode_members, encode_member_query
from skyroute.wire.calls.offsets import (
    decode_offset,
    decode_timestamp,
    encode_earliest_time_query,
    encode_max_offset_query,
    encode_min_offset_query,
    encode_offset_query,
    encode_offset_update,
    encode_time_search,
)
from skyroute.wire.calls.pull import PULL_CODES, PullAnswer, PullQuestion, decode_pull_answer, encode_pull
from skyroute.wire.command import Request, Response

OFFSET_TIMEOUT_S: Final = 5.0
"""Timeout of offset queries and commits."""

PULL_TIMEOUT_S: Final = 30.0
"""Timeout of a pull, with the long poll: brokers may hold it 5 s longer than requested."""


async def pull(
    session: Session, question: PullQuestion, *, broker_id: int = MASTER_ID, timeout_s: float = PULL_TIMEOUT_S
) -> PullAnswer:
    """Pull messages from one queue.

    `broker_id` is the one that the last response suggested; without such a broker, another of the name is used.

    Raises:
        BrokerRefusedError: the broker refused the pull.
        NoBrokerError: no route contains the broker.
        RemotingError: the connection failed, or no response arrived in time.
    """
    queue = QueueRef(question.topic, question.broker_name or "", question.queue_id)
    address = await _find_address(session, queue, broker_id, master_only=False)
    if question.commit_offset is not None and address != session.routes.address(session.routes.broker_of(queue)):
        # Only masters store offsets.
        question = msgspec.structs.replace(question, commit_offset=None)
    response = await session.call(address, encode_pull(question), timeout_s)
    if response.code not in PULL_CODES:
        raise refusal(response, address)
    return decode_pull_answer(response)


async def max_offset(session: Session, queue: QueueRef) -> int:
    """Return the offset of the next new message of a queue.

    Raises:
        ClientError, RemotingError: the broker refuses, or does not respond.
    """
    return decode_offset(await _ask_master(session, queue, encode_max_offset_query(queue)))


async def min_offset(session: Session, queue: QueueRef) -> int:
    """Return the offset of the oldest message of a queue; 0 if the queue never had one.

    Raises:
        ClientError, RemotingError: the broker refuses, or does not respond.
    """
    return max(0, decode_offset(await _ask_master(session, queue, encode_min_offset_query(queue))))


async def offset_at(session: Session, queue: QueueRef, when_ms: int, *, upper: bool = False) -> int:
    """Return the first offset stored at a time or later; with `upper`, the last offset stored at exactly that time.

    Raises:
        ClientError, RemotingError: the broker refuses, or does not respond.
    """
    return decode_offset(await _ask_master(session, queue, encode_time_search(queue, when_ms, upper=upper)))


async def earliest_time_ms(session: Session, queue: QueueRef) -> int:
    """Return the store time of the oldest message of a queue; -1 if the queue is empty.

    Raises:
        ClientError, RemotingError: the broker refuses, or does not respond.
    """
    return decode_timestamp(await _ask_master(session, queue, encode_earliest_time_query(queue)))


async def committed_offset(
    session: Session, group: str, queue: QueueRef, *, zero_if_not_found: bool | None = None
) -> int | None:
    """Return the committed offset of a group, or None if there is none.

    Without `zero_if_not_found`, the broker may return 0 for a new group and a queue whose first message is in memory.

    Raises:
        ClientError, RemotingError: the broker refuses, or does not respond.
    """
    address = await _find_address(session, queue, master_only=False)
    try:
        request = encode_offset_query(group, queue, zero_if_not_found=zero_if_not_found)
        response = await session.ask(address, request, OFFSET_TIMEOUT_S)
    except NotFoundError:
        return None
    offset = decode_offset(response)
    return offset if offset >= 0 else None


async def commit_offset(session: Session, group: str, queue: QueueRef, offset: int, *, wait: bool = False) -> None:
    """Commit the offset of a group; without `wait`, as a one-way request.

    Raises:
        ClientError, RemotingError: the broker is not reached, or with `wait`, refuses.
    """
    address = await _find_address(session, queue, master_only=False)
    request = encode_offset_update(group, queue, offset)
    if wait:
        await session.ask(address, request, OFFSET_TIMEOUT_S)
    else:
        await session.tell(address, request)


async def start_offset(session: Session, queue: QueueRef, start: StartPosition) -> int:
    """Return the start offset of a group that has no committed offset.

    Raises:
        ClientError, RemotingError: the broker refuses, or does not respond.
    """
    # A retry topic is read from its start, so that no retry is lost, except with a start time.
    if start.wire is StartFrom.FIRST_OFFSET or (start.wire is StartFrom.LAST_OFFSET and is_retry_topic(queue.topic)):
        return 0  # if the first messages are deleted, the first pull response corrects the offset
    if start.when_ms is None or is_retry_topic(queue.topic):
        return await max_offset(session, queue)
    return await offset_at(session, queue, start.when_ms)


async def members(session: Session, group: str, topic: str) -> list[str]:
    """Return the client ids of a group's members, from one broker of the topic.

    Members send heartbeats to all brokers, so any broker has all of them; after a failure the next one is used.

    Raises:
        ClientError, RemotingError: no broker of the topic returns them.
    """
    route = await session.routes.find(topic)
    groups = [broker for broker in route.groups if broker.addresses]
    failure: Exception = NoBrokerError(f"the route of topic {topic} has no broker: is one running?")
    for broker in random.sample(groups, len(groups)):
        address = broker.addresses.get(MASTER_ID) or next(iter(broker.addresses.values()))
        try:
            found = decode_members((await session.ask(address, encode_member_query(group))).body)
        except (BrokerRefusedError, RemotingError) as error:
            failure = error
        else:
            # A broker lists a client once for each connection, even for a lost one that it has not closed yet. As the
            # only member we ignore that; among others we count duplicates as Apache's clients do.
            return [session.client_id] if set(found) == {session.client_id} else found
    raise failure


async def _ask_master(session: Session, queue: QueueRef, request: Request) -> Response:
    return await session.ask(await _find_address(session, queue, master_only=True), request)


async def _find_address(session: Session, queue: QueueRef, broker_id: int = MASTER_ID, *, master_only: bool) -> str:
    routes = session.routes
    find = routes.address if master_only else routes.any_address
    address = find(routes.broker_of(queue), broker_id)
    if address is None:
        await routes.refresh(queue.topic)
        address = find(routes.broker_of(queue), broker_id)
    if address is None:
        what, name = "master" if master_only else "broker", routes.broker_of(queue)
        raise NoBrokerError(f"no route of topic {queue.topic} has the address of the {what} {name}: is it running?")
    return address
