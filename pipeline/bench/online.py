"""PM4Py's approximate online alignments: the yardstick of ``bench vital``.

PM4Py is under the AGPL and no part of the product: only whoever wants this row installs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.topics.events import Step

SUCCESSES_MAX = 5
"""A model is discovered from as many runs of its task as references are used."""

SEARCH_S = 10.0
"""Most that PM4Py may search for one success in the model discovered from it."""

_CASE, _ACTIVITY = "case:concept:name", "concept:name"

Make = Callable[[Sequence[Recording]], Any]


def streaming_alignments() -> Make | None:
    """Return how to make PM4Py's online alignment of a task from its successes; None without it.

    Discovery is the inductive miner without a noise threshold, on tool names as activities. The
    alignment is ``pm4py.streaming.algo.conformance.alignments`` in its only variant, ``approx_iws``
    (Raun and Awad 2022: a trie of model behaviour, look-ahead 3, decay 10, at most 20 states a
    case, all as PM4Py has them). The trie is that of the successes; PM4Py's other way, a hundred
    traces simulated at random, makes it several times larger and slower.
    """
    try:
        pm4py = import_module("pm4py")
    except ImportError:
        return None
    logs = import_module("pm4py.objects.log.obj")
    alignments = import_module("pm4py.streaming.algo.conformance.alignments.algorithm")
    names = import_module(f"{alignments.__package__}.variants.approx_iws").Parameters

    def make(successes: Sequence[Recording]) -> Any:
        log = logs.EventLog()
        for run in successes:
            events = [logs.Event({_ACTIVITY: step.tool}) for step in run.steps]
            log.append(logs.Trace(events, attributes={_ACTIVITY: run.run_id}))
        net, initial, final = pm4py.discover_petri_net_inductive(log)
        parameters = {
            names.CASE_ID_KEY: _CASE,
            names.PROXY_LOG: log,
            names.PARAM_MAX_ALIGN_TIME_TRACE: SEARCH_S,
        }
        return alignments.apply(net, initial, final, parameters=parameters)

    return make


class OnlineAlignments:
    """Runs as cases of their tasks' models, by the names of their tools alone.

    One call is ``receive`` of one event: it moves the case's states on. Nobody asks for the
    alignment itself (``get``), which costs more.

    Parameters
    ----------
    make
        Makes a model's stream from the successes of a task.
    runs
        All of one corpus; each task has a success.
    """

    def __init__(self, make: Make, runs: Sequence[Recording]) -> None:
        successes: dict[str, list[Recording]] = defaultdict(list)
        for run in runs:
            if run.succeeded:
                successes[run.key].append(run)
        self._models = {task: make(own[:SUCCESSES_MAX]) for task, own in successes.items()}
        self._model: Any = None
        self._case = ""

    def begin(self, run: Recording) -> None:
        """Begin a run's case anew; the case before is forgotten."""
        if self._model is not None:
            # There is no public way to end a case that does not keep what it came to.
            self._model._cases.pop(self._case, None)
        self._model, self._case = self._models[run.key], run.run_id

    def event(self, step: Step) -> dict[str, str]:
        """Return a step of the current run as PM4Py takes it."""
        return {_CASE: self._case, _ACTIVITY: step.tool}

    def apply(self, event: dict[str, str]) -> None:
        """Take one event."""
        self._model.receive(event)
