"""What all producers and consumers of a process can share: connections, routes, heartbeats and one client id.

Nothing here depends on messages.
"""

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self, TypedDict

from skyroute.client.arguments import check_flags, check_kind, check_methods, check_texts, check_times
from skyroute.client.errors import ArgumentError, ClientError, NoNameServerError, WrongLoopError, refusal
from skyroute.client.session.connections import Connections
from skyroute.client.session.heartbeats import AT_ONCE_MAX, Heartbeats
from skyroute.client.session.incoming_requests import IncomingRequests
from skyroute.client.session.name_servers import NameServers
from skyroute.client.session.route_cache import RouteCache
from skyroute.client.session.route_watch import RouteWatch
from skyroute.client.session.signing import Credentials
from skyroute.clock import Clock, SystemClock
from skyroute.errors import SkyrouteError
from skyroute.message.errors import HostError, InvalidNameError
from skyroute.message.message_ids import MessageIds
from skyroute.message.names import check_group
from skyroute.remoting.errors import ConnectError, RemotingError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.remoting.tls_settings import TlsClientSettings
from skyroute.routing.topology import MASTER_ID, TopicRoute
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fast_path import PreparedRequest

log = logging.getLogger(__name__)

STOP_WAIT_S: Final = 3.0
"""How long `stop` waits for cancelled background tasks."""

FAST_PORT_STEP: Final = 2
"""The broker's second port, which takes everything but pulls, is this much below the first."""

_VIP_CODES: Final = frozenset(
    {
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.CONSUMER_SEND_MSG_BACK),
        *(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET),
        *(RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_MESSAGE),
        *(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG),
        *(RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_CONSUME_STATS, RequestCode.GET_TOPIC_STATS_INFO),
        *(RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_PRODUCER_CONNECTION_LIST),
        *(RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.GET_TOPIC_CONFIG),
        *(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP),
        *(RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET),
    }
)
"""Requests to brokers that use the second port with `vip_channel`, as in Java's client. Pulls never do."""

_GO_AWAY: Final = int(ResponseCode.GO_AWAY)  # compared with every response, where an enum member would be slow

ADDRESSES_INTERVAL_S: Final = 120.0
"""How often an address server is asked for the name servers' addresses."""

DEFAULT_INSTANCE: Final = "DEFAULT"
"""The instance name of Apache's clients if none is given."""


class ClientArguments(TypedDict, total=False):
    """Arguments that producers, consumers and the admin pass on to their `Session`."""

    instance_name: str | None
    """The second part of the client id; by default, and for `DEFAULT`, every session gets a new one."""
    unit_name: str | None
    namespace: str | None
    """Prefix of all topics and groups, invisible to the application, so that tenants can share a cluster."""
    credentials: Credentials | None
    tls: bool | ssl.SSLContext | TlsClientSettings
    """True encrypts without checking certificates, as Apache's clients do by default."""
    vip_channel: bool
    """Send messages to the broker's second port, two below the first."""
    client_ip: str | None
    request_timeout_s: float
    connect_timeout_s: float
    route_poll_interval_s: float
    """How often routes are refreshed."""
    watch_routes: bool
    """Let the name server report route changes at once, if it supports that, as Skyroute's does."""
    heartbeat_interval_s: float
    clock: Clock


