"""Attacks that keep a server too busy to answer other clients."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from benchmarks.attacks.outcomes import SILENCE_MS_MAX, Outcome, attack
from benchmarks.attacks.servers import (
    CLUSTER,
    PEER_TOPIC,
    Heard,
    Lab,
    NotStartedError,
    Peer,
    Server,
    batch_body,
    fire,
    peer,
    pull_request,
    register,
    registration,
    send_request,
    write_groups,
    write_offsets,
    write_topics,
)
from benchmarks.load.programs import load_broker
from benchmarks.machine import cpu_s
from tests.support.apache import free_port
from tests.support.raw import DataVersion, RawConnection, Request, Topic

LEAD_S: Final = 1.0
"""How long the well-behaved peer is heard before an attack, to know what the machine itself takes."""
ROUTE: Final = Request(105, {"topic": PEER_TOPIC})
LAST_OFFSET: Final = Request(30, {"topic": PEER_TOPIC, "queueId": "0"})
LARGEST_NAME_SERVER: Final = 100_000
OFFSET_GROUPS: Final = 500
OFFSET_TOPICS: Final = 125
OFFSET_QUEUES: Final = 8


def silence(
    lab: Lab,
    server: Server,
    name: str,
    what: str,
    requests: Sequence[Request],
    *,
    connections: int = 1,
    one_way: bool = False,
) -> Iterator[Outcome]:
    """Write requests without waiting, and say how long a well-behaved peer waited meanwhile."""
    end = (ROUTE if server.role == "nameserver" else LAST_OFFSET) if one_way else None
    with peer(server) as well_behaved:
        well_behaved.begin()
        time.sleep(LEAD_S)
        quiet = well_behaved.end()
        well_behaved.begin()
        used_s = cpu_s(server.pid)
        fired = fire(server.address, requests, connections=connections, one_way=one_way, end=end, limit_s=lab.limit_s)
        heard = well_behaved.end()
        used_s = cpu_s(server.pid) - used_s
    answered = f"answered {fired.answered} of {fired.wanted} in {fired.took_s:.2f} s"
    note = f"{answered}, processor {used_s:.1f} s, before the attack {quiet.longest_ms:.0f} ms"
    outcome = silent_for(name, server, what, heard, note)
    yield replace(outcome, value=f"> {lab.limit_s:g} s") if fired.took_s >= lab.limit_s else outcome


def silent_for(name: str, server: Server, what: str, heard: Heard, note: str = "") -> Outcome:
    """Return the longest wait of the well-behaved peer as a figure."""
    failures = f"{heard.failed} of {heard.asked} failed, last: {heard.last_failure}" if heard.failed else ""
    return Outcome(
        *(name, server.role, f"longest wait, {what}", heard.longest_ms, "ms"),
        at_most=SILENCE_MS_MAX,
        computed_ms=heard.computed_ms,
        note=", ".join(filter(None, (note, failures))),
    )


# -------------------------------------------------------------------------------------------------------- greedy client

GREEDY_S: Final = 8.0
GREEDY_QUEUES: Final = 8
TURNS_MIN: Final = 0.8
"""Share of the turns of one greedy connection that a client with one request at a time must get."""


@attack("greedy")
def greedy(lab: Lab) -> Iterator[Outcome]:
    """One client sends as fast as it can, beside one that waits for each answer: does that one get its turns?"""
    folder = lab.folder("greedy")
    write_topics(folder, {"greedy": GREEDY_QUEUES})
    with lab.broker(folder) as server:
        for source, loads in (("127.0.0.1", ((1, 256), (64, 16))), ("127.0.0.2", ((64, 16), (1_000, 1)))):
            with peer(server, pause_ms=0, source=source) as polite:
                polite.begin()
                time.sleep(LEAD_S)
                alone = polite.end().asked / LEAD_S
                for connections, depth in loads:
                    yield from _greedy(server, polite, alone, connections, depth, is_same=source == "127.0.0.1")


def _greedy(
    server: Server, polite: Peer, alone: float, connections: int, depth: int, *, is_same: bool
) -> Iterator[Outcome]:
    """Measure a polite peer beside a greedy client, of the same address or not."""
    port = int(server.address.rpartition(":")[2])
    polite.begin()
    load = load_broker(port, "send", "greedy", GREEDY_QUEUES, GREEDY_S, connections, depth, 1024)
    heard = polite.end()
    per_s, turns_per_s = heard.asked / load.seconds, load.per_s / connections / depth
    what = f"beside {connections} x {depth} sends in flight{'' if is_same else ' of another address'}"
    note = f"{per_s:,.0f} a second, alone {alone:,.0f}; the greedy client {load.per_s:,.0f}"
    turns = per_s / turns_per_s
    yield Outcome("greedy", "broker", f"turns {what}", turns, "of a connection", at_least=TURNS_MIN, note=note)
    yield silent_for("greedy", server, what, heard)


# --------------------------------------------------------------------------------------------------------- conditions

SQL_MESSAGES: Final = 16_000
SQL_PULLS: Final = 100
SQL_CHARS: Final = 28_000


@attack("sql")
def sql(lab: Lab) -> Iterator[Outcome]:
    """A long condition that no message fulfils, said once, then 100 pulls that go by it."""
    folder = lab.folder("sql")
    write_topics(folder, {"filtered": 1})
    term = "a <> 'x' AND "
    condition = term * (SQL_CHARS // len(term)) + "a = 'y'"
    subscription = {"topic": "filtered", "subString": condition, "expressionType": "SQL92", "subVersion": 1}
    consumer = {"groupName": "readers", "subscriptionDataSet": [subscription]}
    heartbeat = {"clientID": "attacker@1", "consumerDataSet": [consumer], "producerDataSet": []}
    with lab.broker(folder) as server, server.line() as line:
        properties = "a\x01z\x02"
        body = batch_body([b"x"] * 1_000, properties.encode())
        for _ in range(SQL_MESSAGES // 1_000):
            line.call(send_request("filtered", 0, body, batch=True))
        line.call(34, {}, json.dumps(heartbeat).encode())
        pulls = [pull_request("filtered", 0, 0, own_filter=False)] * SQL_PULLS
        yield from silence(lab, server, "sql", f"{SQL_PULLS} pulls with a condition of 28 KB", pulls)
        fields = {**pull_request("filtered", 0, 0).fields, "expressionType": "SQL92"}
        pulls = [Request(11, {**fields, "subscription": f"{condition} OR b = '{n}'"}) for n in range(SQL_PULLS)]
        yield from silence(lab, server, "sql", f"{SQL_PULLS} pulls, each with a new condition", pulls)


# --------------------------------------------------------------------------------------------------------- long lists


@attack("one-way-lists")
def one_way_lists(lab: Lab) -> Iterator[Outcome]:
    """Ask for all topics 1,000 times in one write, and want no answer."""
    with lab.name_server() as server, register(server, LARGEST_NAME_SERVER):
        yield from silence(lab, server, "one-way-lists", "1,000 one-way 206", [Request(206)] * 1_000, one_way=True)


@attack("lists")
def lists(lab: Lab) -> Iterator[Outcome]:
    """Ask for long lists of a name server and want the answers."""
    for what, request in (("206", Request(206)), ("224", Request(224, {"cluster": CLUSTER}))):
        with lab.name_server() as server, register(server, LARGEST_NAME_SERVER):
            yield from silence(lab, server, "lists", f"100 x {what}", [request] * 100)
            yield from silence(lab, server, "lists", f"50 connections x 2 x {what}", [request] * 2, connections=50)


def write_large_offsets(folder: Path, group_count: int = OFFSET_GROUPS) -> None:
    """Write 500,000 offsets: 500 groups, 125 topics, 8 queues."""
    topics = [f"t-{number:03}" for number in range(OFFSET_TOPICS)]
    groups = [f"g-{number:03}" for number in range(group_count)]
    write_topics(folder, dict.fromkeys(topics, OFFSET_QUEUES))
    write_groups(folder, [*groups, "readers"])
    write_offsets(folder, groups, topics, OFFSET_QUEUES)


@attack("offsets")
def offsets(lab: Lab) -> Iterator[Outcome]:
    """Ask for the progress of all groups, and for all offsets, of a broker with 500,000 of them."""
    folder = lab.folder("offsets")
    write_large_offsets(folder)
    with lab.broker(folder) as server:
        yield from silence(lab, server, "offsets", "3 x 317", [Request(317, {"isOrder": "false"})] * 3)
    with lab.broker(folder) as server:
        yield from silence(lab, server, "offsets", "10 x 43", [Request(43)] * 10)


@attack("more-offsets")
def more_offsets(lab: Lab) -> Iterator[Outcome]:
    """Commit offsets to a broker that has 600,000 of them, and start it again, twice."""
    folder = lab.folder("offsets")
    write_large_offsets(folder, 600)
    queue = {"consumerGroup": "g-000", "topic": "t-000", "queueId": "0"}
    found, note = 1, ""
    try:
        for offset in (2, 3):
            with lab.broker(folder) as server, server.line() as line:
                line.call(15, {**queue, "commitOffset": str(offset)})
                server.stop()  # which writes the table as the broker does
            with lab.broker(folder) as server, server.line() as line:
                found = int(line.call(14, queue).fields["offset"])
    except NotStartedError as error:
        found, note = 0, f"does not start: {str(error)[-160:]}"
    what = "offset after two restarts, 600,000 offsets"
    yield Outcome("more-offsets", "broker", what, found, at_least=3, note=note)


@attack("wide-topic")
def wide_topic(lab: Lab) -> Iterator[Outcome]:
    """Ask where the queues of a topic begin and end that has 65,536."""
    folder = lab.folder("wide")
    write_topics(folder, {"wide": 65_536})
    write_groups(folder, ["readers"])
    with lab.broker(folder) as server:
        yield from silence(lab, server, "wide-topic", "1 x 202", [Request(202, {"topic": "wide"})])
        yield from silence(lab, server, "wide-topic", "40 x 202", [Request(202, {"topic": "wide"})] * 40)


@attack("topic-configs")
def topic_configs(lab: Lab) -> Iterator[Outcome]:
    """Ask a broker for all of its topics, of which it has as many as it takes."""
    folder = lab.folder("configs")
    write_topics(folder, {f"topic-{number:06}": 4 for number in range(99_900)})
    with lab.broker(folder) as server:
        yield from silence(lab, server, "topic-configs", "10 x 21", [Request(21)] * 10)


SCRAPES: Final = 5


@attack("scrape")
def scrape(lab: Lab) -> Iterator[Outcome]:
    """Read the metrics of a broker where 40 groups have an offset in a topic with 65,536 queues."""
    folder, port = lab.folder("scrape"), free_port()
    groups = [f"g-{number:03}" for number in range(40)]
    write_topics(folder, {"wide": 65_536})
    write_groups(folder, groups)
    write_offsets(folder, groups, ["wide"], 1)
    with lab.broker(folder, {"metricsPort": port}) as server, peer(server) as well_behaved:
        well_behaved.begin()
        size = 0
        for _ in range(SCRAPES):
            time.sleep(0.1)
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=lab.limit_s) as page:
                size += len(page.read())
        yield silent_for("scrape", server, f"{SCRAPES} scrapes", well_behaved.end(), f"{size} bytes")


HALF_MESSAGES: Final = 100_000
CHECKED_S: Final = 5.0
"""How long the well-behaved client is measured after the last half message: the broker looks for due ones every 2 s."""


@attack("transactions")
def transactions(lab: Lab) -> Iterator[Outcome]:
    """Begin 100,000 transactions and end none of them."""
    half = send_request(PEER_TOPIC, 1, b"x", "TRAN_MSG\x01true\x02PGROUP\x01attackers\x02")
    with lab.broker(settings={"transactionCheckInterval": 2_000}) as server, server.line() as line:
        line.call(send_request(PEER_TOPIC, 0, b"x"))
        with peer(server) as well_behaved:
            well_behaved.begin()
            fired = fire(server.address, [half] * HALF_MESSAGES, limit_s=lab.limit_s)
            time.sleep(CHECKED_S)
            heard = well_behaved.end()
        note = f"answered {fired.answered} of {fired.wanted} in {fired.took_s:.2f} s"
        yield silent_for("transactions", server, f"{HALF_MESSAGES:,} open transactions", heard, note)


# -------------------------------------------------------------------------------------------------------------- sends


@attack("topics")
def topics(lab: Lab) -> Iterator[Outcome]:
    """Send to topics that are not there yet, when there are 80,000."""
    folder, count = lab.folder("topics"), 20
    write_topics(folder, {f"topic-{number:06}": 4 for number in range(80_000)})
    with lab.broker(folder) as server:
        sends = [send_request(f"new-{number}", 0, b"x") for number in range(count)]
        with server.line(timeout_s=lab.limit_s) as line, peer(server) as well_behaved:
            well_behaved.begin()
            began = time.monotonic()
            refused = sum(line.call(send).code != 0 for send in sends)
            each_ms = (time.monotonic() - began) * 1000 / count
            heard = well_behaved.end()
        note = f"{refused} of {count} refused"
        yield Outcome("topics", "broker", "a topic created by a send, 80,000 topics", each_ms, "ms", 100.0, note=note)
        yield silent_for("topics", server, f"{count} topics created one by one", heard)
        sends = [send_request(f"more-{number}", 0, b"x") for number in range(count)]
        yield from silence(lab, server, "topics", f"{count} topics created at once", sends)


@attack("batch")
def batch(lab: Lab) -> Iterator[Outcome]:
    """Send one batch of 180,000 messages."""
    with lab.broker() as server, server.line() as line:
        line.call(send_request(PEER_TOPIC, 0, b"x"))
        send = send_request(PEER_TOPIC, 1, batch_body([b""] * 180_000), batch=True)
        yield from silence(lab, server, "batch", "one batch of 180,000", [send])


@attack("flood")
def flood(lab: Lab) -> Iterator[Outcome]:
    """Write 200,000 cheap requests at once."""
    with lab.name_server() as server, register(server, 100):
        yield from silence(lab, server, "flood", "200,000 x 105", [ROUTE] * 200_000)
    with lab.broker() as server, server.line() as line:
        line.call(send_request(PEER_TOPIC, 0, b"x"))
        yield from silence(lab, server, "flood", "200,000 x 30", [LAST_OFFSET] * 200_000)


# ------------------------------------------------------------------------------------------------ large registrations

LARGE_TOPICS: Final = 300_000
OTHER_TOPICS: Final = 290_000
SWEPT_S: Final = 2.0
"""How long the well-behaved client is measured after a close, which gets no response."""


@attack("large-registrations")
def large_registrations(lab: Lab) -> Iterator[Outcome]:
    """Register a broker with as many topics as there may be, then with other topics, and hang up."""
    topics = [Topic(f"large-{number:06}") for number in range(LARGE_TOPICS)]
    others = [Topic(f"other-{number:06}") for number in range(OTHER_TOPICS)]
    first = registration(topics, "large", 10_921)
    second = first.but(topics=others, data_version=DataVersion(counter=2))
    for form, is_deflated in (("compressed", True), ("plain", False)):
        requests = [said.but(deflate=is_deflated).request for said in (first, second)]
        with lab.name_server() as server, register(server, 100), peer(server) as well_behaved:
            with server.line(timeout_s=lab.limit_s) as line:
                for what, request in zip(("300,000 topics", "290,000 other names"), requests, strict=True):
                    well_behaved.begin()
                    answer = line.call(request)
                    heard, note = well_behaved.end(), f"answered {answer.code}"
                    yield silent_for("large-registrations", server, f"{what}, {form}", heard, note)
                well_behaved.begin()
            time.sleep(SWEPT_S)
            heard = well_behaved.end()
        yield silent_for("large-registrations", server, f"hang-up of 590,000 topics, {form}", heard)
        with lab.name_server() as server, register(server, 100), peer(server) as well_behaved:
            with server.line(timeout_s=lab.limit_s) as line:
                line.call(requests[0])
                well_behaved.begin()
            time.sleep(SWEPT_S)
            heard = well_behaved.end()
        yield silent_for("large-registrations", server, f"hang-up of 300,000 topics, {form}", heard)


# ------------------------------------------------------------------------------------------------- brokers and watches

CONTAINED: Final = 19_990
"""Brokers of one connection; a name server takes 20,000."""
PIPELINED: Final = 200
"""Requests that are sent before their responses are read."""


@attack("many-brokers")
def many_brokers(lab: Lab) -> Iterator[Outcome]:
    """Register 20,000 brokers on one connection, delete a topic that all of them have, and hang up."""
    shared, own = [Topic("shared"), Topic("shared-too")], "20,000 brokers with topics of their own"
    for what, is_shared in ((own, False), ("20,000 brokers with the same topics", True)):
        brokers = [
            registration(
                shared if is_shared else [Topic(f"a-{number}"), Topic(f"b-{number}")], f"b-{number}", 1 + number
            )
            for number in range(CONTAINED)
        ]
        with lab.name_server() as server:
            line = server.line(timeout_s=lab.limit_s)
            _send_all(line, [broker.but(heartbeat_ms=3_600_000).request for broker in brokers])
            with register(server, 100), peer(server) as well_behaved:
                if is_shared:
                    well_behaved.begin()
                    line.call(216, {"topic": "shared"})
                    yield silent_for("many-brokers", server, f"deletion of a topic of {what}", well_behaved.end())
                well_behaved.begin()
                line.close()
                time.sleep(SWEPT_S)
                yield silent_for("many-brokers", server, f"hang-up of {what}", well_behaved.end())


def _send_all(line: RawConnection, requests: Sequence[Request]) -> None:
    for at in range(0, len(requests), PIPELINED):
        for request in requests[at : at + PIPELINED]:
            line.send(request)
        for _ in requests[at : at + PIPELINED]:
            line.receive()


WATCHING: Final = 245
"""Connections; each has the four watches that it may have."""
WATCHED: Final = 1_020


@attack("watches")
def watches(lab: Lab) -> Iterator[Outcome]:
    """Watch a million topics and close all connections; then again, and register a broker with 300,000 of them."""
    with lab.name_server() as server, register(server, 100), peer(server) as well_behaved:
        lines = _watch_all(server)
        well_behaved.begin()
        for line in lines:
            line.close()
        time.sleep(SWEPT_S)
        yield silent_for("watches", server, f"{WATCHING} connections with 980 watches close", well_behaved.end())
        lines = _watch_all(server)
        well_behaved.begin()
        broker = registration([Topic(f"large-{number:06}") for number in range(LARGE_TOPICS)], "large", 10_921)
        with server.line(timeout_s=lab.limit_s) as line:
            answer = line.call(broker.request)
        heard, note = well_behaved.end(), f"answered {answer.code}"
        yield silent_for("watches", server, "300,000 of a million watched topics register and leave", heard, note)
        for line in lines:
            line.close()


def _watch_all(server: Server) -> list[RawConnection]:
    """Watch a million topics over many connections, which are to be kept."""
    lines = [server.line() for _ in range(WATCHING)]
    now = lines[0].call(21001, {"anyTopic": "true"}).fields
    bookmark = {"life": now["life"], "revision": now["revision"], "timeoutMillis": "60000"}
    for at in range(4 * WATCHING):
        names = [f"large-{number:06}" for number in range(at * WATCHED, (at + 1) * WATCHED)]
        lines[at % WATCHING].send(21001, bookmark, json.dumps({"topics": names}).encode())
    for line in lines:
        line.call(ROUTE)  # the watches before it have been read
    return lines


# ----------------------------------------------------------------------------------------------------------- nonsense


@attack("malformed")
def malformed(lab: Lab) -> Iterator[Outcome]:
    """Write frames of random bytes, and of bytes that are nearly right, on many connections."""
    with lab.name_server() as server, register(server, 100):
        yield from _malformed(server)
    with lab.broker() as server, server.line() as line:
        line.call(send_request(PEER_TOPIC, 0, b"x"))
        yield from _malformed(server)


def _malformed(server: Server) -> Iterator[Outcome]:
    dice, count = random.Random(17), 0
    deadline = time.monotonic() + 15
    with peer(server) as well_behaved:
        well_behaved.begin()
        while time.monotonic() < deadline:
            frames = b"".join(_nonsense(dice) for _ in range(200))
            count += 200
            with server.line(timeout_s=1.0) as line:
                try:
                    line.write(frames)
                    line.is_closed_by_peer()
                except (OSError, ValueError):
                    pass
        heard = well_behaved.end()
    alive = "yes" if server.is_running else "no"
    yield Outcome("malformed", server.role, "still running after random frames", alive, wanted="yes")
    yield silent_for("malformed", server, "random frames", heard, f"{count:,} frames written")


def _nonsense(dice: random.Random) -> bytes:
    header = json.dumps(
        {
            "code": dice.randrange(400),
            "extFields": {dice.choice(("topic", "a", "group", "\0")): dice.choice(("", "x", "-1", "9" * 30, "../.."))},
            "flag": dice.choice((0, 0, 1, 2, 7)),
            "opaque": dice.randrange(1 << 31),
            "version": 479,
        }
    ).encode()
    body = dice.randbytes(dice.randrange(64))
    kind = dice.randrange(10)
    if kind < 2:
        at = dice.randrange(len(header))
        header = header[:at] + dice.randbytes(1) + header[at + 1 :]
    length = 4 + len(header) + len(body) + (dice.randrange(-3, 3) if kind == 2 else 0)
    word = len(header) if kind != 3 else dice.randrange(1 << 32)
    return length.to_bytes(4) + word.to_bytes(4) + header + body
