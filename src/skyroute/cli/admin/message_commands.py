"""Commands about messages: find, print and send them."""

import base64
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from skyroute.cli.admin.decorator import Output, admin_command, cluster_or_parent
from skyroute.cli.admin.output import local_time, pairs, table
from skyroute.cli.admin.parameters import MOMENT_FORM, charset, moment
from skyroute.client.admin import Admin
from skyroute.client.admin.messages import MessageTrack, index_key
from skyroute.client.admin.names import READER_GROUP
from skyroute.client.errors import ClientError
from skyroute.client.results import SendResult
from skyroute.errors import SkyrouteError
from skyroute.message.message import Message, StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.query import FOREVER_MS

if TYPE_CHECKING:
    from skyroute.client.producing.producer import Producer

topic_option = click.option("-t", "--topic", required=True, metavar="NAME", help="Topic.")
body_charset = click.option(
    "-f", "--bodyFormat", "encoding", type=charset, metavar="CHARSET", default="utf-8", help="Body charset."
)
consumer_group = click.option(
    "-g", "--consumerGroup", "group", metavar="NAME", help="With -d: let a member consume it."
)
consumer_id = click.option("-d", "--clientId", "client_id", metavar="ID", help="With -g: client id of the member.")


# --------------------------------------------------------------------------------------------------------- finding


@admin_command("queryMsgById", "-t Orders -i 7F0000010001136E2F3C5D9A0B1C0000")
@topic_option
@click.option("-i", "--msgId", "message_ids", required=True, metavar="ID[,ID]", help="Unique ids or offset ids.")
@consumer_group
@consumer_id
@click.option("-s", "--sendMessage", "resend", type=bool, default=False, help="Send a copy of the message.")
@click.option("-u", "--unitName", "unit_name", hidden=True, help="No effect.")
@body_charset
@cluster_or_parent
async def query_msg_by_id(
    admin: Admin,
    topic: str,
    message_ids: str,
    group: str | None,
    client_id: str | None,
    unit_name: str | None,
    encoding: str,
    cluster: str | None,
    *,
    resend: bool,
) -> AsyncIterator[Output]:
    """Print messages by id.

    Also prints which groups have consumed them. With -g and -d a consumer handles them; with -s they are sent again.
    """
    _check_pair(group, client_id)
    for message_id in filter(None, (part.strip() for part in message_ids.split(","))):
        message = await admin.find_message(topic, message_id, cluster)
        if group and client_id:
            yield await _consume_now(admin, group, client_id, message)
        elif resend:
            async with _producer(admin) as producer:
                yield _sent(await producer.send(_copy(message)))
        else:
            yield await _message_and_tracks(admin, message, encoding)


@admin_command("queryMsgByKey", "-t Orders -k order-17")
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="Key.")
@click.option("-b", "--beginTimestamp", "begin_ms", type=int, default=0, help="Earliest store time, in milliseconds.")
@click.option(
    "-e", "--endTimestamp", "end_ms", type=int, default=FOREVER_MS, show_default="no limit", help="Latest store time."
)
@click.option(
    "-m", "--maxNum", "count_max", type=click.IntRange(min=1), default=64, show_default=True, help="Message limit."
)
@click.option(
    "-p", "--keyType", "key_type", type=click.Choice(["K", "T"]), default="K", show_default=True, help="K: key, T: tag."
)
@click.option("-l", "--lastKey", "last_key", metavar="INDEXKEY", help="Continue after this index key.")
@cluster_or_parent
async def query_msg_by_key(admin: Admin, topic: str, key: str, key_type: str, **options: Any) -> Output:
    """List messages with a key.

    -p T and -l need brokers with an index in RocksDB.
    """
    by_tag = key_type == "T"
    found = await admin.messages_by_key(topic, key, by_tag=by_tag, **options)
    places = [index_key(message, key, by_tag=by_tag) for message in found]
    rows = [(m.message_id, m.queue_id, m.queue_offset, place) for m, place in zip(found, places, strict=True)]
    values = [_values(m, "utf-8") | {"index_key": place} for m, place in zip(found, places, strict=True)]
    return table(("Message ID", "QID", "Offset", "IndexKey"), rows), values


