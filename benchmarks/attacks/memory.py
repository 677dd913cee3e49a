"""Attacks that make a server hold memory or disk."""

from __future__ import annotations

import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from benchmarks.attacks.outcomes import KEPT_MB_MAX, Outcome, attack
from benchmarks.attacks.servers import (
    CLUSTER,
    PEER_TOPIC,
    Lab,
    Server,
    peer,
    register,
    send_request,
    settled_mb,
)
from tests.support.raw import Request, crc32, split_address

FRAME_BYTES: Final = 16 * 1024 * 1024 - 64
"""Nearly the longest frame that is taken."""
SENT_BYTES: Final = 15 * 1024 * 1024
HALF_FRAMES: Final = 480
AT_ONCE: Final = 8
"""Connections that are open together: many more would meet the bound on buffered bytes."""
SETTLE_S: Final = 10.0
FULL_SPEED_PEERS: Final = 2


@attack("half-frames")
def half_frames(lab: Lab) -> Iterator[Outcome]:
    """Send most of a large frame on 480 connections and hang up."""
    for traffic in (False, True):
        with lab.name_server() as server, register(server, 100):
            yield from _half_frames(lab, server, traffic=traffic)
        with lab.broker() as server, server.line() as line:
            line.call(send_request(PEER_TOPIC, 0, b"x"))
            yield from _half_frames(lab, server, traffic=traffic)


def _half_frames(lab: Lab, server: Server, *, traffic: bool) -> Iterator[Outcome]:
    said = "under traffic" if traffic else "idle"
    header = b'{"code":105,"extFields":{},"flag":0,"language":"JAVA","opaque":1,"version":479}'
    start = struct.pack(">II", FRAME_BYTES, len(header)) + header
    half = start + bytes(SENT_BYTES - len(start))
    with ExitStack() as stack:
        for _ in range(FULL_SPEED_PEERS if traffic else 0):
            stack.enter_context(peer(server, pause_ms=0.0))
        time.sleep(2.0)
        start_mb = server.rss_mb
        deadline, sent = time.monotonic() + lab.limit_s, 0
        while sent < HALF_FRAMES and time.monotonic() < deadline:
            sockets = [socket.create_connection(split_address(server.address), timeout=30) for _ in range(AT_ONCE)]
            for each in sockets:
                each.sendall(half)
            sent += len(sockets)
            for each in sockets:
                each.close()
        after_mb = settled_mb(server, SETTLE_S)
        note = f"start {start_mb:.0f} MB, peak {server.peak_mb:.0f} MB, after {after_mb:.0f} MB, {sent} half frames"
        yield Outcome(
            *("half-frames", server.role, f"memory kept after 480 half frames, {said}", after_mb - start_mb, "MB"),
            at_most=KEPT_MB_MAX,
            note=note,
        )


BROKERS: Final = 34
TOPICS: Final = 300_000
PEAK_MB_MAX: Final = 2_000.0
FILES_MB_MAX: Final = 1_300.0
"""A journal has at most 1 GiB as it comes; the rest is for the snapshot."""


@attack("registrations")
def registrations(lab: Lab) -> Iterator[Outcome]:
    """Register 34 brokers with 300,000 topics each, compressed: 29.5 MB in all."""
    bodies = [_topics_of(broker) for broker in range(BROKERS)]
    folder = lab.folder("registrations")
    with lab.name_server(folder, {"memoryPath": folder / "memory"}) as server:
        start_mb, deadline = server.rss_mb, time.monotonic() + lab.limit_s
        taken = asked = sent_bytes = 0
        refusal = ""
        with ExitStack() as stack:
            while asked < BROKERS and time.monotonic() < deadline:
                body = bodies[asked]
                sent_bytes += len(body)
                fields = {
                    **{"brokerName": f"b{asked}", "brokerAddr": f"127.0.0.1:{20_000 + asked}", "clusterName": CLUSTER},
                    **{"haServerAddr": "127.0.0.1:1", "brokerId": "0", "compressed": "true"},
                    "bodyCrc32": str(crc32(body)),
                }
                line = stack.enter_context(server.line(timeout_s=60.0))
                asked += 1
                try:
                    answer = line.call(Request(103, fields, body))
                except OSError as error:
                    refusal = type(error).__name__
                    continue
                taken += not answer.code
                refusal = f"{answer.code} {answer.remark}" if answer.code else refusal
            rss_mb = settled_mb(server, 5.0)
            files_mb = sum(path.stat().st_size for path in (folder / "memory").rglob("*") if path.is_file()) / 1e6
            note = f"taken {taken} of {asked}, {sent_bytes / 1e6:.1f} MB sent, start {start_mb:.0f} MB"
            note += f", last refusal: {refusal[:160]}" if refusal else ""
            peak_mb = server.peak_mb
        note += f", after {rss_mb:.0f} MB"
        yield Outcome("registrations", "nameserver", "most memory", peak_mb, "MB", PEAK_MB_MAX, note=note)
        yield Outcome("registrations", "nameserver", "journal and snapshot", files_mb, "MB", FILES_MB_MAX)


def _topics_of(broker: int) -> bytes:
    """Return the body of a registration with 300,000 topics that no other broker has."""
    version = b'{"counter":1,"stateVersion":0,"timestamp":1758275140000}'
    name = f"{'t' * 100}-{broker:02}"
    lines = (f"{name}-{number:06} 8 8 6 SINGLE_TAG {{}}".encode() for number in range(TOPICS))
    parts = [_sized(version), TOPICS.to_bytes(4), *map(_sized, lines), _sized(b"[]"), bytes(4)]
    return zlib.compress(b"".join(parts), 6)


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(4) + text
