"""Consumer groups with their progress, consumers and settings, and a search for producers."""

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.base import call_each
from skyroute.client.admin.groups import GroupProgress
from skyroute.console.cluster_data.group_status import (
    GroupStatus,
    fetch_consumers,
    fetch_group_status,
    fetch_running,
    is_system,
)
from skyroute.console.cluster_data.lag_history import LagHistories
from skyroute.console.cluster_data.subscriptions import find_mismatches, show_expression
from skyroute.console.pages import group_actions
from skyroute.console.texts import translatable, translator
from skyroute.console.web.page_context import PageContext, Paging, context_of, error_page, page_number
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import dead_letter_topic, retry_topic
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.consumers import PROPERTY_STARTED_MS
from skyroute.wire.calls.groups import Connection, GroupConfig, QueueProgress, SubscriptionView

TOPICS_SHOWN_MAX: Final = 50
"""Topics of one group in the table by topic; the table by queue has all of them."""
STACKS_CHARS_MAX: Final = 500_000
BROKERS: Final = ""
"""Stands for the brokers in place of a client id."""
NOT_FOUND: Final = translatable("Consumer group {group} not found. A new group appears within 30 seconds.")


# All groups


async def groups(request: Request) -> Response:
    """Show the consumer groups, the search for producers, or the form for a new group, by `tab`."""
    tab = request.query_params.get("tab", "")
    if tab == "producers":
        return await _producers(request)
    context = context_of(request)
    if tab == "new":
        return context.render(request, "groups_new.html", config=GroupConfig(""))
    query = request.query_params
    wanted, with_system = query.get("q", "").strip().lower(), query.get("system") == "yes"
    known = context.monitor.inventory.groups
    names = [name for name in known if wanted in name.lower() and (with_system or not is_system(name))]
    paging = Paging(len(names), page_number(request))
    rows = {name: known[name] for name in names[paging.start : paging.stop]}
    statuses: dict[str, GroupStatus] | None = None
    if query.get("lag") == "yes" and rows:  # the page loads it in a second request
        statuses, _ = await call_each(rows, lambda name: _status(context, name, rows[name]))
    return context.render(
        request,
        "groups.html",
        rows=rows,
        paging=paging,
        statuses=statuses,
        agreed=agreed,
        is_filtered=bool(wanted),
        inventory=context.monitor.inventory,
    )


def agreed(configs: Mapping[str, GroupConfig], setting: str) -> object:
    """Return the value that all brokers have, or None if they differ."""
    values = {getattr(config, setting) for config in configs.values()}
    return values.pop() if len(values) == 1 else None


async def _producers(request: Request) -> Response:
    context = context_of(request)
    query = request.query_params
    group, topic = query.get("group", "").strip(), query.get("topic", "").strip()
    connections: list[Connection] = []
    failure = None
    if group and topic:
        try:
            connections = await context.admin.producers(group, topic)
        except SkyrouteError as error:
            failure = error
    paging = Paging(len(connections), page_number(request))
    return context.render(request, "groups_producers.html", connections=connections, paging=paging, failure=failure)


# One group


async def group(request: Request) -> Response:
    """Show one consumer group: its progress, consumers, settings or offsets, by `tab`."""
    context = context_of(request)
    name = request.path_params["group"]
    tab = request.query_params.get("tab", "progress")
    configs = context.monitor.inventory.groups.get(name)  # not from brokers: some create a group on request
    if configs is None:
        why = translator(request.state.visitor.language)(NOT_FOUND, group=name)
        return error_page(request, why, HTTPStatus.NOT_FOUND, "/groups")
    show = {"consumers": _consumers, "consumer": _consumer, "settings": _settings, "offsets": _offsets}.get(
        tab, _progress
    )
    return await show(request, context, name, configs)


