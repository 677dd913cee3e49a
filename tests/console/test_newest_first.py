"""Reading many queues backwards gives the same order as sorting all messages."""

import os
import sys
from random import Random, randrange

import pytest

from skyroute import Message
from skyroute.blocking import Producer
from skyroute.client.admin import Admin
from skyroute.console.cluster_data.message_listing import Position, newest_first, parse_position, row_of
from skyroute.console.config import ROWS_A_PAGE
from skyroute.console.errors import ConsoleError
from skyroute.remoting.loops import LoopThread
from skyroute.testing import Cluster


def test_pages_have_all_messages_in_order(real_cluster: Cluster) -> None:
    """For any time range, each message is listed once, however many were stored in one millisecond."""
    seed = int(os.environ.get("SKYROUTE_SEED") or randrange(1 << 32))
    sys.stdout.write(f"SKYROUTE_SEED={seed}\n")
    chance = Random(seed)
    addresses = list(real_cluster.name_server_addresses)
    with Producer("shop", addresses) as producer:
        for _ in range(40):
            many = [
                Message("Spread", bytes(chance.randrange(1, 9)))
                for _ in range(chance.choice((1, 2, 3, ROWS_A_PAGE + 7)))
            ]
            producer.send_batch(many)
    reading = LoopThread("reading")
    reading.call(check_spans(addresses, chance))
    reading.close()


async def check_spans(addresses: list[str], chance: Random) -> None:
    """Read several time ranges page by page, and compare them with the messages of every queue."""
    async with Admin(addresses) as admin:
        queues = await admin.queues_of("Spread")
        stored = [m for queue in queues async for part in admin.read(queue, 0, 1_000_000) for m in part]
        positions = sorted((row_of(message).position for message in stored), reverse=True)
        times = [position.stored_at_ms for position in positions]
        spans = [(None, None), *[sorted((chance.choice(times), chance.choice(times) + 1)) for _ in range(8)]]
        for begin_ms, end_ms in spans:
            wanted = [
                position
                for position in positions
                if (begin_ms is None or position.stored_at_ms >= begin_ms)
                and (end_ms is None or position.stored_at_ms < end_ms)
            ]
            seen: list[Position] = []
            before = None
            while True:
                found = await newest_first(admin, queues, begin_ms, end_ms, before)
                assert not found.failures
                assert found.count >= len(wanted) - len(seen)
                seen += [row.position for row in found.rows]
                if found.older is None:
                    break
                assert len(found.rows) == ROWS_A_PAGE
                before = parse_position(str(found.older))
            assert seen == wanted


@pytest.mark.parametrize("text", ["", "1.2.3", "a.b.c.d", "1..3.broker"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConsoleError, match="is not a message position"):
        parse_position(text)
