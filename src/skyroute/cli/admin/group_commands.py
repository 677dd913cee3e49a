"""Commands about groups: settings, members, offsets and lag, offset resets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
import msgspec

from skyroute.cli.admin.decorator import Function, Output, admin_command, broker_or_cluster, cluster_or_parent
from skyroute.cli.admin.output import local_time, pairs, table
from skyroute.cli.admin.parameters import MOMENT_FORM, attribute_changes, json_object, moment
from skyroute.client.admin import Admin
from skyroute.client.admin.groups import GroupProgress, GroupSummary
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import ConsumeType
from skyroute.wire.calls.consumers import PROPERTY_CONSUME_TYPE, PROPERTY_ORDERED, RunningConsumer
from skyroute.wire.calls.groups import Connection, GroupConfig

STALLED_MS = 60_000
"""A queue with cached messages and no consumed one for this long is reported as stalled."""


def _group(long: str) -> Callable[[Function], Function]:
    return click.option("-g", long, "group", required=True, metavar="NAME", help="Consumer group.")


# --------------------------------------------------------------------------------------------------------- settings


@admin_command("updateSubGroup", "-c DefaultCluster -g billing -r 5")
@broker_or_cluster()
@_group("--groupName")
@click.option("-s", "--consumeEnable", "enabled", type=bool, default=True, help="Allow consuming.")
@click.option("-m", "--consumeFromMinEnable", "from_min", type=bool, default=False, help="Allow the minimum offset.")
@click.option("-d", "--consumeBroadcastEnable", "broadcast", type=bool, default=False, help="Allow broadcasting mode.")
@click.option("-o", "--consumeMessageOrderly", "ordered", type=bool, default=False, help="Ordered consumption.")
@click.option("-q", "--retryQueueNums", "retry_queues", type=click.IntRange(min=0), default=1, help="Retry queues.")
@click.option("-r", "--retryMaxTimes", "retry_times_max", type=int, default=16, help="Retries before dead-lettering.")
@click.option("-p", "--groupRetryPolicy", "retry_policy", type=json_object, metavar="JSON", help="Retry delays.")
@click.option("-i", "--brokerId", "broker_id", type=click.IntRange(min=0), default=0, help="Id of the broker to read.")
@click.option(
    "-w",
    "--whichBrokerWhenConsumeSlowly",
    "broker_id_when_slow",
    type=click.IntRange(min=0),
    default=1,
    help="Id of the broker to read from with much lag.",
)
@click.option(
    "-a",
    "--notifyConsumerIdsChanged",
    "notify_members",
    type=bool,
    default=True,
    help="Notify members of changes.",
)
@click.option("--attributes", type=attribute_changes, metavar="+NAME=VALUE,-NAME", help="Attributes to set and delete.")
async def update_sub_group(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    group: str,
    attributes: Mapping[str, str | None] | None,
    retry_policy: dict[str, Any] | None,
    **settings: Any,
) -> Output:
    """Create a consumer group or replace its settings.

    Settings that are not given get their defaults.
    """
    config = GroupConfig(group.strip(), **settings)
    if retry_policy is not None:
        config = msgspec.structs.replace(config, retry_policy=retry_policy)
    done = await admin.create_group(config, broker=broker, cluster=cluster, attributes=attributes)
    values = {name: getattr(config, name) for name in config.__struct_fields__}
    lines = [f"create subscription group to {address} success." for address in done]
    return "\n".join([*lines, pairs(values)]), {"brokers": done, "group": values}


@admin_command("deleteSubGroup", "-c DefaultCluster -g billing")
@broker_or_cluster()
@_group("--groupName")
@click.option("-r", "--removeOffset", "with_offsets", type=bool, default=False, help="Also delete its offsets.")
async def delete_sub_group(
    admin: Admin, broker: str | None, cluster: str | None, group: str, *, with_offsets: bool
) -> Output:
    """Delete a consumer group.

    With -c, also its retry and dead-letter topics.
    """
    done = await admin.delete_group(group, broker=broker, cluster=cluster, with_offsets=with_offsets)
    where = f" in cluster [{cluster}]" if cluster else ""
    lines = [f"delete subscription group [{group}] from broker [{address}]{where} success." for address in done]
    return "\n".join(lines), {"brokers": done}


# ------------------------------------------------------------------------------------------------------ connections


@admin_command("consumerConnection", "-g billing")
@_group("--consumerGroup")
@click.option("-b", "--brokerAddr", "broker", metavar="HOST:PORT", help="Address of the broker to query.")
async def consumer_connection(admin: Admin, group: str, broker: str | None) -> Output:
    """List the members of a consumer group.

    Also prints their subscriptions.
    """
    found = await admin.consumers(group, broker=broker)
    subscriptions = [each for _, each in sorted(found.subscriptions.items())]
    values = {
        "connections": _connection_values(found.connections),
        "subscriptions": [
            {"topic": each.topic, "expression": each.expression, "expression_type": each.expression_type}
            for each in subscriptions
        ],
        "consume_type": found.consume_type,
        "message_model": found.model,
        "consume_from_where": found.start_from,
    }
    text = "\n".join(
        [
            table(("ClientId", "ClientAddr", "Language", "Version"), map(_connection_row, sorted(found.connections))),
            "",
            "Below is subscription:",
            table(("Topic", "SubExpression"), [(each.topic, each.expression) for each in subscriptions]),
            "",
            f"ConsumeType: {found.consume_type}",
            f"MessageModel: {found.model}",
            f"ConsumeFromWhere: {found.start_from}",
        ]
    )
    return text, values


@admin_command("producerConnection", "-g shop -t Orders")
@click.option("-g", "--producerGroup", "group", required=True, metavar="NAME", help="Producer group.")
@click.option("-t", "--topic", required=True, metavar="NAME", help="Topic that the group sends to.")
async def producer_connection(admin: Admin, group: str, topic: str) -> Output:
    """List the members of a producer group."""
    found = await admin.producers(group, topic)
    rows = [(f"{number:04d}", *_connection_row(each)) for number, each in enumerate(found, 1)]
    text = table(("Index", "ClientId", "ClientAddr", "Language", "Version"), rows)
    return text, _connection_values(found)


def _connection_row(connection: Connection) -> tuple[str, str, str, str]:
    return connection.client_id, connection.address, connection.language, connection.release


def _connection_values(connections: Iterable[Connection]) -> list[dict[str, str]]:
    names = ("client_id", "client_addr", "language", "version")
    return [dict(zip(names, _connection_row(each), strict=True)) for each in sorted(connections)]


# --------------------------------------------------------------------------------------------------------- progress


@admin_command("consumerProgress", "-g billing")
@click.option("-g", "--groupName", "group", metavar="NAME", help="Consumer group. Default: all groups.")
@click.option("-t", "--topicName", "topic", metavar="NAME", help="Only this topic.")
@click.option("-s", "--showClientIP", "with_owners", type=bool, default=False, help="Print the owner of each queue.")
@cluster_or_parent
async def consumer_progress(
    admin: Admin, group: str | None, topic: str | None, cluster: str | None, *, with_owners: bool
) -> Output:
    """Print the offsets and lag of a consumer group.

    Without -g, a summary of all groups.
    """
    if group is None:
        return _overview(await admin.summaries())
    progress = await admin.progress(group, topic, cluster)
    owners = await admin.owners(group) if with_owners else {}
    return _progress(progress, owners, with_owners=with_owners)


def _progress(progress: GroupProgress, owners: Mapping[QueueRef, str], *, with_owners: bool) -> Output:
    columns = ["Topic", "Broker Name", "QID", "Broker Offset", "Consumer Offset", "Diff", "Inflight", "LastTime"]
    rows, values = [], []
    for queue, each in progress.queues.items():
        value = {
            "topic": queue.topic,
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "broker_offset": each.broker_offset,
            "consumer_offset": each.consumer_offset,
            "diff": each.lag,
            "inflight": each.inflight,
            "last_at_ms": each.last_at_ms or None,
        }
        row = [*list(value.values())[:-1], local_time(each.last_at_ms) or "N/A"]
        if with_owners:
            owner = owners.get(queue)
            value["client_id"] = owner
            row.insert(5, owner.partition("@")[0] if owner else "N/A")
        rows.append(row)
        values.append(value)
    if with_owners:
        columns.insert(5, "Client IP")
    text = (
        f"{table(columns, rows)}\n\nConsume TPS: {progress.tps:.2f}\nConsume Diff Total: {progress.lag}\n"
        f"Consume Inflight Total: {progress.inflight}"
    )
    totals: dict[str, object] = {"tps": progress.tps, "diff_total": progress.lag, "inflight_total": progress.inflight}
    if progress.pops:
        pops = [(topic, each.in_flight, each.waiting) for topic, each in progress.pops.items()]
        text += f"\n\n{table(['Topic', 'Popped, not acknowledged', 'Waiting pops'], pops)}"
        totals["pops"] = [dict(zip(("topic", "in_flight", "waiting"), each, strict=True)) for each in pops]
    return text, {"group": progress.group, "queues": values, **totals}


def _overview(summaries: list[GroupSummary]) -> Output:
    values = [_summary(summary) for summary in summaries]
    columns = ("Group", "Count", "Version", "Type", "Model", "TPS", "Diff Total")
    failures = {summary.group: summary.failure for summary in summaries if summary.failure is not None}
    return table(columns, [list(value.values()) for value in values]), values, failures


def _summary(summary: GroupSummary) -> dict[str, object]:
    progress, consumers = summary.progress, summary.consumers
    members = consumers.connections if consumers else ()
    is_push = consumers is not None and consumers.consume_type != ConsumeType.PULL
    return {
        "group": summary.group,
        "count": len(members),
        "version": min(members, key=lambda each: each.version).release if members else "OFFLINE",
        "type": ("PUSH" if is_push else "PULL") if members else "",
        "model": consumers.model if consumers and is_push else "",
        "tps": round(progress.tps) if progress else None,
        "diff_total": progress.lag if progress else None,
    }


# ----------------------------------------------------------------------------------------------- running consumers


@admin_command("consumerStatus", "-g billing")
@_group("--consumerGroup")
@click.option("-i", "--clientId", "client_id", metavar="ID", help="Client id of one member. Default: a summary of all.")
@click.option("-b", "--brokerAddr", "broker", metavar="HOST:PORT", help="Address of the broker that lists the members.")
@click.option("-s", "--jstack", "with_stacks", is_flag=True, help="Also print thread stacks.")
async def consumer_status(
    admin: Admin, group: str, client_id: str | None, broker: str | None, *, with_stacks: bool
) -> Output:
    """Print the state of a consumer group's members."""
    if client_id is not None:
        running = await admin.running_consumer(group, client_id, with_stacks=with_stacks)
        return _running_text(running), _running_values(client_id, running)
    members = sorted((await admin.consumers(group, broker=broker)).connections)
    states = {each: await admin.running_consumer(group, each.client_id, with_stacks=with_stacks) for each in members}
    rows = [
        (at, each.client_id, each.release, len(running.queues)) for at, (each, running) in enumerate(states.items(), 1)
    ]
    wanted = {frozenset((s.topic, s.expression) for s in running.subscriptions) for running in states.values()}
    is_same = len(wanted) <= 1
    now_ms = int(admin.session.clock.wall() * 1000)
    notes = [note for each, running in states.items() for note in _stalled(each.client_id, running, now_ms)]
    agreement = (
        "Same subscription in the same group of consumer"
        if is_same
        else "WARN: Different subscription in the same group of consumer!!!"
    )
    text = "\n".join([table(("Index", "ClientId", "Version", "Queues"), rows), "", agreement, *notes])
    consumers = [_running_values(each.client_id, running) for each, running in states.items()]
    return text, {"consumers": consumers, "same_subscription": is_same, "stalled": notes}


