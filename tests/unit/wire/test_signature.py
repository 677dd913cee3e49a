from skyroute.client.session.signing import Credentials
from skyroute.wire.codes import V4_9_4
from skyroute.wire.command import Request
from skyroute.wire.signature import is_signature, received_content, signature_of, signed_content

FIELDS = {"AccessKey": "rocketmq2", "a": "PG", "b": "TopicTest", "e": "3", "i": "TAGS\x01TagA\x02"}
SIGNATURE = "S7/sq7xmc2euIdWGJCAi99alpKg="  # printed by Java's signer for these fields, "hello" and this secret


def test_the_content_is_the_values_by_name_and_the_body() -> None:
    assert signed_content({**FIELDS, "Signature": "x"}, b"hello") == b"rocketmq2PGTopicTest3TAGS\x01TagA\x02hello"


def test_the_signature_is_javas() -> None:
    content = signed_content(FIELDS, b"hello")
    assert signature_of("12345678", content) == SIGNATURE
    assert is_signature(SIGNATURE, "12345678", content)


def test_another_signature_is_wrong() -> None:
    content = signed_content(FIELDS, b"hello")
    for wrong in ("", SIGNATURE[:-1], SIGNATURE.lower(), "é", "\ud800"):
        assert not is_signature(wrong, "12345678", content)
    assert not is_signature(SIGNATURE, "12345679", content)
    assert not is_signature(SIGNATURE, "12345678", content + b"!")


def test_what_the_client_signs_is_what_the_server_checks() -> None:
    request = Request(310, {"b": "orders"}, body=b"body", version=V4_9_4)
    Credentials("alice", "secret", "token").sign(request)
    assert is_signature(request.fields["Signature"], "secret", received_content(request))


def test_clients_before_4_9_4_do_not_sign_the_unique_key_flag() -> None:
    signed = Request(12, {"topic": "orders"})
    Credentials("alice", "secret").sign(signed)
    fields = {**signed.fields, "_UNIQUE_KEY_QUERY": "true"}
    for version, expected in ((V4_9_4 - 2, True), (V4_9_4 - 1, False), (V4_9_4, False)):
        content = received_content(Request(12, fields, version=version))
        assert is_signature(signed.fields["Signature"], "secret", content) is expected
