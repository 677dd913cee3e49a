"""The settings of access control, with the names of Apache's `AuthConfig` where it has them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skyroute.remoting.signing import Signer
from skyroute.settings.credentials import read_credentials, read_user
from skyroute.settings.errors import ConfigError
from skyroute.settings.keys import LONG_MAX, Scope, Value, setting
from skyroute.settings.networks import parse_networks

_AUTHENTICATION: Final = "org.apache.rocketmq.auth.authentication."
_AUTHORIZATION: Final = "org.apache.rocketmq.auth.authorization."


def _classes(prefix: str, *names: str) -> tuple[str, ...]:
    """Return the class names that stand for our own checks; another class would have to be run, so it is refused."""
    return ("", *(prefix + name for name in names))


@dataclass(slots=True, kw_only=True)
class AccessConfig:
    """Who may send which request. Everything is off by default, and nothing can be changed remotely."""

    authentication_enabled: bool = setting("authenticationEnabled", Scope.AUTH, False)
    authorization_enabled: bool = setting("authorizationEnabled", Scope.AUTH, False)
    acl_enabled: bool = setting("aclEnable", Scope.AUTH, False)
    """ACL 1.0: turns both on, with the users of `plain_acl_file`."""
    migrate_acl_enabled: bool = setting("migrateAuthFromV1Enabled", Scope.AUTH, False)
    """Adds the users of `plain_acl_file` to those of the rules file."""
    plain_acl_file: str = setting("rocketmq.acl.plain.file", Scope.AUTH, "conf/plain_acl.yml")
    """File of ACL 1.0, below `rocketmqHome` if it is relative; `conf/acl/*.yml` are read as well."""
    rules_file: str = setting("accessRulesFile", Scope.AUTH, "")
    """File with users and policies; empty: `access.json` beside the server's other tables."""
    init_user: str = setting("initAuthenticationUser", Scope.AUTH, "")
    """JSON with `username` and `password` of a super user that is created if it is missing."""
    init_user_file: str = setting("initAuthenticationUserFile", Scope.AUTH, "")
    """File with the content of `init_user`."""
    own_credentials: str = setting("innerClientAuthenticationCredentials", Scope.AUTH, "")
    """JSON with `accessKey` and `secretKey` that sign this server's requests to other servers."""
    own_credentials_file: str = setting("innerClientAuthenticationCredentialsFile", Scope.AUTH, "")
    """File with the content of `own_credentials`."""
    authentication_exempt: str = setting("authenticationWhitelist", Scope.AUTH, "")
    """Request codes that are not checked, separated by commas."""
    authorization_exempt: str = setting("authorizationWhitelist", Scope.AUTH, "")
    """Request codes that every user may send, separated by commas."""
    access_cluster: str = setting("clusterName", Scope.AUTH, "")
    """Cluster that requests without a cluster name are about; empty: the broker's, or DefaultCluster."""
    authenticate_readers: bool = setting("authenticateReaders", Scope.AUTH, False)
    """Whether route lookups at a name server need a user, too."""
    broker_sources: str = setting("brokerSourceAddresses", Scope.AUTH, "")
    """Addresses and networks of brokers that cannot sign, separated by commas."""
    audited: str = setting("auditedDecisions", Scope.AUTH, "changes", choices=("none", "refused", "changes", "all"))
    audit_file: str = setting("auditLogFile", Scope.AUTH, "")
    """The audit log; empty: `audit.log` beside the rules file."""

    user_requests_per_s: int = setting("userRequestsPerSecond", Scope.AUTH, 0)
    """Requests of one user, on all its connections; 0: no limit."""
    user_connections_max: int = setting("userConnectionsMax", Scope.AUTH, 0)
    """Connections of one user, from all addresses; 0: no limit."""
    user_bytes_per_s: int = setting("userBytesPerSecond", Scope.AUTH, 0, at_most=LONG_MAX)
    secure: bool = setting("secure", Scope.AUTH, False)
    """Refuse to start if other machines can reach the port without authentication or without TLS."""

    authentication_provider: str = setting(
        "authenticationProvider",
        Scope.AUTH,
        "",
        choices=_classes(_AUTHENTICATION, "provider.DefaultAuthenticationProvider"),
    )
    authentication_metadata_provider: str = setting(
        "authenticationMetadataProvider",
        Scope.AUTH,
        "",
        choices=_classes(_AUTHENTICATION, "provider.LocalAuthenticationMetadataProvider"),
    )
    authentication_strategy: str = setting(
        "authenticationStrategy",
        Scope.AUTH,
        "",
        choices=_classes(
            _AUTHENTICATION, "strategy.StatelessAuthenticationStrategy", "strategy.StatefulAuthenticationStrategy"
        ),
    )
    authorization_provider: str = setting(
        "authorizationProvider",
        Scope.AUTH,
        "",
        choices=_classes(_AUTHORIZATION, "provider.DefaultAuthorizationProvider"),
    )
    authorization_metadata_provider: str = setting(
        "authorizationMetadataProvider",
        Scope.AUTH,
        "",
        choices=_classes(_AUTHORIZATION, "provider.LocalAuthorizationMetadataProvider"),
    )
    authorization_strategy: str = setting(
        "authorizationStrategy",
        Scope.AUTH,
        "",
        choices=_classes(
            _AUTHORIZATION, "strategy.StatelessAuthorizationStrategy", "strategy.StatefulAuthorizationStrategy"
        ),
    )

    @property
    def checks_users(self) -> bool:
        """Whether requests need a user."""
        return self.authentication_enabled or self.acl_enabled

    @property
    def checks_policies(self) -> bool:
        """Whether requests need a policy that allows them."""
        return self.authorization_enabled or self.acl_enabled

    @property
    def checks_readers(self) -> bool:
        """Whether route lookups need a user."""
        return self.checks_users and self.authenticate_readers

    def signer(self) -> Signer | None:
        """Return what signs this server's own requests; None if nothing does.

        Raises:
            ConfigError: the setting or its file has no access key or secret key.
        """
        return read_credentials(self.own_credentials, self.own_credentials_file, "innerClientAuthenticationCredentials")

    def first_user(self) -> tuple[str, str] | None:
        """Return name and password of the super user to create; None if the settings name none.

        Raises:
            ConfigError: the setting or its file has no name or password.
        """
        return read_user(self.init_user, self.init_user_file, "initAuthenticationUser")


def parse_codes(text: str) -> frozenset[int]:
    """Parse comma-separated request codes.

    Raises:
        ValueError: one of them is not a number.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch("[0-9]{1,9}", word, re.ASCII) for word in words):
        raise ValueError("it must be request codes separated by commas, such as 105,34")
    return frozenset(map(int, words))


def check_access(parsed: Mapping[str, Value | None], origin: str) -> None:
    """Check the lists among the settings of access control.

    Raises:
        ConfigError: one is malformed.
    """
    for key, check in (
        ("authenticationWhitelist", parse_codes),
        ("authorizationWhitelist", parse_codes),
        ("brokerSourceAddresses", parse_networks),
    ):
        try:
            check(str(parsed.get(key) or ""))
        except ValueError as error:
            raise ConfigError(f"{key}={str(parsed[key])[:80]!r} from {origin} is wrong: {error}") from None