def _stalled(client_id: str, running: RunningConsumer, now_ms: int) -> list[str]:
    if running.properties.get(PROPERTY_CONSUME_TYPE) != ConsumeType.PUSH:
        return []
    notes = []
    for queue, held in running.queues.items():
        if running.properties.get(PROPERTY_ORDERED) == "true":
            if not held.locked:
                notes.append(f"{client_id} {queue} has not been locked for {now_ms - held.last_lock_ms} ms")
        elif held.cached_count and now_ms - held.last_consume_ms > STALLED_MS:
            notes.append(
                f"{client_id} {queue} has consumed nothing for {now_ms - held.last_consume_ms} ms, perhaps blocked"
            )
    return notes


def _running_values(client_id: str, running: RunningConsumer) -> dict[str, object]:
    return {
        "client_id": client_id,
        "properties": running.properties,
        "subscriptions": [{"topic": s.topic, "expression": s.expression} for s in running.subscriptions],
        "queues": [
            {
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                **{name: getattr(held, name) for name in held.__struct_fields__},
            }
            for queue, held in sorted(running.queues.items())
        ],
        "paces": {
            topic: {name: getattr(pace, name) for name in pace.__struct_fields__}
            for topic, pace in running.paces.items()
        },
        "notes": running.notes,
        "stacks": running.stacks,
    }


