"""Sends a message that is delivered only if the local transaction, here an entry in a ledger, succeeds."""

import asyncio
import sys

from skyroute import Message, Producer, SendResult, StoredMessage, TransactionOutcome

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC = "ExamplePayments"

ledger: set[str] = set()


async def check(message: StoredMessage) -> TransactionOutcome:
    """Return the outcome of a transaction; the broker calls it if the outcome did not arrive."""
    return TransactionOutcome.COMMIT if message.message_id in ledger else TransactionOutcome.ROLLBACK


async def pay(message: Message, sent: SendResult) -> TransactionOutcome:
    if message.body == b"too much":
        return TransactionOutcome.ROLLBACK
    ledger.add(sent.message_id)
    return TransactionOutcome.COMMIT


async def main() -> None:
    async with Producer("example-bank", NAME_SERVERS, check=check) as producer:
        for body in (b"ten", b"too much"):
            result = await producer.send_in_transaction(Message(TOPIC, body), pay)
            print(body.decode(), result.outcome.name)


asyncio.run(main())
