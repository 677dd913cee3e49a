"""Groups of consumers and of producers: which there are, how far they have come, who is in them."""

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.base import call_each
from skyroute.client.admin.groups import GroupProgress
from skyroute.console.cluster_data.group_status import Glance, ask_members, ask_running, glance, is_system
from skyroute.console.cluster_data.lag_history import FollowedGroups
from skyroute.console.cluster_data.subscriptions import find_mismatches, show_expression
from skyroute.console.pages import group_actions
from skyroute.console.pages.actions import refuse
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.console.pages.text import translator
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import dead_letter_topic, retry_topic
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.consumers import PROPERTY_STARTED_MS
from skyroute.wire.calls.groups import Connection, GroupConfig, QueueProgress, SubscriptionView

TOPICS_SHOWN_MAX: Final = 50
"""Topics of one group that are summed up; its queues are all there, page by page."""
STACKS_CHARS_MAX: Final = 500_000
BROKERS: Final = ""
"""In place of a member's client id: what brokers have heard."""
UNKNOWN: Final = "No broker had a consumer group {group} when groups were last listed, which happens every half minute."


# All groups


async def groups(request: Request) -> Response:
    """List the consumer groups, look up producers, or offer to create a group, by `tab`."""
    tab = request.query_params.get("tab", "")
    if tab == "producers":
        return await _producers(request)
    desk = desk_of(request)
    if tab == "new":
        return desk.show(request, "groups_new.html", config=GroupConfig(""))
    query = request.query_params
    wanted, with_system = query.get("q", "").strip().lower(), query.get("system") == "yes"
    known = desk.watcher.inventory.groups
    names = [name for name in known if wanted in name.lower() and (with_system or not is_system(name))]
    paging = Paging(len(names), page_number(request))
    rows = {name: known[name] for name in names[paging.start : paging.stop]}
    glances: dict[str, Glance] | None = None
    if query.get("lag") == "yes" and rows:  # the page is there before: this is asked for by itself, or without a script
        glances, _ = await call_each(rows, lambda name: glance(desk, name, rows[name]))
    return desk.show(
        request,
        "groups.html",
        rows=rows,
        paging=paging,
        glances=glances,
        agreed=agreed,
        inventory=desk.watcher.inventory,
    )


def agreed(configs: Mapping[str, GroupConfig], setting: str) -> object:
    """Return what all brokers have set, or None if they differ."""
    values = {getattr(config, setting) for config in configs.values()}
    return values.pop() if len(values) == 1 else None


async def _producers(request: Request) -> Response:
    desk = desk_of(request)
    query = request.query_params
    group, topic = query.get("group", "").strip(), query.get("topic", "").strip()
    connections: list[Connection] = []
    failure = None
    if group and topic:
        try:
            connections = await desk.admin.producers(group, topic)
        except SkyrouteError as error:
            failure = error
    paging = Paging(len(connections), page_number(request))
    return desk.show(request, "groups_producers.html", connections=connections, paging=paging, failure=failure)


# One group


async def group(request: Request) -> Response:
    """Show one consumer group: its progress, members, settings or offsets, by `tab`."""
    desk = desk_of(request)
    name = request.path_params["group"]
    tab = request.query_params.get("tab", "progress")
    configs = desk.watcher.inventory.groups.get(name)  # brokers are not asked: some would make the group there and then
    if configs is None:
        why = translator(request.state.visitor.language)(UNKNOWN, group=name)
        return refuse(request, why, HTTPStatus.NOT_FOUND, "/groups")
    show = {"members": _members, "member": _member, "settings": _settings, "offsets": _offsets}.get(tab, _progress)
    return await show(request, desk, name, configs)