def _running_text(running: RunningConsumer) -> str:
    queue_columns = ("Topic", "Broker Name", "QID", "Consumer Offset", "Cached", "Handled", "Locked", "Dropped")
    queue_rows = [
        (q.topic, q.broker_name, q.queue_id, h.commit_offset, h.cached_count, h.handled_count, h.locked, h.dropped)
        for q, h in sorted(running.queues.items())
    ]
    pace_columns = (
        ("Topic", "Pull RT", "Pull TPS", "Consume RT", "ConsumeOK TPS", "ConsumeFailed TPS", "ConsumeFailedMsgsInHour")
    )  # fmt: skip
    pace_rows = [
        (t, p.pull_ms, p.pulled_a_second, p.consume_ms, p.consumed_a_second, p.failed_a_second, p.failed_an_hour)
        for t, p in running.paces.items()
    ]
    subscriptions = [(s.topic, s.expression) for s in running.subscriptions]
    parts = [
        ("#Consumer Properties#", pairs(running.properties, ": ")),
        ("#Consumer Subscription#", table(("Topic", "SubExpression"), subscriptions)),
        ("#Consumer Offset#", table(queue_columns, queue_rows)),
        ("#Consumer RT&TPS#", table(pace_columns, pace_rows)),
    ]
    if running.notes:
        parts.append(("#User Consume Info#", pairs(running.notes, ": ")))
    if running.stacks is not None:
        parts.append(("#Consumer jstack#", running.stacks))
    return "\n\n".join(f"{title}\n{text}" for title, text in parts)


