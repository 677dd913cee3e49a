"""Commands about users and policies."""

from collections.abc import Iterable
from pathlib import Path

import click

from skyroute.cli.admin.decorator import Output, admin_command, broker_or_cluster
from skyroute.cli.admin.output import table
from skyroute.client.admin import Admin
from skyroute.wire.calls.access import AclBody, UserBody

_name = click.option("-u", "--username", "name", required=True, metavar="NAME", help="User.")
_subject = click.option("-s", "--subject", required=True, metavar="User:NAME", help="Whose policies.")
_resources = click.option(
    "-r", "--resources", required=True, metavar="LIST", help="Such as Topic:orders,Group:*, separated by commas."
)
_actions = click.option(
    "-a",
    "--actions",
    required=True,
    metavar="LIST",
    help="Of All, Pub, Sub, Create, Update, Delete, Get, List, separated by commas.",
)
_decision = click.option(
    "-d", "--decision", default="Allow", show_default=True, metavar="Allow|Deny", help="What the entry decides."
)
_sources = click.option(
    "-i", "--sourceIp", "sources", default="", metavar="LIST", help="Addresses and networks. Default: everywhere."
)
_servers = broker_or_cluster("--clusterName")
_kind = click.option("-t", "--userType", "kind", metavar="Super|Normal", help="Type of the user. Default: Normal.")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _user_of(subject: str) -> str:
    kind, _, name = subject.partition(":")
    if kind.lower() != "user" or not name:
        raise click.UsageError(f"{subject!r} is not a subject: expected User:NAME.")
    return name


def _is_super(kind: str | None) -> bool | None:
    if kind is None:
        return None
    if kind.lower() not in ("super", "normal"):
        raise click.UsageError(f"-t {kind}: expected Super or Normal.")
    return kind.lower() == "super"


def _password(given: str | None, path: str | None, *, needed: bool) -> str | None:
    """Return the password of `-p`, of a file, or of the terminal: the command line is visible to other users."""
    if given and path:
        raise click.UsageError("Give either -p or --password-file.")
    if path:
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise click.UsageError(f"--password-file {path}: {reason}.") from None
    if given or not needed:
        return given
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


_password_file = click.option(
    "--password-file", metavar="PATH", help="File with the password. Without it and -p, the password is asked for."
)
_password_option = click.option(
    "-p", "--password", metavar="TEXT", envvar="SKYROUTE_NEW_PASSWORD", show_envvar=True, help="Password."
)


def _done(what: str, servers: Iterable[str]) -> Output:
    found = list(servers)
    return "\n".join(f"{what} on {address} success." for address in found), {"servers": found}


@admin_command("createUser", "-b 127.0.0.1:10911 -u alice --password-file alice.password")
@_servers
@_name
@_password_option
@_password_file
@_kind
async def create_user(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    name: str,
    password: str | None,
    password_file: str | None,
    kind: str | None,
) -> Output:
    """Create a user.

    -b also takes the address of a name server: each server has users of its own.
    """
    secret = _password(password, password_file, needed=True)
    done = await admin.create_user(name, secret or "", is_super=bool(_is_super(kind)), broker=broker, cluster=cluster)
    return _done(f"create user {name}", done)


@admin_command("updateUser", "-b 127.0.0.1:10911 -u alice -s disable")
@_servers
@_name
@_password_option
@_password_file
@_kind
@click.option("-s", "--userStatus", "status", type=click.Choice(["enable", "disable"]), help="Whether it may be used.")
async def update_user(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    name: str,
    password: str | None,
    password_file: str | None,
    kind: str | None,
    status: str | None,
) -> Output:
    """Change password, type or status of a user.

    To be asked for the new password, give -p - on the command line.
    """
    asks = password == "-"
    secret = _password(None if asks else password, password_file, needed=asks)
    is_enabled = None if status is None else status == "enable"
    done = await admin.update_user(
        name, password=secret, is_super=_is_super(kind), is_enabled=is_enabled, broker=broker, cluster=cluster
    )
    return _done(f"update user {name}", done)


@admin_command("deleteUser", "-b 127.0.0.1:10911 -u alice")
@_servers
@_name
async def delete_user(admin: Admin, broker: str | None, cluster: str | None, name: str) -> Output:
    """Delete a user and its policies."""
    return _done(f"delete user {name}", await admin.delete_user(name, broker=broker, cluster=cluster))


@admin_command("getUser", "-b 127.0.0.1:10911 -u alice")
@_servers
@_name
async def get_user(admin: Admin, broker: str | None, cluster: str | None, name: str) -> Output:
    """Print a user, without its password."""
    address = (await admin.addresses(broker=broker, cluster=cluster))[0]
    user = await admin.user(name, address)
    return _users([] if user is None else [user])


@admin_command("listUser", "-b 127.0.0.1:10911")
@_servers
@click.option("-f", "--filter", "contains", default="", metavar="TEXT", help="Only names that contain this.")
async def list_user(admin: Admin, broker: str | None, cluster: str | None, contains: str) -> Output:
    """List users, without their passwords."""
    address = (await admin.addresses(broker=broker, cluster=cluster))[0]
    return _users(await admin.users(address, contains))


