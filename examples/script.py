"""Sends and reads messages without `await`: `skyroute.blocking` has the same names."""

import sys

from skyroute import Message
from skyroute.blocking import Admin, Producer, PullConsumer

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC = "ExampleScript"

with Admin(NAME_SERVERS) as admin:
    admin.create_topic(TOPIC)

with Producer("example-script", NAME_SERVERS) as producer:
    for number in range(3):
        print("sent", producer.send(Message(TOPIC, b"line %d" % number)).status.name)

with PullConsumer("example-script", NAME_SERVERS) as consumer:
    consumer.assign(consumer.queues(TOPIC))
    for queue in consumer.assignment:
        consumer.seek_to_begin(queue)
    lines: list[str] = []
    while len(lines) < 3:
        messages = consumer.poll(timeout_s=10.0)
        if not messages:
            sys.exit("the messages did not come")
        lines += [message.body.decode() for message in messages]
    print("read", *sorted(lines), sep="\n")