@admin_command("queryMsgByUniqueKey", "-t Orders -i 7F0000010001136E2F3C5D9A0B1C0000")
@click.option("-i", "--msgId", "message_id", required=True, metavar="ID", help="Unique id.")
@topic_option
@consumer_group
@consumer_id
@click.option("-a", "--showAll", "show_all", is_flag=True, help="Print all messages with the id, not only the oldest.")
@click.option("-s", "--startTime", "begin_ms", type=int, default=0, help="Earliest store time, in milliseconds.")
@click.option(
    "-e", "--endTime", "end_ms", type=int, default=FOREVER_MS, show_default="no limit", help="Latest store time."
)
@cluster_or_parent
async def query_msg_by_unique_key(
    admin: Admin,
    topic: str,
    message_id: str,
    group: str | None,
    client_id: str | None,
    begin_ms: int,
    end_ms: int,
    cluster: str | None,
    *,
    show_all: bool,
) -> AsyncIterator[Output]:
    """Print a message by its unique id.

    Also prints which groups have consumed it. With -g and -d a consumer handles it.
    """
    _check_pair(group, client_id)
    found = await admin.messages_by_unique_id(topic, message_id, cluster, begin_ms=begin_ms, end_ms=end_ms)
    for message in found if show_all else found[:1]:
        if group and client_id:
            yield await _consume_now(admin, group, client_id, message)
        else:
            yield await _message_and_tracks(admin, message, "utf-8")


@admin_command("queryMsgByOffset", "-t Orders -b broker-a -i 0 -o 17")
@topic_option
@click.option("-b", "--brokerName", "broker_name", required=True, metavar="NAME", help="Broker name.")
@click.option("-i", "--queueId", "queue_id", required=True, type=click.IntRange(min=0), help="Queue id.")
@click.option("-o", "--offset", required=True, type=click.IntRange(min=0), help="Offset in the queue.")
@body_charset
@click.option("-r", "--routeTopic", "route_topic", metavar="NAME", help="Topic whose route has the broker.")
async def query_msg_by_offset(
    admin: Admin, topic: str, broker_name: str, queue_id: int, offset: int, encoding: str, route_topic: str | None
) -> Output:
    """Print the message at an offset of a queue.

    Also prints which groups have consumed it.
    """
    if route_topic is not None:
        await admin.route(route_topic)
    message = await admin.message_at(QueueRef(topic, broker_name, queue_id), offset)
    return await _message_and_tracks(admin, message, encoding)


def _check_pair(group: str | None, client_id: str | None) -> None:
    if (group is None) != (client_id is None):
        raise click.UsageError("-g and -d go together: give a group and the client id of a member.")


async def _consume_now(admin: Admin, group: str, client_id: str, message: StoredMessage) -> Output:
    outcome = await admin.consume_directly(group, client_id, message)
    values = {
        "message_id": message.message_id,
        "result": str(outcome.result),
        "remark": outcome.remark,
        "spent_ms": outcome.spent_ms,
    }
    return pairs(values), values


async def _message_and_tracks(admin: Admin, message: StoredMessage, encoding: str) -> Output:
    tracks: list[MessageTrack] = []
    failures: dict[str, SkyrouteError] = {}
    try:
        tracks = await admin.track(message)
    except SkyrouteError as error:  # the message can be printed anyway
        failures["consumer groups"] = error
    lines = {
        "OffsetID:": message.offset_id,
        "Message ID:": message.message_id,
        "Topic:": message.topic,
        "Tags:": f"[{_printable(message.tag or '')}]",
        "Keys:": f"[{_printable(' '.join(message.keys))}]",
        "Queue ID:": message.queue_id,
        "Queue Offset:": message.queue_offset,
        "CommitLog Offset:": message.log_position,
        "Reconsume Times:": message.reconsume_times,
        "Born Timestamp:": local_time(message.born_at_ms),
        "Store Timestamp:": local_time(message.stored_at_ms),
        "Born Host:": message.born_host,
        "Store Host:": message.store_host,
        "System Flag:": message.sys_flag,
        "Properties:": _printable(", ".join(f"{name}={value}" for name, value in sorted(message.properties.items()))),
        "Message Body:": _shown(message, encoding),
    }
    groups = table(
        ("Consumer Group", "Track", "Remark"), [(each.group, each.tracking, each.remark) for each in tracks]
    )  # fmt: skip
    values = _values(message, encoding)
    values["tracks"] = [{"group": t.group, "track": str(t.tracking), "remark": t.remark} for t in tracks]
    return f"{pairs(lines, ' ')}\n\n{groups if tracks else 'WARN: No Consumer'}\n", values, failures


