"""Commands about topics: list, route, offsets, rates; create, change and delete."""

import click

from skyroute.cli.admin.decorator import Output, admin_command, broker_or_cluster
from skyroute.cli.admin.output import local_time, table
from skyroute.client.admin import Admin
from skyroute.client.admin.topics import QUEUES_OF_NEW_TOPIC
from skyroute.client.errors import ClientError
from skyroute.wire.calls.topics import read_attribute_changes
from skyroute.wire.errors import FieldError

topic_name = click.option("-t", "--topic", required=True, metavar="TOPIC", help="Topic.")
permission_type = click.IntRange(0, 15)
queue_count = click.IntRange(min=0)


# ----------------------------------------------------------------------------------------------------------- reading


@admin_command("topicList", "-c")
@click.option("-c", "--clusterModel", "with_use", is_flag=True, help="Also print clusters and consumer groups.")
async def topic_list(admin: Admin, *, with_use: bool) -> Output:
    """List all topics."""
    if not with_use:
        topics = await admin.topics()
        return "\n".join(topics), topics
    uses, failures = await admin.topic_uses()
    rows = [[",".join(use.clusters), use.topic, group] for use in uses for group in use.groups or ("",)]
    values = [{"topic": use.topic, "clusters": use.clusters, "groups": use.groups} for use in uses]
    return table(("Cluster Name", "Topic", "Consumer Group"), rows), values, failures


@admin_command("topicRoute", "-t Orders")
@topic_name
@click.option("-l", "--list", "_as_list", is_flag=True, expose_value=False, help="No effect: always a table.")
async def topic_route(admin: Admin, topic: str) -> Output:
    """Print the brokers and queues of a topic."""
    route = await admin.route(topic)
    settings = {queues.broker_name: queues.settings for queues in route.queues}
    rows: list[list[object]] = []
    values = []
    for group in sorted(route.groups, key=lambda group: group.name):
        addresses = ",".join(f"{broker_id}={address}" for broker_id, address in group.addresses.items())
        row: list[object] = [group.cluster, group.name, addresses, None, None, None]
        value: dict[str, object] = {
            "cluster": group.cluster,
            "broker": group.name,
            "addresses": group.addresses,
        }
        if (queues := settings.get(group.name)) is not None:
            row[3:] = [queues.read_queues, queues.write_queues, queues.permission]
            value |= {
                "read_queues": queues.read_queues,
                "write_queues": queues.write_queues,
                "permission": queues.permission,
                "sys_flag": queues.sys_flag,
            }
        rows.append(row)
        values.append(value)
    totals = (sum(queues[at] for queues in settings.values()) for at in (0, 1))
    rows.append(["Total:", len(settings), None, *totals, None])
    columns = ("ClusterName", "BrokerName", "BrokerAddrs", "ReadQueue", "WriteQueue", "Perm")
    text = table(columns, rows)
    if route.order_config:
        text += f"\norder config: {route.order_config}"
    return text, {"brokers": values, "order_config": route.order_config}


@admin_command("topicStatus", "-t Orders")
@topic_name
@click.option("-c", "--cluster", metavar="NAME", help="Cluster, or parent topic of a light queue.")
async def topic_status(admin: Admin, topic: str, cluster: str | None) -> Output:
    """Print the minimum and maximum offsets of a topic's queues."""
    status = await admin.topic_status(topic, cluster)
    rows = [
        [queue.broker_name, queue.queue_id, span.min_offset, span.max_offset, local_time(span.updated_at_ms)]
        for queue, span in status.queues.items()
    ]
    text = table(("Broker Name", "QID", "Min Offset", "Max Offset", "Last Updated"), rows)
    queues = [
        {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": span.min_offset,
            "max_offset": span.max_offset,
            "updated_at_ms": span.updated_at_ms or None,
        }
        for queue, span in status.queues.items()
    ]
    value = {"topic": topic, "put_tps": status.put_tps, "queues": queues}
    return f"{text}\n\nTopic Put TPS: {status.put_tps:.2f}", value, status.failures


@admin_command("topicClusterList", "-t Orders")
@topic_name
async def topic_cluster_list(admin: Admin, topic: str) -> Output:
    """List the clusters that have a topic."""
    clusters = await admin.clusters_of(topic)
    return "\n".join(clusters), clusters


@admin_command("allocateMQ", "-t Orders -i 10.0.0.7,10.0.0.8")
@topic_name
@click.option("-i", "--ipList", "clients", required=True, metavar="ID,ID", help="Client ids or addresses of consumers.")
async def allocate_mq(admin: Admin, topic: str, clients: str) -> Output:
    """Show how consumers would share the queues of a topic."""
    shares = await admin.allocation(topic, [client for client in map(str.strip, clients.split(",")) if client])
    rows = [
        [client, queue.broker_name, queue.queue_id]
        for client, queues in shares.items()
        for queue in queues
    ]  # fmt: skip
    value = {
        client: [{"broker": queue.broker_name, "queue_id": queue.queue_id} for queue in queues]
        for client, queues in shares.items()
    }
    return table(("Client", "Broker Name", "QID"), rows), value


