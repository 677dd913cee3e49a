import pickle

import pytest

from skyroute.client import errors
from skyroute.client.admin.base import SomeFailedError
from skyroute.client.errors import BrokerRefusedError, refusal
from skyroute.errors import SkyrouteError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response

ADDRESS = "10.0.0.1:10911"


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "stale_route"),
    [
        (1, errors.ServerFailedError, True, False),
        (2, errors.SystemBusyError, True, False),
        (3, errors.UnsupportedError, False, False),
        (13, errors.MessageRefusedError, False, False),
        (14, errors.UnavailableError, True, False),
        (16, errors.NoPermissionError, False, False),
        (17, errors.TopicNotFoundError, True, True),
        (22, errors.NotFoundError, False, False),
        (26, errors.GroupNotFoundError, False, False),
        (29, errors.InvalidParameterError, False, False),
        (206, errors.ConsumerOfflineError, False, False),
        (215, errors.FlowControlError, True, False),
        (1500, errors.GoAwayError, True, True),
        (604, BrokerRefusedError, False, False),
        (99_999, BrokerRefusedError, False, False),
    ],
)
def test_a_refusal_has_the_class_of_its_code(
    code: int, kind: type[BrokerRefusedError], retryable: bool, stale_route: bool
) -> None:
    error = refusal(Response(code, "because"), ADDRESS)
    assert type(error) is kind
    assert (error.code, error.remark, error.address) == (code, "because", ADDRESS)
    assert (error.retryable, error.stale_route) == (retryable, stale_route)


def test_a_refusal_names_the_address_the_code_and_the_remark() -> None:
    assert (
        str(refusal(Response(ResponseCode.SYSTEM_BUSY, "busy"), ADDRESS))
        == f"{ADDRESS} refused with 2 (SYSTEM_BUSY): busy"
    )
    assert str(refusal(Response(77, None), ADDRESS)) == f"{ADDRESS} refused with 77 (unknown code): no reason given"


def test_a_refusal_survives_the_way_to_another_process() -> None:
    error = refusal(Response(ResponseCode.TOPIC_NOT_EXIST, "no topic"), ADDRESS)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.remark, copy.address, str(copy)) == (
        type(error),
        17,
        "no topic",
        ADDRESS,
        str(error),
    )


def test_an_account_of_failures_survives_the_way_to_another_process() -> None:
    error = SomeFailedError(["a:1"], {"b:2": refusal(Response(ResponseCode.SYSTEM_BUSY, "busy"), "b:2")})
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.done, list(copy.failures)) == (str(error), ("a:1",), ["b:2"])


def test_two_classes_cannot_stand_for_one_code() -> None:
    with pytest.raises(TypeError, match="already has SystemBusyError"):
        type("Another", (BrokerRefusedError,), {}, code=ResponseCode.SYSTEM_BUSY)


def test_every_error_of_the_client_is_one_of_ours() -> None:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(found) > 20
    assert all(issubclass(error, SkyrouteError) for error in found)
