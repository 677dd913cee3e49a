"""A demonstration of the whole system: two name servers, two brokers, and clients of every kind.

The servers are processes of the `skyroute` command on free loopback ports, with their files in a temporary folder. One
broker is paused, and later killed, while messages are sent. Sent and consumed messages are counted: if one is lost, the
exit code is 1. On a terminal, the web console then stays open until Ctrl-C. At the end Spark, if installed, reads the
messages as a table, and the availability of the brokers from the route journals. Run it with `make demo`.
"""

import asyncio
import importlib.util
import logging
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from skyroute import (
    Admin,
    Consumer,
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    RetryLater,
    SendResult,
    SkyrouteError,
    StartPosition,
    StoredMessage,
    TransactionOutcome,
    sql,
)
from skyroute.client.consuming.offset_store import FileOffsets
from skyroute.client.consuming.subscription import Expression

TOPICS = ("Orders", "Steps", "Reminders", "Payments", "Readings", "Questions", "News", "Invoices", "Parcels")
LEASE_S = 4.0
"""The broker lease at the name servers; the default is two minutes."""
ROUTES_S = 0.5
"""How often clients refresh routes; the default is 30 s."""
ORDER_S = 0.2
"""How often an order is sent while the console is open."""
WAIT_S = 30.0
"""Timeout of each step."""
STARTED_AT = time.monotonic()


def tell(text: str) -> None:
    print(f"{time.monotonic() - STARTED_AT:6.2f} s  {text}", flush=True)


class BrokenPromiseError(Exception):
    """A step of the demonstration failed."""


def check(promise: str, *, kept: bool) -> None:
    if not kept:
        raise BrokenPromiseError(promise)


# ------------------------------------------------------------------------------------------------------------ servers


class Server:
    """A process of the `skyroute` command."""

    def __init__(self, kind: str, name: str, settings: dict[str, str]) -> None:
        self.name = name
        self.address = ""
        self._kind = kind
        self._settings = {"listenPort": "0", "bindAddress": "127.0.0.1", **settings}
        self._process: Process | None = None

    async def start(self) -> None:
        words = [word for key, value in self._settings.items() for word in ("-D", f"{key}={value}")]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "skyroute", self._kind, "--log-level", "error", *words),
            stdout=PIPE,
            start_new_session=True,  # Ctrl-C must not reach it
        )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        check(f"{self.name} starts", kept="boot success" in line)
        self.address = next(word.strip("],.") for word in line.split() if word.startswith("127.0.0.1:"))
        tell(f"{self.name} serves at {self.address} (process {self._process.pid})")
        self._settings["listenPort"] = self.address.rpartition(":")[2]  # it restarts at the same port

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Stop it with SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        async with asyncio.timeout(WAIT_S):
            code = await self._process.wait()
        tell(f"{self.name} stopped with exit code {code}")
        check(f"{self.name} stops in good order", kept=code == 0)

    async def abandon(self) -> None:
        """Kill it if it still runs."""
        if self._process is not None and self._process.returncode is None:
            await self.kill()


def name_server(name: str, folder: Path) -> Server:
    return Server(
        "nameserver",
        name,
        {
            "kvConfigPath": str(folder / name / "kvConfig.json"),
            "configStorePath": str(folder / name / "namesrv.properties"),
            "memoryPath": str(folder / name / "memory"),
            "scanNotActiveBrokerInterval": "250",
        },
    )


def broker(name: str, folder: Path, name_servers: str) -> Server:
    return Server(
        "broker",
        name,
        {
            "brokerName": name,
            "storePathRootDir": str(folder / name),
            "namesrvAddr": name_servers,
            # With this setting a broker sends a heartbeat with a lease every second.
            "enableSlaveActingMaster": "true",
            "brokerNotActiveTimeoutMillis": f"{LEASE_S * 1000:.0f}",
            "transactionTimeOut": "500",
            "transactionCheckInterval": "500",
        },
    )


async def show_route(admin: Admin, topic: str) -> str:
    route = await admin.route(topic)
    served = [f"{queues.broker_name} x{queues.settings.read_queues}" for queues in route.queues]
    return f"route of {topic}: {' | '.join(sorted(served))}"