def _users(users: Iterable[UserBody]) -> Output:
    rows = [(user.username, user.user_type, user.user_status) for user in users]
    columns = ("UserName", "UserType", "UserStatus")
    values = [dict(zip(("username", "user_type", "user_status"), row, strict=True)) for row in rows]
    return table(columns, rows), values


async def _put(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    subject: str,
    resources: str,
    actions: str,
    decision: str,
    sources: str,
    *,
    is_update: bool,
) -> Output:
    name = _user_of(subject)
    done = await admin.put_policy(
        name,
        _words(resources),
        _words(actions),
        sources=_words(sources),
        decision=decision,
        is_update=is_update,
        broker=broker,
        cluster=cluster,
    )
    return _done(f"{'update' if is_update else 'create'} acl of {subject}", done)


@admin_command("createAcl", "-b 127.0.0.1:10911 -s User:alice -r Topic:orders -a Pub,Sub")
@_servers
@_subject
@_resources
@_actions
@_decision
@_sources
async def create_acl(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    subject: str,
    resources: str,
    actions: str,
    decision: str,
    sources: str,
) -> Output:
    """Add entries to the policies of a user."""
    return await _put(admin, broker, cluster, subject, resources, actions, decision, sources, is_update=False)


@admin_command("updateAcl", "-b 127.0.0.1:10911 -s User:alice -r Topic:orders -a Sub")
@_servers
@_subject
@_resources
@_actions
@_decision
@_sources
async def update_acl(
    admin: Admin,
    broker: str | None,
    cluster: str | None,
    subject: str,
    resources: str,
    actions: str,
    decision: str,
    sources: str,
) -> Output:
    """Replace entries in the policies of a user."""
    return await _put(admin, broker, cluster, subject, resources, actions, decision, sources, is_update=True)


@admin_command("deleteAcl", "-b 127.0.0.1:10911 -s User:alice -r Topic:orders")
@_servers
@_subject
@click.option("-r", "--resource", metavar="RESOURCE", help="Only the entry for this resource.")
async def delete_acl(
    admin: Admin, broker: str | None, cluster: str | None, subject: str, resource: str | None
) -> Output:
    """Delete an entry of a user's policies, or all policies."""
    done = await admin.delete_policy(_user_of(subject), resource=resource, broker=broker, cluster=cluster)
    return _done(f"delete acl of {subject}", done)


@admin_command("getAcl", "-b 127.0.0.1:10911 -s User:alice")
@_servers
@_subject
async def get_acl(admin: Admin, broker: str | None, cluster: str | None, subject: str) -> Output:
    """Print the policies of a user."""
    address = (await admin.addresses(broker=broker, cluster=cluster))[0]
    acl = await admin.policies(_user_of(subject), address)
    return _acls([] if acl is None else [acl])


@admin_command("listAcl", "-b 127.0.0.1:10911")
@_servers
@click.option("-s", "--subject", default="", metavar="TEXT", help="Only subjects that contain this.")
@click.option("-r", "--resource", default="", metavar="TEXT", help="Only resources that contain this.")
async def list_acl(admin: Admin, broker: str | None, cluster: str | None, subject: str, resource: str) -> Output:
    """List policies."""
    address = (await admin.addresses(broker=broker, cluster=cluster))[0]
    return _acls(await admin.all_policies(address, subject, resource))


@admin_command("copyAcl", "-f 127.0.0.1:10911 -t 127.0.0.1:10921")
@click.option("-f", "--fromBroker", "source", required=True, metavar="HOST:PORT", help="Server to read.")
@click.option("-t", "--toBroker", "target", required=True, metavar="HOST:PORT", help="Server to change.")
@click.option("-s", "--subjects", default="", metavar="LIST", help="Only these subjects, separated by commas.")
async def copy_acl(admin: Admin, source: str, target: str, subjects: str) -> Output:
    """Copy policies from one server to another.

    The users must exist there. There is no copyUser: servers do not return passwords.
    """
    wanted = _words(subjects)
    found = [acl for acl in await admin.all_policies(source) if not wanted or acl.subject in wanted]
    await admin.copy_policies(found, target)
    names = [acl.subject or "" for acl in found]
    return "\n".join(f"copy acl of {name} to {target} success." for name in names), {"subjects": names}


def _acls(acls: Iterable[AclBody]) -> Output:
    rows = [
        (
            *(acl.subject, policy.policy_type, entry.resource),
            *(",".join(entry.actions or ()), ",".join(entry.source_ips or ()), entry.decision),
        )
        for acl in acls
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]
    keys = ("subject", "policy_type", "resource", "actions", "source_ips", "decision")
    columns = ("Subject", "PolicyType", "Resource", "Actions", "SourceIp", "Decision")
    return table(columns, rows), [dict(zip(keys, row, strict=True)) for row in rows]
