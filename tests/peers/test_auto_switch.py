"""Groups of our brokers, of Apache's and of both: their masters are killed, on our controller and on Apache's."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.controlled_brokers import (
    JOIN_S,
    ApacheController,
    ControllerInNameServer,
    ControllerOnEtcd,
    Load,
    SkyrouteController,
    broker,
    read_all,
)
from tests.support.our_broker import SkyrouteBroker
from tests.support.waiting import wait_until

KILLS = int(os.environ.get("AUTO_SWITCH_KILLS", "2"))
"""How often the master is killed; 10 on demand."""

OURS, APACHE = SkyrouteBroker, ApacheBroker

LONGER = 0.73
"""With ten pauses of each, 5 % of comparisons of equals reach it (one-sided rank-sum test)."""

PAUSES: dict[tuple[type[SkyrouteController], tuple[type[ApacheBroker], ...]], list[float]] = {}
"""Pause of the sender at each kill, in seconds, by controller and brokers."""


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
        *(
            pytest.param(controller, kinds, id=f"{brokers}-{where}", marks=pytest.mark.long)
            for brokers, kinds in (("2-apache", (APACHE,) * 2), ("3-apache", (APACHE,) * 3))
            for where, controller in (
                ("on-apache", ApacheController),
                ("on-ours", SkyrouteController),
                ("in-name-server", ControllerInNameServer),
                ("on-etcd", ControllerOnEtcd),
            )
        ),
        *(
            pytest.param(controller, kinds, id=f"{brokers}-{where}", marks=pytest.mark.long)
            for brokers, kinds in (("ours", (OURS,) * 3), ("mixed", (OURS, APACHE, OURS)))
            for where, controller in (("in-name-server", ControllerInNameServer), ("on-etcd", ControllerOnEtcd))
        ),
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
        controller = ends.enter_context(controller_kind("controller", tmp_path / "controller"))
        if isinstance(controller, ControllerInNameServer):
            name_server = controller.name_server_address
        else:
            name_server = ends.enter_context(SkyrouteNameServer("name server", tmp_path / "ns")).address
        members = {}
        for number, kind in enumerate(kinds, 1):
            home = tmp_path / f"broker-{number}"
            members[number] = ends.enter_context(broker(home, name_server, controller.address, kind=kind))
            wait_until(
                lambda: controller.group()[2] == sorted(members), f"{number} in the sync state set", timeout_s=JOIN_S
            )
        load = Load(name_server)
        pauses = PAUSES[controller_kind, kinds] = []
        load.start()
        try:
            for _ in range(KILLS):
                load.until(len(load.acknowledged) + 200)
                master, epoch, _ = controller.group()
                assert master is not None
                load.take_longest_pause()
                members[master].kill()
                wait_until(lambda: controller.group()[1] > epoch and controller.group()[0] not in (None, master))  # noqa: B023
                load.until(len(load.acknowledged) + 200)
                pauses.append(load.take_longest_pause())
                members[master].start()
                wait_until(lambda: controller.group()[2] == sorted(members), "the old master follows", timeout_s=JOIN_S)
        finally:
            load.ended.set()
            load.join()
        record_property("acknowledged", len(load.acknowledged))
        record_property("pauses_s", [round(each, 2) for each in pauses])
        found = read_all(name_server)
        assert set(load.acknowledged) <= found
        ends_ = {number: written(member) for number, member in members.items()}
        assert len(set(ends_.values())) == 1, {number: len(log) for number, log in ends_.items()}


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3])
def test_pauses_are_no_longer_than_on_apaches_controller(count: int) -> None:
    """Compare what the tests above have measured in this run.

    Pauses on one controller vary twofold, so medians of equal controllers differ by chance. A controller is slower if
    its pauses are longer in at least `LONGER` of all pairs with a pause on Apache's.
    """
    measured = {controller: each for (controller, of), each in PAUSES.items() if of == (APACHE,) * count}
    apaches = measured.pop(ApacheController)
    assert measured, "run it together with the tests above"
    for controller, pauses in measured.items():
        longer = statistics.fmean(pause > apache for pause in pauses for apache in apaches)
        assert longer < LONGER, (controller.__name__, sorted(pauses), sorted(apaches))