async def until_served_by(admins: Sequence[Admin], topic: str, *brokers: str) -> float:
    """Wait until the route of a topic has exactly these brokers on all name servers; return how long it took."""
    began = time.monotonic()
    async with asyncio.timeout(WAIT_S):
        for admin in admins:
            while {group.name for group in (await admin.route(topic)).groups} != set(brokers):  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.02)
    return time.monotonic() - began


# ------------------------------------------------------------------------------------------------------------ clients


class Inbox:
    """A handler that keeps its messages, and waits for them."""

    def __init__(self) -> None:
        self.bodies: Counter[str] = Counter()
        self._more = asyncio.Event()

    async def take(self, message: StoredMessage) -> None:
        self.bodies[message.body.decode()] += 1
        self._more.set()

    async def until_here(self, wanted: Collection[str]) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not self.bodies.keys() >= set(wanted):
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            missing = sorted(set(wanted) - self.bodies.keys())
            check(f"{len(wanted)} messages come, but not {len(missing)} of them: {missing[:5]}", kept=False)


class Shop:
    """Runs each kind of producer and consumer once."""

    def __init__(self, name_servers: str, folder: Path, producer: Producer) -> None:
        self._name_servers = name_servers
        self._folder = folder
        self._producer = producer

    def consumer(self, group: str, **options: Any) -> Consumer:
        return Consumer(group, self._name_servers, start=StartPosition.FIRST, route_poll_interval_s=ROUTES_S, **options)

    @asynccontextmanager
    async def consuming(
        self, group: str, topic: str, expression: str | Expression = "*", **options: Any
    ) -> AsyncIterator[Inbox]:
        inbox = Inbox()
        consumer = self.consumer(group, **options)
        consumer.subscribe(topic, expression, inbox.take)
        async with consumer:
            yield inbox

    async def send(self, *messages: Message) -> list[SendResult]:
        return await asyncio.gather(*map(self._producer.send, messages))

    async def open_with_tags(self) -> None:
        orders = [Message("Orders", b"order %d" % n, tag=("open", "paid")[n % 2], keys=f"order-{n}") for n in range(10)]
        paid = [order.body.decode() for order in orders if order.tag == "paid"]
        async with self.consuming("billing", "Orders", "paid || refunded") as inbox:
            sent = await self.send(*orders)
            await inbox.until_here(paid)
        check("only what is paid comes", kept=inbox.bodies.keys() == set(paid))
        places = Counter(result.queue.broker_name for result in sent)
        taken = " and ".join(f"{count} by {name}" for name, count in sorted(places.items()))
        tell(f"tag filter: 10 orders sent ({taken} stored); the consumer of tag paid received {len(paid)}")

    async def keep_order(self) -> None:
        steps, orders = ("placed", "paid", "brewed", "served"), [f"order {n}" for n in range(5)]
        seen: defaultdict[str, list[str]] = defaultdict(list)
        done = asyncio.Event()
        kitchen = self.consumer("kitchen", ordered=True)

        @kitchen.on("Steps")
        async def follow(message: StoredMessage) -> None:
            seen[message.sharding_key or ""].append(message.body.decode())
            if sum(map(len, seen.values())) == len(steps) * len(orders):
                done.set()

        async with kitchen, asyncio.timeout(WAIT_S):
            for step in steps:
                await self.send(*(Message("Steps", step.encode(), sharding_key=order) for order in orders))
            await done.wait()
        check("steps come in order", kept=all(seen[order] == list(steps) for order in orders))
        tell(f"ordered: {len(orders)} orders, each received as {' → '.join(steps)}")

    async def delay(self) -> None:
        async with self.consuming("clock", "Reminders") as inbox:
            began = time.monotonic()
            await self.send(Message("Reminders", b"your coffee is ready", delay_level=1))
            await inbox.until_here(["your coffee is ready"])
            took_s = time.monotonic() - began
        check("it does not come too early", kept=took_s > 0.9)
        tell(f"delayed: a message with a delay of 1 s was received after {took_s:.2f} s")

    async def transact(self) -> None:
        async def pay(message: Message, _: SendResult) -> TransactionOutcome:
            return {
                b"ten": TransactionOutcome.COMMIT,
                b"too much": TransactionOutcome.ROLLBACK,
            }.get(message.body, TransactionOutcome.UNKNOWN)

        async with self.consuming("bank", "Payments") as inbox:
            for body in (b"ten", b"too much", b"twenty, but the line is bad"):
                await self._producer.send_in_transaction(Message("Payments", body), pay)
            await inbox.until_here(["ten", "twenty, but the line is bad"])
        check("what was rolled back does not come", kept="too much" not in inbox.bodies)
        tell("transactions: one committed, one rolled back, one committed when the broker checked it; 2 received")

    async def batch_and_pull(self) -> None:
        bodies = [f"{n} degrees" for n in range(100)]
        results = await self._producer.send_batch(Message("Readings", body.encode()) for body in bodies)
        read: Counter[str] = Counter()
        async with PullConsumer("audit", self._name_servers) as audit, asyncio.timeout(WAIT_S):
            audit.assign(await audit.queues("Readings"))
            for queue in audit.assignment:
                await audit.seek_to_begin(queue)
            while read.total() < len(bodies):
                read.update(message.body.decode() for message in await audit.poll())
            await audit.commit()
        check("all readings are read, once each", kept=read == Counter(bodies))
        tell(f"batch: {len(results)} messages in one request; pull consumer: {read.total()} read from the first offset")

    async def ask(self) -> None:
        oracle = self.consumer("oracle")

        @oracle.on("Questions")
        async def answer(message: StoredMessage) -> None:
            await self._producer.reply(message, b"the answer to " + message.body)

        async with oracle:
            reply = await self._producer.request(Message("Questions", b"everything"), timeout_s=WAIT_S)
        check("the question is answered", kept=reply.body == b"the answer to everything")
        tell(f"request-reply: {reply.body.decode()}")

    async def broadcast(self) -> None:
        news = [f"headline {n}" for n in range(5)]
        async with AsyncExitStack() as stack:
            inboxes = []
            for name in ("left", "right"):
                offsets = FileOffsets(name, "screens", directory=self._folder / "offsets")
                screen = self.consuming(
                    "screens", "News", model=MessageModel.BROADCASTING, instance_name=name, offsets=offsets
                )
                inboxes.append(await stack.enter_async_context(screen))
            await self.send(*(Message("News", text.encode()) for text in news))
            for inbox in inboxes:
                await inbox.until_here(news)
        tell(f"broadcast: {len(news)} messages received by each of {len(inboxes)} consumers")

    async def retry(self) -> None:
        inbox = Inbox()
        attempts: list[int] = []
        printer = self.consumer("printer")

        @printer.on("Invoices")
        async def print_out(message: StoredMessage) -> None:
            attempts.append(message.reconsume_times)
            if message.reconsume_times == 0:
                raise RetryLater(delay_level=1)
            await inbox.take(message)

        async with printer:
            await self.send(Message("Invoices", b"invoice 1"))
            await inbox.until_here(["invoice 1"])
        check("a failed message comes again", kept=attempts == [0, 1])
        tell("retry: the handler failed once; the message was redelivered after 1 s")

    async def filter_by_properties(self) -> None:
        parcels = [Message("Parcels", b"%d kg" % kg, properties={"weight": str(kg)}) for kg in range(1, 11)]
        async with self.consuming("strong-arms", "Parcels", sql("weight > 6 AND weight <> 9")) as inbox:
            await self.send(*parcels)
            await inbox.until_here(["7 kg", "8 kg", "10 kg"])
        check("the broker holds the others back", kept=len(inbox.bodies) == 3)
        tell("SQL92 filter: weight > 6 AND weight <> 9: of 1 to 10 kg, received 7, 8 and 10 kg")


