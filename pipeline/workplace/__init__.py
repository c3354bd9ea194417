"""A small simulated workplace, for the demo, for tests and for load.

Three desks (scheduling, bugfix, refunds) work on two tasks each; runs are valid executions of a
task, or carry one of the known faults.
"""

from ontrack.pipeline.workplace.faults import BENIGN, FAULTS
from ontrack.pipeline.workplace.simulate import (
    SimulatedRun,
    contracts,
    demo_runs,
    load_stream,
    references,
    simulate_run,
    task_ids,
)

__all__ = [
    "BENIGN",
    "FAULTS",
    "SimulatedRun",
    "contracts",
    "demo_runs",
    "load_stream",
    "references",
    "simulate_run",
    "task_ids",
]
