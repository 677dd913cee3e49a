"""Damage to the files of a broker that is not running: how many of its messages can still be read?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.attacks.outcomes import Outcome, attack
from benchmarks.attacks.servers import (
    Lab,
    NotStartedError,
    Server,
    batch_body,
    readable,
    send_request,
    write_groups,
    write_topics,
)

TOPIC: Final = "kept"
BATCHED: Final = "batched"
QUEUES: Final = 4
MESSAGES: Final = 6_000
FLIPPED: Final = 6_200
UNIT_BYTES: Final = 20
SEGMENT_UNITS: Final = 500
BATCH_UNIT_BYTES: Final = 46

SETTINGS: Final = {
    "mappedFileSizeConsumeQueue": SEGMENT_UNITS * UNIT_BYTES,
    "mapperFileSizeBatchConsumeQueue": SEGMENT_UNITS * BATCH_UNIT_BYTES,
}

Damage = Callable[[Path], None]


@attack("recovery")
def recovery(lab: Lab) -> Iterator[Outcome]:
    """Flip a bit, remove, cut or empty one file after a clean stop or a kill, and start again."""
    yield from _damaged(lab, "a bit of the first body flipped, index removed, clean stop", _flip_first_body, FLIPPED)
    yield from _damaged(lab, "a queue folder removed, clean stop", _remove_queue)
    yield from _damaged(lab, "a queue folder removed, kill -9", _remove_queue, killed=True)
    yield from _damaged(lab, "the first file of a queue cut, clean stop", _cut_first_file)
    yield from _damaged(lab, "the last file of a queue cut, clean stop", _cut_last_file)
    yield from _damaged(lab, "the last file of a queue cut, kill -9", _cut_last_file, killed=True)
    yield from _damaged(lab, "the sign bit of one queue unit set, clean stop", _set_sign)
    yield from _damaged(lab, "topics.json and its backup removed, kill -9", _remove_topics, killed=True)
    yield from _damaged(lab, "topics.json emptied, kill -9", _empty_topics, killed=True)
    yield from _damaged(lab, "a queue file of a batch topic cut, clean stop", _cut_batch_queue, topic=BATCHED)


def _damaged(
    lab: Lab, what: str, damage: Damage, messages: int = MESSAGES, *, killed: bool = False, topic: str = TOPIC
) -> Iterator[Outcome]:
    folder = lab.folder("recovery")
    write_topics(folder, {TOPIC: QUEUES, BATCHED: QUEUES})
    _make_batched(folder / "store" / "config" / "topics.json")
    write_groups(folder, ["readers"])
    kept = (folder / "store" / "config" / "topics.json").read_bytes()
    with lab.broker(folder, SETTINGS) as server:
        _fill(server, topic, messages)
        before = readable(server, topic, QUEUES)
        if killed:
            server.kill()
        else:
            server.stop()
    damage(folder / "store")
    # The record that a bit belongs to, or the unit that points to it, may be lost.
    least = before - 1 if damage in (_flip_first_body, _set_sign) else before
    if damage not in (_remove_topics, _empty_topics):
        yield _read_again(lab, folder, what, topic, messages, least)
    else:
        # Without its table a broker may refuse to start; with it, all must be there again.
        yield _read_again(lab, folder, what, topic, messages, None)
        (folder / "store" / "config" / "topics.json").write_bytes(kept)
        yield _read_again(lab, folder, f"{what}, restored later", topic, messages, least)


def _read_again(lab: Lab, folder: Path, what: str, topic: str, messages: int, least: int | None) -> Outcome:
    title = f"messages of {messages:,} after {what}"
    try:
        with lab.broker(folder, SETTINGS) as server:
            found = readable(server, topic, QUEUES)
            log = [line for line in server.log.splitlines() if "WARNING skyroute.broker.store" in line]
            server.stop()
    except (NotStartedError, OSError) as error:
        return Outcome("recovery", "broker", title, "does not start", at_least=least, note=str(error)[-300:])
    return Outcome("recovery", "broker", title, found, at_least=least, note=log[-1][:200] if log else "")


def _make_batched(topics: Path) -> None:
    table = json.loads(topics.read_text())
    table["topicConfigTable"][BATCHED]["attributes"] = {"queue.type": "BatchCQ"}
    topics.write_text(json.dumps(table))


def _fill(server: Server, topic: str, messages: int) -> None:
    size = 100
    with server.line() as line:
        for first in range(0, messages, size):
            bodies = [b"body-%06d" % number for number in range(first, first + size)]
            queue = first // size % QUEUES
            # With a key, as every client gives one: else there is no index.
            if topic == TOPIC:
                body = batch_body(bodies, f"UNIQ_KEY\x01{first:016}\x02".encode())
                answers = [line.call(send_request(topic, queue, body, batch=True))]
            else:
                answers = [
                    line.call(send_request(topic, queue, body, f"UNIQ_KEY\x01{body.decode()}\x02")) for body in bodies
                ]
            if any(answer.code for answer in answers):
                raise NotStartedError(f"a send was answered {answers[-1].code} {answers[-1].remark}")
        # It waits in a topic that every broker has, and is the newest record of the log.
        line.call(send_request(topic, 0, b"later", "DELAY\x0118\x02"))


def _flip_first_body(store: Path) -> None:
    log = min(store.glob("commitlog/*"))
    with log.open("r+b") as file:
        at = file.read(1 << 20).index(b"body-000000")
        file.seek(at)
        file.write(b"c")
    for path in store.glob("index/*"):
        path.unlink()


def _queue_files(store: Path, topic: str = TOPIC, folder: str = "consumequeue") -> list[Path]:
    return sorted((store / folder / topic / "1").iterdir())


def _remove_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / TOPIC / "1")


def _cut_first_file(store: Path) -> None:
    os.truncate(_queue_files(store)[0], SEGMENT_UNITS // 2 * UNIT_BYTES)


def _cut_last_file(store: Path) -> None:
    os.truncate(_queue_files(store)[-1], SEGMENT_UNITS // 2 * UNIT_BYTES)


def _set_sign(store: Path) -> None:
    with _queue_files(store)[-1].open("r+b") as file:
        at = SEGMENT_UNITS // 2 * UNIT_BYTES
        file.seek(at)
        first = file.read(1)[0]
        file.seek(at)
        file.write(bytes([first | 0x80]))


def _remove_topics(store: Path) -> None:
    for path in (store / "config").glob("topics.json*"):
        path.unlink()


def _empty_topics(store: Path) -> None:
    for path in (store / "config").glob("topics.json*"):
        path.write_bytes(b"")


def _cut_batch_queue(store: Path) -> None:
    os.truncate(_queue_files(store, BATCHED, "batchconsumequeue")[0], SEGMENT_UNITS // 2 * BATCH_UNIT_BYTES)
