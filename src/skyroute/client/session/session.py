"""What all producers and consumers of a process can share: connections, routes, heartbeats and one client id.

Nothing here knows what a message is.
"""

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, Self, TypedDict

from skyroute.client.arguments import check_flags, check_kind, check_methods, check_texts, check_times
from skyroute.client.errors import ArgumentError, ClientError, NoNameServerError, NotRunningError, refusal
from skyroute.client.session.name_servers import NameServers
from skyroute.client.session.route_cache import RouteCache
from skyroute.client.session.route_watch import RouteWatch
from skyroute.client.session.shared_task import outcome_of
from skyroute.client.session.signing import Credentials
from skyroute.clock import Clock, SystemClock
from skyroute.errors import SkyrouteError
from skyroute.message.errors import HostError, InvalidNameError
from skyroute.message.message_ids import MessageIds
from skyroute.message.names import check_group
from skyroute.message.reserved_topics import TRACE_GROUP, without_namespace
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import ConnectError, RemotingError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.remoting.tls_settings import TlsClientSettings
from skyroute.routing.topology import MASTER_ID, TopicRoute
from skyroute.wire.calls.clients import ConsumerData, encode_heartbeat, encode_unregistration
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fast_path import PreparedRequest

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1_000
"""Requests of brokers that are being answered at the same time; more are refused."""

STOP_WAIT_S: Final = 3.0
"""How long a stop waits for work that was told to end, before it goes on without."""

CLOSE_WAIT_S: Final = 1.0
"""How long a stop waits for connections to take what was still to be sent, before it cuts them."""

FAST_PORT_STEP: Final = 2
"""A broker takes everything but pulls on a second port, so far below the first."""

_GO_AWAY: Final = int(ResponseCode.GO_AWAY)  # every answer is compared with it, and members of enumerations are slow

ADDRESSES_INTERVAL_S: Final = 120.0
"""How often an address server is asked where the name servers are."""

ASKED_OF_GROUPS: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)
"""What every client understands, also one that has no such group."""

DEFAULT_INSTANCE: Final = "DEFAULT"
"""What a client's instance is called that nobody has named, by Apache's clients."""

RequestHandler = Callable[[Request, str], Awaitable[Response | None]]
"""Answers what the broker at an address asks; None: it is not for me, or wants no answer."""


class HeartbeatSource(Protocol):
    """A producer or consumer, as its session sees it."""

    def producer_groups(self) -> Iterable[str]:
        """Groups to name as producers in heartbeats."""
        ...

    def consumer_data(self) -> Iterable[ConsumerData]:
        """Groups to name as consumers in heartbeats."""
        ...

    def topics(self) -> Iterable[str]:
        """Topics whose routes are to be kept fresh."""
        ...


class ClientArguments(TypedDict, total=False):
    """What producers, consumers and the admin take besides their own arguments, and hand to their `Session`."""

    instance_name: str | None
    """The second part of the client id; by default, and for `DEFAULT`, it is new for every session."""
    unit_name: str | None
    namespace: str | None
    """Goes before topics and groups, and is taken off again, so that several tenants can share a cluster."""
    credentials: Credentials | None
    tls: bool | ssl.SSLContext | TlsClientSettings
    """True encrypts and checks nobody, as Apache's clients do by default."""
    vip_channel: bool
    """Send messages to the broker's second port, which is two below the first."""
    client_ip: str | None
    request_timeout_s: float
    connect_timeout_s: float
    route_poll_interval_s: float
    """How often routes are asked for again."""
    watch_routes: bool
    """Have the name server tell of changed routes at once, if it can: ours do."""
    heartbeat_interval_s: float
    clock: Clock


