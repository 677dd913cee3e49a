"""Requests of operators about the broker: settings, runtime info and statistics."""

import logging
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from skyroute.broker.inert_settings import BROKER_INERT_SETTINGS
from skyroute.broker.stats import Measure, Totals
from skyroute.broker.tables.table_format import next_version
from skyroute.message.reserved_topics import TIMER_TOPIC
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.routing.registration import DataVersion
from skyroute.settings.updates import update_settings
from skyroute.wire.calls.groups import release_name
from skyroute.wire.calls.settings import (
    BrokerStats,
    StatsQuery,
    decode_broker_stats_query,
    encode_broker_state,
    encode_broker_stats,
    encode_settings_answer,
)
from skyroute.wire.codes import OUR_VERSION, ResponseCode
from skyroute.wire.command import Request, Response

if TYPE_CHECKING:  # components imports this module
    from skyroute.broker.components import Components

log = logging.getLogger(__name__)

_RATES: Final = {"putTps": "stored", "getFoundTps": "found", "getMissTps": "missed", "getTransferredTps": "fetched"}
_OF_TOPIC: Final = {"TOPIC_PUT_NUMS": Measure.MESSAGES, "TOPIC_PUT_SIZE": Measure.BYTES}
_OF_GROUP: Final = {"GROUP_GET_NUMS": Measure.MESSAGES, "GROUP_GET_SIZE": Measure.BYTES}
_OF_BROKER: Final = ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")
_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
"""Thread pools of Apache's brokers. Tools show the length of their queues; here all are empty."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class BrokerAdminHandlers:
    """Changes settings and deletes expired messages by request, and reports the broker's state."""

    def __init__(self, components: "Components") -> None:
        self._components = components
        self._started_at_ms = self._now_ms()
        self._settings_version = DataVersion(timestamp_ms=self._started_at_ms)

    def _now_ms(self) -> int:
        return int(self._components.clock.wall() * 1000)

    # --------------------------------------------------------------------------------------------------------- settings

    def settings(self, _request: Request, _peer: Peer) -> Response:
        """Return all settings; secrets are masked."""
        return encode_settings_answer(self._components.config.render(), self._settings_version)

    def update_settings(self, request: Request, peer: Peer) -> Answer:
        """Change settings; if one is invalid, none is changed."""
        return OrderedResponse(self._update_settings(request, peer))

    async def _update_settings(self, request: Request, peer: Peer) -> Response:
        config = self._components.config
        if changed := await update_settings(config, request, peer):
            store = self._components.store
            store.settings = config.with_retention(store.settings)
            self._settings_version = next_version(self._settings_version, self._now_ms())
        if "brokerPermission" in changed:
            # Name servers read topics with their new permission only if the data version has changed.
            self._components.topics.renew()
            await self._components.registrar.register()
        return Response()

    def delete_expired(self, _request: Request, peer: Peer) -> Response:
        """Delete expired messages now, regardless of `deleteWhen`."""
        log.info("expired messages deleted by request peer=%s", peer.address)
        self._components.retention.clean_now()
        return Response()

    # ------------------------------------------------------------------------------------------------------- statistics

    def stats(self, request: Request, _peer: Peer) -> Response:
        """Return one statistic for the last minute, hour and day."""
        query = decode_broker_stats_query(request)
        found = self._find_stats(query)
        if found is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"The stats <{query.name}> <{query.key}> not exist")
        return encode_broker_stats(found)

    def _find_stats(self, query: StatsQuery) -> BrokerStats | None:
        stats = self._components.stats
        if query.name in _OF_TOPIC:
            return stats.of_topic(query.key, _OF_TOPIC[query.name])
        if query.name in _OF_BROKER and query.key == self._components.identity.cluster:
            return stats.of_broker(stored=query.name == "BROKER_PUT_NUMS")
        topic, _, group = query.key.rpartition("@")
        if query.name in _OF_GROUP:
            return stats.of_group(group, topic, _OF_GROUP[query.name])
        return stats.of_returns(group, topic) if query.name == "SNDBCK_PUT_NUMS" else None

    # ----------------------------------------------------------------------------------------------------- runtime info

    def runtime_info(self, _request: Request, _peer: Peer) -> Response:
        """Return the broker's state, under the names of Apache's tools."""
        return encode_broker_state(
            {
                **dict(self._broker_info()),
                **dict(self._store_info()),
                **dict(self._delay_info()),
                **dict(self._rate_info()),
                **dict(_pool_info()),
            }
        )

    def _broker_info(self) -> Iterator[tuple[str, str]]:
        now_ms = self._now_ms()
        yield "brokerActive", "true"
        yield "brokerVersionDesc", release_name(OUR_VERSION)
        yield "brokerVersion", str(OUR_VERSION)
        yield "bootTimestamp", str(self._started_at_ms)
        yield "runtime", _duration((now_ms - self._started_at_ms) // 1000)
        opens_at_ms = self._components.config.accept_sends_from_ms
        yield "startAcceptSendRequestTimeStamp", str(opens_at_ms)

    def _store_info(self) -> Iterator[tuple[str, str]]:
        store = self._components.store
        used = str(round(store.disk_used(), 4))
        oldest_ms = store.oldest_ms
        yield "commitLogDiskRatio", used
        yield f"commitLogDiskRatio_{store.folder / 'commitlog'}", used
        yield "consumeQueueDiskRatio", used
        yield "commitLogMinOffset", str(store.min_position)
        yield "commitLogMaxOffset", str(store.max_position)
        yield "commitLogDamagedRanges", str(store.damage.count)
        yield "commitLogDamagedBytes", str(store.damage.bytes)
        yield "commitLogCutBytes", str(sum(cut.size for cut in store.damage.cuts))
        in_flight = self._components.in_flight
        yield "popInFlightBatches", str(len(in_flight))
        yield "popInFlightMessages", str(in_flight.message_count)
        yield "popWaiting", str(len(self._components.pop_polling))
        # Tools show the difference to now, which is 0 for a broker without messages.
        yield "earliestMessageTimeStamp", str(self._now_ms() if oldest_ms is None else oldest_ms)
        yield "remainHowManyDataToFlush", _size(store.max_position - store.flushed_position)
        disk = shutil.disk_usage(store.folder)
        yield "commitLogDirCapacity", f"Total : {_size(disk.total)}, Free : {_size(disk.free)}."
        yield "dispatchBehindBytes", "0"
        yield "pageCacheLockTimeMills", "0"
        yield "remainTransientStoreBufferNumbs", "2147483647"

    def _delay_info(self) -> Iterator[tuple[str, str]]:
        components = self._components
        for level, (offset, end) in components.delays.offsets().items():
            yield f"scheduleMessageOffset_{level}", f"{offset},{end}"
        yield "timerReadBehind", "0"
        yield "timerOffsetBehind", str(max(components.store.max_offset(TIMER_TOPIC, 0) - components.timers.read_end, 0))
        yield "timerCongestNum", str(len(components.timers))
        yield "timerEnqueueTps", str(components.stats.put_rate(TIMER_TOPIC))
        yield "timerDequeueTps", "0.0"

    def _rate_info(self) -> Iterator[tuple[str, str]]:
        stats = self._components.stats
        totals, rates = stats.totals(), stats.rates()
        for key, name in _RATES.items():
            yield key, " ".join(str(round(getattr(rate, name), 4)) for rate in rates)
        yield "getTotalTps", " ".join(str(round(rate.found + rate.missed, 4)) for rate in rates)
        yield "putMessageTimesTotal", str(totals.stored)
        yield "putMessageSizeTotal", str(totals.stored_bytes)
        yield "putMessageAverageSize", str(totals.stored_bytes / max(totals.stored, 1))
        midnight_totals = stats.midnight_totals
        moments: tuple[tuple[str, Totals], ...] = (
            ("YesterdayMorning", midnight_totals.yesterday),
            ("TodayMorning", midnight_totals.today),
            ("TodayNow", totals),
        )
        for moment, counts in moments:
            yield f"msgPutTotal{moment}", str(counts.stored)
            yield f"msgGetTotal{moment}", str(counts.fetched)


def _pool_info() -> Iterator[tuple[str, str]]:
    for pool in _POOLS:
        yield f"{pool}ThreadPoolQueueSize", "0"
        yield f"{pool}ThreadPoolQueueCapacity", _capacity(f"{pool}ThreadPoolQueueCapacity")
        yield f"{pool}ThreadPoolQueueHeadWaitTimeMills", "0"
    yield "EndTransactionQueueSize", "0"
    yield "EndTransactionThreadPoolQueueCapacity", _capacity("endTransactionPoolQueueCapacity")


def _capacity(key: str) -> str:
    """Return Apache's default capacity of a queue: monitors divide by it."""
    return str(BROKER_INERT_SETTINGS[key][1])


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"