@admin_command("statsAll", "-a -t Orders")
@click.option("-a", "--activeTopic", "only_active", is_flag=True, help="Only topics with messages in or out today.")
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.")
async def stats_all(admin: Admin, topic: str | None, *, only_active: bool) -> Output:
    """Print the rates of each topic and the lag of each group."""
    found, failures = (await admin.topic_traffic(topic), {}) if topic else await admin.traffic()
    if only_active:
        found = [traffic for traffic in found if traffic.in_day or traffic.out_day]
    rows = [
        [traffic.topic, traffic.group, traffic.lag, traffic.in_tps, traffic.out_tps, traffic.in_day, traffic.out_day]
        if traffic.group is not None
        else [traffic.topic, "", 0, traffic.in_tps, "", traffic.in_day, "NO_CONSUMER"]
        for traffic in found
    ]
    values = [
        {
            "topic": traffic.topic,
            "group": traffic.group,
            "lag": traffic.lag,
            "in_tps": traffic.in_tps,
            "out_tps": traffic.out_tps,
            "in_24_hours": traffic.in_day,
            "out_24_hours": traffic.out_day,
        }
        for traffic in found
    ]
    columns = ("Topic", "Consumer Group", "Accumulation", "InTPS", "OutTPS", "InMsg24Hour", "OutMsg24Hour")
    return table(columns, rows), values, failures


# ---------------------------------------------------------------------------------------------------------- changing


def _attributes(_: click.Context, __: click.Parameter, text: str) -> dict[str, str | None]:
    try:
        return read_attribute_changes(text)
    except FieldError as error:
        raise click.BadParameter(str(error)) from None


@admin_command("updateTopic", "-c DefaultCluster -t Orders -r 8 -w 8")
@broker_or_cluster()
@topic_name
@click.option(
    "-r",
    "--readQueueNums",
    "read_queues",
    type=queue_count,
    default=QUEUES_OF_NEW_TOPIC,
    show_default=True,
    help="Read queues.",
)
@click.option(
    "-w",
    "--writeQueueNums",
    "write_queues",
    type=queue_count,
    default=QUEUES_OF_NEW_TOPIC,
    show_default=True,
    help="Write queues.",
)
@click.option("-p", "--perm", type=permission_type, default=6, show_default=True, help="2: write, 4: read, 6: both.")
@click.option("-o", "--order", "ordered", type=bool, default=False, help="Keep queues while a broker is down.")
@click.option("-u", "--unit", type=bool, default=False, help="Unit flag.")
@click.option("-s", "--hasUnitSub", "unit_sub", type=bool, default=False, help="Unit subscription flag.")
@click.option(
    "-a",
    "--attributes",
    default="",
    callback=_attributes,
    metavar="+NAME=VALUE,-NAME",
    help="Attributes to set and to delete (5.x).",
)
async def update_topic(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    topic: str,
    read_queues: int,
    write_queues: int,
    perm: int,
    attributes: dict[str, str | None],
    *,
    ordered: bool,
    unit: bool,
    unit_sub: bool,
) -> Output:
    """Create or change a topic."""
    done = await admin.create_topic(
        topic,
        broker=broker,
        cluster=cluster,
        read_queues=read_queues,
        write_queues=write_queues,
        permission=perm,
        ordered=ordered,
        unit=unit,
        has_unit_subscription=unit_sub,
        attributes=attributes,
    )
    lines = [f"create topic to {address} success." for address in done]
    value: dict[str, object] = {"topic": topic, "brokers": done}
    if ordered:
        value["order_config"] = await admin.order_config(topic)
        lines.append(f"set orderConf, orderConf=[{value['order_config']}]")
    return "\n".join(lines), value


@admin_command("updateTopicPerm", "-c DefaultCluster -t Orders -p 4")
@broker_or_cluster()
@topic_name
@click.option("-p", "--perm", type=permission_type, required=True, help="2: write, 4: read, 6: both.")
async def update_topic_perm(admin: Admin, broker: str | None, cluster: str | None, topic: str, perm: int) -> Output:
    """Change the permission of a topic."""
    changes = await admin.change_permission(topic, perm, broker=broker, cluster=cluster)
    lines = (f"update topic perm from {old} to {new} in {address} success." for address, (old, new) in changes.items())
    values = [{"address": address, "before": old, "after": new} for address, (old, new) in changes.items()]
    return "\n".join(lines), values


@admin_command("deleteTopic", "-c DefaultCluster -t Orders")
@topic_name
@click.option("-c", "--clusterName", "cluster", required=True, metavar="NAME", help="Cluster to delete it from.")
async def delete_topic(admin: Admin, topic: str, cluster: str) -> Output:
    """Delete a topic and its messages."""
    done = await admin.delete_topic(topic, cluster)
    return f"delete topic [{topic}] from cluster [{cluster}] success.", {"topic": topic, "brokers": done}


@admin_command("updateOrderConf", "-t Orders -m put -v 'broker-a:4;broker-b:4'")
@topic_name
@click.option("-m", "--method", type=click.Choice(["put", "get", "delete"]), required=True, help="Operation.")
@click.option("-v", "--orderConf", "config", metavar="BROKER:QUEUES;BROKER:QUEUES", help="For put: queues per broker.")
async def update_order_conf(admin: Admin, topic: str, method: str, config: str | None) -> Output:
    """Set, print or delete the order config of a topic."""
    if method == "put":
        if not config:
            raise click.UsageError("-m put needs -v BROKER:QUEUES.")
        await admin.put_order_config(topic, config)
    elif method == "get":
        config = await admin.order_config(topic)
        if config is None:
            raise ClientError(f"{topic} has no order config: set one with -m put -v BROKER:QUEUES")
    else:
        await admin.delete_order_config(topic)
        config = None
    text = f"{method} orderConf success. topic=[{topic}]"
    return text if config is None else f"{text}, orderConf=[{config}]", {"topic": topic, "order_config": config}
