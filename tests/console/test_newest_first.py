"""Reading many queues backwards, against a plain sort of everything there is."""

import os
import sys
from random import Random, randrange

import pytest

from skyroute import Message
from skyroute.blocking import Producer
from skyroute.client.admin import Admin
from skyroute.console.cluster_data.message_listing import Place, newest_first, read_place, row_of
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.page_context import ROWS
from skyroute.remoting.loops import LoopThread
from skyroute.testing import Cluster


def test_pages_are_a_sorted_whole_cut_in_pieces(real_cluster: Cluster) -> None:
    """Whatever the span, all its messages come once and in order, however many were stored in one millisecond."""
    seed = int(os.environ.get("SKYROUTE_SEED") or randrange(1 << 32))
    sys.stdout.write(f"SKYROUTE_SEED={seed}\n")
    chance = Random(seed)
    addresses = list(real_cluster.name_server_addresses)
    with Producer("shop", addresses) as producer:
        for _ in range(40):
            many = [Message("Spread", bytes(chance.randrange(1, 9))) for _ in range(chance.choice((1, 2, 3, ROWS + 7)))]
            producer.send_batch(many)
    reading = LoopThread("reading")
    reading.call(check_spans(addresses, chance))
    reading.close()


async def check_spans(addresses: list[str], chance: Random) -> None:
    """Read several spans page by page, and hold them against what every queue has."""
    async with Admin(addresses) as admin:
        queues = await admin.queues_of("Spread")
        stored = [m for queue in queues async for part in admin.read(queue, 0, 1_000_000) for m in part]
        places = sorted((row_of(message).place for message in stored), reverse=True)
        times = [place.stored_at_ms for place in places]
        spans = [(None, None), *[sorted((chance.choice(times), chance.choice(times) + 1)) for _ in range(8)]]
        for begin_ms, end_ms in spans:
            wanted = [
                place
                for place in places
                if (begin_ms is None or place.stored_at_ms >= begin_ms)
                and (end_ms is None or place.stored_at_ms < end_ms)
            ]
            seen: list[Place] = []
            before = None
            while True:
                found = await newest_first(admin, queues, begin_ms, end_ms, before)
                assert not found.failures
                assert found.count >= len(wanted) - len(seen)
                seen += [row.place for row in found.rows]
                if found.older is None:
                    break
                assert len(found.rows) == ROWS
                before = read_place(str(found.older))
            assert seen == wanted


@pytest.mark.parametrize("text", ["", "1.2.3", "a.b.c.d", "1..3.broker"])
def test_what_is_no_place_is_refused(text: str) -> None:
    """Somebody may have typed it into an address."""
    with pytest.raises(ConsoleError, match="is no place of a message"):
        read_place(text)
