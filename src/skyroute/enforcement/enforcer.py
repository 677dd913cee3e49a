"""Access control of a running server: the check before every handler, requests 3001 to 3010, and its files."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from skyroute.access.access_control import AccessControl
from skyroute.access.audit import AuditRecord
from skyroute.access.audit_log import AuditLog
from skyroute.access.errors import AccessError
from skyroute.access.gate import Audited, Gate, GateSettings, Reason, Verdict, check_settings
from skyroute.access.management import HANDLERS
from skyroute.access.needs import Door, topic_need
from skyroute.access.policies import Need
from skyroute.access.resources import Action, cluster
from skyroute.access.rules_store import RulesStore
from skyroute.access.sources import parse_sources
from skyroute.access.users import Password, User
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.files.errors import StorageError
from skyroute.remoting.client_meters import Allowance
from skyroute.remoting.dispatch import Answer, Checker, Handler, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.settings.access_keys import AccessConfig, parse_codes
from skyroute.wire.calls.send import SignedSendRequest
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

CHECK_S: Final = 1.0
"""Interval of the checks for changed files, and of writes to the audit log."""
PLAIN_FILES_MAX: Final = 1_000
"""Maximum number of ACL 1.0 files that are read."""

Recheck = Callable[[], Response | None]
"""Checks a waiting request again; a response refuses it."""


class Enforcer:
    """Access control of one server. Without authentication, it only manages users, for requests from this machine.

    Args:
        config: The settings.
        server: Name of the server in the audit log.
        cluster: Cluster that requests without a cluster name are about.
        folder: Folder of the rules file, if the settings name none.
        home: Folder of ACL 1.0 files with relative paths.
        clock: The clock, for the audit log.
        on_change: Called after every change of the rules: the server drops its cached responses.
        has_readers: Whether the server answers route lookups, which need no user unless the settings say so.

    Raises:
        SkyrouteError: the settings contradict each other, or a file cannot be used. The server must not start.
    """

    def __init__(
        self,
        config: AccessConfig,
        *,
        server: str,
        cluster: str,
        folder: Path,
        home: Path,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        has_readers: bool = False,
    ) -> None:
        check_settings(authentication=config.checks_users, authorization=config.checks_policies)
        path = Path(config.rules_file) if config.rules_file else folder / "access.json"
        store = RulesStore(path, _plain_paths(config, home))
        audited = config.checks_users and config.audited != "none"
        audit_path = Path(config.audit_file) if config.audit_file else path.with_name("audit.log")
        self._audit_log = AuditLog(audit_path) if audited else None
        settings = _gate_settings(config, cluster, has_readers=has_readers) if config.checks_users else None
        self._control = AccessControl(settings, store, audit_log=self._audit_log, server=server)
        self._clock = clock
        self._on_change = on_change
        self._verdict: Verdict | None = None
        """The decision about the request that is handled now: handlers begin right after their check."""
        self._generation = 0
        """Number of changes of the rules."""
        self._files = asyncio.Lock()
        """Held while a thread works with the rules file."""
        self._last_problem = ""
        self._rates = config.user_requests_per_s, config.user_bytes_per_s
        self._allowances: dict[str, tuple[Allowance, Allowance]] = {}
        """Requests and bytes that users may still send; there are at most as many as users."""
        self._connections_max = config.user_connections_max
        self._user_of: dict[int, str] = {}
        """The user of each connection, by its number, if connections of a user are limited."""
        self._connections: Counter[str] = Counter()
        """Number of connections by user; there are at most as many as connections."""
        self._limits_users = bool(self._connections_max or any(self._rates))
        has_more_to_do = self._limits_users or config.audited == "all"
        self._sends = None if has_more_to_do else self._control.gate
        """The gate, if allowed sends are neither limited nor recorded, so that its remembered decision is enough."""
        if settings is not None:
            self._start(config, store)

    def _start(self, config: AccessConfig, store: RulesStore) -> None:
        """Create the first users, and warn of what an operator should know."""
        first, own = config.first_user(), config.signer()
        users = [] if first is None else [User(first[0], Password(first[1]), is_super=True)]
        if own is not None:
            users.append(User(own.access_key, Password(own.secret_key), is_super=True))
        store.add_missing(users)
        self._control.adopt()
        if store.file.is_exposed():
            log.warning("rules file can be read by others file=%s advice=chmod 600", store.file.path)
        if not store.rules.users:
            log.warning("authentication is on and there are no users advice=set initAuthenticationUserFile")
        log.info(
            "access control on users=%d policies=%s rules=%s audit=%s",
            *(len(store.rules.users), config.checks_policies, store.file.path, config.audited),
        )

    def __repr__(self) -> str:
        gate = self.gate
        return f"<Enforcer {'off' if gate is None else repr(gate.rules)}>"

    @property
    def gate(self) -> Gate | None:
        """What decides; None if authentication is off."""
        return self._control.gate

    @property
    def checker(self) -> Checker | None:
        """The check for the dispatcher; None if authentication is off, so that it costs nothing."""
        return None if self.gate is None else self

    @property
    def counts(self) -> Counter[Reason]:
        """Number of decisions by reason."""
        return Counter() if self.gate is None else self.gate.counts

    @property
    def audit_records_dropped(self) -> int:
        """Number of audit records that were not written."""
        return 0 if self._audit_log is None else self._audit_log.dropped

    # Requests

    @property
    def is_reusable(self) -> bool:
        """Whether the response to the last request may be cached by the request's bytes."""
        verdict = self._verdict
        # A cached response is counted for no user.
        return verdict is None or (verdict.is_reusable and (verdict.user is None or not self._limits_users))

    def check(self, request: Request, peer: Peer) -> Response | None:
        """Return the response that refuses a request; None if it is allowed."""
        self._verdict = None  # if this fails, no handler may go by an earlier decision
        if self._sends is not None and isinstance(request, SignedSendRequest):
            known = self._sends.check_again(request, peer.source)
            if known is not None:
                self._verdict = known
                peer.user = known.name
                return None
        verdict = self._control.check(request, peer.source, peer.certificate_names, self._now_ms)
        self._verdict = verdict
        if verdict is None or verdict.is_allowed:
            if verdict is not None and verdict.user is not None:
                peer.user = verdict.user.name
            return self._limit(request, peer, verdict) if self._limits_users else None
        if peer.count_refusal():
            log.info(
                "request refused code=%d peer=%s user=%s reason=%s refusals=%d",
                *(request.code, peer.address, verdict.name, verdict.reason, peer.refusals),
            )
        return verdict.response()

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    def _limit(self, request: Request, peer: Peer, verdict: Verdict | None) -> Response | None:
        """Return the response to a request beyond the limits of its user."""
        if verdict is None or verdict.user is None:
            return None
        name, now = verdict.user.name, self._clock.monotonic()
        if self._connections_max and not self._has_connection(name, peer):
            return self._refuse(
                Reason.USER_CONNECTIONS,
                f"User:{name} is limited to userConnectionsMax={self._connections_max}, close other connections",
            )
        allowances = self._allowances.get(name)
        if allowances is None:
            requests_per_s, bytes_per_s = self._rates
            allowances = self._allowances[name] = Allowance(requests_per_s, now), Allowance(bytes_per_s, now)
        if allowances[0].admit(1, now) and allowances[1].admit(_size(request), now):
            return None
        requests_per_s, bytes_per_s = self._rates
        return self._refuse(
            Reason.USER_RATE,
            f"User:{name} is limited to userRequestsPerSecond={requests_per_s}"
            f" and userBytesPerSecond={bytes_per_s} (0: no limit), try again later",
        )

    def _refuse(self, reason: Reason, text: str) -> Response:
        if self.gate is not None:
            self.gate.count(reason)
        return Response(ResponseCode.SYSTEM_BUSY, f"[FLOW CONTROL] {text}")

    def _has_connection(self, name: str, peer: Peer) -> bool:
        """Count a connection for the user of its last request; return whether the user may have it."""
        before = self._user_of.get(peer.connection)
        if before == name:
            return True
        if self._connections[name] >= self._connections_max:
            return False
        self.on_disconnect(peer.connection)
        if not peer.gone:
            self._user_of[peer.connection] = name
            self._connections[name] += 1
        return True

    def on_disconnect(self, connection: int) -> None:
        """Stop counting a connection that has ended."""
        name = self._user_of.pop(connection, None)
        if name is not None:
            self._connections[name] -= 1
            if not self._connections[name]:
                del self._connections[name]

    def require(self, topic_name: str, action: Action, peer: Peer, *, group: str = "") -> None:
        """Check that the sender of the request in hand may use one more topic: one that its record names.

        `group` is the consumer group of a message in a POP retry topic.

        Called by a handler before it first awaits anything.

        Raises:
            RefusedError: it may not.
        """
        self._require(topic_need(topic_name, frozenset({action}), group), peer)

    def require_cluster(self, name: str, action: Action, peer: Peer) -> None:
        """As `require`, for one more cluster."""
        self._require(Need(cluster(name), frozenset({action})), peer)

    def _require(self, need: Need, peer: Peer) -> None:
        gate, verdict = self.gate, self._verdict
        if gate is None or verdict is None or verdict.user is None or verdict.reason is not Reason.POLICY:
            return
        refusal = gate.refusal(verdict.user, need, peer.source)
        if refusal is not None:
            gate.count(refusal.reason)
            raise RefusedError(ResponseCode.NO_PERMISSION, refusal.text)

    def reader(self, peer: Peer) -> Callable[[str, str], bool] | None:
        """Return the test whether the sender of the request in hand may read messages of a group in a retry topic.

        None if it may read everything. The test goes by the rules of the time at which it is made.
        """
        gate, verdict = self.gate, self._verdict
        if gate is None or verdict is None or verdict.user is None or verdict.reason is not Reason.POLICY:
            return None
        name, source = verdict.user.name, peer.source

        def may_read(topic_name: str, group: str) -> bool:
            user = gate.rules.users.get(name)
            need = topic_need(topic_name, frozenset({Action.SUB}), group)
            return user is not None and gate.refusal(user, need, source) is None

        return may_read

    def allows(self, peer: Peer, topic_name: str, action: Action) -> bool:
        """Return whether the user of a connection may use a topic: the broker is about to send it a message.

        A connection without a user may do so from a trusted address, or if sends are not checked at all.
        """
        gate = self.gate
        if gate is None:
            return True
        if not peer.user:
            is_open = RequestCode.SEND_MESSAGE_V2 in gate.settings.exempt_codes
            return is_open or gate.rules.trusted_sources.contains(peer.source)
        user = gate.rules.users.get(peer.user)
        if user is None or not user.is_enabled:
            return False
        return gate.refusal(user, topic_need(topic_name, frozenset({action})), peer.source) is None

    def allows_replication(self, source: str) -> bool:
        """Return whether a broker at an address may copy all messages. The protocol of replication carries no key."""
        gate = self.gate
        if gate is None:
            return True
        is_allowed = gate.settings.broker_sources.contains(source) or gate.rules.trusted_sources.contains(source)
        gate.count(Reason.BROKER_SOURCE if is_allowed else Reason.NO_USER)
        return is_allowed

    def recheck(self, request: Request, peer: Peer) -> Recheck | None:
        """Return a check for a request that waits: it decides again if the rules have changed meanwhile."""
        gate = self.gate
        if gate is None:
            return None
        generation = self._generation

        def refusal() -> Response | None:
            if generation == self._generation:
                return None
            verdict = gate.check(request, peer.source, peer.certificate_names)
            return None if verdict.is_allowed else verdict.response()

        return refusal

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of requests 3001 to 3010."""
        return {RequestCode(code): self._manage for code in HANDLERS}

    def _manage(self, request: Request, peer: Peer) -> Answer:
        sender = None if self._verdict is None else self._verdict.user
        return OrderedResponse(self._manage_in_thread(request, peer, sender))

    async def _manage_in_thread(self, request: Request, peer: Peer, sender: User | None) -> Response:
        async with self._files:
            try:
                response = await asyncio.to_thread(self._control.manage, request, peer.source, sender)
            except (AccessError, StorageError) as error:
                log.warning("users and policies not changed peer=%s reason=%s", peer.address, error)
                raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from error
            finally:
                self._adopt()
        return response

    # Files

    async def run(self) -> None:
        """Read changed files and write the audit log, until cancelled; then write the rest of the log."""
        if self.gate is None:
            return
        try:
            while True:
                await asyncio.sleep(CHECK_S)
                records = self._take_records()
                async with self._files:
                    await asyncio.to_thread(self._write_and_load, records)
                    self._adopt()
        finally:
            self._write(self._take_records())

    def _take_records(self) -> list[AuditRecord]:
        return [] if self._audit_log is None else self._audit_log.take()

    def _write_and_load(self, records: list[AuditRecord]) -> None:
        self._write(records)
        try:
            self._control.load_if_changed()
        except SkyrouteError as error:
            if str(error) != self._last_problem:
                self._last_problem = str(error)
                log.error("rules not loaded, the old ones stay in force reason=%s", error)  # noqa: TRY400 - expected
        else:
            self._last_problem = ""

    def _write(self, records: list[AuditRecord]) -> None:
        audit_log = self._audit_log
        if audit_log is None or not records:
            return
        try:
            audit_log.write(records)
        except StorageError as error:
            log.warning("audit records lost dropped=%d reason=%s", audit_log.dropped, error)

    def _adopt(self) -> None:
        if self._control.adopt():
            self._generation += 1
            self._allowances.clear()
            log.info("users and policies changed %r", self)
            self._on_change()


def _size(request: Request) -> int:
    """Return about how many bytes a request has: the properties of a message are in its fields."""
    if isinstance(request, SignedSendRequest):
        return len(request.header) + len(request.body)
    return sum(map(len, request.fields.values())) + len(request.body)


def _gate_settings(config: AccessConfig, cluster: str, *, has_readers: bool) -> GateSettings:
    return GateSettings(
        config.access_cluster or cluster,
        authorization=config.checks_policies,
        open_doors=frozenset({Door.READER}) if has_readers and not config.authenticate_readers else frozenset(),
        broker_sources=parse_sources(word for word in config.broker_sources.split(",") if word.strip()),
        exempt_codes=parse_codes(config.authentication_exempt),
        unrestricted_codes=parse_codes(config.authorization_exempt),
        audited=Audited.REFUSED if config.audited == "none" else Audited(config.audited),
    )


def _plain_paths(config: AccessConfig, home: Path) -> list[Path]:
    return list(_plain_files(config, home))[:PLAIN_FILES_MAX]


def _plain_files(config: AccessConfig, home: Path) -> Iterator[Path]:
    """Give the files of ACL 1.0, as Apache's 4.x brokers find them."""
    if config.acl_enabled or config.migrate_acl_enabled:
        # Java's setting begins with a slash and is below its home folder all the same.
        named = Path(config.plain_acl_file)
        yield named if named.is_file() else home / config.plain_acl_file.lstrip("/")
        yield from sorted((*(home / "conf" / "acl").glob("*.yml"), *(home / "conf" / "acl").glob("*.yaml")))
