import base64
import json

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.assignment import (
    AssignmentQuestion,
    QueueAssignment,
    decode_assignment_query,
    decode_assignments,
    encode_assignment_query,
    encode_assignments,
)
from skyroute.wire.calls.clients import MessageModel
from skyroute.wire.calls.pop import (
    Notification,
    PopAnswer,
    PoppedBatch,
    PopQuestion,
    PopStatus,
    QueueQuestion,
    decode_notification,
    decode_notified,
    decode_peek,
    decode_polling_count,
    decode_polling_info,
    decode_pop,
    decode_pop_answer,
    encode_notification,
    encode_notified,
    encode_peek,
    encode_polling_count,
    encode_polling_info,
    encode_pop,
    encode_pop_answer,
)
from skyroute.wire.calls.pop_acks import (
    ACK_BITS_MAX,
    ACKS_MAX,
    Ack,
    BatchAck,
    InvisibleTimeChange,
    decode_ack,
    decode_batch_ack,
    decode_change,
    decode_changed,
    encode_ack,
    encode_batch_ack,
    encode_change,
    encode_changed,
)
from skyroute.wire.calls.pop_receipts import (
    Receipt,
    RetryFlag,
    decode_receipt,
    encode_receipt,
    retry_flag,
    stored_topic,
)
from skyroute.wire.calls.pop_records import (
    CheckPoint,
    CheckPointAck,
    decode_check_point,
    decode_check_point_ack,
    encode_check_point,
    encode_check_point_ack,
)
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError, FieldError

PROXYS_RECEIPT = "0 1794824722087 10000 0 1 broker-b 0 0 433867"
"""As the official Python client got it from Apache's proxy."""
RECEIPT = Receipt(100, 1794824709031, 60000, 3, RetryFlag.NONE, "broker-a", 2, 105)


def test_a_receipt_of_apaches_proxy_is_read_and_written_unchanged() -> None:
    receipt = decode_receipt(PROXYS_RECEIPT)
    assert receipt == Receipt(0, 1794824722087, 10000, 0, RetryFlag.V1, "broker-b", 0, 0, 433867)
    assert encode_receipt(receipt) == PROXYS_RECEIPT
    assert encode_receipt(RECEIPT) == "100 1794824709031 60000 3 0 broker-a 2 105"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 1 2 3 0 broker-a 0",
        "x 1 2 3 0 broker-a 0 0",
        "0 1 2 3 7 broker-a 0 0",
        "0 -1 2 3 0 broker-a 0 0",
        "0 9223372036854775807 1 3 0 broker-a 0 0",
        "0 9223372036854775808 1 3 0 broker-a 0 0",
        "0 1 2 3 0  0 0",
        "0 1 2 3 0 broker-a 0 " + "1" * 2000,
    ],
)
def test_a_malformed_receipt_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(FieldError, match="receipt"):
        decode_receipt(text)


def test_retry_topics_of_both_versions_have_their_flag() -> None:
    assert [retry_flag(topic) for topic in ("Orders", "%RETRY%G_Orders", "%RETRY%G+Orders")] == list(RetryFlag)
    assert [stored_topic(flag, "Orders", "G") for flag in RetryFlag] == ["Orders", "%RETRY%G_Orders", "%RETRY%G+Orders"]


def test_a_pop_keeps_all_its_fields() -> None:
    question = PopQuestion("G", "Orders", 60000, 16, 2, 15000, 1700000000000, 1, "a || b", "TAG", True, "attempt")
    assert decode_pop(encode_pop(question)) == question
    plain = PopQuestion("G", "Orders", 60000)
    assert decode_pop(encode_pop(plain)) == plain
    with pytest.raises(FieldError, match="invisibleTime"):
        decode_pop(Request(200050, {"consumerGroup": "G", "topic": "T"}))


def test_the_answer_to_a_pop_has_javas_texts() -> None:
    answer = PopAnswer(
        PopStatus.FOUND,
        1794824709031,
        60000,
        3,
        7,
        (PoppedBatch(RetryFlag.NONE, 2, 100, (100, 105)), PoppedBatch(RetryFlag.V1, 0, 4, (4,))),
        {(RetryFlag.NONE, 2, 100): 1, (RetryFlag.NONE, 2, None): 1},
        b"records",
    )
    response = encode_pop_answer(answer)
    assert response.fields == {
        "popTime": "1794824709031",
        "invisibleTime": "60000",
        "reviveQid": "3",
        "restNum": "7",
        "startOffsetInfo": "0 2 100;1 0 4",
        "msgOffsetInfo": "0 2 100,105;1 0 4",
        "orderCountInfo": "0 qo2%100 1;0 2 1",
    }
    assert decode_pop_answer(response) == answer
    assert answer.receipts("broker-a")[RetryFlag.NONE, 2, 105] == RECEIPT
    assert [answer.order_count(RetryFlag.NONE, 2, offset) for offset in (100, 105)] == [1, 1]
    assert answer.order_count(RetryFlag.V1, 0, 4) == 0


@pytest.mark.parametrize("code", [209, 210, 19])
def test_a_pop_without_messages_needs_no_fields(code: int) -> None:
    status = PopStatus.POLLING_FULL if code == 209 else PopStatus.NOT_FOUND
    assert decode_pop_answer(Response(code)) == PopAnswer(status)


@pytest.mark.parametrize("name", ["startOffsetInfo", "msgOffsetInfo", "orderCountInfo"])
def test_malformed_offsets_of_an_answer_are_refused(name: str) -> None:
    fields = {"popTime": "1", "invisibleTime": "1", "reviveQid": "0", "restNum": "0", name: "0 2"}
    with pytest.raises(FieldError, match=name):
        decode_pop_answer(Response(0, None, fields))


