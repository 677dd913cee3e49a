"""Calls about one queue: read from it, and ask where it begins, where it ends, and how far a group has come.

Topics and groups are named here as brokers name them: with the namespace, if there is one.
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
"""How long a broker may take to say or note how far a group has come."""

PULL_TIMEOUT_S: Final = 30.0
"""How long a pull may take, with the time the broker waits for a message: brokers may wait 5 s longer than asked."""


async def pull(
    session: Session, question: PullQuestion, *, broker_id: int = MASTER_ID, timeout_s: float = PULL_TIMEOUT_S
) -> PullAnswer:
    """Read messages from one queue.

    `broker_id` is what the last answer suggested; where there is no such broker, another of its name is asked.

    Raises:
        BrokerRefusedError: the broker answered something else than messages or the lack of them.
        NoBrokerError: no route knows the broker.
        RemotingError: the line failed.
    """
    broker_name = question.broker_name or ""
    address = await _find_address(session, question.topic, broker_name, broker_id, master_only=False)
    if question.commit_offset is not None and address != session.routes.address(broker_name):
        # Only a master keeps offsets.
        question = msgspec.structs.replace(question, commit_offset=None)
    response = await session.call(address, encode_pull(question), timeout_s)
    if response.code not in PULL_CODES:
        raise refusal(response, address)
    return decode_pull_answer(response)


async def max_offset(session: Session, queue: QueueRef) -> int:
    """Return where the next message of a queue will be.

    Raises:
        ClientError, RemotingError: it cannot be known now.
    """
    return decode_offset(await _ask_master(session, queue, encode_max_offset_query(queue)))


async def min_offset(session: Session, queue: QueueRef) -> int:
    """Return where the oldest message of a queue is; 0 if the queue never had one.

    Raises:
        ClientError, RemotingError: it cannot be known now.
    """
    return max(0, decode_offset(await _ask_master(session, queue, encode_min_offset_query(queue))))


async def offset_at(session: Session, queue: QueueRef, when_ms: int, *, upper: bool = False) -> int:
    """Return the first offset of a queue at or after a time; with `upper` the last one of those stored just then.

    Raises:
        ClientError, RemotingError: it cannot be known now.
    """
    return decode_offset(await _ask_master(session, queue, encode_time_search(queue, when_ms, upper=upper)))


async def earliest_time_ms(session: Session, queue: QueueRef) -> int:
    """Return when the oldest message of a queue was stored; -1 if there is none.

    Raises:
        ClientError, RemotingError: it cannot be known now.
    """
    return decode_timestamp(await _ask_master(session, queue, encode_earliest_time_query(queue)))


async def committed_offset(
    session: Session, group: str, queue: QueueRef, *, zero_if_not_found: bool | None = None
) -> int | None:
    """Return the offset from which a group goes on, or None if the broker knows of none.

    Without a word on `zero_if_not_found`, it may say 0 of a group that never read a young queue.

    Raises:
        ClientError, RemotingError: it cannot be known now.
    """
    address = await _find_address(session, queue.topic, queue.broker_name, master_only=False)
    try:
        request = encode_offset_query(group, queue, zero_if_not_found=zero_if_not_found)
        response = await session.ask(address, request, OFFSET_TIMEOUT_S)
    except NotFoundError:
        return None
    offset = decode_offset(response)
    return offset if offset >= 0 else None


async def commit_offset(session: Session, group: str, queue: QueueRef, offset: int, *, wait: bool = False) -> None:
    """Have the broker note the offset from which a group goes on; without `wait` nobody says whether it did.

    Raises:
        ClientError, RemotingError: it could not be said, or with `wait`, was not done.
    """
    address = await _find_address(session, queue.topic, queue.broker_name, master_only=False)
    request = encode_offset_update(group, queue, offset)
    if wait:
        await session.ask(address, request, OFFSET_TIMEOUT_S)
    else:
        await session.tell(address, request)


async def start_offset(session: Session, queue: QueueRef, start: StartPosition) -> int:
    """Return where a group begins with a queue of which it has consumed nothing yet.

    Raises:
        ClientError, RemotingError: it cannot be known now.
    """
    # What a group has to try again is not old news: it is read from its beginning, save by who starts at a time.
    if start.wire is StartFrom.FIRST_OFFSET or (start.wire is StartFrom.LAST_OFFSET and is_retry_topic(queue.topic)):
        return 0  # where older messages are gone, the broker's first answer says where they begin
    if start.when_ms is None or is_retry_topic(queue.topic):
        return await max_offset(session, queue)
    return await offset_at(session, queue, start.when_ms)


async def members(session: Session, group: str, topic: str) -> list[str]:
    """Return the client ids of a group, as one broker of the topic knows them.

    Any broker will do, because members send their heartbeats to all; one that fails is passed over for the next.

    Raises:
        ClientError, RemotingError: no broker of the topic knows.
    """
    route = await session.routes.find(topic)
    groups = [broker for broker in route.groups if broker.addresses]
    failure: Exception = NoBrokerError(f"the route of {topic} has no broker")
    for broker in random.sample(groups, len(groups)):
        address = broker.addresses.get(MASTER_ID) or next(iter(broker.addresses.values()))
        try:
            found = decode_members((await session.ask(address, encode_member_query(group))).body)
        except (BrokerRefusedError, RemotingError) as error:
            failure = error
        else:
            # A broker names us once for each line, and a former one it may not have given up yet. Nobody else is there
            # to take a second share; where others are, they count as Apache's clients do, and so must we.
            return [session.client_id] if set(found) == {session.client_id} else found
    raise failure


async def _ask_master(session: Session, queue: QueueRef, request: Request) -> Response:
    return await session.ask(await _find_address(session, queue.topic, queue.broker_name, master_only=True), request)


async def _find_address(
    session: Session, topic: str, broker_name: str, broker_id: int = MASTER_ID, *, master_only: bool
) -> str:
    find = session.routes.address if master_only else session.routes.any_address
    address = find(broker_name, broker_id)
    if address is None:
        await session.routes.refresh(topic)
        address = find(broker_name, broker_id)
    if address is None:
        what = "master" if master_only else "broker"
        raise NoBrokerError(f"no route knows where the {what} of {broker_name} is; it may be back later topic={topic}")
    return address
