"""Signs raw requests with an independent implementation of the rule, and manages users and policies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, replace

from tests.support.raw import Request

ADDRESS_OF_ANYONE: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """An access key and its secret key."""

    name: str
    secret: str

    def sign(self, request: Request) -> Request:
        fields = dict(request.fields) | {"AccessKey": self.name}
        content = "".join(fields[name] for name in sorted(fields)).encode() + request.body
        digest = hmac.new(self.secret.encode(), content, hashlib.sha1).digest()
        return replace(request, fields=fields | {"Signature": base64.b64encode(digest).decode()})

    def call(self, code: int, body: bytes = b"", **fields: str) -> Request:
        return self.sign(Request(code, fields, body))

    @property
    def json(self) -> str:
        return json.dumps({"username": self.name, "password": self.secret})

    @property
    def credentials_json(self) -> str:
        return json.dumps({"accessKey": self.name, "secretKey": self.secret})


ROOT = Key("root", "root-secret-1")
ALICE = Key("alice", "alice-secret-1")
BOB = Key("bob", "bob-secret-1")


def create_user(user: Key, kind: str = "Normal") -> Request:
    body = {"username": user.name, "password": user.secret, "userType": kind}
    return ROOT.call(3001, json.dumps(body).encode(), username=user.name)


def allow(
    user: Key, resource: str, *actions: str, sources: tuple[str, ...] = ADDRESS_OF_ANYONE, decision: str = "Allow"
) -> Request:
    entry = {"resource": resource, "actions": list(actions), "sourceIps": list(sources), "decision": decision}
    body = {"subject": f"User:{user.name}", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    return ROOT.call(3006, json.dumps(body).encode(), subject=f"User:{user.name}")
