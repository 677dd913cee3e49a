"""Every target fails when its reader is broken: a check that cannot fail is no check."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fuzz.corpus_files import TARGETS, read_corpus


@dataclass(frozen=True)
class Planted:
    """A fault: a function of the product, or of a target's imports, that is replaced by a wrong one."""

    target: str
    where: str
    """Module and name."""
    wrong: Callable[[Any], Any]
    """Makes the wrong function from the right one."""


def changing(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Change what a function returns."""
    return lambda right: lambda *args, **kwargs: change(right(*args, **kwargs))


def raising(error: type[Exception]) -> Callable[[Any], Any]:
    """Let a function fail with an error that is not documented."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    return lambda _right: fail


def nothing(_found: object) -> None:
    return None


def shorter(found: Any) -> Any:
    return found[:-1]


def renamed(request: Any) -> Any:
    if request is not None:
        request.fields.topic += "x"
    return request


WIRE = "skyroute.wire"
STORE = "skyroute.broker.store"
JOURNAL = "skyroute.nameserver.journal"
PLANTED = (
    Planted("batch", "tests.fuzz.targets.batch.decode_batch", changing(shorter)),
    Planted("calls", f"{WIRE}.calls.topics.read_body", raising(KeyError)),
    Planted("checkpoint", f"{STORE}.files.checkpoint.Checkpoint._read_note", lambda _: lambda *_args: (1, 2, 3, 4)),
    Planted("commit_log", f"{STORE}.recovery.log_scan._find_by_magic", lambda _: lambda *_args: None),
    Planted("console_forms", "skyroute.console.web.forms._unescape", changing(str.upper)),
    Planted("consume_queue", f"{STORE}.queues.consume_queue.ConsumeQueue.next_segment", changing(lambda _: 0)),
    Planted("consume_queue", f"{STORE}.queues.batch_queue.accumulate", lambda _: lambda stops, _max: stops),
    Planted("epochs", "tests.fuzz.targets.epochs.render_epochs", changing(lambda found: found.replace(b"-", b"-1"))),
    Planted("fast_path", "tests.fuzz.targets.fast_path.read_send_header", changing(renamed)),
    Planted("fast_path", f"{WIRE}.fast_path.response_head", changing(lambda found: found + b" ")),
    Planted("fastjson", "tests.fuzz.targets.fastjson.standardise", changing(bytes.upper)),
    Planted("frame", "tests.fuzz.targets.frame.FrameDecoder.feed", changing(lambda frames: frames[1:])),
    Planted("header_binary", f"{WIRE}.header._take_text", changing(lambda found: (found[0][::-1], found[1]))),
    Planted("header_json", f"{WIRE}.header._lenient_int", changing(lambda found: found + 1)),
    Planted("journal", f"{JOURNAL}.segments.read_mark", raising(RecursionError)),
    Planted("journal", f"{JOURNAL}.recovery.close_torn", raising(KeyError)),
    Planted("key_index", f"{STORE}.index.key_index.IndexFile._first_behind", changing(lambda found: found + 9)),
    Planted("key_index", f"{STORE}.index.key_index.IndexFile.write_header", lambda _: lambda _self: None),
    Planted("message_texts", "tests.fuzz.targets.message_texts.decode_trace", raising(IndexError)),
    Planted(
        "pop_records",
        f"{WIRE}.calls.pop_records.CheckPointAck",
        lambda right: lambda *found: right(*found[:-1], (*found[-1], 9)),
    ),
    Planted("pop_records", f"{WIRE}.calls.pop_receipts.RetryFlag", raising(KeyError)),
    Planted("properties", "tests.fuzz.targets.properties.find_property", changing(nothing)),
    Planted("proxy_protocol", f"{WIRE}.proxy_protocol._display", changing(lambda found: f"{found}0")),
    Planted("queue_ledger", "tests.fuzz.targets.queue_ledger.encode_ledger", changing(shorter)),
    Planted("record", "tests.fuzz.targets.record.encode_record", changing(lambda found: found[:-1] + b"?")),
    Planted("registration", f"{WIRE}.calls.registration_body._decode_topic_line", raising(IndexError)),
    Planted("replication", f"{WIRE}.auto_switch.SlaveStream.feed", changing(lambda found: list(found)[1:])),
    Planted("replication", f"{WIRE}.ha.decode_transfer_head", raising(KeyError)),
    Planted("rules_files", "skyroute.access.rules_file.user_body", raising(KeyError)),
    Planted("settings_file", "skyroute.settings.properties._escape", changing(str.lower)),
    Planted("snapshot", "skyroute.nameserver.snapshot_file._from_line", raising(KeyError)),
    Planted("sql92", "skyroute.message.sql92._negated", lambda _: lambda truth: truth),
    Planted("store", f"{STORE}.recovery.replay.Replay.run", raising(ZeroDivisionError)),
    Planted("tables", "skyroute.broker.tables.table_format.read_as", raising(KeyError)),
    Planted(
        "taken_log", "skyroute.broker.pop.taken_log.OffsetRanges.__iter__", changing(lambda found: reversed([*found]))
    ),
    Planted("timer_check", "skyroute.broker.scheduling.timer_check._find_damage", changing(lambda _: "")),
)


def test_every_target_has_a_planted_fault() -> None:
    assert {planted.target for planted in PLANTED} == set(TARGETS)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: f"{each.target}-{each.where.rpartition('.')[2]}")
def test_a_target_finds_a_planted_fault(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    check = importlib.import_module(f"tests.fuzz.targets.{planted.target}").check
    holder_name, _, name = planted.where.rpartition(".")
    try:
        holder = importlib.import_module(holder_name)
    except ModuleNotFoundError:
        module, _, class_name = holder_name.rpartition(".")
        holder = getattr(importlib.import_module(module), class_name)
    monkeypatch.setattr(holder, name, planted.wrong(getattr(holder, name)))
    failed = 0
    for each in read_corpus(planted.target):
        try:
            check(each)
        except Exception:  # noqa: BLE001 - any failure counts
            failed += 1
    assert failed