# -------------------------------------------------------------------------------------------------------------- story


async def stand_still(admins: Sequence[Admin], victim: Server) -> None:
    tell(await show_route(admins[0], "Orders"))
    tell(f"{victim.name} is paused: connections open, no heartbeats, lease {LEASE_S:g} s …")
    victim.signal(signal.SIGSTOP)
    waited_s = await until_served_by(admins, "Orders", "broker-a")
    tell(f"… lease expired, evicted after {waited_s:.1f} s. {await show_route(admins[1], 'Orders')}")
    victim.signal(signal.SIGCONT)
    await until_served_by(admins, "Orders", "broker-a", "broker-b")
    tell(f"{victim.name} is resumed and registers again. {await show_route(admins[1], 'Orders')}")


async def kill_and_return(shop: Shop, producer: Producer, admins: Sequence[Admin], victim: Server) -> int:
    """Send while a broker is killed and restarted; return the numbers of acknowledged and consumed messages."""
    taken_by: dict[str, str] = {}
    refused = 0
    progress = asyncio.Condition()

    async def keep_sending() -> None:
        nonlocal refused
        number = 0
        while True:
            number += 1
            body = f"cup {number}"
            try:
                result = await producer.send(Message("Orders", body.encode(), tag="counted"))
            except SkyrouteError:
                refused += 1
                continue
            async with progress:
                taken_by[body] = result.queue.broker_name
                progress.notify_all()

    async def until_taken(more: int, name: str | None = None) -> None:
        def count() -> int:
            return len(taken_by) if name is None else Counter(taken_by.values())[name]

        goal = count() + more
        async with asyncio.timeout(WAIT_S), progress:
            await progress.wait_for(lambda: count() >= goal)

    async with shop.consuming("counting", "Orders", "counted") as inbox:
        sending = asyncio.create_task(keep_sending())
        await until_taken(200)
        tell(f"{len(taken_by)} messages sent, sending continues; kill -9 {victim.name} …")
        await victim.kill()
        waited_s = await until_served_by(admins, "Orders", "broker-a")
        tell(f"… connection closed, evicted after {waited_s * 1000:.0f} ms. {await show_route(admins[0], 'Orders')}")
        await until_taken(200, "broker-a")
        tell(f"{len(taken_by)} messages sent, all new ones to broker-a; {victim.name} restarts …")
        await victim.start()
        await until_served_by(admins, "Orders", "broker-a", "broker-b")
        await until_taken(200, "broker-b")
        sending.cancel()
        await asyncio.wait({sending})
        tell(f"… {victim.name} receives messages again. {await show_route(admins[0], 'Orders')}")
        await inbox.until_here(taken_by)
    by_name = Counter(taken_by.values())
    consumed = inbox.bodies.keys() & taken_by.keys()
    lost = len(taken_by) - len(consumed)
    twice = sum(inbox.bodies[body] > 1 for body in consumed)
    tell(
        f"acknowledged {len(taken_by)} (broker-a {by_name['broker-a']}, broker-b {by_name['broker-b']}), "
        f"consumed {len(consumed)}, lost {lost}; {refused} sends failed, {twice} messages were delivered twice"
    )
    check("nothing that was acknowledged is lost", kept=lost == 0)
    return len(taken_by)


