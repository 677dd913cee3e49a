"""An admin with a namespace takes and returns topic and group names without the namespace."""

from __future__ import annotations

import asyncio

from skyroute import Admin, Consumer, Message, Producer, PullConsumer, QueueRef, StartPosition, blocking
from skyroute.client.admin.names import READER_GROUP, Names
from skyroute.testing import Cluster
from skyroute.testing import cluster as own_cluster
from skyroute.wire.calls.groups import GroupConfig
from tests.network.client.consumers import HURRIED, Inbox
from tests.support.waiting import eventually


async def test_every_call_uses_the_names_of_the_namespace() -> None:
    async with own_cluster() as real:
        name_servers, broker = real.name_server_address, real.broker_addresses[0]
        async with (
            Admin(name_servers, namespace="tenant") as admin,
            Admin(name_servers) as everybody,
            Producer("p", name_servers, namespace="tenant") as producer,
        ):
            await everybody.create_topic("Others", broker=broker, read_queues=1, write_queues=1)
            await everybody.create_topic("elsewhere%Orders", broker=broker, read_queues=1, write_queues=1)
            await admin.create_topic("Orders", broker=broker, read_queues=1, write_queues=1)
            assert "tenant%Orders" in await everybody.topics()
            assert await admin.topics() == ["Orders"]
            assert [queue.broker_name for queue in (await admin.route("Orders")).queues] == ["broker-0"]
            assert (await admin.topic_config("Orders", broker)).name == "Orders"
            assert set(await admin.topic_configs(broker)) == {"Orders"}
            assert {"tenant%Orders", "Others"} <= set(await everybody.topic_configs(broker))

            sent = await producer.send(Message("Orders", b"one", keys="k"))
            queue = QueueRef("Orders", "broker-0", 0)
            assert sent.queue == queue
            status = await admin.topic_status("Orders")
            assert (status.topic, list(status.queues)) == ("Orders", [queue])
            assert await admin.span(queue) == (0, 1)
            assert await admin.queues_of("Orders") == [queue]
            assert (await admin.message_at(queue, 0)).topic == "Orders"
            assert [m.queue for messages in [x async for x in admin.read(queue, 0, 1)] for m in messages] == [queue]
            assert (await admin.find_message("Orders", sent.offset_id)).topic == "Orders"
            assert await admin.allocation("Orders", ["me"]) == {"me": [queue]}

            await admin.create_group(GroupConfig("g"), broker=broker)
            assert (await admin.group_config("g", broker)).name == "g"
            assert set(await admin.group_configs(broker)) == {"g"}
            assert "tenant%g" in await everybody.group_configs(broker)
            await check_group_calls(admin, name_servers, queue)

            await admin.delete_topic("Orders", await admin.only_cluster())
            assert "Orders" not in await admin.topics()
            assert {"Others", "elsewhere%Orders"} <= set(await everybody.topics())


async def check_group_calls(admin: Admin, name_servers: str, queue: QueueRef) -> None:
    """Check the calls about a group that has consumed one message of the queue."""
    inbox = Inbox()
    consumer = Consumer("g", name_servers, namespace="tenant", start=StartPosition.FIRST, intervals=HURRIED)
    consumer.subscribe("Orders", handler=inbox)
    async with consumer:
        await inbox.until(1)
        assert inbox.messages[0].topic == "Orders"
        run = consumer._run
        assert run is not None
        await eventually(lambda: len(run.assignment.queues) == 2)  # the retry topic's queue too: its route exists
        assert await admin.groups() == ["g"]
        members = await admin.consumers("g")
        assert set(members.subscriptions) == {"Orders", "%RETRY%g"}
        running = await admin.running_consumer("g", consumer.session.client_id)
        assert {each.topic for each in running.subscriptions} == {"Orders", "%RETRY%g"} == set(running.paces)
        assert queue in running.queues
        assert (await admin.owners("g"))[queue] == consumer.session.client_id
        await consumer.stop()
    progress = await admin.progress("g")
    assert progress.group == "g"
    assert progress.queues[queue].consumer_offset == 1
    assert [each.group for each in await admin.summaries()] == ["g"]
    assert await admin.readers("Orders") == ["g"]
    uses, _ = await admin.topic_uses()
    assert [(use.topic, use.groups) for use in uses] == [("Orders", ("g",))]
    rows, _ = await admin.traffic()
    assert [(row.topic, row.group) for row in rows] == [("Orders", "g")]
    assert await admin.reset_to_time("g", "Orders", 0) == {queue: 0}
    await admin.reset_queue("g", queue, 1)
    message = await admin.message_at(queue, 0)
    assert [track.group for track in await admin.track(message)] == ["g"]
    await admin.reset_queue("g", queue, 0)
    assert (await admin.progress("g", "Orders")).queues[queue].consumer_offset == 0
    await admin.create_group(GroupConfig("g2"), cluster=await admin.only_cluster())
    assert await admin.clone_offsets("g", "g2", "Orders") == {queue: 0}
    async with PullConsumer("g2", name_servers, namespace="tenant") as reader:
        assert await reader.committed(queue) == 0


async def test_the_blocking_admin_takes_a_namespace() -> None:
    def script(real: Cluster) -> None:
        with blocking.Admin(real.name_server_address, namespace="tenant") as admin:
            admin.create_topic("Orders", broker=real.broker_addresses[0])
            assert admin.topics() == ["Orders"]

    async with own_cluster() as real:
        await asyncio.to_thread(script, real)


def test_names_translate_between_short_and_full() -> None:
    names = Names("tenant")
    queue, full = QueueRef("T", "b", 0), QueueRef("tenant%T", "b", 0)
    assert names.full_queue(queue) == names.full_queue(full) == full
    assert names.full("%RETRY%g") == "%RETRY%tenant%g"
    assert names.full("RMQ_SYS_TRACE_TOPIC") == "RMQ_SYS_TRACE_TOPIC"
    assert names.full(READER_GROUP) == READER_GROUP
    assert names.short_queues({full: 5}) == {queue: 5}
    assert names.short_queue(QueueRef("other%T", "b", 0)) == QueueRef("other%T", "b", 0)
    assert names.short_configs({"tenant%g": GroupConfig("tenant%g"), "h": GroupConfig("h")}) == {"g": GroupConfig("g")}


def test_without_a_namespace_names_stay_as_they_are() -> None:
    names = Names(None)
    assert names.full("T") == names.short("T") == "T"
    assert names.owns("T")
    assert names.owns("tenant%T")
