"""Actions on a consumer group: create, change and delete it, and reset its offsets."""

from typing import Final
from urllib.parse import quote

import msgspec

from skyroute.client.admin.base import call_all
from skyroute.client.admin.groups import END
from skyroute.console.access.sessions import Visitor
from skyroute.console.errors import ConsoleError
from skyroute.console.texts import translatable
from skyroute.console.web.actions import Done, Fields, action, done
from skyroute.console.web.forms import read_int, read_time_ms
from skyroute.console.web.page_context import PageContext
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.groups import GroupConfig

OFFSET_MAX: Final = (1 << 63) - 1
QUEUE_ID_MAX: Final = (1 << 31) - 1

NUMBERS: Final = {
    "retry_times_max": ("Retries", 0, 10_000),
    "retry_queues": ("Retry queues", 1, 1_000),
    "timeout_min": ("Consume timeout (minutes)", 1, 100_000),
    "broker_id": ("Broker id to read from", 0, 1_000_000),
    "broker_id_when_slow": ("Broker id when far behind", 0, 1_000_000),
}
"""Settings that are numbers: label, minimum and maximum."""
SWITCHES: Final = ("enabled", "broadcast", "ordered", "from_min", "notify_members")


def page_of(group: str, tab: str = "") -> str:
    """Return the address of a group's page."""
    return f"/groups/{quote(group, safe='')}" + (f"?tab={tab}" if tab else "")


def _required_time_ms(context: PageContext, fields: Fields) -> int:
    time_ms = read_time_ms(fields, "time", "Time", context.clock.wall())
    if time_ms is None:
        raise ConsoleError("Time is empty: go back and fill it in.")
    return time_ms


def _read_text(fields: Fields, name: str) -> str:
    text = fields.get(name, "")
    if not text:
        raise ConsoleError(f"{name} is empty: go back and fill it in.")
    return text


def _read_config(fields: Fields, before: GroupConfig) -> GroupConfig:
    """Return the settings of a form; settings that the form does not have stay as before."""
    numbers = {name: read_int(fields, name, *limits) for name, limits in NUMBERS.items()}
    switches = {name: fields.get(name) == "yes" for name in SWITCHES}
    return msgspec.structs.replace(before, **numbers, **switches)