async def story(name_servers: str, folder: Path, victim: Server) -> int:
    def became_of(_: StoredMessage) -> TransactionOutcome:
        return TransactionOutcome.COMMIT

    async with AsyncExitStack() as stack:
        admins = [await stack.enter_async_context(Admin(address)) for address in name_servers.split(";")]
        for topic in TOPICS:
            await admins[0].create_topic(topic, read_queues=4, write_queues=4)
        await stand_still(admins, victim)
        # By default a failed broker is avoided for ten seconds, which is too long for a demonstration.
        options: dict[str, Any] = {"avoid_slow": False, "route_poll_interval_s": ROUTES_S}
        producer = Producer("shop", name_servers, check=became_of, **options)
        await stack.enter_async_context(producer)
        shop = Shop(name_servers, folder, producer)
        await shop.open_with_tags()
        await shop.keep_order()
        await asyncio.gather(shop.delay(), shop.transact(), shop.retry())
        await shop.batch_and_pull()
        await shop.ask()
        await shop.broadcast()
        await shop.filter_by_properties()
        return await kill_and_return(shop, producer, admins, victim)


def read_topic(name_servers: str, acknowledged: int) -> None:
    """Read the orders as a Spark table."""
    from skyroute.pipeline.session import session  # noqa: PLC0415 - Spark is optional

    tell("Spark starts and reads the topic Orders …")
    options = {"nameServer": name_servers, "topic": "Orders", "columns": "broker_name,tags,body"}
    orders = session().read.format("rocketmq").options(**options).load()
    rows = orders.groupBy("tags").count().orderBy("tags").collect()
    by_tag = {row["tags"]: row["count"] for row in rows}
    tell(f"… SELECT tags, count(*): {', '.join(f'{tag} {count}' for tag, count in by_tag.items())}")
    check("the table has every order", kept=by_tag["counted"] >= acknowledged and by_tag["open"] == by_tag["paid"] == 5)


