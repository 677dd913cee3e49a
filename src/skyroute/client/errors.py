"""What can go wrong for an application: with finding brokers, and with what they answer."""

from typing import ClassVar

from skyroute.errors import SkyrouteError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response


class ClientError(SkyrouteError):
    """Producing, consuming or administering failed."""


class ArgumentError(ClientError, TypeError, ValueError):
    """What was passed cannot be meant; the text names the argument, and says what is allowed. Nothing was done.

    It is also what Python itself raises for a wrong type or value, so that code finds it that looks for those.
    """


class NotRunningError(ClientError):
    """It was used before it was started, or after it was stopped: use `async with`, or call `start` first."""


class NoNameServerError(ClientError):
    """None of the name servers answers."""

    retryable = True


class NoRouteError(ClientError):
    """The name servers know no broker for the topic."""

    retryable = True
    stale_route = True


class NoBrokerError(ClientError):
    """A broker is wanted by name, and no route says where it is."""

    retryable = True
    stale_route = True


def no_master(broker_name: str) -> NoBrokerError:
    """Return the error for a broker without a known master."""
    return NoBrokerError(f"no route has the address of the master of broker {broker_name}: is it running?")


class RequestTimeoutError(ClientError):
    """A request was sent, and nobody replied in time; whether it was carried out is unknown."""

    retryable = True


class BrokerRefusedError(ClientError):
    """The other side answered, and the answer was no.

    Codes that a caller may want to tell apart have a class of their own; for the others there is `code`.
    """

    by_code: ClassVar[dict[int, type["BrokerRefusedError"]]] = {}
    advice: ClassVar[str] = ""

    def __init_subclass__(cls, *, code: ResponseCode) -> None:
        if code in cls.by_code:
            raise TypeError(f"{code!r} already has {cls.by_code[code].__name__}")
        cls.by_code[code] = cls

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        name = ResponseCode(code).name if code in ResponseCode._value2member_map_ else "a code nobody knows"
        super().__init__(f"{address} refused with {code} ({name}): {remark or 'it did not say why'}{self.advice}")
        self.code = code
        self.remark = remark
        self.address = address

    def __reduce__(self) -> tuple[type["BrokerRefusedError"], tuple[int, str | None, str]]:
        return type(self), (self.code, self.remark, self.address)


def refusal(response: Response, address: str) -> BrokerRefusedError:
    """Return the error that an answer other than success stands for."""
    return BrokerRefusedError.by_code.get(response.code, BrokerRefusedError)(response.code, response.remark, address)


class ServerFailedError(BrokerRefusedError, code=ResponseCode.SYSTEM_ERROR):
    """The other side failed; the remark is all it says."""

    retryable = True


class SystemBusyError(BrokerRefusedError, code=ResponseCode.SYSTEM_BUSY):
    """The broker has more to do than it can; later may be better, another broker may be better still."""

    retryable = True


class UnsupportedError(BrokerRefusedError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """The other side does not know this request: it is older, newer, or not what you think it is."""

    advice = "; is this the address of a broker where a name server's is wanted, or a server of another release?"


class MessageRefusedError(BrokerRefusedError, code=ResponseCode.MESSAGE_ILLEGAL):
    """The broker will not keep the message: too large, or with too long properties."""


class UnavailableError(BrokerRefusedError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The broker cannot store now: it is a slave, it is stopping, or its disk is full."""

    retryable = True


class NoPermissionError(BrokerRefusedError, code=ResponseCode.NO_PERMISSION):
    """The broker, the topic or the group does not allow it, or the credentials are wrong."""


class TopicNotFoundError(BrokerRefusedError, code=ResponseCode.TOPIC_NOT_EXIST):
    """No queue of this topic is there."""

    retryable = True
    stale_route = True


class NotFoundError(BrokerRefusedError, code=ResponseCode.QUERY_NOT_FOUND):
    """There is no such key, offset or message."""


class ExpressionRefusedError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """The broker cannot read the subscription's expression."""


class SubscriptionNotFoundError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_NOT_EXIST):
    """The broker has not heard of this group's subscription yet; the next heartbeat tells it."""

    retryable = True


class SubscriptionOutdatedError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """The broker knows an older subscription; the next heartbeat tells it the newer one."""

    retryable = True


class GroupNotFoundError(BrokerRefusedError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """The broker knows no such consumer group, and may not create it."""


class InvalidParameterError(BrokerRefusedError, code=ResponseCode.INVALID_PARAMETER):
    """The broker was asked something that makes no sense to it."""


class ConsumerOfflineError(BrokerRefusedError, code=ResponseCode.CONSUMER_NOT_ONLINE):
    """No member of the group is connected."""


class FlowControlError(BrokerRefusedError, code=ResponseCode.FLOW_CONTROL):
    """The broker asks for patience."""

    retryable = True


class GoAwayError(BrokerRefusedError, code=ResponseCode.GO_AWAY):
    """The other side is shutting down."""

    retryable = True
    stale_route = True
