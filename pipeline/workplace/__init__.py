"""A small simulated workplace, for the demo, for tests and for load.

Three desks (scheduling, bugfix, refunds) work on two tasks each; runs are valid executions of a
task, or carry one of the known faults.
"""

from ontrack.pipeline.workplace.faults import BENIGN, FAULTS
from ontrack.pipeline.workplace.injection import FAULT_KINDS, FaultPlan
from ontrack.pipeline.workplace.simulate import (
    FaultyRun,
    SimulatedRun,
    contracts,
    demo_runs,
    load_stream,
    references,
    simulate_faulty,
    simulate_run,
    task_ids,
)

__all__ = [
    "BENIGN",
    "FAULTS",
    "FAULT_KINDS",
    "FaultPlan",
    "FaultyRun",
    "SimulatedRun",
    "contracts",
    "demo_runs",
    "load_stream",
    "references",
    "simulate_faulty",
    "simulate_run",
    "task_ids",
]
