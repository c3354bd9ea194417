"""Library: the references, contracts and tasks that runs are compared with, by time.

A run is compared with what was published before its first event, and keeps that to its end. So
every entry keeps its versions with their times of publication: a run that is folded again from the
log meets the same knowledge as the first time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import replace

from ontrack.operators.knowledge import Knowledge
from ontrack.operators.profiles import Profile
from ontrack.operators.redaction import Redaction
from ontrack.operators.references import choose, tools_of
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.operators.scoring_plan import TaskPlan, compile_plan
from ontrack.operators.selftest import SelfTest, limited
from ontrack.pipeline.encoding.encoders import CachedEncoder
from ontrack.pipeline.folding.reference_sets import ReferenceSets
from ontrack.pipeline.folding.shelf import ALWAYS, Chosen, View, is_written
from ontrack.pipeline.folding.shelves import Items, Shelves
from ontrack.topics.knowledge import STEPS_MAX

VIEWS_MAX = 64  # times at which the library is remembered as it was then


class Preparation:
    """What must be worked out before a run can be judged; :meth:`make` is fit for a thread.

    It reads what does not change any more: a view, and sets of which any thread may ask.
    """

    def __init__(
        self, sets: ReferenceSets, view: View, chosen: Chosen, pool_of: View | None
    ) -> None:
        self._sets = sets
        self._view = view
        self._chosen = chosen
        self._pool_of = pool_of
        self.pool: tuple[View, frozenset[str], SelfTest | None] | None = None

    def make(self) -> None:
        """Compile the references and, where their self-test counts, those of tasks like theirs."""
        known = self._sets.of(self._view, self._chosen)
        if self._pool_of is not None and known.selftest is not None:
            tools = tools_of(self._chosen)
            self.pool = self._pool_of, tools, self._sets.pool(self._pool_of, tools)


class Library(Shelves):
    """Knowledge by time, compiled on demand and cached.

    Any thread may ask and publish. A lock is held while something is looked up or put in its place,
    not while sets are compiled; an event loop has that done in a thread beforehand, see
    :meth:`preparation`.

    Parameters
    ----------
    profile
        Says how many references a run is aligned with, and which are too long.
    encoder
        Gives the references' vectors.
    compiled_max
        Reference sets kept compiled (least recently used ones go).
    redaction
        Of references, as of the runs that are compared with them.
    pinned
        Known always, and whatever is published under these names later does not count.
    """

    def __init__(
        self,
        profile: Profile,
        encoder: CachedEncoder,
        compiled_max: int = 1024,
        redaction: Redaction | None = None,
        pinned: Items = Items(),  # noqa: B008
    ) -> None:
        super().__init__(redaction, pinned)
        self._profile = profile
        self._pooled_with: Library | None = None
        self._viewed = 0  # changes of which the views know
        self._epochs: list[int] = []
        self._views: OrderedDict[int, View] = OrderedDict()
        self._sets = ReferenceSets(profile, encoder, compiled_max)

    def knowledge(self, task_id: str | None, run_id: str, time_ms: int | None) -> Knowledge:
        """Return what a run is compared with whose first event has this time."""
        preparation = self.preparation(task_id, run_id, time_ms)
        if preparation is not None:
            preparation.make()
            self.keep(preparation)
        with self._lock:
            return self._knowledge(self._view(time_ms), task_id, run_id, time_ms)

    def _knowledge(
        self, view: View, task_id: str | None, run_id: str, time_ms: int | None
    ) -> Knowledge:
        chosen = view.chosen(task_id, run_id)
        plan = self._plan(view, task_id, run_id)
        if not chosen:
            return Knowledge(view.contracts, plan=plan)
        known = replace(self._sets.of(view, chosen), contracts=view.contracts, plan=plan)
        if known.selftest is None or self._profile.selftest is None:
            return known
        pool = (self._pooled_with or self)._pool(tools_of(chosen), time_ms)
        return replace(known, selftest=limited(known.selftest, pool))

    def preparation(
        self, task_id: str | None, run_id: str, time_ms: int | None
    ) -> Preparation | None:
        """Return what takes long in :meth:`knowledge` of the same run; None if all is there.

        Make it in a thread, then :meth:`keep` it: what is published meanwhile is later than the
        run's first event, and so changes nothing of it.
        """
        with self._lock:
            view = self._view(time_ms)
            chosen = view.chosen(task_id, run_id)
            if not chosen:
                return None
            known = self._sets.known(view, chosen)
            # Of a library that asks another one the pool is not ours to make.
            pool_of = view if self._pooled_with is None else None
            if known is not None and (
                known.selftest is None or pool_of is None or tools_of(chosen) in view.pools
            ):
                return None
            return Preparation(self._sets, view, chosen, pool_of)

    def keep(self, preparation: Preparation) -> None:
        """Keep what a preparation has made."""
        if preparation.pool is not None:
            view, tools, pool = preparation.pool
            with self._lock:
                view.pools[tools] = pool

    def pool_with(self, other: Library) -> None:
        """Judge the self-tests by another library's, for a library that holds a single task."""
        self._pooled_with = other

    def _plan(self, view: View, task_id: str | None, run_id: str) -> TaskPlan | None:
        """Return what the path of a run is scored against.

        All references of the task, as offline: a pointer costs next to nothing, and a budget must
        not depend on how many references, and how long ones, alignment can bear.
        """
        if self._profile.scoring is None:
            return None
        of_task = view.by_task.get(task_id, ()) if task_id is not None else ()
        chosen = choose(of_task, run_id, len(of_task), STEPS_MAX)
        task = None if task_id is None else view.tasks.get(task_id)
        if task is None and not chosen:  # not kept: a run may name any task
            return TaskPlan(task_id)
        key = task_id, tuple(view.versions[id(reference)] for reference in chosen)
        plan = view.plans.get(key)
        if plan is None:
            given = [each for each in chosen if not is_written(view.versions[id(each)])]
            plan = compile_plan(
                self._profile.scoring,
                task,
                view.contracts,
                [ReferencePath.of(reference) for reference in given],
                lenient=True,
            )
            plan = view.plans[key] = replace(plan, task_id=task_id)
        return plan

    def _pool(self, tools: frozenset[str], time_ms: int | None) -> SelfTest | None:
        with self._lock:
            view = self._view(time_ms)
            if tools not in view.pools:
                view.pools[tools] = self._sets.pool(view, tools)
            return view.pools[tools]

    def _view(self, time_ms: int | None) -> View:
        """Return the library as of a time; equal between two publications, so cached by these."""
        if self._viewed != self._changes:
            shelves = (self._references, self._contracts, self._tasks)
            self._epochs = sorted({moment for shelf in shelves for moment in shelf.times()})
            self._views.clear()
            self._viewed = self._changes
        epochs = self._epochs
        count = len(epochs) if time_ms is None else bisect_right(epochs, time_ms)
        epoch = epochs[count - 1] if count else ALWAYS - 1
        view = self._views.get(epoch)
        if view is None:
            view = View.of(
                epoch,
                self._references,
                self._contracts,
                self._tasks,
                self._profile.references_max,
                self._profile.reference_steps_max,
            )
            self._views[epoch] = view
            if len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        else:
            self._views.move_to_end(epoch)
        return view
