from typing import Any

import pytest
import yaml

from skyroute.access.errors import RulesError
from skyroute.access.gate import Gate, GateSettings
from skyroute.access.plain_acl import _read, parse_plain_acl
from skyroute.client.session.signing import Credentials
from skyroute.wire.command import Request

# The file that Apache's 4.x ships, without its licence.
SHIPPED = """\
# Licensed to the Apache Software Foundation (ASF)

globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""

VARIANTS = [
    SHIPPED,
    "",
    "# nothing\n---\n",
    "accounts:\n- accessKey: a\n  secretKey: 's # 1'  # comment\n  topicPerms:\n  - t=PUB\n",
    "globalWhiteRemoteAddresses:\n- '*'\n- \"10.0.0.1\"\naccounts: []\n",
    "accounts:\n    -   accessKey: a\n        secretKey: b # secret\n        groupPerms:\n            - g=SUB\n"
    "        admin: true\n",
    "globalWhiteRemoteAddresses:\naccounts:\n  - secretKey: b#c\n    accessKey: a-b_c\n"
    "    whiteRemoteAddress: 10.0.0.{1,2}\n",
]


def as_yaml(text: str) -> tuple[list[str], list[dict[str, Any]]]:
    found = yaml.load(text, yaml.BaseLoader) or {}
    return found.get("globalWhiteRemoteAddresses") or [], found.get("accounts") or []


@pytest.mark.parametrize("text", VARIANTS)
def test_files_are_read_as_yaml_reads_them(text: str) -> None:
    assert _read(text) == as_yaml(text)


def check(text: str, name: str, secret: str, code: int, fields: dict[str, str], source: str) -> bool:
    gate = Gate(GateSettings("c", authorization=True, open_doors=frozenset()), parse_plain_acl(text.encode()))
    request = Request(code, dict(fields))
    if name:
        Credentials(name, secret).sign(request)
    return gate.check(request, source).is_allowed


@pytest.mark.parametrize(
    ("name", "secret", "code", "fields", "source", "expected"),
    [
        ("RocketMQ", "12345678", 310, {"b": "topicB"}, "1.2.3.4", True),
        ("RocketMQ", "12345678", 310, {"b": "topicC"}, "1.2.3.4", False),
        ("RocketMQ", "12345678", 310, {"b": "topicA"}, "1.2.3.4", False),
        ("RocketMQ", "12345678", 310, {"b": "other"}, "1.2.3.4", False),
        ("RocketMQ", "wrong", 310, {"b": "topicB"}, "1.2.3.4", False),
        ("RocketMQ", "12345678", 11, {"topic": "topicC", "consumerGroup": "groupC"}, "1.2.3.4", True),
        ("RocketMQ", "12345678", 11, {"topic": "topicC", "consumerGroup": "groupA"}, "1.2.3.4", False),
        ("RocketMQ", "12345678", 11, {"topic": "topicC", "consumerGroup": "any"}, "1.2.3.4", True),
        ("RocketMQ", "12345678", 30, {"topic": "topicC", "queueId": "0"}, "1.2.3.4", True),
        ("RocketMQ", "12345678", 17, {"topic": "topicB"}, "1.2.3.4", False),
        ("rocketmq2", "12345678", 17, {"topic": "topicB"}, "1.2.3.4", True),
        ("rocketmq2", "wrong", 17, {"topic": "topicB"}, "192.168.1.9", True),
        ("", "", 17, {"topic": "topicB"}, "192.168.1.9", False),
        ("", "", 17, {"topic": "topicB"}, "192.168.0.9", True),
    ],
)
def test_the_shipped_file_decides_as_in_4_x(
    name: str, secret: str, code: int, fields: dict[str, str], source: str, expected: bool
) -> None:
    assert check(SHIPPED, name, secret, code, fields, source) is expected


def test_users_and_policies_are_listed_as_others() -> None:
    rules = parse_plain_acl(SHIPPED.encode())
    assert sorted(rules.users) == ["RocketMQ", "rocketmq2"]
    assert rules.users["rocketmq2"].is_super
    assert rules.users["rocketmq2"].trusted_sources.texts == ("192.168.1.*",)
    assert rules.trusted_sources.texts == ("10.10.103.*", "192.168.0.*")
    assert [str(entry.resource) for entry in rules.acls["RocketMQ"].default] == ["Topic:*", "Group:*"]
    assert "12345678" not in repr(rules) + repr(rules.users["RocketMQ"])


def test_deny_wins_over_a_second_line_for_the_same_topic() -> None:
    text = "accounts:\n- accessKey: a\n  secretKey: b\n  topicPerms:\n  - t=DENY\n  - t=PUB\n"
    assert not check(text, "a", "b", 310, {"b": "t"}, "1.2.3.4")


@pytest.mark.parametrize(
    "text",
    [
        "accounts:\n- accessKey: a\n",
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n- accessKey: a\n  secretKey: topsecret\n",
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n  admin: maybe\n",
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n  topicPerms:\n  - t=READ\n",
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n  topicPerms:\n  - t\n",
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n  whiteRemoteAddress: host\n",
        "accounts:\n- accessKey: a\n  secretKey: |\n    topsecret\n",
        "accounts:\n- accessKey: a\n  secretKey: *topsecret\n",
        "accounts:\n- accessKey: a\n  secretKey: !!binary topsecret\n",
        "accounts:\n- {accessKey: a, secretKey: topsecret}\n",
        'accounts:\n- accessKey: a\n  secretKey: "top\\tsecret"\n',
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n  role: admin\n",
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n    admin: true\n",
        "accounts:\n- accessKey: a\n  secretKey: topsecret\n  secretKey: topsecret\n",
        "accounts:\n\t- accessKey: a\n",
        "accounts: {}\n",
        "accounts:\n- topicPerms: [t=PUB]\n",
        "other: 1\n",
        "accounts:\naccounts:\n",
        "globalWhiteRemoteAddresses:\n- 10.*.1.1\n",
        "just text\n",
    ],
)
def test_anything_else_is_refused_and_no_secret_is_shown(text: str) -> None:
    with pytest.raises(RulesError) as caught:
        parse_plain_acl(text.encode(), "conf/plain_acl.yml")
    assert str(caught.value).startswith("conf/plain_acl.yml: ")
    assert "topsecret" not in str(caught.value)


def test_other_bytes_than_utf_8_are_refused() -> None:
    with pytest.raises(RulesError):
        parse_plain_acl(b"\xff\xfe")
