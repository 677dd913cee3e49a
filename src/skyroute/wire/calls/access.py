"""Management of users and policies (3001 to 3010), and the names in other requests that access control needs."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from skyroute.wire.calls.topics import read_body, read_request
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import optional_name, required_text

BODY_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a body with a user or with policies."""
NAMES_MAX: Final = 100_000
"""Maximum number of topics, groups or acknowledgements that one body may name."""

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class UserBody(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A user as it is sent. What is None is not changed by an update."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserBody(username={self.username!r}, user_type={self.user_type!r}, user_status={self.user_status!r})"


class EntryBody(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of a policy as it is sent."""

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyBody(msgspec.Struct, frozen=True, rename="camel"):
    """A policy as it is sent; without a type, it is the custom one."""

    policy_type: str | None = None
    entries: tuple[EntryBody, ...] | None = None


class AclBody(msgspec.Struct, frozen=True, rename="camel"):
    """The policies of a subject, such as `User:alice`, as they are sent."""

    subject: str | None = None
    policies: tuple[PolicyBody, ...] | None = None


class AclDeletion(msgspec.Struct, frozen=True):
    """The policies to delete: the entry for a resource, or all."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


# Requests


def encode_create_user(user: UserBody) -> Request:
    """Have a server create a user."""
    return Request(RequestCode.AUTH_CREATE_USER, {"username": user.username or ""}, body=_write(user))


def encode_update_user(user: UserBody) -> Request:
    """Have a server change a user."""
    return Request(RequestCode.AUTH_UPDATE_USER, {"username": user.username or ""}, body=_write(user))


def encode_delete_user(username: str) -> Request:
    """Have a server delete a user and its policies."""
    return Request(RequestCode.AUTH_DELETE_USER, {"username": username})


def encode_user_query(username: str) -> Request:
    """Ask for a user."""
    return Request(RequestCode.AUTH_GET_USER, {"username": username})


def encode_user_list_query(contains: str = "") -> Request:
    """Ask for the users whose names contain a text."""
    return Request(RequestCode.AUTH_LIST_USER, {"filter": contains} if contains else {})


def encode_create_acl(acl: AclBody) -> Request:
    """Have a server add policies."""
    return Request(RequestCode.AUTH_CREATE_ACL, {"subject": acl.subject or ""}, body=_write(acl))


def encode_update_acl(acl: AclBody) -> Request:
    """Have a server change policies."""
    return Request(RequestCode.AUTH_UPDATE_ACL, {"subject": acl.subject or ""}, body=_write(acl))


def encode_delete_acl(deletion: AclDeletion) -> Request:
    """Have a server delete policies."""
    optional = {"policyType": deletion.policy_type, "resource": deletion.resource}
    fields = {"subject": deletion.subject} | {name: value for name, value in optional.items() if value}
    return Request(RequestCode.AUTH_DELETE_ACL, fields)


def encode_acl_query(subject: str) -> Request:
    """Ask for the policies of a subject."""
    return Request(RequestCode.AUTH_GET_ACL, {"subject": subject})


def encode_acl_list_query(subject_contains: str = "", resource_contains: str = "") -> Request:
    """Ask for the policies of subjects and resources that contain texts."""
    fields = {"subjectFilter": subject_contains, "resourceFilter": resource_contains}
    return Request(RequestCode.AUTH_LIST_ACL, {name: value for name, value in fields.items() if value})


def decode_user_change(request: Request) -> UserBody:
    """Read a user to create or to change. The name in the header counts; it may be empty.

    Raises:
        BodyError: the body cannot be read.
    """
    # No error may quote the body, which has a password.
    try:
        body = read_request(_bounded(request.body), UserBody, "a user")
    except BodyError:
        raise BodyError("the body is not a user (expected JSON with password, userType, userStatus)") from None
    return msgspec.structs.replace(body, username=request.fields.get("username", ""))


def decode_username(request: Request) -> str:
    """Read which user is meant; it may be empty."""
    return request.fields.get("username", "")


def decode_user_filter(request: Request) -> str:
    """Read the text that names of listed users contain."""
    return request.fields.get("filter", "")


def decode_acl_change(request: Request) -> AclBody:
    """Read policies to add. The subject in the body counts, then that in the header.

    Raises:
        BodyError: the body cannot be read.
        FieldError: there is no subject.
    """
    body = read_request(_bounded(request.body), AclBody, "policies")
    return body if body.subject else msgspec.structs.replace(body, subject=required_text(request.fields, "subject"))


def decode_acl_deletion(request: Request) -> AclDeletion:
    """Read which policies to delete.

    Raises:
        FieldError: there is no subject, or a name is invalid.
    """
    fields = request.fields
    return AclDeletion(
        required_text(fields, "subject"), optional_name(fields, "policyType"), optional_name(fields, "resource")
    )


def decode_subject(request: Request) -> str:
    """Read whose policies are meant.

    Raises:
        FieldError: there is no subject.
    """
    return required_text(request.fields, "subject")


def decode_acl_filter(request: Request) -> tuple[str, str]:
    """Read the texts that subjects and resources of listed policies contain."""
    return request.fields.get("subjectFilter", ""), request.fields.get("resourceFilter", "")


# Responses


def encode_user(user: UserBody | None) -> Response:
    """Write a user; no body if there is none."""
    return Response(body=b"" if user is None else _write(user))


def encode_users(users: Iterable[UserBody]) -> Response:
    """Write a list of users; no body if it is empty."""
    found = list(users)
    return Response(body=_write(found) if found else b"")


def encode_acl(acl: AclBody | None) -> Response:
    """Write policies; no body if there are none."""
    return Response(body=b"" if acl is None else _write(acl))


def encode_acls(acls: Iterable[AclBody]) -> Response:
    """Write the policies of many subjects; no body if there are none."""
    found = list(acls)
    return Response(body=_write(found) if found else b"")


def decode_user(body: bytes) -> UserBody | None:
    """Read a user; None if there is none.

    Raises:
        BodyError: the body cannot be read.
    """
    return read_body(body, UserBody, "a user") if body else None


def decode_users(body: bytes) -> list[UserBody]:
    """Read a list of users.

    Raises:
        BodyError: the body cannot be read.
    """
    return read_body(body, list[UserBody], "a list of users") if body else []


def decode_acl(body: bytes) -> AclBody | None:
    """Read policies; None if there are none.

    Raises:
        BodyError: the body cannot be read.
    """
    return read_body(body, AclBody, "policies") if body else None


def decode_acls(body: bytes) -> list[AclBody]:
    """Read the policies of many subjects.

    Raises:
        BodyError: the body cannot be read.
    """
    return read_body(body, list[AclBody], "a list of policies") if body else []


# Names in the bodies of other requests


class _TopicName(msgspec.Struct, rename="camel"):
    topic_name: str


class _TopicNames(msgspec.Struct, rename="camel"):
    topic_config_list: Annotated[list[_TopicName], msgspec.Meta(max_length=NAMES_MAX)]


class _GroupName(msgspec.Struct, rename="camel"):
    group_name: str


class _GroupNames(msgspec.Struct, rename="camel"):
    group_config_list: Annotated[list[_GroupName], msgspec.Meta(max_length=NAMES_MAX)]


class _GroupAndTopic(msgspec.Struct, rename="camel"):
    topic: str
    consumer_group: str


class _Ack(msgspec.Struct):
    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")


class _Acks(msgspec.Struct):
    acks: Annotated[list[_Ack], msgspec.Meta(max_length=NAMES_MAX)] = []


def topics_in_list(body: bytes) -> frozenset[str]:
    """Return the topics that UPDATE_AND_CREATE_TOPIC_LIST names.

    Raises:
        BodyError: the body cannot be read.
    """
    return frozenset(one.topic_name for one in read_request(body, _TopicNames, "a list of topics").topic_config_list)


def group_in_config(body: bytes) -> str:
    """Return the group that UPDATE_AND_CREATE_SUBSCRIPTIONGROUP names.

    Raises:
        BodyError: the body cannot be read.
    """
    return read_request(body, _GroupName, "a group's settings").group_name


def groups_in_list(body: bytes) -> frozenset[str]:
    """Return the groups that UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST names.

    Raises:
        BodyError: the body cannot be read.
    """
    return frozenset(one.group_name for one in read_request(body, _GroupNames, "a list of groups").group_config_list)


def group_and_topic(body: bytes) -> tuple[str, str]:
    """Return group and topic of QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE.

    Raises:
        BodyError: the body cannot be read.
    """
    found = read_request(body, _GroupAndTopic, "a group and a topic")
    return found.consumer_group, found.topic


def groups_and_topics_in_acks(body: bytes) -> frozenset[tuple[str, str]]:
    """Return groups and topics of BATCH_ACK_MESSAGE.

    Raises:
        BodyError: the body cannot be read.
    """
    return frozenset((ack.group, ack.topic) for ack in read_request(body, _Acks, "acknowledgements").acks)


def _bounded(body: bytes) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        raise BodyError(f"a body of {len(body)} bytes (expected at most {BODY_BYTES_MAX})")
    return body


def _write(value: UserBody | AclBody | Sequence[UserBody] | Sequence[AclBody]) -> bytes:
    return _encode(_without_none(msgspec.to_builtins(value)))


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_none(member) for name, member in value.items() if member is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
