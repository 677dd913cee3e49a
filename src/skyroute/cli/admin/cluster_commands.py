"""Commands about brokers and name servers: state, settings, write permission, key-value config."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any

import click
import msgspec

from skyroute.cli.admin.decorator import Output, admin_command, broker_or_cluster
from skyroute.cli.admin.output import pairs, table
from skyroute.client.admin import Admin
from skyroute.client.admin.broker_load import read_load
from skyroute.client.admin.cluster import BrokerInfo, ServerProperties
from skyroute.errors import SkyrouteError
from skyroute.settings.secrets import shown
from skyroute.wire.calls.replication import ReplicationStatus

interval = click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Repeat with this interval.",
)
setting_key = click.option("-k", "--key", required=True, help="Name of the setting.")
setting_value = click.option("-v", "--value", required=True, help="New value.")
kv_namespace = click.option("-s", "--namespace", required=True, help="Namespace of the key.")
kv_key = click.option("-k", "--key", required=True, help="Key.")
broker_name = click.option("-b", "--brokerName", "broker_name", required=True, metavar="NAME", help="Broker name.")


# ---------------------------------------------------------------------------------------------------------- clusters


@admin_command("clusterList", "-m")
@click.option("-m", "--moreStats", "more", is_flag=True, help="Print messages in and out, yesterday and today.")
@interval
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="Only this cluster.")
async def cluster_list(
    admin: Admin, cluster: str | None, interval_s: float | None, *, more: bool
) -> AsyncIterator[Output]:
    """List all brokers with address, version and load."""
    while True:
        brokers = await admin.brokers(cluster)
        values = [_totals(broker) if more else _load(broker, admin.session.clock.wall()) for broker in brokers]
        yield (
            _totals_table(values) if more else _load_table(values),
            values,
            {broker.address: broker.failure for broker in brokers if broker.failure},
        )
        if interval_s is None:
            return
        await asyncio.sleep(interval_s)


def _load(broker: BrokerInfo, now_s: float) -> dict[str, Any]:
    state = broker.state
    earliest_ms = _number(state, "earliestMessageTimeStamp") or -1
    return {
        "cluster": broker.cluster,
        "broker": broker.name,
        "broker_id": broker.broker_id,
        "address": broker.address,
        "version": state.get("brokerVersionDesc"),
        "in_tps": _number(state, "putTps"),
        "send_queue": _number(state, "sendThreadPoolQueueSize"),
        "send_wait_ms": _number(state, "sendThreadPoolQueueHeadWaitTimeMills"),
        "out_tps": read_load(broker).out,
        "pull_queue": _number(state, "pullThreadPoolQueueSize"),
        "pull_wait_ms": _number(state, "pullThreadPoolQueueHeadWaitTimeMills"),
        "ack_queue": _number(state, "ackThreadPoolQueueSize"),
        "ack_wait_ms": _number(state, "ackThreadPoolQueueHeadWaitTimeMills"),
        "timer_read_behind_ms": _number(state, "timerReadBehind"),
        "timer_offset_behind": _number(state, "timerOffsetBehind"),
        "timer_congestion": _number(state, "timerCongestNum"),
        "timer_in_tps": _number(state, "timerEnqueueTps"),
        "timer_out_tps": _number(state, "timerDequeueTps"),
        "page_cache_wait_ms": _number(state, "pageCacheLockTimeMills"),
        "kept_hours": None if earliest_ms < 0 else (now_s - earliest_ms / 1000) / 3600,
        "disk_ratio": _number(state, "commitLogDiskRatio"),
        "active": None if broker.failure else state.get("brokerActive") == "true",
    }


def _load_table(values: Iterable[Mapping[str, Any]]) -> str:
    columns = ("Cluster Name", "Broker Name", "BID", "Addr", "Version", "InTPS(LOAD)", "OutTPS(LOAD)",
               "Timer(Progress)", "PCWait(ms)", "Hour", "SPACE", "ACTIVATED")  # fmt: skip
    return table(columns, map(_load_row, values))


def _load_row(value: Mapping[str, Any]) -> list[object]:
    row: list[object] = [value[name] for name in ("cluster", "broker", "broker_id", "address", "version")]
    if value["active"] is None:  # no response
        return [*row, *[None] * 7]

    def text(name: str, form: str = "") -> str:
        return "N" if value[name] is None else format(value[name], form)

    sends = f"{text('send_queue')},{text('send_wait_ms')}ms"
    pulls = f"{text('pull_queue')},{text('pull_wait_ms')}ms"
    acks = f"{text('ack_queue')},{text('ack_wait_ms')}ms"
    congestion = f"{(value['timer_congestion'] or 0) / 10_000:.1f}w"  # in ten thousands, as in mqadmin
    rates = f"{text('timer_in_tps', '.1f')}, {text('timer_out_tps', '.1f')}"
    timer = f"{text('timer_read_behind_ms')}-{text('timer_offset_behind')}({congestion}, {rates})"
    return [
        *row,
        f"{text('in_tps', '.2f')}({sends})",
        f"{text('out_tps', '.2f')}({pulls}|{acks})",
        timer,
        value["page_cache_wait_ms"],
        f"{value['kept_hours'] or 0:.2f}",
        text("disk_ratio", ".4f"),
        value["active"],
    ]


def _totals(broker: BrokerInfo) -> dict[str, Any]:
    def between(kind: str, start: str, end: str) -> float | None:
        first, last = (_number(broker.state, f"msg{kind}Total{when}") for when in (start, end))
        return None if first is None or last is None else last - first

    return {
        "cluster": broker.cluster,
        "broker": broker.name,
        "broker_id": broker.broker_id,
        "address": broker.address,
        "in_yesterday": between("Put", "YesterdayMorning", "TodayMorning"),
        "out_yesterday": between("Get", "YesterdayMorning", "TodayMorning"),
        "in_today": between("Put", "TodayMorning", "TodayNow"),
        "out_today": between("Get", "TodayMorning", "TodayNow"),
    }


def _totals_table(values: Iterable[Mapping[str, Any]]) -> str:
    columns = ("Cluster Name", "Broker Name", "InTotalYest", "OutTotalYest", "InTotalToday", "OutTotalToday")
    keys = ("cluster", "broker", "in_yesterday", "out_yesterday", "in_today", "out_today")
    return table(columns, ([value[key] for key in keys] for value in values))


def _number(state: Mapping[str, str], key: str) -> float | None:
    """Return the first number of a value, or None."""
    numbers = state.get(key, "").split()
    try:
        return int(numbers[0])
    except IndexError:
        return None
    except ValueError:
        pass
    try:
        return float(numbers[0])
    except ValueError:
        return None


@admin_command("clusterRT", "-c DefaultCluster -a 50")
@click.option("-a", "--amount", type=click.IntRange(min=2), default=100, show_default=True, help="Messages per broker.")
@click.option("-s", "--size", type=click.IntRange(min=1), default=128, show_default=True, help="Bytes per message.")
@click.option("-c", "--cluster", metavar="NAME", help="Only this cluster.")
@click.option("-p", "--print-log", "as_log", type=bool, default=False, help="Print one line per broker, for log files.")
@click.option("-m", "--machine-room", "room", default="noname", show_default=True, help="Site name, for log files.")
@interval
async def cluster_rt(
    admin: Admin, amount: int, size: int, cluster: str | None, room: str, interval_s: float | None, *, as_log: bool
) -> AsyncIterator[Output]:
    """Measure the send latency of every broker.

    Sends messages to the topic with the broker's name, which every broker has.
    """
    # Only this command needs a producer, and its import is slow.
    from skyroute.client.producing.producer import Producer
    from skyroute.message.message import Message

    async with Producer("skyroute_admin_cluster_rt", session=admin.session, retries=0) as producer:

        async def measure(topic: str) -> tuple[float, SkyrouteError | None]:
            started = admin.session.clock.monotonic()
            failure = None
            try:
                await producer.send(Message(topic, b"a" * size))
            except SkyrouteError as error:
                failure = error
            return (admin.session.clock.monotonic() - started) * 1000, failure

        while True:
            values: list[dict[str, Any]] = []
            failures: dict[str, SkyrouteError] = {}
            for group in await admin.broker_groups(cluster):
                sends = [await measure(group.name) for _ in range(amount)]
                errors = [failure for _, failure in sends if failure]
                # The first send includes the connection set-up: exclude it.
                average_ms = sum(spent_ms for spent_ms, _ in sends[1:]) / (amount - 1)
                values.append(
                    {
                        "cluster": group.cluster,
                        "broker": group.name,
                        "rt_ms": round(average_ms, 3),
                        "successes": amount - len(errors),
                        "failures": len(errors),
                    }
                )
                if errors:
                    failures[group.name] = errors[-1]
            yield _rt_text(values, room if as_log else None), values, failures
            if interval_s is None:
                return
            await asyncio.sleep(interval_s)


def _rt_text(values: Iterable[Mapping[str, Any]], log_room: str | None) -> str:
    if log_room is None:
        columns = ("Cluster Name", "Broker Name", "RT", "successCount", "failCount")
        return table(columns, (list(value.values()) for value in values))
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lines = (f"{now}|{log_room}|{value['cluster']}|{value['broker']}|{value['rt_ms']:.0f}" for value in values)
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------------- brokers


@admin_command("brokerStatus", "-b 10.0.0.5:10911")
@broker_or_cluster()
async def broker_status(admin: Admin, broker: str | None, cluster: str | None) -> Output:
    """Print the state of brokers."""
    states = await admin.broker_states(broker=broker, cluster=cluster)
    if broker is not None:
        return pairs(states.by_address[broker], ": "), states.by_address
    lines = [
        f"{address:<24} {line}"
        for address, state in states.by_address.items()
        for line in pairs(state, ": ").splitlines()
    ]
    return "\n".join(lines), states.by_address, states.failures


@admin_command("haStatus", "-b 10.0.0.5:10911")
@broker_or_cluster()
@interval
async def ha_status(
    admin: Admin, broker: str | None, cluster: str | None, interval_s: float | None
) -> AsyncIterator[Output]:
    """Print the replication of brokers.

    A master shows its slaves, a slave its master.
    """
    while True:
        found, failures = await admin.replication_statuses(broker=broker, cluster=cluster)
        values = {address: msgspec.to_builtins(status) for address, status in found.items()}
        yield "\n\n".join(_ha_text(address, status) for address, status in found.items()), values, failures
        if interval_s is None:
            return
        await asyncio.sleep(interval_s)


def _ha_text(address: str, status: ReplicationStatus) -> str:
    if not status.master:
        follower = status.follower
        return pairs(
            {
                "#MasterAddr": follower.master_addr or "",
                "#CommitLogMaxOffset": follower.max_offset,
                "#TransferSpeed(KB/s)": f"{follower.transferred_byte_in_second / 1024:.2f}",
                "#LastReadTime": _time_text(follower.last_read_timestamp),
                "#LastWriteTime": _time_text(follower.last_write_timestamp),
                "#MasterFlushOffset": follower.master_flush_offset,
            },
            "\t",
        )
    head = {
        "#MasterAddr": address,
        "#MasterCommitLogMaxOffset": status.master_log_end,
        "#SlaveNum": len(status.slaves),
        "#InSyncSlaveNum": status.in_sync_slaves,
    }
    columns = ("SlaveAddr", "SlaveAckOffset", "Diff", "TransferSpeed(KB/s)", "Status", "TransferFromWhere")
    rows = [
        (
            *(slave.addr, slave.slave_ack_offset, slave.diff, f"{slave.transferred_byte_in_second / 1024:.2f}"),
            *("OK" if slave.in_sync else "Fall Behind", slave.transfer_from_where),
        )
        for slave in status.slaves
    ]
    return f"{pairs(head, chr(9))}\n{table(columns, rows)}"


def _time_text(timestamp_ms: int) -> str:
    if not timestamp_ms:
        return "never"
    return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


@admin_command("getBrokerConfig", "-c DefaultCluster")
@broker_or_cluster()
async def get_broker_config(admin: Admin, broker: str | None, cluster: str | None) -> Output:
    """Print the settings of brokers."""
    return settings_output(await admin.broker_settings(broker=broker, cluster=cluster))


def settings_output(settings: ServerProperties) -> Output:
    """Return settings by server, with secrets masked."""
    # Apache's servers return secrets in clear text: mask them.
    masked = {
        address: {key: shown(key, text) for key, text in found.items()}
        for address, found in settings.by_address.items()
    }
    parts = (f"============{address}============\n{pairs(found)}" for address, found in masked.items())
    return "\n\n".join(parts), masked, settings.failures


@admin_command("updateBrokerConfig", "-c DefaultCluster -k fileReservedTime -v 72")
@broker_or_cluster()
@click.option("-a", "--updateAllBroker", "with_slaves", type=bool, default=False, help="Also slaves, not only masters.")
@setting_key
@setting_value
async def update_broker_config(
    admin: Admin, broker: str | None, cluster: str | None, key: str, value: str, *, with_slaves: bool
) -> Output:
    """Change a broker setting at run time."""
    done = await admin.update_broker_settings({key: value}, broker=broker, cluster=cluster, with_slaves=with_slaves)
    return "\n".join(f"update broker config success, {address}" for address in done), {"brokers": done}


@admin_command("cleanExpiredCQ", "-c DefaultCluster")
@broker_or_cluster("--cluster", needed=False)
async def clean_expired_cq(admin: Admin, broker: str | None, cluster: str | None) -> Output:
    """Delete consume queue files whose messages are gone.

    Without -b and -c, on all brokers.
    """
    return _clean_output(await admin.clean_expired_queues(broker=broker, cluster=cluster))


@admin_command("cleanUnusedTopic", "-b 10.0.0.5:10911")
@broker_or_cluster("--cluster", needed=False)
async def clean_unused_topic(admin: Admin, broker: str | None, cluster: str | None) -> Output:
    """Delete the queues of topics that no longer exist.

    Without -b and -c, on all brokers.
    """
    return _clean_output(await admin.clean_unused_topics(broker=broker, cluster=cluster))


def _clean_output(brokers: list[str]) -> Output:
    return f"success, {', '.join(brokers)}", {"brokers": brokers}


# ------------------------------------------------------------------------------------------------------ name servers


@admin_command("getNamesrvConfig")
async def get_namesrv_config(admin: Admin) -> Output:
    """Print the settings of all name servers."""
    return settings_output(await admin.name_server_settings())


@admin_command("updateNamesrvConfig", "-k orderMessageEnable -v true")
@setting_key
@setting_value
async def update_namesrv_config(admin: Admin, key: str, value: str) -> Output:
    """Change a setting of all name servers at run time."""
    done = await admin.update_name_server_settings({key: value})
    return f"update name server config success, {', '.join(done)}\n{key} = {value}", {"name_servers": done}


@admin_command("wipeWritePerm", "-b broker-a")
@broker_name
async def wipe_write_perm(admin: Admin, broker_name: str) -> Output:
    """Make a broker's topics read-only in all routes."""
    return _permission_output("wipe", broker_name, await admin.forbid_writes(broker_name))