# --------------------------------------------------------------------------------------------------- offset resets


@admin_command("resetOffsetByTime", "-g billing -t Orders -s now")
@_group("--group")
@click.option("-t", "--topic", required=True, metavar="NAME", help="Topic.")
@click.option(
    "-s",
    "--timestamp",
    "when_ms",
    type=moment,
    metavar=MOMENT_FORM,
    required=True,
    help="Time to reset to; -1: after the last message.",
)
@click.option("-f", "--force", type=bool, default=True, help="Also move offsets forward.")
@click.option("-b", "--broker", metavar="HOST:PORT", help="With -q: address of the broker.")
@click.option("-q", "--queue", "queue_id", type=click.IntRange(min=0), metavar="NUMBER", help="With -b: one queue.")
@click.option("-o", "--offset", type=click.IntRange(min=0), help="With -q: reset to this offset instead of a time.")
@cluster_or_parent
async def reset_offset_by_time(
    admin: Admin,
    group: str,
    topic: str,
    when_ms: int,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    cluster: str | None,
    *,
    force: bool,
) -> Output:
    """Reset the offsets of a consumer group to a time.

    Members may be connected or not.
    """
    if (broker is None) != (queue_id is None):
        raise click.UsageError("-b and -q go together: give both, or neither to reset all queues.")
    if offset is not None and queue_id is None:
        raise click.UsageError("-o needs -b and -q.")
    if broker is None or queue_id is None:
        moved = await admin.reset_to_time(group, topic, when_ms, force=force, cluster=cluster)
    else:
        queue = QueueRef(topic, await admin.broker_name_at(broker), queue_id)
        if offset is None:
            at_time, maximum = await admin.span(queue, None if when_ms < 0 else when_ms)
            offset = maximum if when_ms < 0 else at_time
        await admin.reset_queue(group, queue, offset)
        moved = {queue: offset}
    return _offsets(moved)


@admin_command("cloneGroupOffset", "-s billing -d audit -t Orders")
@click.option("-s", "--srcGroup", "source", required=True, metavar="NAME", help="Group to copy from.")
@click.option("-d", "--destGroup", "destination", required=True, metavar="NAME", help="Group to copy to.")
@click.option("-t", "--topic", required=True, metavar="NAME", help="Topic.")
@click.option("-o", "--offline", metavar="BOOL", hidden=True, help="No effect, as in mqadmin.")
async def clone_group_offset(admin: Admin, source: str, destination: str, topic: str, offline: str | None) -> Output:
    """Copy the offsets of one group to another."""
    return _offsets(await admin.clone_offsets(source, destination, topic))


def _offsets(moved: Mapping[QueueRef, int]) -> Output:
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in moved.items()]
    values = [{"broker_name": name, "queue_id": queue_id, "offset": offset} for name, queue_id, offset in rows]
    return table(("brokerName", "queueId", "offset"), rows), values
