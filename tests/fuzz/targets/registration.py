"""Registrations: short and long bodies are read alike, and a table survives encoding, plain and compressed.

Input: a byte that chooses the sender's version and the compression, then the body.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from skyroute.remoting.stepwise import run_through
from skyroute.routing.registration import TopicTable
from skyroute.wire.calls import registration_body
from skyroute.wire.calls.registration import decode_data_version, decode_registration, encode_registration
from skyroute.wire.calls.registration_body import body_fingerprint, decode_topic_table
from skyroute.wire.calls.route import decode_topic_registration
from skyroute.wire.command import Request
from skyroute.wire.errors import BodyError, WireError

VERSIONS: Final = (36, 120, 409, 479)
BROKER: Final = {"brokerName": "b", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0"}
INFLATED_BYTES_MAX: Final = 1 << 16
SMALL_STEP: Final = 24


@contextmanager
def small_steps() -> Iterator[None]:
    """Read bodies in steps of a few bytes."""
    usual = registration_body.BYTES_A_STEP
    registration_body.BYTES_A_STEP = SMALL_STEP  # type: ignore[misc]
    try:
        yield
    finally:
        registration_body.BYTES_A_STEP = usual  # type: ignore[misc]


def read(request: Request) -> TopicTable | None:
    """Return the table of a body; None if it is refused."""
    try:
        return run_through(decode_topic_table(request, INFLATED_BYTES_MAX))
    except BodyError:
        return None


def check(data: bytes) -> None:
    how, body = (data[0], data[1:]) if data else (0, b"")
    is_deflated = how & 8
    request = Request(103, dict(BROKER), version=VERSIONS[how & 3], body=zlib.compress(body) if is_deflated else body)
    if how & 4:
        request.fields["compressed"] = "true"
    table = read(request)
    with small_steps():
        assert read(request) == table
        run_through(body_fingerprint(request))
    for decode in (
        decode_data_version,
        lambda body: decode_topic_registration(Request(217, {"topic": "T"}, body=body)),
    ):
        with suppress(WireError):
            decode(body)
    if table is not None:
        check_encoded(request, table)


def check_encoded(request: Request, table: TopicTable) -> None:
    table = replace(table, left_out={}, filter_servers=table.filter_servers or ())
    sent = replace(decode_registration(request), table=table)
    for compressed in (False, True):
        if compressed and not fits_compressed(table):
            continue
        again = encode_registration(sent, compressed=compressed)
        again.version = VERSIONS[-1]
        assert replace(decode_registration(again), table=table) == sent
        assert read(again) == table


def fits_compressed(table: TopicTable) -> bool:
    """The compressed form separates the name of a topic by a blank, and has no flags."""
    return not any(" " in topic or settings.sys_flag for topic, settings in table.topics.items()) and all(
        topic == mapping.topic for topic, mapping in table.mappings.items()
    )
