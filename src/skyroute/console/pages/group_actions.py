"""What operators do to a consumer group: create, change and delete it, and have it go on elsewhere."""

from typing import Final
from urllib.parse import quote

import msgspec

from skyroute.client.admin.base import call_all
from skyroute.client.admin.groups import END
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.actions import Done, Fields, action, done
from skyroute.console.pages.forms import moment, whole
from skyroute.console.pages.page_context import PageContext
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.groups import GroupConfig

OFFSET_MAX: Final = (1 << 63) - 1
QUEUE_ID_MAX: Final = (1 << 31) - 1

NUMBERS: Final = {
    "retry_times_max": ("Retries", 0, 10_000),
    "retry_queues": ("Retry queues", 1, 1_000),
    "timeout_min": ("Minutes to consume", 1, 100_000),
    "broker_id": ("Broker id to read from", 0, 1_000_000),
    "broker_id_when_slow": ("Broker id when far behind", 0, 1_000_000),
}
"""Settings of a group that are numbers: what they are called, and what each may be."""
SWITCHES: Final = ("enabled", "broadcast", "ordered", "from_min", "notify_members")


def page_of(group: str, tab: str = "") -> str:
    """Return where the page of a group is."""
    return f"/groups/{quote(group, safe='')}" + (f"?tab={tab}" if tab else "")


def read_time(desk: PageContext, fields: Fields) -> int:
    """Return the time that was typed into a form, in milliseconds.

    Raises:
        ConsoleError: it is no time.
    """
    time_ms = moment(fields, "time", "Time", desk.clock.wall())
    if time_ms is None:
        raise ConsoleError("Time: it is missing; go back and fill it in.")
    return time_ms


def _read_text(fields: Fields, name: str) -> str:
    text = fields.get(name, "")
    if not text:
        raise ConsoleError(f"{name} is missing: go back and fill it in.")
    return text


def _read_config(fields: Fields, before: GroupConfig) -> GroupConfig:
    """Return settings as a form has them; what it does not ask for stays as it was before."""
    numbers = {name: whole(fields, name, *limits) for name, limits in NUMBERS.items()}
    switches = {name: fields.get(name) == "yes" for name in SWITCHES}
    return msgspec.structs.replace(before, **numbers, **switches)