class Session:
    """Connections to name servers and brokers, kept for as long as they are needed.

    Examples:
        >>> async with Session("127.0.0.1:9876") as session:
        ...     producer = Producer("orders", session=session)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        instance_name: str | None = None,
        unit_name: str | None = None,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext | TlsClientSettings = False,
        vip_channel: bool = False,
        client_ip: str | None = None,
        request_timeout_s: float = 3.0,
        connect_timeout_s: float = 3.0,
        route_poll_interval_s: float = 30.0,
        watch_routes: bool = True,
        heartbeat_interval_s: float = 30.0,
        clock: Clock | None = None,
        keeps_default: bool = False,
    ) -> None:
        """Nothing is connected yet. `keeps_default` lets an instance be called `DEFAULT`, as those who broadcast need.

        Raises:
            ArgumentError: an argument makes no sense.
            ClientError: there is no usable address of a name server.
            TlsError: the files for TLS cannot be used.
        """
        check_times(
            request_timeout_s=request_timeout_s,
            connect_timeout_s=connect_timeout_s,
            route_poll_interval_s=route_poll_interval_s,
            heartbeat_interval_s=heartbeat_interval_s,
        )
        check_flags(vip_channel=vip_channel, watch_routes=watch_routes, keeps_default=keeps_default)
        _check_names(instance_name=instance_name, unit_name=unit_name, namespace=namespace, client_ip=client_ip)
        if credentials is not None:
            check_kind("credentials", credentials, Credentials)
        if clock is not None:
            check_methods("clock", clock, "a skyroute.clock.Clock", ("wall", "monotonic"))
        self._pid = os.getpid()
        self.clock: Clock = clock or SystemClock()
        ip = client_ip or _own_ip()
        if not instance_name or (instance_name == DEFAULT_INSTANCE and not keeps_default):
            # Two sessions of one process must differ, and the clock alone may stand still between them.
            instance_name = f"{self._pid}#{int(self.clock.wall() * 1e9) + random.randrange(1_000_000)}"
        self.client_id = "@".join(filter(None, (f"[{ip}]" if ":" in ip else ip, instance_name, unit_name)))
        self.namespace = namespace or None
        self.vip_channel = vip_channel
        self.request_timeout_s = request_timeout_s
        try:
            self.message_ids = MessageIds(ip, self.clock.wall)
        except HostError:
            raise ArgumentError(f"client_ip is an IP address: {client_ip!r} is none") from None
        self.routes = RouteCache(self._fetch_route)
        self.broker_versions: dict[str, int] = {}
        """What the brokers' answers to heartbeats say of their release, by address."""
        self.name_servers = NameServers(name_servers, unit_name)
        self.watch: RouteWatch | None = None
        """What the name server tells of changed routes; None: it is not asked to."""
        self._credentials = credentials
        self.signs = credentials is not None
        """Whether requests are signed, which those written ahead cannot be."""
        self._tls = _tls_context(tls)
        self._connect_timeout_s = connect_timeout_s
        self._route_poll_interval_s = route_poll_interval_s
        self._heartbeat_interval_s = heartbeat_interval_s
        self._channels: dict[str, Channel] = {}
        """The connections that take new requests, by address."""
        self._open_channels: set[Channel] = set()
        """These, and those whose peer has said that it goes away."""
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._handlers: dict[int, list[RequestHandler]] = {}
        self._members: list[HeartbeatSource] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answering = 0
        self._close_log, self._silent = LogBackoff(), LogBackoff()
        """Brokers that do not answer heartbeats, by address."""
        self._stale = LogBackoff()
        """Topics whose routes are not refreshed; "" are the name servers' own addresses."""
        self._running = False
        if watch_routes:
            self.watch = RouteWatch(
                self._call_name_server,
                self.routes,
                self.used_topics,
                self.name_servers,
                self._channels.get,
                request_timeout_s,
            )

    def __repr__(self) -> str:
        return f"<Session {self.client_id} {'running' if self._running else 'stopped'}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def is_running(self) -> bool:
        return self._running

    async def start(self) -> None:
        """Begin to keep routes fresh and to send heartbeats. Connections are opened when first needed.

        Raises:
            ClientError: it was made in another process, and may have a twin there with the same ids.
        """
        if self._pid != os.getpid():
            raise ClientError("it was made before this process was forked: make it in the process that uses it")
        if self._running:
            return
        self._running = True
        self.spawn(self._poll_routes(), name="routes")
        if self.name_servers.source is not None:
            self.spawn(self._refresh_name_servers(), name="addresses of name servers")
        if self.watch is not None:
            self.spawn(self.watch.run(), name="watch")
        self.spawn(self._beat(), name="heartbeats")

    async def stop(self) -> None:
        """Take leave of the brokers, end all work in the background, and close the connections."""
        if not self._running:
            return
        try:
            for member in list(self._members):
                await self.leave(member)
        finally:
            self._running = False
            self.routes.stop()
            try:
                await self._end_tasks()
            finally:
                await self._close_channels()

    async def _end_tasks(self) -> None:
        tasks = [task for task in (*self._tasks, *self._connecting.values()) if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=STOP_WAIT_S)
            for task in left:
                log.error("background work does not end name=%s", task.get_name())

    async def _close_channels(self) -> None:
        channels = list(self._open_channels)
        self._channels.clear()
        for channel in channels:
            channel.close()
        try:
            if channels:
                await asyncio.wait([channel.ended for channel in channels], timeout=CLOSE_WAIT_S)
        finally:
            for channel in channels:
                channel.abort()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> "asyncio.Task[Any]":
        """Run something in the background until it ends or the session stops; if it fails, the log says so."""
        task = asyncio.create_task(coroutine, name=f"skyroute {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed name=%s", task.get_name(), exc_info=error)

    # ------------------------------------------------------------------------------------------------------- calls

    async def call(self, address: str, request: Request | PreparedRequest, timeout_s: float | None = None) -> Response:
        """Ask whoever is at an address, and return the answer, whatever it is.

        Raises:
            RemotingError: the line failed, or no answer came in time.
            NotRunningError: the session is not started, or stopped.
        """
        timeout_s = self.request_timeout_s if timeout_s is None else timeout_s
        now = self.clock.monotonic
        deadline = now() + timeout_s
        channel = self._channels.get(address)
        if channel is None:
            channel = await self._connect(address, timeout_s)
            timeout_s = deadline - now()
        if self._credentials is not None:
            assert isinstance(request, Request)  # who asks looks at `signs` first
            self._credentials.sign(request)
        call = channel.begin(request, timeout_s)
        try:
            response = await call.waiter
        except asyncio.CancelledError:
            channel.give_up(call)
            raise
        if response.code == _GO_AWAY:
            # It finishes what it has begun and takes no more on this line; a restarted one may answer on a new line.
            self._forget(channel)
            channel.retire()
            channel = await self._connect(address, deadline - now())
            return await channel.call(request, deadline - now())
        return response

    async def ask(self, address: str, request: Request, timeout_s: float | None = None) -> Response:
        """Ask whoever is at an address, and return the answer if it is success.

        Raises:
            BrokerRefusedError: it is not; the class tells why.
            RemotingError: the line failed, or no answer came in time.
        """
        response = await self.call(address, request, timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response, address)
        return response

    async def tell(self, address: str, request: Request) -> None:
        """Say something that wants no answer.

        Raises:
            RemotingError: there is no line to say it on.
        """
        channel = self._channels.get(address) or await self._connect(address)
        if self._credentials is not None:
            self._credentials.sign(request)
        await channel.until_writable(self.request_timeout_s)
        channel.send_oneway(request)

    def sending_address(self, address: str) -> str:
        """Return where to send messages: with `vip_channel`, to the broker's second port."""
        if not self.vip_channel:
            return address
        host, _, port = address.rpartition(":")
        return f"{host}:{int(port) - FAST_PORT_STEP}"

    async def ask_name_server(self, request: Request, timeout_s: float | None = None) -> Response:
        """Ask one name server, and the next one if it fails.

        Raises:
            NoNameServerError: none of them answers.
            BrokerRefusedError: one did, and refused.
        """
        address, response = await self._call_name_server(request, timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response, address)
        return response

    async def _call_name_server(self, request: Request, timeout_s: float | None = None) -> tuple[str, Response]:
        failures: list[str] = []
        for address in await self.name_servers.in_turn():
            try:
                response = await self.call(address, request, timeout_s)
                if response.code != ResponseCode.GO_AWAY:
                    self.name_servers.prefer(address)
                    return address, response
                failures.append(f"{address} is shutting down")
            except RemotingError as error:
                failures.append(str(error))
        raise NoNameServerError(f"no name server answers: {'; '.join(failures)}")

    async def ask_every_name_server(
        self, request: Request, timeout_s: float | None = None
    ) -> list[tuple[str, Response | SkyrouteError]]:
        """Ask all name servers, and return what each answered, or why it did not."""
        addresses = await self.name_servers.in_turn()

        async def ask(address: str) -> Response | SkyrouteError:
            own = Request(request.code, dict(request.fields), body=request.body)
            try:
                return await self.ask(address, own, timeout_s)
            except SkyrouteError as error:
                return error

        return list(zip(addresses, await asyncio.gather(*map(ask, addresses)), strict=True))

    async def _fetch_route(self, topic: str) -> TopicRoute | None:
        address, response = await self._call_name_server(encode_route_query(topic))
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response, address)
        try:
            return decode_route(response.body)
        except BodyError as error:
            raise BodyError(f"name server {address} sent an unusable route of topic {topic}: {error}") from None

    # ------------------------------------------------------------------------------------------------- connections

    async def _connect(self, address: str, timeout_s: float | None = None) -> Channel:
        """Return the connection to an address; all who wait for it wait for the same attempt, each for as long."""
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        if not isinstance(address, str):
            raise ArgumentError(f"address is {address!r}: expected 'host:port'")
        if not self._running:
            raise NotRunningError("it is not running: use `async with`, or call `start` first")
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            async with asyncio.timeout(timeout_s):
                return await outcome_of(task)
        except TimeoutError:
            raise ConnectError(f"{address} did not accept the connection in {timeout_s:.3g} s") from None

    async def _open(self, address: str) -> Channel:
        channel = await connect(
            address,
            tls=self._tls,
            timeout_s=self._connect_timeout_s,
            on_request=self._on_request,
            on_close=self._closed,
            close_log=self._close_log,
        )
        self._channels[address] = channel
        self._open_channels.add(channel)
        for broker in self._broker_addresses():
            if address in (broker, self.sending_address(broker)):
                # A broker that was restarted has forgotten us, and must not wait for the next round to hear of us.
                self.spawn(self._beat_once(broker), name="first heartbeat")
        return channel

    def _broker_addresses(self) -> set[str]:
        return {address for brokers in self.routes.brokers.values() for address in brokers.values()}

    def _opened(self, address: str, task: "asyncio.Task[Channel]") -> None:
        del self._connecting[address]
        if not task.cancelled():
            task.exception()  # whoever waits has seen it; if all went away meanwhile, nobody needs to

    def _forget(self, channel: Channel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]

    def _closed(self, channel: Channel) -> None:
        self._forget(channel)
        self._open_channels.discard(channel)

    def on_request(self, code: int, handler: RequestHandler) -> None:
        """Have requests of brokers answered. Of several handlers of a code, the first that gives an answer wins."""
        self._handlers.setdefault(code, []).append(handler)

    def off_request(self, code: int, handler: RequestHandler) -> None:
        """Take a handler back."""
        self._handlers[code].remove(handler)

    def _on_request(self, request: Request, channel: Channel) -> None:
        if self._answering >= REQUESTS_MAX:
            channel.answer(
                request, Response.error("more requests than this client can answer", ResponseCode.SYSTEM_BUSY)
            )
            return
        self._answering += 1
        task = self.spawn(self._answer(request, channel), name=f"answer to request {request.code}")
        task.add_done_callback(self._answered)

    def _answered(self, _: "asyncio.Task[None]") -> None:
        self._answering -= 1

    async def _answer(self, request: Request, channel: Channel) -> None:
        try:
            for handler in tuple(self._handlers.get(request.code, ())):
                response = await handler(request, channel.address)
                if response is not None:
                    channel.answer(request, response)
                    return
            if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                # Whoever replied has done its part, and need not hear that it was too late.
                log.info("reply that nobody waits for peer=%s", channel.address)
                channel.answer(request, Response())
            elif request.code in self._handlers or request.code in ASKED_OF_GROUPS:
                channel.answer(request, Response.error("nobody here is meant by this request"))
            else:
                remark = f" request type {request.code} not supported"
                channel.answer(request, Response.error(remark, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        except SkyrouteError as error:
            log.warning("request refused code=%d peer=%s reason=%s", request.code, channel.address, error)
            channel.answer(request, Response.error(str(error)))
        except Exception as error:
            log.exception("request failed code=%d peer=%s", request.code, channel.address)
            channel.answer(request, Response.error(f"{type(error).__name__}: {error}"))

    # ------------------------------------------------------------------------------------------ members, heartbeats

    def join(self, member: HeartbeatSource) -> None:
        """Name a member's groups in heartbeats and keep its routes fresh from now on.

        Raises:
            ClientError: a producer, or a consumer, of the same group is there: brokers could not tell them apart.
        """
        taken = {role for other in self._members for role in _roles(other)}
        for kind, group in _roles(member):
            if (kind, group) in taken and without_namespace(self.namespace, group) != TRACE_GROUP:
                raise ClientError(
                    f"the session has a {kind} of group {group} already: give this one another group, or a session of"
                    " its own"
                )
        self._members.append(member)
        if self.watch is not None:
            self.watch.look()

    async def leave(self, member: HeartbeatSource) -> None:
        """Tell the brokers that a member is gone. They find out by themselves if this fails."""
        if member not in self._members:
            return
        self._members.remove(member)
        farewells = [
            *(encode_unregistration(self.client_id, producer_group=group) for group in member.producer_groups()),
            *(encode_unregistration(self.client_id, consumer_group=data.group) for data in member.consumer_data()),
        ]
        calls = [
            self.call(address, Request(farewell.code, dict(farewell.fields)), min(1.0, self.request_timeout_s))
            for address in self._broker_addresses().intersection(self._channels)
            for farewell in farewells
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.info("a broker was not told that we leave: %s", outcome)

    def used_topics(self) -> set[str]:
        """Return the topics that any member uses."""
        return {topic for member in self._members for topic in member.topics()}

    async def send_heartbeats(self) -> None:
        """Tell every broker of every known route who we are; slaves only where somebody consumes."""
        if not self._members:
            return
        consuming = any(True for member in self._members for _ in member.consumer_data())
        addresses = {
            address
            for brokers in self.routes.brokers.values()
            for broker_id, address in brokers.items()
            if consuming or broker_id == MASTER_ID
        }
        await asyncio.gather(*map(self._beat_once, addresses))

    async def _beat_once(self, address: str) -> None:
        producers = {group for member in self._members for group in member.producer_groups()}
        consumers = [data for member in self._members for data in member.consumer_data()]
        if not producers and not consumers:
            return
        try:
            response = await self.ask(address, encode_heartbeat(self.client_id, producers, consumers))
        except SkyrouteError as error:
            unsaid = self._silent.unsaid(address, self.clock.monotonic())
            if unsaid is not None:
                log.warning("heartbeat failed broker=%s reason=%s unsaid=%d", address, error, unsaid)
        else:
            self.broker_versions[address] = response.version
            self._silent.works_again(address)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            await self.send_heartbeats()

    async def _refresh_name_servers(self) -> None:
        """Ask again and again where the name servers are, as often as Apache's clients do."""
        while True:
            await asyncio.sleep(ADDRESSES_INTERVAL_S)
            try:
                await self.name_servers.refresh()
            except NoNameServerError as error:
                unsaid = self._stale.unsaid("", self.clock.monotonic())
                if unsaid is not None:
                    log.warning("addresses of name servers not refreshed reason=%s unsaid=%d", error, unsaid)

    async def _poll_routes(self) -> None:
        """Bring news of routes by asking again and again, as Apache's clients do."""
        while True:
            await asyncio.sleep(self._route_poll_interval_s)
            for topic in self.used_topics():
                try:
                    await self.routes.refresh(topic)
                except SkyrouteError as error:
                    unsaid = self._stale.unsaid(topic, self.clock.monotonic())
                    if unsaid is not None:
                        log.info("route not refreshed topic=%s reason=%s unsaid=%d", topic, error, unsaid)
                else:
                    self._stale.works_again(topic)


def _roles(member: HeartbeatSource) -> list[tuple[str, str]]:
    """Return what a member is, and in which groups."""
    return [
        *(("producer", group) for group in member.producer_groups()),
        *(("consumer", data.group) for data in member.consumer_data()),
    ]


def _check_names(**names: str | None) -> None:
    check_texts(**{name: text for name, text in names.items() if text is not None and text != ""})
    try:
        if namespace := names["namespace"]:
            check_group(namespace)
    except InvalidNameError as error:
        raise ArgumentError(f"namespace is what a group can be called: {error}") from None


def _tls_context(tls: bool | ssl.SSLContext | TlsClientSettings) -> ssl.SSLContext | None:  # noqa: FBT001 - a setting
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool | TlsClientSettings):  # such as the text "false", out of an environment
        raise ArgumentError(f"tls is True, False, an ssl.SSLContext or TlsClientSettings: {tls!r} is none of them")
    if tls is False:
        return None
    from skyroute.remoting.tls import client_context  # noqa: PLC0415 - it imports much that few clients need

    return client_context(TlsClientSettings(), test_mode=True) if tls is True else client_context(tls, test_mode=False)


def _own_ip() -> str:
    """Return the address this machine would be reached by. No packet is sent: the system only looks up its routes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