def _values(message: StoredMessage, encoding: str) -> dict[str, object]:
    try:
        text: str | None = message.body.decode(encoding)
    except UnicodeError:
        text = None
    return {
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "topic": message.topic,
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "log_position": message.log_position,
        "tag": message.tag,
        "keys": message.keys,
        "reconsume_times": message.reconsume_times,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": message.stored_at_ms,
        "born_host": str(message.born_host),
        "store_host": str(message.store_host),
        "sys_flag": message.sys_flag,
        "properties": message.properties,
        "body": text,
        "body_base64": base64.b64encode(message.body).decode(),
    }


def _shown(message: StoredMessage, encoding: str) -> str:
    return _printable(message.body.decode(encoding, "backslashreplace"))


def _printable(text: str) -> str:
    # Bodies and properties may contain escape sequences of the terminal.
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


# --------------------------------------------------------------------------------------------------------- reading


@admin_command("printMsg", "-t Orders -s 'paid || refunded'")
@topic_option
@click.option("-c", "--charsetName", "encoding", type=charset, metavar="CHARSET", default="utf-8", help="Body charset.")
@click.option("-s", "--subExpression", "expression", default="*", metavar="TAGS", help="Tags, such as `A || B`.")
@click.option("-b", "--beginTimestamp", "begin_ms", type=moment, metavar=MOMENT_FORM, help="Earliest store time.")
@click.option("-e", "--endTimestamp", "end_ms", type=moment, metavar=MOMENT_FORM, help="Latest store time.")
@click.option("-d", "--printBody", "with_body", type=bool, default=True, help="Print bodies.")
@click.option("-l", "--lmqParentTopic", "parent", metavar="NAME", help="Parent topic of a light queue.")
async def print_msg(
    admin: Admin,
    topic: str,
    encoding: str,
    expression: str,
    begin_ms: int | None,
    end_ms: int | None,
    parent: str | None,
    *,
    with_body: bool,
) -> AsyncIterator[Output]:
    """Print all messages of a topic.

    Reads queue by queue. No group's offsets change.
    """
    for queue in await admin.queues_of(topic, parent):
        begin, end = await admin.span(queue, begin_ms, end_ms)
        async with aclosing(admin.read(queue, begin, end, expression)) as parts:
            async for messages in parts:
                for message in messages:
                    yield _line(message, encoding, with_body=with_body)