async def _progress(request: Request, context: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    now_s = context.clock.monotonic()
    histories: LagHistories = request.app.state.lag_histories
    history = histories.find(name, now_s)
    status, retries, dead = await asyncio.gather(
        _status(context, name, configs), _count(context, retry_topic(name)), _count(context, dead_letter_topic(name))
    )
    history.add_lag(status.progress.lag, now_s)
    if status.consumers.connections and not history.has_owners(now_s):
        history.set_owners((await fetch_running(context.admin, name, status.consumers)).owners, now_s)
    topic = request.query_params.get("topic", "")
    queues = [each for each in status.progress.queues.items() if not topic or each[0].topic == topic]
    paging = Paging(len(queues), page_number(request))
    return context.render(
        request,
        "group_progress.html",
        group=name,
        status=status,
        lags=list(history.lags),
        owners=history.owners,
        in_flight=in_flight,
        topics=sum_topics(status.progress),
        topics_max=TOPICS_SHOWN_MAX,
        topic=topic,
        queues=queues[paging.start : paging.stop],
        paging=paging,
        extra_topics={retry_topic(name): retries, dead_letter_topic(name): dead},
    )


async def _status(context: PageContext, group: str, brokers: Iterable[str]) -> GroupStatus:
    return await fetch_group_status(context.admin, context.monitor.snapshot, group, brokers)


def sum_topics(progress: GroupProgress) -> list[tuple[str, GroupProgress]]:
    """Return the progress of a group in each topic, the highest lag first."""
    by_topic: dict[str, dict[QueueRef, QueueProgress]] = {}
    for queue, each in progress.queues.items():
        by_topic.setdefault(queue.topic, {})[queue] = each
    sums = [(topic, GroupProgress(progress.group, queues, 0.0)) for topic, queues in by_topic.items()]
    return sorted(sums, key=lambda item: (-item[1].lag, item[0]))


def in_flight(queues: Iterable[QueueProgress]) -> int | None:
    """Return the number of messages in flight; None if no broker reports it: those before 5.0 do not."""
    known = [each.inflight for each in queues if each.pull_offset >= each.consumer_offset]
    return sum(known) if known else None


async def _count(context: PageContext, topic: str) -> int | None:
    """Return the number of messages in a topic; None if it does not exist or cannot be read."""
    if topic not in context.monitor.inventory.topics:
        return None
    try:
        status = await context.admin.topic_status(topic)
    except SkyrouteError:
        return None
    return sum(span.max_offset - span.min_offset for span in status.queues.values())


async def _consumers(request: Request, context: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    consumers, failures = await fetch_consumers(context.admin, context.monitor.snapshot, name, configs)
    running = await fetch_running(context.admin, name, consumers)
    subscriptions: dict[str, Iterable[Subscription | SubscriptionView]] = {BROKERS: consumers.subscriptions.values()}
    subscriptions |= {client: each.subscriptions for client, each in running.by_client.items()}
    paging = Paging(len(consumers.connections), page_number(request))
    return context.render(
        request,
        "group_consumers.html",
        group=name,
        consumers=consumers,
        connections=consumers.connections[paging.start : paging.stop],
        paging=paging,
        running=running,
        mismatches=find_mismatches(subscriptions) if running.by_client else [],
        brokers=BROKERS,
        show_expression=show_expression,
        failures=failures,
    )


async def _consumer(request: Request, context: PageContext, name: str, _configs: Mapping[str, GroupConfig]) -> Response:
    client_id = request.query_params.get("client", "")
    with_stacks = request.query_params.get("stacks") == "yes"
    running, failure = None, None
    try:
        running = await context.admin.running_consumer(name, client_id, with_stacks=with_stacks)
    except SkyrouteError as error:
        failure = error
    queues = sorted(running.queues.items()) if running else []
    paging = Paging(len(queues), page_number(request))
    started = running.properties.get(PROPERTY_STARTED_MS, "") if running else ""
    return context.render(
        request,
        "group_consumer.html",
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


async def _settings(request: Request, context: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    broker = request.query_params.get("broker", "")
    paging = Paging(len(configs), page_number(request))
    return context.render(
        request,
        "group_settings.html",
        group=name,
        configs=dict(sorted(configs.items())[paging.start : paging.stop]),
        paging=paging,
        broker=broker if broker in configs else "",
        config=configs.get(broker) or next(iter(configs.values())),
        is_system=is_system(name),
    )


async def _offsets(request: Request, context: PageContext, name: str, configs: Mapping[str, GroupConfig]) -> Response:
    status = await _status(context, name, configs)
    topics = [topic for topic, _ in sum_topics(status.progress)]
    brokers = sorted({queue.broker_name for queue in status.progress.queues} or configs)
    return context.render(request, "group_offsets.html", group=name, status=status, topics=topics, brokers=brokers)


ROUTES = [Route("/groups", groups), *group_actions.ROUTES, Route("/groups/{group:path}", group)]
