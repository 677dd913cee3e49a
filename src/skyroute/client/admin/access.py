"""Admin calls about users and policies (ACL 2.0), at brokers and at our name servers."""

from collections.abc import Callable, Iterable

from skyroute.client.admin.arguments import check_strings
from skyroute.client.admin.base import AdminBase, call_all
from skyroute.client.arguments import check_flags, check_texts, check_texts_or_none, listed
from skyroute.client.errors import ArgumentError
from skyroute.wire.calls.access import (
    AclBody,
    AclDeletion,
    EntryBody,
    PolicyBody,
    UserBody,
    decode_acl,
    decode_acls,
    decode_user,
    decode_users,
    encode_acl_list_query,
    encode_acl_query,
    encode_create_acl,
    encode_create_user,
    encode_delete_acl,
    encode_delete_user,
    encode_update_acl,
    encode_update_user,
    encode_user_list_query,
    encode_user_query,
)
from skyroute.wire.command import Request, Response


class AccessAdmin(AdminBase):
    """Manages users and policies. Each server has its own; `broker` may also be the address of a name server."""

    async def create_user(
        self,
        name: str,
        password: str,
        *,
        is_super: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create a user on one server (its address) or on all masters of a cluster. Returns the addresses.

        Raises:
            NoPermissionError: the user exists, or this account may not create it.
            SomeFailedError: some brokers failed.
        """
        check_texts(name=name, password=password)
        check_flags(is_super=is_super)
        body = UserBody(name, password, "Super" if is_super else "Normal")
        return await self._tell(lambda: encode_create_user(body), broker, cluster)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Change password, type or status of a user; None leaves it as it is. Returns the addresses.

        Raises:
            NoPermissionError: the user does not exist, or this account may not change it.
            SomeFailedError: some brokers failed.
        """
        check_texts(name=name)
        check_texts_or_none(password=password)
        for flag, value in (("is_super", is_super), ("is_enabled", is_enabled)):
            if value is not None:
                check_flags(**{flag: value})
        kind = None if is_super is None else "Super" if is_super else "Normal"
        status = None if is_enabled is None else "enable" if is_enabled else "disable"
        body = UserBody(name, password, kind, status)
        return await self._tell(lambda: encode_update_user(body), broker, cluster)

    async def delete_user(self, name: str, *, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Delete a user and its policies. Returns the addresses.

        Raises:
            SomeFailedError: some brokers failed.
        """
        check_texts(name=name)
        return await self._tell(lambda: encode_delete_user(name), broker, cluster)

    async def user(self, name: str, broker: str) -> UserBody | None:
        """Return a user of one server; None if there is none. Our servers do not return its password."""
        check_texts(name=name, broker=broker)
        return decode_user((await self.session.ask(broker, encode_user_query(name))).body)

    async def users(self, broker: str, contains: str = "") -> list[UserBody]:
        """Return the users of one server whose names contain a text."""
        check_texts(broker=broker)
        check_strings(contains=contains)
        return decode_users((await self.session.ask(broker, encode_user_list_query(contains))).body)

    async def put_policy(
        self,
        name: str,
        resources: Iterable[str],
        actions: Iterable[str],
        *,
        sources: Iterable[str] = (),
        decision: str = "Allow",
        kind: str = "Custom",
        is_update: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Add or replace the policy entries of a user for some resources. Returns the addresses.

        Args:
            name: The user.
            resources: Such as `Topic:orders`, `Group:*` or `Cluster:DefaultCluster`.
            actions: Of All, Pub, Sub, Create, Update, Delete, Get, List.
            sources: Addresses and networks from which the entry counts; none: from everywhere.
            decision: Allow or Deny.
            kind: The policy: Custom, or Default, which counts where no custom entry does.
            is_update: Whether to use the request for updates, which does the same.
            broker: Address of a server.
            cluster: A cluster; all its masters are changed.

        Raises:
            NoPermissionError: the user does not exist, an argument is invalid, or this account may not do it.
            SomeFailedError: some brokers failed.
        """
        check_texts(name=name, decision=decision, kind=kind)
        check_flags(is_update=is_update)
        wanted, origins = _texts("actions", actions), _texts("sources", sources)
        entries = tuple(EntryBody(resource, wanted, origins, decision) for resource in _texts("resources", resources))
        body = AclBody(f"User:{name}", (PolicyBody(kind, entries),))
        encode = encode_update_acl if is_update else encode_create_acl
        return await self._tell(lambda: encode(body), broker, cluster)

    async def copy_policies(self, acls: Iterable[AclBody], broker: str) -> None:
        """Add policies that another server returned to those of a server.

        Raises:
            NoPermissionError: a user does not exist there, or this account may not do it.
        """
        check_texts(broker=broker)
        copied = listed("acls", acls, "AclBody")
        for acl in copied:
            if not isinstance(acl, AclBody):
                raise ArgumentError(f"each of acls is {acl!r}: expected an AclBody, as `all_policies` returns")
        for acl in copied:
            await self.session.ask(broker, encode_create_acl(acl))

    async def delete_policy(
        self,
        name: str,
        *,
        resource: str | None = None,
        kind: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Delete the entry of a user's policy for a resource, or without one all its policies. Returns the addresses.

        Raises:
            NoPermissionError: there are none, or this account may not delete them.
            SomeFailedError: some brokers failed.
        """
        check_texts(name=name)
        check_texts_or_none(resource=resource, kind=kind)
        deletion = AclDeletion(f"User:{name}", kind, resource)
        return await self._tell(lambda: encode_delete_acl(deletion), broker, cluster)

    async def policies(self, name: str, broker: str) -> AclBody | None:
        """Return the policies of a user of one server; None if there are none.

        Raises:
            NoPermissionError: the user does not exist, or this account may not ask.
        """
        check_texts(name=name, broker=broker)
        return decode_acl((await self.session.ask(broker, encode_acl_query(f"User:{name}"))).body)

    async def all_policies(self, broker: str, subject: str = "", resource: str = "") -> list[AclBody]:
        """Return the policies of one server whose subjects and resources contain texts."""
        check_texts(broker=broker)
        check_strings(subject=subject, resource=resource)
        return decode_acls((await self.session.ask(broker, encode_acl_list_query(subject, resource))).body)

    async def _tell(self, encode: Callable[[], Request], broker: str | None, cluster: str | None) -> list[str]:
        async def call(address: str) -> Response:
            return await self.session.ask(address, encode())

        return list(await call_all(await self.addresses(broker=broker, cluster=cluster), call))


def _texts(name: str, values: object) -> tuple[str, ...]:
    texts = listed(name, values, "strings")
    for text in texts:
        check_texts(**{f"each of {name}": text})
    return tuple(texts)