@admin_command("consumeMessage", "-t Orders -c 10")
@topic_option
@click.option("-b", "--brokerName", "broker_name", metavar="NAME", help="Only this broker.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(min=0), help="With -b: one queue.")
@click.option("-o", "--offset", type=click.IntRange(min=0), help="With -i: first offset.")
@click.option("-g", "--consumerGroup", "group", default=READER_GROUP, metavar="NAME", help="Group to read as.")
@click.option("-s", "--beginTimestamp", "begin_ms", type=moment, metavar=MOMENT_FORM, help="Earliest store time.")
@click.option("-e", "--endTimestamp", "end_ms", type=moment, metavar=MOMENT_FORM, help="Latest store time.")
@click.option(
    "-c",
    "--MessageNumber",
    "count_max",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Message limit.",
)
async def consume_message(
    admin: Admin,
    topic: str,
    broker_name: str | None,
    queue_id: int | None,
    offset: int | None,
    group: str,
    begin_ms: int | None,
    end_ms: int | None,
    count_max: int,
) -> AsyncIterator[Output]:
    """Print a number of messages of a topic.

    Prints the oldest of each queue first. No group's offsets change.
    """
    if queue_id is not None and broker_name is None:
        raise click.UsageError("-i needs -b.")
    if offset is not None and queue_id is None:
        raise click.UsageError("-o needs -b and -i.")
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise click.UsageError("-s must not be later than -e.")
    wanted = [
        queue
        for queue in await admin.queues_of(topic)
        if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not wanted:
        raise ClientError(f"the topic {topic} has no such queue; topicRoute lists its queues")
    left = count_max
    for queue in wanted:
        begin, end = await admin.span(queue, begin_ms, end_ms)
        begin = max(begin, offset or 0)
        async with aclosing(admin.read(queue, begin, min(end, begin + left), group=group)) as parts:
            async for messages in parts:
                for message in messages:
                    left -= 1
                    yield _line(message, "utf-8")


def _line(message: StoredMessage, encoding: str, *, with_body: bool = True) -> Output:
    columns = {
        "MSGID:": message.message_id,
        "QUEUE:": f"{message.broker_name}:{message.queue_id}",
        "OFFSET:": message.queue_offset,
        "STORED:": local_time(message.stored_at_ms),
        "TAGS:": _printable(message.tag or ""),
        "KEYS:": _printable(" ".join(message.keys)),
        "BODY:": _shown(message, encoding) if with_body else "NOT PRINT BODY",
    }
    values = _values(message, encoding)
    if not with_body:
        del values["body"], values["body_base64"]
    return " ".join(f"{name} {value}" for name, value in columns.items() if value != ""), values


# --------------------------------------------------------------------------------------------------------- sending


@admin_command("sendMessage", "-t Orders -p 'one coffee' -c paid -k order-17")
@topic_option
@click.option("-p", "--body", required=True, metavar="TEXT", help="Body.")
@click.option("-k", "--key", "keys", default="", metavar="KEYS", help="Keys, separated by blanks.")
@click.option("-c", "--tags", "tag", metavar="TAG", help="Tag.")
@click.option("-b", "--broker", "broker_name", metavar="NAME", help="Broker name.")
@click.option("-i", "--qid", "queue_id", type=click.IntRange(min=0), help="With -b: queue id.")
@click.option("-m", "--msgTraceEnable", "trace", type=bool, default=False, help="Write a message trace.")
async def send_message(
    admin: Admin,
    topic: str,
    body: str,
    keys: str,
    tag: str | None,
    broker_name: str | None,
    queue_id: int | None,
    *,
    trace: bool,
) -> Output:
    """Send a message."""
    if queue_id is not None and broker_name is None:
        raise click.UsageError("-i needs -b.")
    message = Message(topic, body.encode(), tag=tag, keys=keys.split())
    async with _producer(admin, trace=trace) as producer:
        queue = None
        if broker_name is not None:
            fitting = (q for q in await producer.queues(topic) if q.broker_name == broker_name)
            queue = next((q for q in fitting if queue_id in (None, q.queue_id)), None)
            if queue is None:
                raise ClientError(f"the topic {topic} has no such queue on {broker_name}; topicRoute lists its queues")
        return _sent(await producer.send(message, queue=queue))


@admin_command("checkMsgSendRT", "-t Orders -a 50")
@topic_option
@click.option("-a", "--amount", type=click.IntRange(min=2), default=100, show_default=True, help="Number of messages.")
@click.option("-s", "--size", type=click.IntRange(min=1), default=128, show_default=True, help="Body size in bytes.")
async def check_msg_send_rt(admin: Admin, topic: str, amount: int, size: int) -> Output:
    """Measure the send latency of a topic.

    Sends to its queues in turn. The average excludes the first message.
    """
    message = Message(topic, b"a" * size)
    rows: list[tuple[str, int, bool, float]] = []
    failures: dict[str, SkyrouteError] = {}
    async with _producer(admin) as producer:
        turns = itertools.cycle(await producer.queues(topic))
        for queue in itertools.islice(turns, amount):
            began, is_sent = time.perf_counter(), True
            try:
                await producer.send(message, queue=queue)
            except SkyrouteError as error:
                is_sent, failures[str(queue)] = False, error
            rows.append((queue.broker_name, queue.queue_id, is_sent, (time.perf_counter() - began) * 1000))
    average_ms = sum(row[3] for row in rows[1:]) / (amount - 1)
    names = ("broker_name", "queue_id", "ok", "ms")
    values = {"sends": [dict(zip(names, row, strict=True)) for row in rows], "average_ms": average_ms}
    text = table(("Broker Name", "QID", "Send Result", "RT"), rows)
    return f"{text}\nAvg RT: {average_ms:.2f}", values, failures


def _producer(admin: Admin, *, trace: bool = False) -> "Producer":
    # Most commands need no producer, and its import is slow.
    from skyroute.client.producing.producer import Producer

    return Producer(f"admin-{time.time_ns() // 1_000_000}", session=admin.session, trace=trace)


def _copy(message: StoredMessage) -> Message:
    return Message(
        message.topic,
        message.body,
        tag=message.tag,
        keys=message.keys,
        properties=message.user_properties,
        sharding_key=message.sharding_key,
        flag=message.flag,
    )


def _sent(result: SendResult) -> Output:
    values = {
        "broker_name": result.queue.broker_name,
        "queue_id": result.queue.queue_id,
        "send_result": "SEND_OK" if result.ok else result.status.name,
        "message_id": result.message_id,
        "offset_id": result.offset_id,
        "queue_offset": result.queue_offset,
    }
    return table(("Broker Name", "QID", "Send Result", "MsgId"), [list(values.values())[:4]]), values