@action("/groups/create", "group.create")
async def create(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Create a group on all masters of a cluster."""
    group, cluster = _read_text(fields, "group"), _read_text(fields, "cluster")
    if group in context.monitor.inventory.groups:
        raise ConsoleError(f"consumer group {group} already exists: change its settings on its own page")
    await context.admin.create_group(_read_config(fields, GroupConfig(group)), cluster=cluster)
    await context.monitor.refresh_inventory()
    return done("Consumer group {group} created", page_of(group, "settings"), group=group)


@action(
    "/groups/change",
    "group.change",
    question=translatable("Change the settings of consumer group {group}?"),
    warning=translatable("The new settings apply to all its consumers at once."),
)
async def change(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Change the settings of a group, on one broker or on all brokers that have it."""
    group, broker = _read_text(fields, "group"), fields.get("broker", "")
    masters = context.monitor.snapshot.masters
    configs = {
        masters[name]: _read_config(fields, config)
        for name, config in context.monitor.inventory.groups.get(group, {}).items()
        if name in masters and broker in ("", name)
    }
    if not configs:
        raise ConsoleError(f"consumer group {group} is not on {broker or 'any broker'}: reload its page")

    async def ask(address: str) -> list[str]:
        return await context.admin.create_group(configs[address], broker=address)

    await call_all(configs, ask)
    await context.monitor.refresh_inventory()
    return done(
        "Consumer group {group} changed on {count} brokers", page_of(group, "settings"), group=group, count=len(configs)
    )


@action(
    "/groups/delete",
    "group.delete",
    question=translatable("Delete consumer group {group}?"),
    warning=translatable("Brokers delete its settings, and the messages in its retry topic and dead-letter queue."),
)
async def delete(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Delete a group from all brokers of the clusters that have it."""
    group = _read_text(fields, "group")
    brokers = context.monitor.inventory.groups.get(group, {})
    clusters = sorted({each.cluster for each in context.monitor.snapshot.brokers if each.name in brokers})
    if not clusters:
        raise ConsoleError(f"consumer group {group} does not exist on any broker: it may be deleted already")
    for cluster in clusters:
        await context.admin.delete_group(group, cluster=cluster, with_offsets=fields.get("with_offsets") == "yes")
    await context.monitor.refresh_inventory()
    if left := context.monitor.inventory.groups.get(group):
        # An Apache broker looks the group up while it deletes it, and creates a group that it does not find.
        raise ConsoleError(
            f"{', '.join(left)} deleted consumer group {group} and created it again with default settings: "
            "set autoCreateSubscriptionGroup of the broker to false, and delete the group again"
        )
    return done("Consumer group {group} deleted", "/groups", group=group)


# Offsets

RESET_WARNING: Final = translatable(
    "Messages may be consumed again or skipped. Online consumers continue at the new offsets within seconds."
)


async def _reset(context: PageContext, fields: Fields, when_ms: int) -> Done:
    group, topic = _read_text(fields, "group"), _read_text(fields, "topic")
    moved = await context.admin.reset_to_time(group, topic, when_ms)
    return done(
        "Offsets of {group} reset in {count} queues of {topic}",
        page_of(group),
        group=group,
        topic=topic,
        count=len(moved),
    )


@action(
    "/groups/reset-to-begin",
    "group.reset",
    question=translatable("Reset {group} to the earliest offsets of {topic}? It consumes all messages again."),
    warning=RESET_WARNING,
)
async def reset_to_begin(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Reset a group to the earliest offsets of a topic."""
    return await _reset(context, fields, 0)


@action(
    "/groups/reset-to-end",
    "group.skip",
    question=translatable("Reset {group} to the latest offsets of {topic}? It skips all messages it has not consumed."),
    warning=RESET_WARNING,
)
async def reset_to_end(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Reset a group to the latest offsets of a topic."""
    return await _reset(context, fields, END)


@action(
    "/groups/reset-to-time",
    "group.reset-to-time",
    question=translatable("Reset {group} to the first message of {topic} stored since {time} ({zone})?"),
    warning=RESET_WARNING,
)
async def reset_to_time(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Reset a group to the messages stored since a time."""
    return await _reset(context, fields, _required_time_ms(context, fields))


@action(
    "/groups/reset-queue",
    "group.reset-queue",
    question=translatable("Reset {group} to offset {offset} in queue {queue_id} of {topic} on {broker}?"),
    warning=RESET_WARNING,
)
async def reset_queue(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Reset a group to an offset of one queue."""
    group, topic, broker = (_read_text(fields, name) for name in ("group", "topic", "broker"))
    queue = QueueRef(topic, broker, read_int(fields, "queue_id", "Queue", 0, QUEUE_ID_MAX))
    offset = read_int(fields, "offset", "Offset", 0, OFFSET_MAX)
    await context.admin.reset_queue(group, queue, offset)
    return done(
        "Offset of {group} in {queue} reset to {offset}",
        page_of(group),
        group=group,
        offset=offset,
        queue=queue,
    )


@action(
    "/groups/clone",
    "group.clone-offsets",
    question=translatable("Copy the offsets of {source} in {topic} to {group}?"),
    warning=translatable("Stop the consumers of the target group first: online consumers overwrite the offsets."),
)
async def clone(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Copy the offsets of one group to another."""
    group, source, topic = (_read_text(fields, name) for name in ("group", "source", "topic"))
    moved = await context.admin.clone_offsets(source, group, topic)
    return done(
        "Offsets of {group} reset in {count} queues of {topic}",
        page_of(group),
        group=group,
        topic=topic,
        count=len(moved),
    )


ROUTES = [create, change, delete, reset_to_begin, reset_to_end, reset_to_time, reset_queue, clone]
