"""Our brokers in controller mode: with our controller and Apache's, alone and in a group with Apache's brokers."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.controlled_brokers import JOIN_S, ApacheController, Load, SkyrouteController, broker, read_all
from tests.support.our_broker import SkyrouteBroker
from tests.support.waiting import wait_until

KILLS = int(os.environ.get("AUTO_SWITCH_KILLS", "2"))
"""How often the master is killed; 10 on demand."""

OURS, APACHE = SkyrouteBroker, ApacheBroker


def written(member: ApacheBroker) -> bytes:
    """The log of a broker up to the last record, which ends with a property."""
    folder = member.home / "store" / "commitlog"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")


@pytest.mark.parametrize(
    ("controller_kind", "kinds"),
    [
        pytest.param(SkyrouteController, (OURS, OURS, OURS), id="ours-on-ours"),
        pytest.param(ApacheController, (OURS, OURS, OURS), id="ours-on-apache", marks=pytest.mark.long),
        pytest.param(ApacheController, (APACHE, APACHE, OURS), id="mixed-on-apache"),
        pytest.param(SkyrouteController, (OURS, APACHE, OURS), id="mixed-on-ours", marks=pytest.mark.long),
    ],
)
def test_no_acknowledged_message_is_lost_when_masters_are_killed(
    lib: Path,
    tmp_path: Path,
    controller_kind: type[SkyrouteController],
    kinds: tuple[type[ApacheBroker], ...],
    record_property: Callable[[str, object], None],
) -> None:
    with ExitStack() as ends:
        server = ends.enter_context(SkyrouteNameServer("name server", tmp_path / "ns"))
        controller = ends.enter_context(controller_kind("controller", tmp_path / "controller"))
        members = {}
        for number, kind in enumerate(kinds, 1):
            home = tmp_path / f"broker-{number}"
            members[number] = ends.enter_context(broker(home, server.address, controller.address, kind=kind))
            wait_until(
                lambda: controller.group()[2] == sorted(members), f"{number} in the sync state set", timeout_s=JOIN_S
            )
        load = Load(server.address)
        load.start()
        try:
            for _ in range(KILLS):
                load.until(len(load.acknowledged) + 200)
                master, epoch, _ = controller.group()
                assert master is not None
                members[master].kill()
                wait_until(lambda: controller.group()[1] > epoch and controller.group()[0] not in (None, master))  # noqa: B023
                load.until(len(load.acknowledged) + 200)
                members[master].start()
                wait_until(lambda: controller.group()[2] == sorted(members), "the old master follows", timeout_s=JOIN_S)
        finally:
            load.ended.set()
            load.join()
        record_property("acknowledged", len(load.acknowledged))
        record_property("longest_pause_s", round(load.longest_pause_s, 2))
        found = read_all(server.address)
        assert set(load.acknowledged) <= found
        ends_ = {number: written(member) for number, member in members.items()}
        assert len(set(ends_.values())) == 1, {number: len(log) for number, log in ends_.items()}