async def show_console(name_servers: str, folder: Path, journals: dict[str, Path]) -> None:
    """Serve the web console until Ctrl-C, while orders are sent."""
    if importlib.util.find_spec("starlette") is None:
        tell("pip install 'skyroute[console]' to see this cluster in a browser next time")
        return
    from skyroute.console.config import ConsoleConfig  # noqa: PLC0415 - an extra
    from skyroute.console.server import Console  # noqa: PLC0415 - as above

    console = Console(ConsoleConfig(name_servers=name_servers, port=0, folder=folder / "console", journals=journals))
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, enough.set)
    async with Producer("shop", name_servers) as producer:
        await console.start()
        tell(f"the cluster in a browser: {console.url} (ctrl-C ends this)")
        while not enough.is_set():
            await producer.send(Message("Orders", b"one more cup", tag="watched"))
            with suppress(TimeoutError):
                async with asyncio.timeout(ORDER_S):
                    await enough.wait()
        await console.stop()
    loop.remove_signal_handler(signal.SIGINT)


def show_availability(folder: Path) -> None:
    """Print the availability of brokers, from the name servers' journals."""
    from skyroute.pipeline.jobs.availability import availability  # noqa: PLC0415 - as above
    from skyroute.pipeline.journal.reading import read_journal  # noqa: PLC0415 - as above
    from skyroute.pipeline.session import session  # noqa: PLC0415 - as above

    tell("Spark computes the availability of each broker from the name servers' journals …")
    events = read_journal(session(), folder.glob("*/memory")).events
    rows = availability(events).filter("what = 'broker'").orderBy("broker", "server").collect()
    tell(f"{'broker':<10}{'name server':<14}{'up':>9}{'down':>9}  outages: causes")
    for row in rows:
        why = ", ".join(row.causes)
        tell(f"{row.broker:<10}{row.server[:12]:<14}{row.up_s:7.1f} s{row.down_s:7.1f} s  {row.outages}: {why}")
        check("outages are recorded", kept=row.outages == (2 if row.broker == "broker-b" else 0))


def end_on_signals() -> None:
    """Let a closed terminal end the demonstration as Ctrl-C does, with its servers."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="skyroute-demo-") as temporary:
        folder = Path(temporary)
        finders = [name_server("name-server-1", folder), name_server("name-server-2", folder)]
        brokers: list[Server] = []
        end_on_signals()
        try:
            await asyncio.gather(*(server.start() for server in finders))
            name_servers = ";".join(server.address for server in finders)
            brokers = [broker("broker-a", folder, name_servers), broker("broker-b", folder, name_servers)]
            await asyncio.gather(*(server.start() for server in brokers))
            acknowledged = await story(name_servers, folder, brokers[1])
            has_spark = importlib.util.find_spec("pyspark") is not None
            if has_spark:
                await asyncio.to_thread(read_topic, name_servers, acknowledged)
            if sys.stdin.isatty() and sys.stdout.isatty():
                await show_console(name_servers, folder, {each.name: folder / each.name / "memory" for each in finders})
            for server in (*brokers, *finders):
                await server.stop()
            if has_spark:
                await asyncio.to_thread(show_availability, folder)
        finally:
            for server in (*brokers, *finders):
                await server.abandon()


if __name__ == "__main__":
    # The demonstration prints what happens, so the warnings of the clients are not needed.
    logging.getLogger("skyroute").setLevel(logging.ERROR)
    try:
        asyncio.run(main())
    except BrokenPromiseError as error:
        sys.exit(f"not as promised: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("ended before its end")
