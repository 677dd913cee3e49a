"""RocketMQ in Python: name server, broker, client and a Spark data pipeline.

The names that applications use, imported on first use:

Examples:
    >>> from skyroute import Consumer, Message, Producer
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyroute.client.admin import Admin
    from skyroute.client.consuming.consumer import Consumer
    from skyroute.client.consuming.intervals import Intervals
    from skyroute.client.consuming.pull_consumer import PullConsumer
    from skyroute.client.consuming.push.handlers import ConsumeResult, RetryLater
    from skyroute.client.consuming.simple_consumer import SimpleConsumer
    from skyroute.client.consuming.subscription import StartPosition, sql
    from skyroute.client.producing.producer import Producer
    from skyroute.client.results import SendResult, SendStatus, TransactionResult
    from skyroute.client.session.session import Session
    from skyroute.client.session.signing import Credentials
    from skyroute.errors import SkyrouteError
    from skyroute.message.flags import Compression
    from skyroute.message.message import Message, StoredMessage
    from skyroute.message.queue_ref import QueueRef
    from skyroute.wire.calls.clients import MessageModel
    from skyroute.wire.calls.transaction import TransactionOutcome

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "Compression",
    "ConsumeResult",
    "Consumer",
    "Credentials",
    "Intervals",
    "Message",
    "MessageModel",
    "Producer",
    "PullConsumer",
    "QueueRef",
    "RetryLater",
    "SendResult",
    "SendStatus",
    "Session",
    "SimpleConsumer",
    "SkyrouteError",
    "StartPosition",
    "StoredMessage",
    "TransactionOutcome",
    "TransactionResult",
    "__version__",
    "sql",
]

_MODULES = {
    "Admin": "client.admin",
    "Compression": "message.flags",
    "ConsumeResult": "client.consuming.push.handlers",
    "Consumer": "client.consuming.consumer",
    "Credentials": "client.session.signing",
    "Intervals": "client.consuming.intervals",
    "Message": "message.message",
    "MessageModel": "wire.calls.clients",
    "Producer": "client.producing.producer",
    "PullConsumer": "client.consuming.pull_consumer",
    "QueueRef": "message.queue_ref",
    "RetryLater": "client.consuming.push.handlers",
    "SendResult": "client.results",
    "SendStatus": "client.results",
    "Session": "client.session.session",
    "SimpleConsumer": "client.consuming.simple_consumer",
    "SkyrouteError": "errors",
    "StartPosition": "client.consuming.subscription",
    "StoredMessage": "message.message",
    "TransactionOutcome": "wire.calls.transaction",
    "TransactionResult": "client.results",
    "sql": "client.consuming.subscription",
}
"""Module of each name. `import skyroute` alone imports none of them, so that commands start fast."""


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'skyroute' has no attribute {name!r}")
    return getattr(import_module(f"skyroute.{module}"), name)


def __dir__() -> list[str]:
    return __all__