@action("/groups/create", "group.create")
async def create(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Create a group on all masters of a cluster."""
    group, cluster = _read_text(fields, "group"), _read_text(fields, "cluster")
    if group in desk.watcher.inventory.groups:
        raise ConsoleError(f"there is a group {group} already: change its settings on its own page")
    await desk.admin.create_group(_read_config(fields, GroupConfig(group)), cluster=cluster)
    await desk.watcher.take_inventory()
    return done("The group {group} was created", page_of(group, "settings"), group=group)


@action(
    "/groups/change",
    "group.change",
    question="Change the settings of the group {group}?",
    warning="They count at once for its members, whether these are connected or not.",
)
async def change(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Replace the settings of a group, on one broker or on all that have it."""
    group, broker = _read_text(fields, "group"), fields.get("broker", "")
    masters = desk.watcher.look.masters
    configs = {
        masters[name]: _read_config(fields, config)
        for name, config in desk.watcher.inventory.groups.get(group, {}).items()
        if name in masters and broker in ("", name)
    }
    if not configs:
        raise ConsoleError(f"no broker {broker or 'there is'} has the group {group}: reload its page")

    async def ask(address: str) -> list[str]:
        return await desk.admin.create_group(configs[address], broker=address)

    await call_all(configs, ask)
    await desk.watcher.take_inventory()
    return done(
        "The group {group} was changed on {count} brokers", page_of(group, "settings"), group=group, count=len(configs)
    )


@action(
    "/groups/delete",
    "group.delete",
    question="Delete the group {group}?",
    warning="Brokers forget its settings, and lose the messages in its retry and dead-letter topics.",
)
async def delete(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Have all brokers of the clusters that have a group forget it."""
    group = _read_text(fields, "group")
    brokers = desk.watcher.inventory.groups.get(group, {})
    clusters = sorted({each.cluster for each in desk.watcher.look.brokers if each.name in brokers})
    if not clusters:
        raise ConsoleError(f"no broker has the group {group}: it is gone already")
    for cluster in clusters:
        await desk.admin.delete_group(group, cluster=cluster, with_offsets=fields.get("with_offsets") == "yes")
    await desk.watcher.take_inventory()
    if left := desk.watcher.inventory.groups.get(group):
        # Apache's brokers look a group up while they delete it, and some make whatever they look up.
        raise ConsoleError(
            f"{', '.join(left)} deleted the group {group} and has made it anew with settings as of every new group: "
            "set autoCreateSubscriptionGroup of the broker to false, and delete the group again"
        )
    return done("The group {group} was deleted", "/groups", group=group)


# Where a group goes on

AGAIN: Final = (
    "Messages may be consumed again, or skipped for ever. Members that are connected go there within seconds."
)


async def _reset(desk: PageContext, fields: Fields, when_ms: int) -> Done:
    group, topic = _read_text(fields, "group"), _read_text(fields, "topic")
    moved = await desk.admin.reset_to_time(group, topic, when_ms)
    return done(
        "The group {group} goes on elsewhere in {count} queues of {topic}",
        page_of(group),
        group=group,
        topic=topic,
        count=len(moved),
    )


@action(
    "/groups/reset-to-begin",
    "group.reset",
    question="Have the group {group} consume all messages of {topic} again, from the oldest on?",
    warning=AGAIN,
)
async def reset_to_begin(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Have a group begin a topic anew."""
    return await _reset(desk, fields, 0)


@action(
    "/groups/reset-to-end",
    "group.skip",
    question="Have the group {group} skip every message of {topic} that waits for it?",
    warning=AGAIN,
)
async def reset_to_end(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Have a group leave out what it has not consumed of a topic."""
    return await _reset(desk, fields, END)


@action(
    "/groups/reset-to-time",
    "group.reset-to-time",
    question="Have the group {group} go on with {topic} at the first message stored since {time} ({zone})?",
    warning=AGAIN,
)
async def reset_to_time(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Have a group go on at a time."""
    return await _reset(desk, fields, read_time(desk, fields))


@action(
    "/groups/reset-queue",
    "group.reset-queue",
    question="Have the group {group} go on at offset {offset} in queue {queue_id} of {topic} on {broker}?",
    warning=AGAIN,
)
async def reset_queue(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Have a group go on at an offset of one queue."""
    group, topic, broker = (_read_text(fields, name) for name in ("group", "topic", "broker"))
    queue = QueueRef(topic, broker, whole(fields, "queue_id", "Queue", 0, QUEUE_ID_MAX))
    offset = whole(fields, "offset", "Offset", 0, OFFSET_MAX)
    await desk.admin.reset_queue(group, queue, offset)
    return done(
        "The group {group} goes on at offset {offset} of {queue}",
        page_of(group),
        group=group,
        offset=offset,
        queue=queue,
    )


@action(
    "/groups/clone",
    "group.clone-offsets",
    question="Have the group {group} go on with {topic} where the group {source} is now?",
    warning="Stop its members first: those that are connected write their own offsets again.",
)
async def clone(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Have a group go on where another one is."""
    group, source, topic = (_read_text(fields, name) for name in ("group", "source", "topic"))
    moved = await desk.admin.clone_offsets(source, group, topic)
    return done(
        "The group {group} goes on elsewhere in {count} queues of {topic}",
        page_of(group),
        group=group,
        topic=topic,
        count=len(moved),
    )


ROUTES = [create, change, delete, reset_to_begin, reset_to_end, reset_to_time, reset_queue, clone]
