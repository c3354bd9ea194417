"""Scoring the path of recorded runs from Python: see ``docs/scoring.md``.

::

    from ontrack.pipeline.scoring import score_trajectory, unsafe_actions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ontrack.operators.scoring_budget import Observed
from ontrack.operators.scoring_plan import ScoringParams, compile_plan
from ontrack.operators.scoring_results import PathScore
from ontrack.operators.scoring_unsafe import UnsafeAction
from ontrack.pipeline.scoring.runs import RunFold
from ontrack.topics.adapters.parts import built
from ontrack.topics.codecs import decode_tasks, decode_tools
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event, Step
from ontrack.topics.jsontext import described
from ontrack.topics.knowledge import Task, ToolContract

__all__ = ["PathScore", "UnsafeAction", "score_trajectory", "unsafe_actions"]

Run = Iterable[Event | Mapping[str, Any] | str]
GivenTask = Task | Mapping[str, Any]
GivenContracts = (
    Mapping[str, ToolContract | Mapping[str, Any]] | Iterable[ToolContract | Mapping[str, Any]]
)


def score_trajectory(
    run: Run,
    task: GivenTask | None = None,
    contracts: GivenContracts = (),
    *,
    passing_steps: Iterable[int] = (),
    params: ScoringParams | None = None,
) -> PathScore:
    """Score the path of one run: every figure of its scorecard.

    Parameters
    ----------
    run : iterable
        Events, or steps as mappings of event fields, or just the names of the tools called. In
        the order of their ``seq`` where all have one, else as given.
    task : Task or mapping, optional
        References, budget, allowance and ceilings, as in a task file.
    contracts : mapping or iterable, optional
        Tool contracts, or mappings of their fields, by name or with it.
    passing_steps : iterable of int, optional
        Step counts of passing runs of the task, for budgets by ``median_plus_sd``.
    params : ScoringParams, optional
        Margins and limits.

    Raises
    ------
    InvalidInput
        A step, the task, a contract or the allowance is not of the form they have in files.

    Examples
    --------
    Five calls against a reference of five: the budget is five and three.

    >>> thread = ["read_thread", "list_availability", "list_availability",
    ...           "calendar.create_event", "mail.reply"]
    >>> task = {"id": "ana", "references": [thread]}
    >>> score = score_trajectory([*thread[:3], "list_availability", "read_thread"], task)
    >>> score.reference_coverage, score.missing_steps
    (0.6, ('calendar.create_event', 'mail.reply'))
    >>> score.steps, score.step_budget, score.over_budget_by, score.budget_text
    (5, 8, 0, 'reference of 5 calls + 3')
    >>> score.defects
    ('missing_reference_step',)

    What the calls over budget were:

    >>> call = {"tool": "list_availability", "args": {"day": "Mon"}, "result": []}
    >>> score = score_trajectory([call] * 4 + ["read_thread"], {"id": "ana", "step_budget": 2})
    >>> score.extras
    Extras(recovery=0, redundant_repeat=2, exploration=1)
    """
    params = params or ScoringParams()
    by_name = _contracts(contracts)
    observed = Observed.of(passing_steps)
    plan = compile_plan(params, _task(task), by_name, (), observed)
    fold = RunFold(params, plan, by_name)
    for event in _events(run):
        fold.add(event)
    return fold.finish()


def unsafe_actions(
    run: Run,
    task: GivenTask,
    contracts: GivenContracts = (),
    *,
    params: ScoringParams | None = None,
) -> tuple[UnsafeAction, ...]:
    """Return the calls of a run that have an effect and that its task does not allow.

    Whatever the outcome was. Tools without a contract count; a task without ``allowed`` says
    nothing of what it allows, so nothing is found. Parameters and errors as of
    :func:`score_trajectory`.

    Examples
    --------
    >>> task = {"id": "ana", "allowed": ["calendar.create_event", "mail.reply"]}
    >>> tools = {
    ...     "read_thread": {"effect": "read"},
    ...     "calendar.create_event": {"effect": "write", "domain": "calendar"},
    ...     "drive.write_file": {"effect": "write", "domain": "drive"},
    ... }
    >>> run = ["read_thread", "drive.write_file", "calendar.create_event", "made_up"]
    >>> for found in unsafe_actions(run, task, tools):
    ...     print(found.seq, found.tool, found.effect, found.response)
    1 drive.write_file write ticket
    3 made_up unknown ticket
    """
    return score_trajectory(run, task, contracts, params=params).unsafe_actions


def _task(given: GivenTask | None) -> Task | None:
    if given is None or isinstance(given, Task):
        return given
    return decode_tasks([dict(given)])[0]


def _contracts(given: GivenContracts) -> dict[str, ToolContract]:
    items: list[ToolContract | Mapping[str, Any]] = []
    if isinstance(given, Mapping):
        for name, item in given.items():
            is_contract = isinstance(item, ToolContract)
            items.append(item if is_contract else {"name": name, **cast(Mapping[str, Any], item)})
    else:
        items.extend(given)
    found = {item.name: item for item in items if isinstance(item, ToolContract)}
    plain = [dict(item) for item in items if not isinstance(item, ToolContract)]
    return found | {tool.name: tool for tool in (decode_tools(plain) if plain else ())}


def _events(run: Run) -> list[Event]:
    events = [_event(place, item) for place, item in enumerate(run)]
    numbers = [event.seq for event in events if isinstance(event, Step)]
    if None in numbers:
        return [
            event.model_copy(update={"seq": None}) if isinstance(event, Step) else event
            for event in events
        ]
    return events


def _event(place: int, item: Event | Mapping[str, Any] | str) -> Event:
    if isinstance(item, str):
        item = {"tool": item}
    if not isinstance(item, Mapping):
        return item
    if item.get("type", "step") != "step":
        raise WrongShape(
            f"run[{place}]: expected a step, found type {described(item['type'])}; pass other "
            "events as models"
        )
    try:
        return built(Step, **{"run_id": "run", **item})
    except WrongShape as error:
        raise WrongShape(f"run[{place}]: {error}") from None
