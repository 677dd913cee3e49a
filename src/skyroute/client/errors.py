"""The errors of the client: brokers that are not found, and responses that refuse a request."""

from typing import ClassVar

from skyroute.errors import SkyrouteError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response


class ClientError(SkyrouteError):
    """A producer, consumer or admin call failed."""


class ArgumentError(ClientError, TypeError, ValueError):
    """An argument is invalid; the text has its name, its value, and what is expected. Nothing was done.

    It is a TypeError and a ValueError too, so that code that catches those catches it.
    """


class NotRunningError(ClientError):
    """A client was used before `start` or after `stop`: use `async with`, or call `start` first."""


class WrongLoopError(ClientError):
    """A client was used on another event loop than the one on which it was started."""


class NoNameServerError(ClientError):
    """No name server responds."""

    retryable = True


class NoRouteError(ClientError):
    """The name servers have no broker for the topic."""

    retryable = True
    stale_route = True


class NoBrokerError(ClientError):
    """No route contains the address of a broker."""

    retryable = True
    stale_route = True


def no_master(broker_name: str) -> NoBrokerError:
    """Return the error for a broker without a known master."""
    return NoBrokerError(f"no route has the address of the master of broker {broker_name}: is it running?")


class RequestTimeoutError(ClientError):
    """A request was sent, and no reply arrived in time; whether it was processed is unknown."""

    retryable = True


class BrokerRefusedError(ClientError):
    """A broker or name server refused a request.

    Common response codes have a subclass; `code` has the number.
    """

    by_code: ClassVar[dict[int, type["BrokerRefusedError"]]] = {}
    advice: ClassVar[str] = ""

    def __init_subclass__(cls, *, code: ResponseCode) -> None:
        if code in cls.by_code:
            raise TypeError(f"{code!r} already has {cls.by_code[code].__name__}")
        cls.by_code[code] = cls

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        name = ResponseCode(code).name if code in ResponseCode._value2member_map_ else "unknown code"
        super().__init__(
            f"{address} refused with {code} ({name}): {(remark or 'no reason given').strip()}{self.advice}"
        )
        self.code = code
        self.remark = remark
        self.address = address

    def __reduce__(self) -> tuple[type["BrokerRefusedError"], tuple[int, str | None, str]]:
        return type(self), (self.code, self.remark, self.address)


def refusal(response: Response, address: str) -> BrokerRefusedError:
    """Return the error for a response whose code is not SUCCESS."""
    return BrokerRefusedError.by_code.get(response.code, BrokerRefusedError)(response.code, response.remark, address)


class ServerFailedError(BrokerRefusedError, code=ResponseCode.SYSTEM_ERROR):
    """The server failed; the remark has the reason."""

    retryable = True


class SystemBusyError(BrokerRefusedError, code=ResponseCode.SYSTEM_BUSY):
    """The broker is overloaded: retry later, or with another broker."""

    retryable = True


class UnsupportedError(BrokerRefusedError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """The server does not support this request: it is of another release, or not the expected kind of server."""

    advice = "; check that the address is of the right kind of server: name server, broker or controller"


class MessageRefusedError(BrokerRefusedError, code=ResponseCode.MESSAGE_ILLEGAL):
    """The broker refuses the message: its body or its properties are too long."""


class UnavailableError(BrokerRefusedError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The broker cannot store messages now: it is a slave, it is stopping, or its disk is full."""

    retryable = True


class NoPermissionError(BrokerRefusedError, code=ResponseCode.NO_PERMISSION):
    """The broker, the topic or the group does not allow it, or the credentials are wrong."""


class TopicNotFoundError(BrokerRefusedError, code=ResponseCode.TOPIC_NOT_EXIST):
    """The broker does not have the topic."""

    retryable = True
    stale_route = True


class NotLeaderError(BrokerRefusedError, code=ResponseCode.NOT_LEADER_FOR_QUEUE):
    """The logical queue of a static topic has moved to another broker."""

    retryable = True
    stale_route = True


class NotFoundError(BrokerRefusedError, code=ResponseCode.QUERY_NOT_FOUND):
    """The key, offset or message does not exist."""


class ExpressionRefusedError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """The broker cannot parse the filter of the subscription."""


class SubscriptionNotFoundError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_NOT_EXIST):
    """The broker does not have the subscription yet; the next heartbeat sends it."""

    retryable = True


class SubscriptionOutdatedError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """The broker has an older subscription; the next heartbeat sends the newer one."""

    retryable = True


class GroupNotFoundError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """The consumer group does not exist, and the broker does not create it."""


class InvalidParameterError(BrokerRefusedError, code=ResponseCode.INVALID_PARAMETER):
    """The broker refuses a parameter of the request."""


class ConsumerOfflineError(BrokerRefusedError, code=ResponseCode.CONSUMER_NOT_ONLINE):
    """No member of the group is connected."""


class FlowControlError(BrokerRefusedError, code=ResponseCode.FLOW_CONTROL):
    """The broker limits the rate: retry after a pause."""

    retryable = True


class GoAwayError(BrokerRefusedError, code=ResponseCode.GO_AWAY):
    """The server is shutting down."""

    retryable = True
    stale_route = True
