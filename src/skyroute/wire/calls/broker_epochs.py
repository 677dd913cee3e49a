"""The epochs of a broker's log, as operators ask for them."""

from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.wire import fastjson
from skyroute.wire.calls.topics import read_body
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.fields import INT64_MAX

_LEGACY: Final = fastjson.Dialect.LEGACY


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a broker's log. The newest ends where the log ends."""

    number: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of a broker's log, oldest first (1007)."""

    cluster: str
    broker_name: str
    broker_id: int
    epochs: tuple[Epoch, ...]
    max_offset: int


class _Epoch(msgspec.Struct, rename="camel"):
    epoch: Int32
    start_offset: Int64
    end_offset: Int64 = INT64_MAX


class _EpochHistory(msgspec.Struct, rename="camel"):
    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = 0
    epoch_list: list[_Epoch] = []
    max_offset: Int64 = 0


def encode_epochs_query() -> Request:
    """Ask a broker for the epochs of its log."""
    return Request(RequestCode.GET_BROKER_EPOCH_CACHE)


def encode_epochs(history: EpochHistory) -> Response:
    """Respond with the epochs of a broker's log."""
    body = {
        "brokerId": history.broker_id,
        "brokerName": history.broker_name,
        "clusterName": history.cluster,
        "epochList": [
            {"endOffset": each.end_offset, "epoch": each.number, "startOffset": each.start_offset}
            for each in history.epochs
        ],
        "maxOffset": history.max_offset,
    }
    return Response(body=fastjson.dumps(body, _LEGACY))


def decode_epochs(body: bytes) -> EpochHistory:
    """Decode the epochs of a broker's log.

    Raises:
        BodyError: the body is invalid.
    """
    found = read_body(body, _EpochHistory, "the epochs of a broker")
    return EpochHistory(
        *(found.cluster_name, found.broker_name, found.broker_id),
        tuple(
            Epoch(each.epoch, each.start_offset, min(each.end_offset, found.max_offset)) for each in found.epoch_list
        ),
        found.max_offset,
    )
