"""All scenarios, each for a number of simulated hours with faults, and the planted bugs of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.simulation import pops, replicas
from tests.simulation.controllers import ControllerPlan, run_controllers
from tests.simulation.planted import PLANTED
from tests.simulation.pops import PopScenario
from tests.simulation.replicas import ReplicaScenario
from tests.simulation.scenario import Plan, Report, Scenario, run

PLANS: Final[dict[str, tuple[type[Scenario], Plan]]] = {
    "cluster": (Scenario, Plan()),
    "pops": (PopScenario, replace(pops.CRASHES, gap_s=12.0, fault_gap_s=100.0)),
    "pops-calm": (PopScenario, replace(pops.CALM, gap_s=12.0, fault_gap_s=100.0)),
    "replicas": (ReplicaScenario, replace(replicas.FAILING, gap_s=12.0, fault_gap_s=100.0)),
    "lost-masters": (ReplicaScenario, replace(replicas.LOST, gap_s=12.0, fault_gap_s=300.0)),
    "acting-masters": (ReplicaScenario, replace(replicas.ACTING, gap_s=12.0, fault_gap_s=100.0)),
}
CONTROLLERS: Final = "controllers"
NAMES: Final = (*PLANS, CONTROLLERS)

ROTATION: Final = tuple(name for other in NAMES[1:] for name in (NAMES[0], other))
"""Half of the seeds run the whole cluster, the others one of the smaller scenarios each."""

ALL_PLANTED: Final = (*PLANTED, *pops.PLANTED, *replicas.PLANTED)
"""Those of the controllers are in their own module: their history is another one."""


def scenario_of(seed: int) -> str:
    """Return the scenario of a seed, if none is named."""
    return ROTATION[seed % len(ROTATION)]


def run_scenario(name: str, seed: int, hours: float, trace: Path | None = None) -> Report:
    """Run one seed of a scenario for some simulated hours."""
    if name == CONTROLLERS:
        plan = ControllerPlan(fault_gap_s=60.0)
        return run_controllers(seed, replace(plan, run_s=max(60.0, hours * 3600 - plan.settle_s)))
    scenario, load = PLANS[name]
    return run(seed, replace(load, load_s=max(60.0, hours * 3600 - load.settle_s)), trace, scenario)