@admin_command("addWritePerm", "-b broker-a")
@broker_name
async def add_write_perm(admin: Admin, broker_name: str) -> Output:
    """Make a broker's topics writable again."""
    return _permission_output("add", broker_name, await admin.allow_writes(broker_name))


def _permission_output(verb: str, broker: str, topics: Mapping[str, int]) -> Output:
    lines = (
        f"{verb} write perm of broker[{broker}] in name server[{address}] OK, {count}"
        for address, count in topics.items()
    )
    return "\n".join(lines), [{"name_server": address, "topics": count} for address, count in topics.items()]


# -------------------------------------------------------------------------------------------------- key-value config


@admin_command("updateKvConfig", "-s settings -k colour -v blue")
@kv_namespace
@kv_key
@click.option("-v", "--value", required=True, help="Value.")
async def update_kv_config(admin: Admin, namespace: str, key: str, value: str) -> Output:
    """Set a value in the name servers' key-value config."""
    done = await admin.put_kv(namespace, key, value)
    return f"update kv config success, {', '.join(done)}", {"name_servers": done}


@admin_command("deleteKvConfig", "-s settings -k colour")
@kv_namespace
@kv_key
async def delete_kv_config(admin: Admin, namespace: str, key: str) -> Output:
    """Delete a key from the name servers' key-value config."""
    done = await admin.delete_kv(namespace, key)
    return f"delete kv config success, {', '.join(done)}", {"name_servers": done}
