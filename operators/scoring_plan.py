"""What a run is scored against: a task, its references and its contracts, compiled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ontrack.operators.allowance import Allowance, compile_allowance
from ontrack.operators.limits import require
from ontrack.operators.scoring_budget import Budget, Observed, budget_of
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.topics.adapters.parts import NO_TOOL
from ontrack.topics.knowledge import Task, ToolContract


@dataclass(frozen=True, slots=True)
class ScoringParams:
    """How paths are scored, and how much of a run is remembered for it.

    Parameters
    ----------
    margin
        Calls over the reference's length, where a task names no rule.
    deviations
        Standard deviations over the median of passing runs, where there is no reference either.
    observed_min
        Passing runs from which on their spread says something.
    repeat_ratio_max
        Above it somebody should look at the trace.
    recovery_is_waste
        Count retries after errors as waste.
    text_bytes_max
        Bytes of arguments and results that are compared.
    calls_max, tools_max
        Different calls with their results (16 bytes each), and different tools (8 bytes each),
        that are remembered of a run.
    unsafe_max
        Unsafe actions kept a run, destructive ones before others; all of them are counted.
    """

    margin: float = 3
    deviations: float = 2.0
    observed_min: int = 3
    repeat_ratio_max: float = 0.7
    recovery_is_waste: bool = False
    text_bytes_max: int = 65_536
    calls_max: int = 1024
    tools_max: int = 1024
    unsafe_max: int = 64

    def __post_init__(self) -> None:
        require(self, 0, 10_000, "margin")
        require(self, 0.0, 100.0, "deviations")
        require(self, 2, 1_000_000, "observed_min")
        require(self, 0.0, 1.0, "repeat_ratio_max")
        require(self, 64, 10_000_000, "text_bytes_max")
        require(self, 1, 65_536, "calls_max", "tools_max", "unsafe_max")


@dataclass(frozen=True, slots=True)
class StaleReference:
    """A reference that names tools which the registry no longer has.

    It is reported, and neither covered nor used for the budget: the run is not what is wrong.
    """

    reference_id: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What runs of one task are scored against; the default knows nothing.

    Parameters
    ----------
    paths
        References that can be walked.
    stale
        Those that cannot.
    budget
        None where no rule could be followed.
    observed
        Steps of passing runs, where some were observed.
    allowance
        None where the task does not say what it allows: unsafe actions are not looked for.
    cost_usd_max, latency_s_max
        Ceilings.
    budget_declared
        The task itself asks for its budget.
    reviewed
        Somebody gave the references; others that passed only stand in for them.
    written
        They are those that the task itself lists, and no others: whoever writes orders down means
        all of them, so that a step missing is a defect. A recorded run shows one order of many.
    """

    task_id: str | None = None
    paths: tuple[ReferencePath, ...] = ()
    stale: tuple[StaleReference, ...] = ()
    budget: Budget | None = None
    observed: Observed | None = None
    allowance: Allowance | None = None
    cost_usd_max: float | None = None
    latency_s_max: float | None = None
    budget_declared: bool = False
    reviewed: bool = True
    written: bool = False


def compile_plan(
    params: ScoringParams,
    task: Task | None,
    contracts: Mapping[str, ToolContract],
    references: Sequence[ReferencePath] = (),
    observed: Observed | None = None,
    run_id: str | None = None,
    lenient: bool = False,
) -> TaskPlan:
    """Compile what runs of a task are scored against: the one rule, live and offline.

    Parameters
    ----------
    contracts
        By name. Without any no reference is stale, since nothing is known of the registry.
    references
        Besides those that stand in the task, of the same task.
    observed
        Steps of passing runs, for budgets by ``median_plus_sd``.
    run_id
        Paths that only this run has shown do not exist for it.
    lenient
        A condition on an argument that the tool has not is no error, it merely never holds: live,
        contracts and tasks come independently of each other.

    Raises
    ------
    InvalidInput
        The task's allowance cannot be compiled: see :mod:`ontrack.operators.allowance`.
    """
    written = () if task is None else task.written_references()
    others = without_own(references, run_id)
    paths = [*map(ReferencePath.of, written), *others]
    gone = {path.reference_id: _missing_tools(path, contracts) for path in paths}
    walkable = tuple(path for path in paths if not gone[path.reference_id])
    budget = budget_of(
        None if task is None else task.step_budget,
        walkable,
        observed,
        params.margin,
        params.deviations,
        params.observed_min,
    )
    return TaskPlan(
        task_id=None if task is None else task.id,
        paths=walkable,
        written=bool(written) and not others,
        stale=tuple(StaleReference(name, tools) for name, tools in gone.items() if tools),
        budget=budget,
        observed=observed,
        allowance=None if task is None else compile_allowance(task, {} if lenient else contracts),
        cost_usd_max=None if task is None else task.cost_usd_max,
        latency_s_max=None if task is None else task.latency_s_max,
        budget_declared=task is not None and task.step_budget is not None,
    )


def without_own(paths: Sequence[ReferencePath], run_id: str | None) -> tuple[ReferencePath, ...]:
    """Leave out the paths that only this run has shown."""
    return tuple(path for path in paths if run_id is None or path.run_ids != (run_id,))


def _missing_tools(path: ReferencePath, contracts: Mapping[str, ToolContract]) -> tuple[str, ...]:
    if not contracts:
        return ()
    named = dict.fromkeys(path.tools)
    return tuple(tool for tool in named if tool not in contracts and tool != NO_TOOL)
