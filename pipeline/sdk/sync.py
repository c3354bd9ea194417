"""A run of an agent that knows no event loop."""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog

from ontrack.pipeline.gating.answers import GateAnswer, Refusal
from ontrack.pipeline.sdk.background import Background, ForkedRun, background
from ontrack.pipeline.sdk.client import Monitor
from ontrack.pipeline.sdk.current import set_current_run
from ontrack.topics.errors import OnTrackError
from ontrack.topics.events import ErrorInfo, Outcome
from ontrack.topics.verdicts import Output

__all__ = ["ForkedRun", "SyncMonitor"]

_log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
EXIT_S_MAX = 3.0


def _made_with(
    make: Callable[P, Monitor],
) -> Callable[
    [Callable[[SyncMonitor, Monitor], None]], Callable[Concatenate[SyncMonitor, P], None]
]:
    """Let ``__init__`` take what a monitor is made with, by the same names and types."""

    def decorate(
        begin: Callable[[SyncMonitor, Monitor], None],
    ) -> Callable[Concatenate[SyncMonitor, P], None]:
        @functools.wraps(Monitor.__init__)
        def made(self: SyncMonitor, /, *args: P.args, **kwargs: P.kwargs) -> None:
            begin(self, make(*args, **kwargs))

        return made

    return decorate


class SyncMonitor:
    """A :class:`~ontrack.pipeline.sdk.client.Monitor` whose methods block.

    Parameters, results and errors are those of the methods of the same names there. The work is
    done on an event loop in a thread of this process, one for all runs, so that a monitor in this
    process may be shared by them and several threads may report to one run. A run that is still
    open when the program ends is ended with the outcome ``unknown``.

    After a fork the child must begin a run of its own; this one says so
    (:class:`~ontrack.pipeline.sdk.background.ForkedRun`).

    Examples
    --------
    >>> from ontrack.topics.knowledge import ToolContract
    >>> pay = ToolContract(name="pay", effect="destructive", consumes=("args.order",))
    >>> find = ToolContract(name="find", effect="read", produces=("result.order",))
    >>> from ontrack.pipeline.embedded import EmbeddedMonitor
    >>> from ontrack.pipeline.settings import Settings
    >>> settings = Settings(encoder="hashing")
    >>> monitor = EmbeddedMonitor(settings, contracts=[pay, find])
    >>> with SyncMonitor(embedded=monitor, run_id="r-1", settings=settings) as run:
    ...     early = run.check("pay", {"order": "ord-12345"})
    ...     (verdict,) = run.step("find", result={"order": "ord-12345"})
    ...     answer = run.check("pay", {"order": "ord-12345"})
    ...     print(early.decision, verdict.verdict, answer.decision, run.redeem(answer))
    block OK allow None
    """

    @_made_with(Monitor)
    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._background: Background | None = None
        self._run_before: object | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.monitor.run_id

    @property
    def next_seq(self) -> int:
        """Number of the next step."""
        return self.monitor.next_seq

    def __enter__(self) -> SyncMonitor:
        self._background = background()
        try:
            self._wait(self.monitor.__aenter__())
        except BaseException:
            self._background = None
            raise
        _open.add(self)
        self._run_before = set_current_run(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        set_current_run(self._run_before)
        self._run_before = None
        _open.discard(self)
        try:
            self._wait(self.monitor.__aexit__(kind, error, traceback))
        finally:
            self._background = None

    def check(
        self,
        tool: str,
        args: dict[str, Any] | None = None,
        *,
        action: str | None = None,
        call_id: str | None = None,
        raise_on_block: bool = False,
        deadline_ms: float | None = None,
    ) -> GateAnswer:
        """Ask whether a call may run, before it does."""
        return self._wait(
            self.monitor.check(
                tool,
                args,
                action=action,
                call_id=call_id,
                raise_on_block=raise_on_block,
                deadline_ms=deadline_ms,
            )
        )

    def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use a decision for its call, right before it runs; None if that is fine."""
        return self._wait(self.monitor.redeem(answer))

    def step(
        self,
        tool: str,
        args: dict[str, Any] | None = None,
        *,
        result: Any = None,
        error: ErrorInfo | str | None = None,
        action: str | None = None,
        **more: Any,
    ) -> tuple[Output, ...]:
        """Report a call that has run."""
        return self._wait(
            self.monitor.step(tool, args, result=result, error=error, action=action, **more)
        )

    def end(
        self, outcome: Outcome, *, reward: float | None = None, reason: str | None = None
    ) -> tuple[Output, ...]:
        """End the run before the block does; the first end counts."""
        return self._wait(self.monitor.end(outcome, reward=reward, reason=reason))

    def _wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if self._background is None:
            work.close()
            raise RuntimeError("the run has not begun or is over: use it in a with statement")
        return self._background.wait(work, timeout_s)

    @property
    def background(self) -> Background | None:
        """Where the work is done while the block is open."""
        return self._background

    def end_with_the_program(self) -> None:
        """End a run whose block was never left, within a few seconds."""
        why = "the program ended inside the run"
        try:
            self._wait(self.monitor.end("unknown", reason=why), EXIT_S_MAX)
        except (OnTrackError, TimeoutError) as error:
            # Nothing may keep a program from ending; the monitor closes silent runs by itself.
            _log.warning("run_end_not_sent", run_id=self.run_id, error=type(error).__name__)


_open: weakref.WeakSet[SyncMonitor] = weakref.WeakSet()


def _end_all() -> None:
    for run in list(_open):
        run.end_with_the_program()


atexit.register(_end_all)
