import pytest

from skyroute.client.session.signing import Credentials
from skyroute.wire.codes import V4_9_4
from skyroute.wire.command import Request
from skyroute.wire.signature import SigningKey, received_text, signature_of, signed_content, signed_text

FIELDS = {"AccessKey": "rocketmq2", "a": "PG", "b": "TopicTest", "e": "3", "i": "TAGS\x01TagA\x02"}
SIGNATURE = "S7/sq7xmc2euIdWGJCAi99alpKg="  # printed by Java's signer for these fields, "hello" and this secret


def test_the_content_is_the_values_by_name_and_the_body() -> None:
    assert signed_content({**FIELDS, "Signature": "x"}, b"hello") == b"rocketmq2PGTopicTest3TAGS\x01TagA\x02hello"


def test_the_signature_is_javas() -> None:
    assert signature_of("12345678", signed_content(FIELDS, b"hello")) == SIGNATURE
    assert SigningKey("12345678").has_signed(SIGNATURE, signed_text(FIELDS), b"hello")


@pytest.mark.parametrize("secret", ["s", "s" * 63, "s" * 64, "s" * 65, "é" * 500])
def test_a_key_of_any_length_makes_the_same_signatures_as_the_standard_library(secret: str) -> None:
    key = SigningKey(secret)
    for text, body in (("", b""), ("text", b""), ("é", b"body"), ("t" * 5000, b"b" * 5000)):
        assert key.has_signed(signature_of(secret, text.encode() + body), text, body)


def test_another_signature_is_wrong() -> None:
    key, text = SigningKey("12345678"), signed_text(FIELDS)
    for wrong in ("", SIGNATURE[:-1], SIGNATURE.lower(), f"{SIGNATURE}\n", "é", "\ud800"):
        assert not key.has_signed(wrong, text, b"hello")
    assert not SigningKey("12345679").has_signed(SIGNATURE, text, b"hello")
    assert not key.has_signed(SIGNATURE, text, b"hello!")
    assert not key.has_signed(SIGNATURE, f"{text}\ud800", b"hello")


def test_what_the_client_signs_is_what_the_server_checks() -> None:
    request = Request(310, {"b": "orders"}, body=b"body", version=V4_9_4)
    Credentials("alice", "secret", "token").sign(request)
    assert SigningKey("secret").has_signed(request.fields["Signature"], received_text(request), b"body")


def test_clients_before_4_9_4_do_not_sign_the_unique_key_flag() -> None:
    signed = Request(12, {"topic": "orders"})
    Credentials("alice", "secret").sign(signed)
    fields = {**signed.fields, "_UNIQUE_KEY_QUERY": "true"}
    for version, expected in ((V4_9_4 - 2, True), (V4_9_4 - 1, False), (V4_9_4, False)):
        text = received_text(Request(12, fields, version=version))
        assert SigningKey("secret").has_signed(signed.fields["Signature"], text, b"") is expected
