"""Changes and queries of users and policies over the wire (3001 to 3010), as functions from rules to rules.

The caller checks with the `Gate` whether the request is allowed at all, and saves changed rules before it responds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from skyroute.access.bodies import (
    acl_body,
    is_super_wanted,
    parse_acl,
    parse_policy_kind,
    parse_subject,
    parse_user,
    subject_of,
    user_body,
)
from skyroute.access.errors import RulesError
from skyroute.access.resources import parse_resource
from skyroute.access.rules import Rules
from skyroute.access.users import User
from skyroute.wire.calls.access import (
    decode_acl_change,
    decode_acl_deletion,
    decode_acl_filter,
    decode_subject,
    decode_user_change,
    decode_user_filter,
    decode_username,
    encode_acl,
    encode_acls,
    encode_user,
    encode_users,
)
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import WireError

ONLY_SUPER: Final = "The super user can only be {} by super user"
_DONE: Final = Response()
_BLANK: Final = Response(ResponseCode.INVALID_PARAMETER, "The username is blank")


@dataclass(frozen=True, slots=True)
class Managed:
    """The response to a request, and the rules after it."""

    rules: Rules
    response: Response = _DONE


Manage = Callable[[Rules, Request, User | None], Managed]
"""Handles a request. The user is its sender; None if authentication is off."""


def manage(rules: Rules, request: Request, sender: User | None) -> Managed:
    """Handle a request of codes 3001 to 3010. A refusal leaves the rules as they are.

    Raises:
        KeyError: it is another code.
    """
    handle = HANDLERS[request.code]
    try:
        return handle(rules, request, sender)
    except RulesError as error:
        return Managed(rules, Response(ResponseCode.NO_PERMISSION, str(error)))
    except WireError as error:
        return Managed(rules, Response(ResponseCode.INVALID_PARAMETER, str(error)))


def create_user(rules: Rules, request: Request, sender: User | None) -> Managed:
    """Create a user (3001)."""
    body = decode_user_change(request)
    if not body.username:
        return Managed(rules, _BLANK)
    if is_super_wanted(body) and _is_ordinary(sender):
        return Managed(rules, Response.error(ONLY_SUPER.format("create")))
    return Managed(rules.create_user(parse_user(body)))


def update_user(rules: Rules, request: Request, sender: User | None) -> Managed:
    """Change password, type or status of a user (3002)."""
    body = decode_user_change(request)
    if not body.username:
        return Managed(rules, _BLANK)
    if is_super_wanted(body) and _is_ordinary(sender):
        return Managed(rules, Response.error(ONLY_SUPER.format("update")))
    old = rules.find_user(body.username)
    _check_super(old, sender)
    return Managed(rules.put_user(parse_user(body, old)))


def delete_user(rules: Rules, request: Request, sender: User | None) -> Managed:
    """Delete a user and its policies (3003). A user that does not exist is deleted already."""
    old = rules.users.get(decode_username(request))
    if old is None:
        return Managed(rules)
    _check_super(old, sender)
    return Managed(rules.delete_user(old.name))


def get_user(rules: Rules, request: Request, _sender: User | None) -> Managed:
    """Return a user without its password (3004)."""
    name = decode_username(request)
    if not name.strip():
        return Managed(rules, _BLANK)
    user = rules.users.get(name)
    return Managed(rules, encode_user(None if user is None else user_body(user)))


def list_users(rules: Rules, request: Request, _sender: User | None) -> Managed:
    """Return the users whose names contain a text, without their passwords (3005)."""
    contains = decode_user_filter(request)
    found = [user_body(user) for name, user in sorted(rules.users.items()) if contains in name]
    return Managed(rules, encode_users(found))


def merge_acl(rules: Rules, request: Request, _sender: User | None) -> Managed:
    """Add entries to the policies of a user, or replace those for the same resources (3006 and 3007)."""
    return Managed(rules.merge_acl(*parse_acl(decode_acl_change(request))))


def delete_acl(rules: Rules, request: Request, _sender: User | None) -> Managed:
    """Delete one entry of a user's policies, or all policies (3008)."""
    deletion = decode_acl_deletion(request)
    name = parse_subject(deletion.subject)
    resource = None if deletion.resource is None else parse_resource(deletion.resource)
    return Managed(rules.delete_acl(name, parse_policy_kind(deletion.policy_type), resource))


def get_acl(rules: Rules, request: Request, _sender: User | None) -> Managed:
    """Return the policies of a user (3009)."""
    name = parse_subject(decode_subject(request))
    if name not in rules.users:
        raise RulesError("The subject is not exist.")
    acl = rules.acls.get(name)
    return Managed(rules, encode_acl(None if acl is None else acl_body(name, acl)))


def list_acls(rules: Rules, request: Request, _sender: User | None) -> Managed:
    """Return the policies of subjects and resources that contain texts (3010)."""
    subject, resource = decode_acl_filter(request)
    found = [(name, acl.only(resource)) for name, acl in sorted(rules.acls.items()) if subject in subject_of(name)]
    return Managed(rules, encode_acls([acl_body(name, acl) for name, acl in found if acl]))


def hides_super(rules: Rules, request: Request, sender: User | None) -> bool:
    """Return whether an ordinary user would create a user in place of a super user of another file."""
    if request.code != RequestCode.AUTH_CREATE_USER or not _is_ordinary(sender):
        return False
    hidden = rules.users.get(decode_username(request))
    return hidden is not None and hidden.is_super


def _check_super(old: User, sender: User | None) -> None:
    if old.is_super and _is_ordinary(sender):
        raise RulesError(ONLY_SUPER.format("update"))


def _is_ordinary(sender: User | None) -> bool:
    return sender is not None and not sender.is_super


HANDLERS: Final[Mapping[int, Manage]] = MappingProxyType(
    {
        RequestCode.AUTH_CREATE_USER: create_user,
        RequestCode.AUTH_UPDATE_USER: update_user,
        RequestCode.AUTH_DELETE_USER: delete_user,
        RequestCode.AUTH_GET_USER: get_user,
        RequestCode.AUTH_LIST_USER: list_users,
        RequestCode.AUTH_CREATE_ACL: merge_acl,
        RequestCode.AUTH_UPDATE_ACL: merge_acl,
        RequestCode.AUTH_DELETE_ACL: delete_acl,
        RequestCode.AUTH_GET_ACL: get_acl,
        RequestCode.AUTH_LIST_ACL: list_acls,
    }
)
"""The handler of each request code."""