async def _progress(request: Request, desk: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    now_s = desk.clock.monotonic()
    followed_groups: FollowedGroups = request.app.state.followed_groups
    followed = followed_groups.find(name, now_s)
    seen, retries, dead = await asyncio.gather(
        glance(desk, name, configs), _count(desk, retry_topic(name)), _count(desk, dead_letter_topic(name))
    )
    followed.note_lag(seen.progress.lag, now_s)
    if seen.consumers.connections and not followed.has_owners(now_s):
        followed.note_owners((await ask_running(desk, name, seen.consumers)).owners, now_s)
    topic = request.query_params.get("topic", "")
    queues = [each for each in seen.progress.queues.items() if not topic or each[0].topic == topic]
    paging = Paging(len(queues), page_number(request))
    return desk.show(
        request,
        "group_progress.html",
        group=name,
        seen=seen,
        lags=list(followed.lags),
        owners=followed.owners,
        in_flight=in_flight,
        topics=sum_topics(seen.progress),
        topics_max=TOPICS_SHOWN_MAX,
        topic=topic,
        queues=queues[paging.start : paging.stop],
        paging=paging,
        extra_topics={retry_topic(name): retries, dead_letter_topic(name): dead},
    )


def sum_topics(progress: GroupProgress) -> list[tuple[str, GroupProgress]]:
    """Return how far a group has come with each topic, the one with most lag first."""
    by_topic: dict[str, dict[QueueRef, QueueProgress]] = {}
    for queue, each in progress.queues.items():
        by_topic.setdefault(queue.topic, {})[queue] = each
    sums = [(topic, GroupProgress(progress.group, queues, 0.0)) for topic, queues in by_topic.items()]
    return sorted(sums, key=lambda item: (-item[1].lag, item[0]))


def in_flight(queues: Iterable[QueueProgress]) -> int | None:
    """Return how many messages members hold unfinished; None if no broker tells, as those before 5.0 do not."""
    known = [each.inflight for each in queues if each.pull_offset >= each.consumer_offset]
    return sum(known) if known else None


async def _count(desk: PageContext, topic: str) -> int | None:
    """Return how many messages a topic has; None where there is no such topic, or nobody tells."""
    if topic not in desk.watcher.inventory.topics:
        return None
    try:
        status = await desk.admin.topic_status(topic)
    except SkyrouteError:
        return None
    return sum(span.max_offset - span.min_offset for span in status.queues.values())


async def _members(request: Request, desk: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    consumers, failures = await ask_members(desk, name, configs)
    running = await ask_running(desk, name, consumers)
    wanted: dict[str, Iterable[Subscription | SubscriptionView]] = {BROKERS: consumers.subscriptions.values()}
    wanted |= {member: told.subscriptions for member, told in running.told.items()}
    paging = Paging(len(consumers.connections), page_number(request))
    return desk.show(
        request,
        "group_members.html",
        group=name,
        consumers=consumers,
        connections=consumers.connections[paging.start : paging.stop],
        paging=paging,
        running=running,
        mismatches=find_mismatches(wanted) if running.told else [],
        brokers=BROKERS,
        show_expression=show_expression,
        failures=failures,
    )


async def _member(request: Request, desk: PageContext, name: str, _configs: Mapping[str, GroupConfig]) -> Response:
    client_id = request.query_params.get("client", "")
    with_stacks = request.query_params.get("stacks") == "yes"
    running, failure = None, None
    try:
        running = await desk.admin.running_consumer(name, client_id, with_stacks=with_stacks)
    except SkyrouteError as error:
        failure = error
    queues = sorted(running.queues.items()) if running else []
    paging = Paging(len(queues), page_number(request))
    started = running.properties.get(PROPERTY_STARTED_MS, "") if running else ""
    return desk.show(
        request,
        "group_member.html",
        group=name,
        client_id=client_id,
        running=running,
        failure=failure,
        started_ms=int(started) if started.isascii() and started.isdigit() else None,
        queues=queues[paging.start : paging.stop],
        paging=paging,
        stacks=running.stacks[:STACKS_CHARS_MAX] if running and running.stacks else None,
        stacks_max=STACKS_CHARS_MAX,
        show_expression=show_expression,
    )


async def _settings(request: Request, desk: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    broker = request.query_params.get("broker", "")
    paging = Paging(len(configs), page_number(request))
    return desk.show(
        request,
        "group_settings.html",
        group=name,
        configs=dict(sorted(configs.items())[paging.start : paging.stop]),
        paging=paging,
        broker=broker if broker in configs else "",
        config=configs.get(broker) or next(iter(configs.values())),
        is_system=is_system(name),
    )


async def _offsets(request: Request, desk: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    seen = await glance(desk, name, configs)
    topics = [topic for topic, _ in sum_topics(seen.progress)]
    brokers = sorted({queue.broker_name for queue in seen.progress.queues} or configs)
    return desk.show(request, "group_offsets.html", group=name, seen=seen, topics=topics, brokers=brokers)


ROUTES = [Route("/groups", groups), *group_actions.ROUTES, Route("/groups/{group:path}", group)]
