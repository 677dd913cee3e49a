"""Access control of one server: the gate, the rules it reads, and the audit log it fills."""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

from skyroute.access.audit_log import AuditLog
from skyroute.access.gate import Gate, GateSettings, Verdict
from skyroute.access.rules_store import RulesStore
from skyroute.access.users import User
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

_LOCAL_ONLY: Final = Response(
    ResponseCode.NO_PERMISSION, "while authentication is off, users and policies are managed from this machine only"
)


class AccessControl:
    """Checks requests and manages users and policies. The server calls it before every handler.

    Args:
        settings: How to check; None if authentication is off.
        store: The rules, which are loaded now.
        audit_log: Where decisions are recorded.
        server: Name of the server in audit records.

    Raises:
        RulesError: a rules file is invalid.
        FileReadError: a rules file cannot be read.
    """

    def __init__(
        self,
        settings: GateSettings | None,
        store: RulesStore,
        *,
        audit_log: AuditLog | None = None,
        server: str = "",
    ) -> None:
        self.gate = None if settings is None else Gate(settings, store.load())
        self._store = store
        self._audit_log = audit_log
        self._server = server

    def check(
        self, request: Request, source: str, certificate_names: Sequence[str], now_ms: Callable[[], int]
    ) -> Verdict | None:
        """Decide about a request, and record the decision if the settings ask for it; None if authentication is off.

        Args:
            request: The request, with all its fields.
            source: The IP address that it came from, without a port.
            certificate_names: Names in the checked client certificate, if there is one.
            now_ms: Returns the time, for the audit log.
        """
        gate = self.gate
        if gate is None:
            return None
        verdict = gate.check(request, source, certificate_names)
        if self._audit_log is not None and gate.is_audited(verdict, request.code):
            record = gate.audit(verdict, request, server=self._server, source=source, time_ms=now_ms())
            if record is not None:
                self._audit_log.put(record)
        return verdict

    def manage(self, request: Request, source: str, sender: User | None) -> Response:
        """Handle a request of codes 3001 to 3010, which `check` has allowed. It waits for the disk.

        While authentication is off, only requests from this machine are handled: otherwise anyone could add a super
        user for the day on which it is turned on. The caller calls `adopt` afterwards.

        Args:
            request: The request.
            source: The IP address that it came from.
            sender: Its user, from the verdict.

        Raises:
            RulesError: a rules file is invalid, so nothing can be changed.
            FileReadError, FileWriteError: the disk refuses. The rules are as before.
        """
        if self.gate is None and not _is_loopback(source):
            return _LOCAL_ONLY
        return self._store.manage(request, sender)

    def load_if_changed(self) -> None:
        """Read the rules again if a file has changed. It waits for the disk; the caller calls `adopt` afterwards.

        Raises:
            RulesError: a file is invalid. The rules in force stay, and this content is not reported again.
            FileReadError: a file cannot be read. The rules in force stay.
        """
        if self._store.has_changed():
            self._store.load()

    def adopt(self) -> bool:
        """Use the rules that were read last; return whether they are others. The server then drops cached responses."""
        if self.gate is None or self.gate.rules is self._store.rules:
            return False
        self.gate.use(self._store.rules)
        return True


def _is_loopback(source: str) -> bool:
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
