"""Jobs over several processes; the results do not depend on how many."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, TypeVar

from ontrack.pipeline.evaluation.watching import Setup, Watcher
from ontrack.pipeline.log import set_up_logging

Job = TypeVar("Job")
Result = TypeVar("Result")
Advance = Callable[[], None]

JOBS_A_BATCH = 4

# Of this process, where it is one of a pool's: set once, by the pool's initializer.
_watcher: Watcher | None = None


def processors() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_jobs(
    work: Callable[[Watcher, Job], Result],
    setup: Setup,
    jobs: Sequence[Job],
    processes: int,
    advance: Advance = lambda: None,
) -> list[Result]:
    """Do every job; results in the order of the jobs.

    However this process ends, those that it started end with it.

    Parameters
    ----------
    work
        A function of a module (new processes import it by name) of watcher and job alone.
    setup
        What watchers are made of, sent to each process once.
    jobs
        Small: names of runs rather than runs.
    processes
        1 works in this process.
    advance
        Called once a job, as its result comes in.
    """
    if processes == 1 or len(jobs) <= 1:
        watcher = Watcher(setup)
        results = []
        for job in jobs:
            results.append(work(watcher, job))
            advance()
        return results
    batches = [jobs[at : at + JOBS_A_BATCH] for at in range(0, len(jobs), JOBS_A_BATCH)]
    results = []
    with ProcessPoolExecutor(
        min(processes, len(batches)), get_context("spawn"), _prepare, (setup,)
    ) as pool:
        try:
            for found in pool.map(_batch, [work] * len(batches), batches):
                results += found
                for _ in found:
                    advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _prepare(setup: Setup) -> None:
    global _watcher
    Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    set_up_logging("warning", setup.settings.log_json)
    _watcher = Watcher(setup)


def _end_with_parent() -> None:
    """Wait for the parent's end, then end this process.

    A signal that ends the parent leaves it no time to tell its pool, whose members would wait for
    their next job for ever. They have nothing to save.
    """
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _batch(work: Callable[[Watcher, Any], Any], jobs: Sequence[Any]) -> list[Any]:
    assert _watcher is not None
    return [work(_watcher, job) for job in jobs]