class Session:
    """Connections to name servers and brokers, with routes and heartbeats.

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
        """Check the arguments. `keeps_default` allows the instance name `DEFAULT`, which broadcasting needs.

        Raises:
            ArgumentError: an argument is invalid.
            ClientError: no usable name server address is given.
            TlsError: the TLS files cannot be used.
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
            # Two sessions of one process need different names, even if the clock has not advanced between them.
            instance_name = f"{self._pid}#{int(self.clock.wall() * 1e9) + random.randrange(1_000_000)}"
        self.client_id = "@".join(filter(None, (f"[{ip}]" if ":" in ip else ip, instance_name, unit_name)))
        self.namespace = namespace or None
        self.vip_channel = vip_channel
        self.request_timeout_s = request_timeout_s
        try:
            self.message_ids = MessageIds(ip, self.clock.wall)
        except HostError:
            raise ArgumentError(f"client_ip is {client_ip!r}: expected an IP address") from None
        self.credentials = credentials
        self.routes = RouteCache(self._fetch_route)
        self.routes.listeners.add(self._on_route)
        self._route_poll_interval_s = route_poll_interval_s
        self._failed_refreshes = LogBackoff()
        """By topic; "" is the address server."""
        self.name_servers = NameServers(name_servers, unit_name)
        self.heartbeats = Heartbeats(self, heartbeat_interval_s)
        self.requests = IncomingRequests(self.spawn)
        self.connections = Connections(
            _tls_context(tls), connect_timeout_s, on_request=self.requests.receive, on_open=self._announce_to
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which it was started; None unless it is running."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.watch: RouteWatch | None = None
        """Receives route changes from the name server; None with `watch_routes=False`."""
        if watch_routes:
            self.watch = RouteWatch(
                self._call_name_server,
                self.routes,
                self.heartbeats.topics,
                self.name_servers,
                self.connections.by_address.get,
                request_timeout_s,
            )

    def __repr__(self) -> str:
        return f"<Session {self.client_id} {'running' if self.is_running else 'stopped'}>"

    def __reduce__(self) -> str:
        raise TypeError("a client has connections and cannot be pickled: create it in the process that uses it")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def is_running(self) -> bool:
        return self.connections.is_running

    async def start(self) -> None:
        """Start to refresh routes and to send heartbeats. Connections are opened when they are first needed.

        Raises:
            ClientError: the session was created in another process, and its ids may be in use there.
        """
        if self._pid != os.getpid():
            raise ClientError(
                f"the session was created in process {self._pid}, before a fork: create it in the process that uses it"
            )
        if self.is_running:
            return
        self.connections.is_running = True
        self._loop = asyncio.get_running_loop()
        self.spawn(self._poll_routes(), name="routes")
        if self.name_servers.source is not None:
            self.spawn(self._refresh_name_servers(), name="name server addresses")
        if self.watch is not None:
            self.spawn(self.watch.run(), name="route watch")
        self.spawn(self.heartbeats.run(), name="heartbeats")

    async def stop(self) -> None:
        """Unregister at the brokers, end all background tasks, and close the connections.

        Raises:
            WrongLoopError: see `check_loop`.
        """
        if not self.is_running:
            return
        self.check_loop()
        try:
            for source in list(self.heartbeats.sources):
                await self.heartbeats.remove(source)
        finally:
            self.connections.is_running = False
            self._loop = None
            self.routes.stop()
            try:
                await self._end_tasks()
            finally:
                await self.connections.close()

    def check_loop(self) -> None:
        """Check that a running session is used on its event loop: on another one, its calls would never return.

        Raises:
            WrongLoopError: it was started on another event loop.
        """
        if self._loop is not asyncio.get_running_loop() and self._loop is not None:
            closed = ", which is closed" if self._loop.is_closed() else ""
            raise WrongLoopError(
                f"the client was started on another event loop{closed}: start, use and stop it on the same loop, or use"
                " `skyroute.blocking`, which works from any thread"
            )

    async def _end_tasks(self) -> None:
        opening = self.connections.opening.values()
        tasks = [task for task in (*self._tasks, *opening) if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=STOP_WAIT_S)
            for task in left:
                log.error("background task does not end name=%s", task.get_name())

    def spawn(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> "asyncio.Task[Any]":
        """Run a coroutine in the background until it ends or the session stops. A failure is logged."""
        task = asyncio.create_task(coroutine, name=f"skyroute {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed name=%s", task.get_name(), exc_info=error)

    def _announce_to(self, address: str) -> None:
        """Send a heartbeat to a broker on a new connection: a restarted broker does not know this client."""
        for broker in self.routes.broker_addresses():
            if address in (broker, self.sending_address(broker)):
                self.spawn(self.heartbeats.send_to(broker), name="first heartbeat")

    def _on_route(self, _topic: str, before: TopicRoute | None, after: TopicRoute) -> None:
        """Connect to the replicas of a lost master: one becomes master, and a first heartbeat takes it a while."""
        if before is None or not self.heartbeats.sources:
            return
        had_master = {group.name for group in before.groups if MASTER_ID in group.addresses}
        replicas = (
            address
            for group in after.groups
            if group.name in had_master and MASTER_ID not in group.addresses
            for address in group.addresses.values()
        )
        for address in islice(replicas, AT_ONCE_MAX):
            self.spawn(self._connect_early(address), name="connection to a replica")

    async def _connect_early(self, address: str) -> None:
        with suppress(ConnectError):  # the next request to it reports that
            await self.connections.get(self.sending_address(address))

    # ----------------------------------------------------------------------------------------------------- requests

    async def call(self, address: str, request: Request | PreparedRequest, timeout_s: float | None = None) -> Response:
        """Send a request, and return the response, whatever its code.

        Raises:
            RemotingError: the connection failed, or no response arrived in time.
            NotRunningError: the session is not started, or stopped.
            WrongLoopError: see `check_loop`.
        """
        self.check_loop()
        timeout_s = self.request_timeout_s if timeout_s is None else timeout_s
        now = self.clock.monotonic
        deadline = now() + timeout_s
        channel = self.connections.by_address.get(address)
        if channel is None:
            channel = await self.connections.get(address, timeout_s)
            timeout_s = deadline - now()
        if self.credentials is not None:
            assert isinstance(request, Request)  # callers check `credentials` before they prepare bytes
            self.credentials.sign(request)
        call = channel.begin(request, timeout_s)
        try:
            response = await call.waiter
        except asyncio.CancelledError:
            channel.give_up(call)
            raise
        if response.code == _GO_AWAY:
            # The server shuts down and takes no more on this connection; a restarted one takes a new connection.
            self.connections.retire(channel)
            channel = await self.connections.get(address, deadline - now())
            return await channel.call(request, deadline - now())
        return response

    async def ask(self, address: str, request: Request, timeout_s: float | None = None) -> Response:
        """Send a request, and return the response if its code is SUCCESS.

        Raises:
            BrokerRefusedError: the code is another one; the class depends on it.
            RemotingError: the connection failed, or no response arrived in time.
        """
        response = await self.call(self._port_of(address, request), request, timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response, address)
        return response

    async def tell(self, address: str, request: Request) -> None:
        """Send a one-way request, which has no response.

        Raises:
            RemotingError: the address cannot be connected.
            WrongLoopError: see `check_loop`.
        """
        self.check_loop()
        address = self._port_of(address, request)
        channel = self.connections.by_address.get(address) or await self.connections.get(address)
        if self.credentials is not None:
            self.credentials.sign(request)
        await channel.until_writable(self.request_timeout_s)
        channel.send_oneway(request)

    def _port_of(self, address: str, request: Request) -> str:
        """Return the address for a request: with `vip_channel`, management requests use the second port too."""
        return self.sending_address(address) if self.vip_channel and request.code in _VIP_CODES else address

    def sending_address(self, address: str) -> str:
        """Return the address that takes messages: with `vip_channel`, the broker's second port."""
        if not self.vip_channel:
            return address
        host, _, port = address.rpartition(":")
        if not (port.isascii() and port.isdigit() and len(port) < 6):  # a name server's mistake: connecting will tell
            return address
        return f"{host}:{int(port) - FAST_PORT_STEP}"

    # ------------------------------------------------------------------------------------------------- name servers

    async def ask_name_server(self, request: Request, timeout_s: float | None = None) -> Response:
        """Send a request to one name server, and to the next one if that fails.

        Raises:
            NoNameServerError: no name server responds.
            BrokerRefusedError: a name server refused the request.
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
        raise NoNameServerError(
            f"no name server answers: {'; '.join(failures)}; check the address, and that one is running"
        )

    async def ask_every_name_server(
        self, request: Request, timeout_s: float | None = None
    ) -> list[tuple[str, Response | SkyrouteError]]:
        """Send a request to all name servers, and return the response or the error of each."""
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

    async def _refresh_name_servers(self) -> None:
        """Refresh the addresses of the name servers periodically, as often as Apache's clients do."""
        while True:
            await asyncio.sleep(ADDRESSES_INTERVAL_S)
            try:
                await self.name_servers.refresh()
            except NoNameServerError as error:
                suppressed = self._failed_refreshes.suppressed("", self.clock.monotonic())
                if suppressed is not None:
                    log.warning("name server addresses not refreshed reason=%s suppressed=%d", error, suppressed)

    async def _poll_routes(self) -> None:
        """Refresh the routes periodically, as Apache's clients do."""
        while True:
            await asyncio.sleep(self._route_poll_interval_s)
            for topic in self.heartbeats.topics():
                try:
                    await self.routes.refresh(topic)
                except SkyrouteError as error:
                    suppressed = self._failed_refreshes.suppressed(topic, self.clock.monotonic())
                    if suppressed is not None:
                        log.info("route not refreshed topic=%s reason=%s suppressed=%d", topic, error, suppressed)
                else:
                    self._failed_refreshes.works_again(topic)


def _check_names(**names: str | None) -> None:
    check_texts(**{name: text for name, text in names.items() if text is not None and text != ""})
    try:
        if namespace := names["namespace"]:
            check_group(namespace)
    except InvalidNameError as error:
        raise ArgumentError(f"namespace is {names['namespace']!r}: expected a valid group name ({error})") from None


def _tls_context(tls: bool | ssl.SSLContext | TlsClientSettings) -> ssl.SSLContext | None:  # noqa: FBT001 - a setting
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool | TlsClientSettings):  # such as the text "false" from an environment variable
        raise ArgumentError(f"tls is {tls!r}: expected True, False, an ssl.SSLContext or TlsClientSettings")
    if tls is False:
        return None
    from skyroute.remoting.tls import client_context  # noqa: PLC0415 - a slow import that few clients need

    return client_context(TlsClientSettings(), test_mode=True) if tls is True else client_context(tls, test_mode=False)


def _own_ip() -> str:
    """Return the IP address of the interface with the default route. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
