"""Scenarios of the official 5.x Python client. It runs in an environment of its own, and prints JSON lines.

Usage: official_client.py PROXY SCENARIO ARGUMENTS...
"""

import json
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.exception.client_exception import InternalErrorException

TELLING = threading.Lock()


def tell(**members):
    """Print one line. Listeners run in several threads, and `print` writes a line in two parts."""
    with TELLING:
        print(json.dumps(members), flush=True)  # noqa: T201 - its output is read by the test


def configuration(proxy):
    return ClientConfiguration(proxy, Credentials())


def message(topic, body, **more):
    made = Message()
    made.topic = topic
    made.body = body.encode()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def describe(got):
    return {
        "body": got.body.decode(),
        "attempt": got.delivery_attempt,
        "tag": got.tag,
        "receipt": got.receipt_handle,
        "type": str(got.message_type),
    }


def simple_consumer(proxy, group, topic, wait_s=5, expression="*"):
    consumer = SimpleConsumer(configuration(proxy), group, {topic: FilterExpression(expression)}, wait_s)
    consumer.startup()
    return consumer


def received(consumer, count, invisible_s):
    """Receive once. Apache's proxy fails (50001) until it has the settings of a new client."""
    try:
        return consumer.receive(count, int(invisible_s)) or ()
    except InternalErrorException as error:
        if "settings" not in str(error):
            raise
        time.sleep(0.5)
        return ()


def send(proxy, topic, count, *kinds):
    """Send messages: plain, of one message group (fifo), or delayed by seconds."""
    producer = Producer(configuration(proxy), (topic,))
    producer.startup()
    for at in range(int(count)):
        asked, more = time.time(), {}
        if "fifo" in kinds:
            more["message_group"] = "one"
        if kinds and kinds[0] == "delay":
            more["delivery_timestamp"] = int(time.time()) + int(kinds[1])
        if kinds and kinds[0] == "tag":
            more["tag"] = kinds[1]
        receipt = producer.send(message(topic, f"{topic}-{at}", **more))
        tell(sent=receipt.message_id, asked=asked)
    producer.shutdown()


def receive(proxy, group, topic, count, invisible_s, acks, timeout_s, expression="*"):
    """Receive until `count` messages came; acknowledge the first `acks` of them. Tell when each was asked for."""
    consumer = simple_consumer(proxy, group, topic, expression=expression)
    got, deadline = 0, time.time() + float(timeout_s)
    while got < int(count) and (asked := time.time()) < deadline:
        for found in received(consumer, 16, invisible_s):
            tell(**describe(found), asked=asked, at=time.time())
            if got < int(acks):
                consumer.ack(found)
            got += 1
    consumer.shutdown()


def change(proxy, group, topic, first_s, second_s, timeout_s):
    """Receive one message, change its invisible time, and receive it again."""
    consumer = simple_consumer(proxy, group, topic)
    deadline, seen = time.time() + float(timeout_s), 0
    while seen < 2 and time.time() < deadline:
        for found in received(consumer, 1, first_s):
            seen += 1
            tell(**describe(found), at=time.time())
            if seen == 1:
                consumer.change_invisible_duration(found, int(second_s))
            else:
                consumer.ack(found)
    consumer.shutdown()


def keep_sending(proxy, topic, seconds, per_s):
    """Send at a rate, through faults; tell of each message whether it was acknowledged."""
    producer = Producer(configuration(proxy), (topic,))
    producer.startup()
    began, number = time.time(), 0
    while time.time() < began + float(seconds):
        body, number = f"{topic}-{number}", number + 1
        try:
            producer.send(message(topic, body))
            tell(body=body, acknowledged=True)
        except Exception as error:  # noqa: BLE001 - the client raises many kinds
            tell(body=body, acknowledged=False, error=type(error).__name__)
        time.sleep(max(0.0, began + number / float(per_s) - time.time()))
    while True:  # the last message must be stored: the consumer ends with it
        try:
            producer.send(message(topic, "last"))
            break
        except Exception as error:  # noqa: BLE001 - as above
            tell(body="last", acknowledged=False, error=type(error).__name__)
            time.sleep(0.5)
    producer.shutdown()


def keep_receiving(proxy, group, topic, invisible_s, timeout_s):
    """Receive and acknowledge, through faults, until the last message came and no other comes for long enough."""
    consumer = simple_consumer(proxy, group, topic)
    deadline, quiet_since, has_last = time.time() + float(timeout_s), time.time(), False
    quiet_s = 2 * float(invisible_s)
    while time.time() < deadline and not (has_last and time.time() - quiet_since > quiet_s):
        try:
            for found in consumer.receive(16, int(invisible_s)) or ():
                quiet_since = time.time()
                has_last = has_last or found.body == b"last"
                tell(body=found.body.decode(), attempt=found.delivery_attempt)
                consumer.ack(found)
        except Exception as error:  # noqa: BLE001 - the client raises many kinds
            tell(error=type(error).__name__)
            time.sleep(0.2)
    consumer.shutdown()


class Checker(TransactionChecker):
    def check(self, _message):
        return TransactionResolution.COMMIT


def transactions(proxy, topic):
    """Send one message that is committed, and one that is rolled back."""
    producer = Producer(configuration(proxy), (topic,), checker=Checker())
    producer.startup()
    for name in ("commit", "rollback"):
        transaction = producer.begin_transaction()
        producer.send(message(topic, name), transaction)
        getattr(transaction, name)()
        tell(done=name)
    producer.shutdown()


def check(proxy, group, topic, timeout_s):
    """Send a half message and leave it to the checker; receive it."""
    producer = Producer(configuration(proxy), (topic,), checker=Checker())
    producer.startup()
    producer.send(message(topic, "checked"), producer.begin_transaction())
    receive(proxy, group, topic, 1, 10, 1, timeout_s)
    producer.shutdown()


class Listener(MessageListener):
    def __init__(self, fails):
        self.fails = fails
        self.calls = []

    def consume(self, got):
        self.calls.append(got.message_id)
        tell(**describe(got), at=time.time())
        return ConsumeResult.FAILURE if self.fails else ConsumeResult.SUCCESS


def consume(proxy, group, topic, count, mode, timeout_s):
    """Consume with a listener that succeeds or fails, until it was called `count` times."""
    listener = Listener(mode == "fail")
    consumer = PushConsumer(configuration(proxy), group, listener, {topic: FilterExpression("*")})
    consumer.startup()
    deadline = time.time() + float(timeout_s)
    while len(listener.calls) < int(count) and time.time() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    consumer.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1], *sys.argv[3:])
