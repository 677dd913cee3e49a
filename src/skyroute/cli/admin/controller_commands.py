"""Commands about controllers: masters, sync state sets, epochs, and the settings of controllers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import click

from skyroute.cli.admin.cluster_commands import interval, setting_key, setting_value, settings_output
from skyroute.cli.admin.decorator import Output, admin_command
from skyroute.cli.admin.output import pairs, table
from skyroute.client.admin import Admin
from skyroute.client.admin.base import call_each
from skyroute.wire.calls.broker_epochs import EpochHistory
from skyroute.wire.calls.controller_responses import ReplicaGroup

controllers_option = click.option(
    "-a",
    "--controllerAddress",
    "controllers",
    required=True,
    metavar="HOST:PORT[;HOST:PORT]",
    help="Addresses of controllers.",
)
broker_name_option = click.option(
    "-bn", "--brokerName", "broker_name", required=True, metavar="NAME", help="Broker name of the group."
)


def _one_of(broker_name: str | None, cluster: str | None) -> None:
    if (broker_name is None) == (cluster is None):
        raise click.UsageError("Give either -b (a broker name) or -c (a cluster).")


@admin_command("getControllerMetaData", "-a 127.0.0.1:9878", asks_controllers=True)
@controllers_option
async def get_controller_meta_data(admin: Admin, controllers: str) -> Output:
    """Print which controller leads."""
    found = await admin.controllers(controllers)
    text = {
        "#ControllerGroup": found.group,
        "#ControllerLeaderId": found.leader_id,
        "#ControllerLeaderAddress": found.leader_address,
    }
    peers = [f"#Peer: {peer}:{address}" for peer, address in found.peers.items()]
    value = {
        "group": found.group,
        "leader_id": found.leader_id,
        "leader_address": found.leader_address,
        "peers": dict(found.peers),
    }
    return "\n".join([pairs(text, "  "), *peers]), value


@admin_command("getSyncStateSet", "-a 127.0.0.1:9878 -b broker-a", asks_controllers=True)
@controllers_option
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="All groups of this cluster; needs -n.")
@click.option("-b", "--brokerName", "broker_name", metavar="NAME", help="Broker name of the group.")
@interval
async def get_sync_state_set(
    admin: Admin, controllers: str, cluster: str | None, broker_name: str | None, interval_s: float | None
) -> AsyncIterator[Output]:
    """Print the master and the sync state set of broker groups."""
    _one_of(broker_name, cluster)
    while True:
        names = [broker_name] if broker_name else [group.name for group in await admin.broker_groups(cluster)]
        found = await admin.replicas(controllers, names)
        columns = ("Broker Name", "BID", "Addr", "Role", "In Sync", "Alive", "MasterEpoch", "SyncStateSetEpoch")
        values = [value for name, group in found.items() for value in _replica_values(name, group)]
        yield table(columns, (list(value.values()) for value in values)), values
        if interval_s is None:
            return
        await asyncio.sleep(interval_s)


def _replica_values(broker_name: str, group: ReplicaGroup) -> list[dict[str, Any]]:
    master = group.master
    return [
        {
            "broker": broker_name,
            "broker_id": replica.broker_id,
            "address": replica.address,
            "role": "master" if replica.broker_id == master.broker_id else "slave",
            "in_sync": replica.is_in_sync,
            "alive": replica.is_alive,
            "master_epoch": master.master_epoch,
            "sync_set_epoch": master.sync_set_epoch,
        }
        for replica in sorted(group.replicas, key=lambda replica: replica.broker_id)
    ]


@admin_command("electMaster", "-a 127.0.0.1:9878 -c DefaultCluster -bn broker-a -b 2", asks_controllers=True)
@controllers_option
@click.option(
    "-b", "--brokerId", "broker_id", type=click.IntRange(min=1), required=True, help="Id of the replica to elect."
)
@broker_name_option
@click.option("-c", "--clusterName", "cluster", required=True, metavar="NAME", help="Cluster of the group.")
async def elect_master(admin: Admin, controllers: str, broker_id: int, broker_name: str, cluster: str) -> Output:
    """Make a replica the master of its broker group.

    The replica must be alive and in the sync state set. The old master follows the new one.
    """
    master = await admin.elect_master(controllers, cluster, broker_name, broker_id)
    text: Mapping[str, object] = {
        "#ClusterName": cluster,
        "#BrokerName": broker_name,
        "#BrokerMasterAddr": master.address,
        "#MasterEpoch": master.master_epoch,
        "#SyncStateSetEpoch": master.sync_set_epoch,
    }
    value = {
        "cluster": cluster,
        "broker": broker_name,
        "broker_id": master.broker_id,
        "address": master.address,
        "master_epoch": master.master_epoch,
        "sync_set_epoch": master.sync_set_epoch,
    }
    return pairs(text, "  "), value


def _broker_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of ids (expected 1;2;3)")
    return list(map(int, parts))


@admin_command("cleanBrokerMetadata", "-a 127.0.0.1:9878 -c DefaultCluster -bn broker-a -b 2", asks_controllers=True)
@controllers_option
@click.option(
    *("-b", "--brokerControllerIdsToClean", "broker_ids"),
    type=_broker_ids,
    metavar="ID[;ID]",
    help="Replicas to remove; without it, the whole group.",
)
@broker_name_option
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="Cluster of the group.")
@click.option("-l", "--cleanLivingBroker", "living", is_flag=True, help="Also remove replicas that are alive.")
async def clean_broker_metadata(
    admin: Admin, controllers: str, broker_ids: list[int] | None, broker_name: str, cluster: str | None, *, living: bool
) -> Output:
    """Remove dead replicas of a broker group from the controller."""
    if not living and cluster is None:
        raise click.UsageError("Give -c (the cluster), or -l to also remove living replicas.")
    await admin.remove_replicas(controllers, broker_name, broker_ids, cluster=cluster, living=living)
    return f"clear broker {broker_name} metadata from controller success!", {"broker": broker_name, "ids": broker_ids}


@admin_command("getBrokerEpoch", "-b broker-a")
@click.option("-c", "--clusterName", "cluster", metavar="NAME", help="All brokers of this cluster.")
@click.option("-b", "--brokerName", "broker_name", metavar="NAME", help="Broker name of the group.")
@interval
async def get_broker_epoch(
    admin: Admin, cluster: str | None, broker_name: str | None, interval_s: float | None
) -> AsyncIterator[Output]:
    """Print the epochs of brokers' logs.

    Each epoch has the offsets at which a master began and stopped to write. Only brokers in controller mode have them.
    """
    _one_of(broker_name, cluster)
    while True:
        groups = await admin.broker_groups(cluster)
        chosen = [group for group in groups if broker_name in (None, group.name)]
        if not chosen:
            raise click.UsageError(f"The name servers know no broker {broker_name}.")
        addresses = [address for group in chosen for address in group.addresses.values()]
        found, failures = await call_each(addresses, admin.broker_epochs)
        values = [_epoch_values(address, history) for address, history in found.items()]
        yield "\n".join(_epoch_text(value) for value in values), values, failures
        if interval_s is None:
            return
        await asyncio.sleep(interval_s)


def _epoch_values(address: str, history: EpochHistory) -> dict[str, Any]:
    return {
        "cluster": history.cluster,
        "broker": history.broker_name,
        "address": address,
        "broker_id": history.broker_id,
        "max_offset": history.max_offset,
        "epochs": [
            {"epoch": each.number, "start_offset": each.start_offset, "end_offset": each.end_offset}
            for each in history.epochs
        ],
    }


def _epoch_text(value: Mapping[str, Any]) -> str:
    head = {
        "#clusterName": value["cluster"],
        "#brokerName": value["broker"],
        "#brokerAddr": value["address"],
        "#brokerId": value["broker_id"],
    }
    lines = (
        f"#Epoch: {each['epoch']} startOffset={each['start_offset']} endOffset={each['end_offset']}"
        for each in value["epochs"]
    )
    return "\n".join([pairs(head, "  "), *lines])


@admin_command("getControllerConfig", "-a 127.0.0.1:9878", asks_controllers=True)
@controllers_option
async def get_controller_config(admin: Admin, controllers: str) -> Output:
    """Print the settings of controllers."""
    return settings_output(await admin.controller_settings(controllers))


@admin_command("updateControllerConfig", "-a 127.0.0.1:9878 -k enableElectUncleanMaster -v true", asks_controllers=True)
@controllers_option
@setting_key
@setting_value
async def update_controller_config(admin: Admin, controllers: str, key: str, value: str) -> Output:
    """Change a setting of controllers at run time."""
    done = await admin.update_controller_settings(controllers, {key: value})
    return f"update controller config success, {', '.join(done)}\n{key} = {value}", {"controllers": done}
