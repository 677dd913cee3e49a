from skyroute.client.session.signing import Credentials
from skyroute.wire.command import Request

FIELDS = {"a": "PG", "b": "TopicTest", "e": "3", "i": "TAGS\x01TagA\x02"}


def signature(credentials: Credentials, fields: dict[str, str], body: bytes = b"") -> str:
    request = Request(310, dict(fields), body=body)
    credentials.sign(request)
    return request.fields["Signature"]


def test_the_signature_is_javas() -> None:
    request = Request(310, dict(FIELDS), body=b"hello")
    Credentials("rocketmq2", "12345678").sign(request)
    # Printed by Java's own signer for these fields, this body and this secret.
    assert request.fields == FIELDS | {"AccessKey": "rocketmq2", "Signature": "S7/sq7xmc2euIdWGJCAi99alpKg="}


def test_upper_case_names_come_before_lower_case_ones() -> None:
    credentials = Credentials("key", "12345678")
    assert signature(credentials, {"z": "1", "B": "2"}) == signature(credentials, {"b": "1", "B": "2"})
    assert signature(credentials, {"b": "1", "Z": "2"}) != signature(credentials, {"b": "2", "Z": "1"})


def test_signing_again_changes_nothing() -> None:
    credentials = Credentials("rocketmq2", "12345678", "token")
    request = Request(310, dict(FIELDS), body=b"hello")
    credentials.sign(request)
    first = dict(request.fields)
    credentials.sign(request)
    assert request.fields == first


def test_a_token_is_sent_and_signed() -> None:
    request = Request(310, dict(FIELDS), body=b"hello")
    Credentials("rocketmq2", "12345678", "token").sign(request)
    assert request.fields["SecurityToken"] == "token"
    assert request.fields["Signature"] != "S7/sq7xmc2euIdWGJCAi99alpKg="


def test_body_and_fields_are_signed_in_utf_8() -> None:
    credentials = Credentials("key", "密码")
    assert signature(credentials, {"a": "订单"}) == signature(credentials, {}, "订单".encode())


def test_secrets_are_not_shown() -> None:
    assert repr(Credentials("rocketmq2", "12345678", "token")) == "Credentials(access_key='rocketmq2')"