def test_an_ack_and_a_change_of_the_invisible_time_keep_their_fields() -> None:
    ack = Ack("G", "Orders", RECEIPT, 2, 105)
    assert decode_ack(encode_ack(ack)) == ack
    change = InvisibleTimeChange(ack, 30000, suspend=True)
    assert decode_change(encode_change(change)) == change
    renewed = decode_changed(encode_changed(1794824710000, 30000, 4), change)
    assert encode_receipt(renewed) == "105 1794824710000 30000 4 0 broker-a 2 105"


def test_batch_acks_have_javas_body() -> None:
    ack = BatchAck("G", "Orders", RetryFlag.V1, 2, 3, 100, 1794824709031, 60000, (100, 105, 117))
    request = encode_batch_ack("broker-a", [ack])
    bits = base64.b64encode(bytes([0b100001, 0, 0b10])).decode()
    entry = {"c": "G", "t": "Orders", "r": "1", "so": 100, "q": 2, "rq": 3, "pt": 1794824709031, "it": 60000, "b": bits}
    assert json.loads(request.body) == {"acks": [entry], "brokerName": "broker-a"}
    assert list(decode_batch_ack(request)) == [ack]
    assert ack.stored_topic == "%RETRY%G_Orders"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"b": "not base64!"}, "Base64"),
        ({"b": base64.b64encode(b"\xff" * (ACK_BITS_MAX // 8 + 1)).decode()}, "bits"),
        ({"b": base64.b64encode(b"\xff" * (ACKS_MAX // 8 + 1)).decode()}, "acknowledgements"),
        ({"r": "3"}, "not an acknowledgement"),
        ({"so": -1}, "out of range"),
        ({"pt": (1 << 63) - 1}, "out of range"),
    ],
)
def test_lying_batch_acks_are_refused(members: dict[str, object], said: str) -> None:
    body = {"acks": [{"c": "G", "t": "Orders", "b": "AQ==", **members}]}
    with pytest.raises(BodyError, match=said):
        list(decode_batch_ack(Request(200151, body=json.dumps(body).encode())))


def test_questions_about_queues_keep_their_fields() -> None:
    notification = Notification("G", "Orders", 1, 15000, 1700000000000, True, "attempt", "*", "TAG")
    assert decode_notification(encode_notification(notification)) == notification
    assert decode_notified(encode_notified(has_message=True)) == (True, False)
    assert decode_polling_info(encode_polling_info(QueueQuestion("G", "Orders"))) == QueueQuestion("G", "Orders")
    assert decode_polling_count(encode_polling_count(12)) == 12
    assert decode_peek(encode_peek(QueueQuestion("G", "Orders", 3, 8))) == QueueQuestion("G", "Orders", 3, 8)


def test_assignments_have_javas_body() -> None:
    question = AssignmentQuestion("G", "Orders", "client@1", "AVG", MessageModel.CLUSTERING)
    assert decode_assignment_query(encode_assignment_query(question)) == question
    assigned = [QueueAssignment(QueueRef("Orders", "broker-a", -1), "POP")]
    response = encode_assignments(assigned)
    assert json.loads(response.body) == {
        "messageQueueAssignments": [
            {"messageQueue": {"topic": "Orders", "brokerName": "broker-a", "queueId": -1}, "mode": "POP"}
        ]
    }
    assert decode_assignments(response) == assigned
    assert decode_assignments(encode_assignments(None)) is None


APACHES_CHECK_POINT = (
    b'{"bm":0,"bn":"broker-b","c":"G2","d":[0,1,5],"it":10000,"n":3,"pt":1794824709031,"q":3,'
    b'"reviveTime":1794824719031,"ro":0,"so":100,"sp":false,"t":"NormalB"}'
)
APACHES_ACK = b'{"ao":101,"bn":"broker-b","c":"G2","pt":1794824709031,"q":3,"so":100,"t":"NormalB"}'


def test_check_points_and_acks_have_apaches_bytes() -> None:
    point = CheckPoint("G2", "NormalB", 3, 100, 1794824709031, 10000, "broker-b", (100, 101, 105))
    assert decode_check_point(APACHES_CHECK_POINT) == point
    assert encode_check_point(point) == APACHES_CHECK_POINT
    ack = CheckPointAck("G2", "NormalB", 3, 100, 1794824709031, "broker-b", (101,))
    assert decode_check_point_ack(APACHES_ACK) == ack
    assert encode_check_point_ack(ack) == APACHES_ACK


def test_other_forms_of_check_points_and_acks_are_read() -> None:
    old = decode_check_point(b'{"bm":-1,"c":"G","it":1,"n":2,"pt":5,"q":0,"rp":"3","so":7,"t":"T"}')
    assert (old.offsets, old.acked, old.attempts) == ((7, 8), (1 << 32) - 1, 3)
    batch = CheckPointAck("G", "T", 0, 7, 5, "b", (7, 8))
    assert decode_check_point_ack(encode_check_point_ack(batch)) == batch
    long_names = (
        b'{"ackOffset":8,"startOffset":7,"consumerGroup":"G","topic":"T","queueId":1,"popTime":5,"brokerName":"b"}'
    )
    assert decode_check_point_ack(long_names) == CheckPointAck("G", "T", 1, 7, 5, "b", (8,))
    for body in (b"", b"{}", b'{"n":200}'):
        with pytest.raises(BodyError, match="check point"):
            decode_check_point(body)
