"""The invariants. Each has a name, and a checker that returns the violations it finds in a history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from tests.simulation.history import Ending, History, Outcome

LEASE_S: Final = 120.0
SCAN_S: Final = 5.0
REGISTRATION_S: Final = 30.0
SLACK_S: Final = 15.0
"""For connects, retries and late scans, in addition to a lease or a registration interval."""

ROUNDING_S: Final = 0.002
"""Brokers store times in whole milliseconds."""

Checker = Callable[[History], Iterator[str]]


def no_acknowledged_message_lost(history: History) -> Iterator[str]:
    """Each group has consumed every acknowledged message of its topic at least once."""
    consumed = {(each.group, each.body) for each in history.deliveries if each.is_consumed}
    for group, topic in history.topics.items():
        for send in history.sends.values():
            if send.topic != topic or send.outcome is not Outcome.ACKNOWLEDGED or send.ending is Ending.ROLLBACK:
                continue
            if (group, send.body) not in consumed:
                yield f"{group} never consumed {send.body}, acknowledged at {send.queue}:{send.offset}"


def delivered_at_least_once_only(history: History) -> Iterator[str]:
    """Nothing is delivered that was not sent to the topic; without a cause, nothing is delivered twice."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in history.deliveries:
        send = history.sends.get(each.body)
        if send is None or send.topic != history.topics[each.group]:
            yield f"{each.group} got {each.body!r} of {each.topic}, which nothing sent there"
        counts[each.group, each.body] += 1
    if not history.had_faults:
        for (group, body), count in counts.items():
            if count > 1:
                yield f"{group} got {body} {count} times without a fault"


def ordered_consumption_ordered(history: History) -> Iterator[str]:
    """An ordered group first gets the messages of a queue in the order of their offsets."""
    newest: dict[tuple[str, str], int] = {}
    seen: set[tuple[str, str, int]] = set()
    for each in history.deliveries:
        if each.group not in history.ordered_groups:
            continue
        key = each.group, each.queue
        if (*key, each.offset) in seen:
            continue
        seen.add((*key, each.offset))
        if each.offset < newest.get(key, -1):
            yield f"{each.group} got {each.queue}:{each.offset} first after {newest[key]} at {each.at:.3f} s"
        newest[key] = max(newest.get(key, -1), each.offset)
    positions: dict[tuple[str, int], str] = {}
    for send in history.sends.values():
        if send.outcome is Outcome.ACKNOWLEDGED and send.offset >= 0 and not send.not_before and send.ending is None:
            before = positions.setdefault((send.queue, send.offset), send.body)
            if before != send.body:
                yield f"{send.queue}:{send.offset} was acknowledged for {before} and for {send.body}"


def no_queue_with_two_owners(history: History) -> Iterator[str]:
    """At the end each queue of a topic belongs to exactly one consumer of a group."""
    for group, by_consumer in history.owners.items():
        owners = defaultdict(list)
        for consumer, queues in by_consumer.items():
            for queue in queues:
                owners[queue].append(consumer)
        for queue, names in sorted(owners.items()):
            if len(names) > 1:
                yield f"{group}: {queue} belongs to {' and '.join(sorted(names))}"
        for queue in sorted(history.queues.get(history.topics[group], frozenset()) - owners.keys()):
            yield f"{group}: {queue} belongs to no consumer"


def routes_converge_within_a_lease(history: History) -> Iterator[str]:
    """A name server lists a broker soon after it can reach it, and no longer than a lease after it cannot."""
    for each in history.route_samples:
        if each.is_connected and not each.is_listed and each.for_s > REGISTRATION_S + SLACK_S:
            yield f"{each.at:.0f} s: {each.name_server} does not list {each.broker}, up for {each.for_s:.0f} s"
        if not each.is_connected and each.is_listed and each.for_s > LEASE_S + SCAN_S + SLACK_S:
            yield f"{each.at:.0f} s: {each.name_server} lists {each.broker}, gone for {each.for_s:.0f} s"


def fresh_registration_stays(history: History) -> Iterator[str]:
    """No old event removes a broker: it is listed while the connection of its last registration is open."""
    for each in history.registration_samples:
        if not each.is_listed:
            yield f"{each.at:.0f} s: {each.name_server} does not list {each.broker}, whose connection is open"


def watch_revisions_ordered(history: History) -> Iterator[str]:
    """In one life of a name server, revisions only grow, and no change is reported twice."""
    newest: dict[tuple[str, str], int] = {}
    for step in history.watch_steps:
        key = step.name_server, step.life
        floor = newest.get(key, -1)
        for revision in step.changes:
            if revision <= floor:
                yield f"{step.name_server}: change {revision} reported after revision {floor}"
            floor = max(floor, revision)
        if step.revision < floor:
            yield f"{step.name_server}: revision {step.revision} after {floor}"
        newest[key] = max(floor, step.revision)


def journal_replay_equals_table(history: History) -> Iterator[str]:
    """The journal of a name server, replayed, gives its route table."""
    for each in history.journal_samples:
        for name in sorted({*each.table, *each.replayed}):
            if each.table.get(name) != each.replayed.get(name):
                yield (
                    f"{each.at:.0f} s: {each.name_server}: {name} is {each.table.get(name)} in the table and "
                    f"{each.replayed.get(name)} in the journal"
                )


def delayed_never_early(history: History) -> Iterator[str]:
    """A delayed message is not delivered before its time."""
    for each in history.deliveries:
        send = history.sends.get(each.body)
        if send is not None and each.at < send.not_before - ROUNDING_S:
            yield f"{each.group} got {each.body} {send.not_before - each.at:.3f} s early"


def half_messages_end_once(history: History) -> Iterator[str]:
    """A message whose transaction was rolled back is never delivered. That of a committed one counts as sent."""
    for each in history.deliveries:
        send = history.sends.get(each.body)
        if send is not None and send.ending is Ending.ROLLBACK:
            yield f"{each.group} got {each.body}, which was rolled back"


def nothing_fails_unhandled(history: History) -> Iterator[str]:
    """No callback and no task ends with an exception that nothing handles."""
    yield from history.failures


CHECKERS: Final[dict[str, Checker]] = {
    "no acknowledged message lost": no_acknowledged_message_lost,
    "delivered at least once only": delivered_at_least_once_only,
    "ordered consumption ordered": ordered_consumption_ordered,
    "no queue with two owners": no_queue_with_two_owners,
    "routes converge within a lease": routes_converge_within_a_lease,
    "fresh registration stays": fresh_registration_stays,
    "watch revisions ordered": watch_revisions_ordered,
    "journal replay equals the table": journal_replay_equals_table,
    "delayed never early": delayed_never_early,
    "half messages end once": half_messages_end_once,
    "nothing fails unhandled": nothing_fails_unhandled,
}


def check(history: History) -> dict[str, list[str]]:
    """Return the violations of each invariant that was violated."""
    found = {name: list(checker(history)) for name, checker in CHECKERS.items()}
    return {name: violations for name, violations in found.items() if violations}
