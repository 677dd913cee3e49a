"""Decides about every request before its handler runs: authentication, then what it needs, then the policies."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from skyroute.access.audit import AuditRecord
from skyroute.access.authentication import Authenticated, Unauthenticated, access_key_of, authenticate
from skyroute.access.errors import SettingsError
from skyroute.access.needs import NEEDS, Door, Row
from skyroute.access.policies import Decision, Need
from skyroute.access.rules import Rules
from skyroute.access.sources import NO_SOURCES, Sources
from skyroute.access.users import User
from skyroute.wire.calls.send import SendRequest, SignedSendRequest
from skyroute.wire.codes import READ_CODES, RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import WireError
from skyroute.wire.fields import NAME_CHARS_MAX

DECISIONS_MAX: Final = 10_000
"""Maximum number of remembered decisions, of remembered verdicts, and of known sends; then all are forgotten."""
REMEMBERED_CHARS_MAX: Final = 255
"""Maximum length of a field whose verdict is remembered."""
AUDITED_NEEDS_MAX: Final = 10
"""Maximum number of needs in one audit record: a heartbeat may have thousands."""

_CODES: Final = {int(code): code.name for code in RequestCode}


class Reason(StrEnum):
    """Why a request is allowed or refused; the names of counters."""

    OPEN_DOOR = "open_door"
    EXEMPT = "exempt"
    TRUSTED_SOURCE = "trusted_source"
    BROKER_SOURCE = "broker_source"
    AUTHENTICATED = "authenticated"
    SUPER_USER = "super_user"
    POLICY = "policy"
    NO_USER = "no_user"
    UNKNOWN_USER = "unknown_user"
    DISABLED_USER = "disabled_user"
    BAD_SIGNATURE = "bad_signature"
    NOT_IN_TABLE = "not_in_table"
    MALFORMED = "malformed"
    NO_POLICY = "no_policy"
    DENIED = "denied"
    USER_RATE = "user_rate"
    USER_CONNECTIONS = "user_connections"


ALLOWED: Final = frozenset(
    {
        Reason.OPEN_DOOR,
        Reason.EXEMPT,
        Reason.TRUSTED_SOURCE,
        Reason.BROKER_SOURCE,
        Reason.AUTHENTICATED,
        Reason.SUPER_USER,
        Reason.POLICY,
    }
)
"""Reasons to allow a request; all others refuse it."""

_DOORS_OF_CHANGES: Final = frozenset({Door.OPERATOR, Door.BROKER})
_DENIED: Final = (Reason.DENIED, "the decision is deny.")
_HasSigned = Callable[[str, str, bytes], bool]


class Audited(StrEnum):
    """Which decisions the audit log gets."""

    REFUSED = "refused"
    CHANGES = "changes"
    """Refusals, and all requests of operators and brokers that are more than a read."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How a server checks requests. Without authentication there is no gate at all.

    Raises:
        SettingsError: a door other than that of readers is open.
    """

    cluster: str
    """Name of the cluster that requests without a cluster name are about."""
    authorization: bool = False
    """Whether policies count; otherwise any enabled user may do everything."""
    open_doors: frozenset[Door] = frozenset({Door.READER})
    """Doors that are not checked."""
    broker_sources: Sources = NO_SOURCES
    """Addresses of brokers that cannot sign."""
    exempt_codes: frozenset[int] = frozenset()
    """Request codes that are not checked (`authenticationWhitelist`)."""
    unrestricted_codes: frozenset[int] = frozenset()
    """Request codes that every user may send (`authorizationWhitelist`)."""
    audited: Audited = Audited.CHANGES

    def __post_init__(self) -> None:
        if not self.open_doors <= {Door.READER}:
            raise SettingsError(f"open doors {sorted(self.open_doors)} (expected at most {Door.READER})")


def check_settings(*, authentication: bool, authorization: bool) -> None:
    """Check that authorization is not on alone: without authentication, a request could name any user.

    Raises:
        SettingsError: it is.
    """
    if authorization and not authentication:
        raise SettingsError("authorizationEnabled needs authenticationEnabled: set both to true, or both to false")


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The decision about one request."""

    reason: Reason
    user: User | None = None
    """Who sent the request, if that is known."""
    name: str = ""
    """The user that the request names."""
    text: str = ""
    """Why it is refused, in Apache's words."""
    door: Door | None = None
    needs: tuple[Need, ...] = ()
    """What it needs; if it is refused, the need that is missing."""
    is_reusable: bool = False
    """Whether a request of the same bytes is allowed from every address, until the rules change.

    Only then may its response be cached by the bytes of the request (`wire/fast_path.py`).
    """

    is_allowed: bool = False
    """Whether the handler may run; set from the reason."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "is_allowed", self.reason in ALLOWED)

    def response(self) -> Response:
        """Return the response to a refused request."""
        return Response(ResponseCode.NO_PERMISSION, self.text)


class _KnownSend:
    """An allowed send of a user that had to sign, and how often one like it was allowed again."""

    __slots__ = ("count", "has_signed", "verdict")

    def __init__(self, has_signed: _HasSigned, verdict: Verdict) -> None:
        self.has_signed = has_signed
        self.verdict = verdict
        self.count = 0


class Gate:
    """Checks the requests of one server. It remembers decisions until its rules are replaced."""

    def __init__(self, settings: GateSettings, rules: Rules, table: Mapping[int, Row] = NEEDS) -> None:
        self.settings = settings
        self._rules = rules
        self._table = table
        self._decisions: dict[tuple[str, Need, str], Decision | None] = {}
        self._verdicts: dict[tuple[str | int | None, ...], Verdict] = {}
        """Verdicts by user, code, source, and the fields on which the needs depend."""
        self._sends: dict[tuple[str, int, str, str], _KnownSend] = {}
        """Allowed sends of users that had to sign, by user, code, source and topic."""
        self._counts: Counter[Reason] = Counter()
        """Number of decisions by reason, but for those that `_sends` has counted."""

    @property
    def rules(self) -> Rules:
        """The users and policies in force."""
        return self._rules

    @property
    def counts(self) -> Counter[Reason]:
        """Number of decisions by reason."""
        counts = self._counts.copy()
        for known in self._sends.values():
            counts[known.verdict.reason] += known.count
        return counts

    def count(self, reason: Reason) -> None:
        """Count one more decision."""
        self._counts[reason] += 1

    def use(self, rules: Rules) -> None:
        """Replace the rules. The caller must also drop cached responses, which may be forbidden now."""
        self._rules = rules
        self._decisions.clear()
        self._verdicts.clear()
        self._forget_sends()

    def check(self, request: Request, source: str, certificate_names: Sequence[str] = ()) -> Verdict:
        """Decide about a request.

        Args:
            request: The request, with all its fields: never one from a direct decoder that drops those of a signature.
            source: The IP address that it came from, without a port.
            certificate_names: Subject and alternative names of the checked client certificate, if there is one.
        """
        verdict = self._check(request, source, certificate_names)
        self._counts[verdict.reason] += 1
        return verdict

    def check_again(self, request: SignedSendRequest, source: str) -> Verdict | None:
        """Return the verdict about a known send, if the signature is right; otherwise None: `check` decides."""
        sending = request.fields
        known = self._sends.get((sending.access_key, request.code, source, sending.topic))
        if known is None:
            return None
        if not known.has_signed(sending.signature, request.signed_text, request.body):
            return None
        known.count += 1
        return known.verdict

    def _check(self, request: Request, source: str, certificate_names: Sequence[str]) -> Verdict:
        settings, row = self.settings, self._table.get(request.code)
        door = Door.OPERATOR if row is None else row.door_of(request)
        if door in settings.open_doors:
            return Verdict(Reason.OPEN_DOOR, door=door, is_reusable=True)
        if request.code in settings.exempt_codes:
            return Verdict(Reason.EXEMPT, door=door, is_reusable=True)
        if self._rules.trusted_sources.contains(source):
            return Verdict(Reason.TRUSTED_SOURCE, name=access_key_of(request)[:NAME_CHARS_MAX], door=door)
        found = authenticate(self._rules, request, source, certificate_names)
        if isinstance(found, Unauthenticated):
            if door is Door.BROKER and not found.name and settings.broker_sources.contains(source):
                return Verdict(Reason.BROKER_SOURCE, door=door)
            return Verdict(Reason(found.failure.value), name=found.name, text=found.text, door=door)
        verdict = self._authorize(request, source, found, row, door)
        if found.is_signed and verdict.is_allowed and isinstance(request, SignedSendRequest):
            self._remember_send(request, source, found.user, verdict)
        return verdict

    def _remember_send(self, request: SignedSendRequest, source: str, user: User, verdict: Verdict) -> None:
        topic = request.fields.topic
        if len(topic) <= REMEMBERED_CHARS_MAX:
            if len(self._sends) >= DECISIONS_MAX:
                self._forget_sends()
            known = _KnownSend(user.password.has_signed, verdict)
            self._sends.setdefault((user.name, request.code, source, topic), known)

    def _forget_sends(self) -> None:
        self._counts = self.counts
        self._sends.clear()

    def _authorize(self, request: Request, source: str, found: Authenticated, row: Row | None, door: Door) -> Verdict:
        user = found.user
        reason = None
        if found.is_trusted:
            reason = Reason.TRUSTED_SOURCE
        elif not self.settings.authorization or request.code in self.settings.unrestricted_codes:
            reason = Reason.AUTHENTICATED
        elif user.is_super:
            reason = Reason.SUPER_USER
        if reason is not None:
            return Verdict(reason, user, user.name, door=door, is_reusable=found.is_signed)
        if row is None:
            text = f"User:{user.name} has no permission for request code {request.code}."
            return Verdict(Reason.NOT_IN_TABLE, user, user.name, text, door)
        if row.fields is None:
            return self._weigh(request, source, found, row, door)
        values = [request.fields.topic] if isinstance(request, SendRequest) else [*map(request.fields.get, row.fields)]
        key = (user.name, request.code, source, found.is_signed, *values)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._weigh(request, source, found, row, door)
            if all(value is None or len(value) <= REMEMBERED_CHARS_MAX for value in values):
                if len(self._verdicts) >= DECISIONS_MAX:
                    self._verdicts.clear()
                self._verdicts[key] = verdict
        return verdict

    def _weigh(self, request: Request, source: str, found: Authenticated, row: Row, door: Door) -> Verdict:
        """Compare what a request needs with the policies of its user."""
        user = found.user
        try:
            needs = row.needs(request, self.settings.cluster)
        except WireError as error:
            return Verdict(Reason.MALFORMED, user, user.name, f"parse authorization context error: {error}", door)
        for need in needs:
            refusal = self.refusal(user, need, source)
            if refusal is not None:
                return msgspec.structs.replace(refusal, door=door)
        is_reusable = found.is_signed and not self._rules.acl_of(user.name).has_sources
        return Verdict(Reason.POLICY, user, user.name, door=door, needs=needs, is_reusable=is_reusable)

    def refusal(self, user: User, need: Need, source: str) -> Verdict | None:
        """Decide about one more need of a request that is allowed; None if it is allowed as well."""
        if not self.settings.authorization or user.is_super:
            return None
        decision = self._decide(user, need, source)
        if decision is Decision.ALLOW:
            return None
        reason, why = (Reason.NO_POLICY, "no matched policies.") if decision is None else _DENIED
        text = f"User:{user.name} has no permission to access {need.resource} from {source}, {why}"
        return Verdict(reason, user, user.name, text, needs=(need,))

    def _decide(self, user: User, need: Need, source: str) -> Decision | None:
        key = user.name, need, source
        try:
            return self._decisions[key]
        except KeyError:
            decision = self._rules.acl_of(user.name).decide(need, source)
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[key] = decision
        return decision

    def audit(
        self, verdict: Verdict, request: Request, *, server: str, source: str, time_ms: int
    ) -> AuditRecord | None:
        """Return the audit record of a decision; None if the settings do not ask for one."""
        if not self.is_audited(verdict, request.code):
            return None
        return AuditRecord(
            time_ms=time_ms,
            server=server,
            source=source,
            code=request.code,
            request=_CODES.get(request.code, ""),
            user=verdict.name,
            door="" if verdict.door is None else verdict.door.value,
            needs=_shown(verdict.needs),
            is_allowed=verdict.is_allowed,
            reason=verdict.reason.value,
        )

    def is_audited(self, verdict: Verdict, code: int) -> bool:
        """Return whether the settings ask for an audit record of a decision."""
        audited = self.settings.audited
        if not verdict.is_allowed or audited is Audited.ALL:
            return True
        return verdict.door in _DOORS_OF_CHANGES and code not in READ_CODES and audited is Audited.CHANGES


def _shown(needs: Iterable[Need]) -> tuple[str, ...]:
    return tuple(map(str, tuple(needs)[:AUDITED_NEEDS_MAX]))
