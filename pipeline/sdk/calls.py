"""One call of a tool: asked about, run, reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import structlog

from ontrack.pipeline.gating.answers import GateAnswer
from ontrack.pipeline.sdk.arguments import Binder, plain
from ontrack.pipeline.sdk.background import Background
from ontrack.pipeline.sdk.client import Blocked, Monitor
from ontrack.pipeline.sdk.current import current_run
from ontrack.pipeline.sdk.sync import SyncMonitor
from ontrack.topics.events import ErrorInfo

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Run = Monitor | SyncMonitor

ERROR_CHARACTERS_MAX: Final = 4000

# The call that is running in this context; calls inside it become its parents.
_running: ContextVar[Call | None] = ContextVar("ontrack_call", default=None)


class _Raise:
    def __repr__(self) -> str:
        return "raise Blocked"


#: What a blocked call does unless told otherwise.
RAISE: Final = _Raise()


@dataclass(frozen=True, slots=True)
class Spec:
    """What a decorated function is to the monitor.

    Parameters
    ----------
    name, action
        The tool's name; what it is called for.
    binder
        Names its arguments.
    blocked
        What a blocked call returns; ``RAISE``: it raises.
    is_gated
        Whether the gate is asked.
    """

    name: str
    action: str | None
    binder: Binder
    blocked: Any = RAISE
    is_gated: bool = True


def run_of(given: Run | None) -> Run | None:
    """Return the run that a call belongs to: the one given, else the current one."""
    found = current_run() if given is None else given
    return found if isinstance(found, Monitor | SyncMonitor) else None


class _Home:
    """Where the methods of a run have to be called, and how that is waited for."""

    def __init__(self, run: Run) -> None:
        self.monitor = run.monitor if isinstance(run, SyncMonitor) else run
        self._background: Background | None = None
        if isinstance(run, SyncMonitor):
            self._background = run.background
        if self.monitor.loop is None:
            raise RuntimeError(
                f"the run {self.monitor.run_id!r} has not begun or is over; call its tools inside "
                "its with block"
            )
        self._loop = self.monitor.loop

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of the monitor's, in a plain function."""
        if self._background is not None:
            return self._background.wait(work)
        if _loop_here() is not self._loop:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        if not self.monitor.answers_at_once:
            work.close()
            raise RuntimeError(
                "a tool that is a plain function was called on the event loop of its run, which "
                "would stand still while the monitor is asked; make it async, call it with "
                "asyncio.to_thread, or use SyncMonitor"
            )
        return _at_once(work)

    async def awaited(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of the monitor's, in an async function."""
        if self._background is not None:
            try:
                self._background.check()
            except BaseException:
                work.close()
                raise
        if _loop_here() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits to its end, without the loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("the monitor of this process waits for nothing")


@dataclass(slots=True)
class Call:
    """One call; made when it begins."""

    spec: Spec
    home: _Home
    args: dict[str, Any]
    above: Call | None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    below: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, spec: Spec, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Begin a call with these arguments."""
        home = _Home(run)
        above = _running.get()
        is_same_run = above is not None and above.home.monitor is home.monitor
        return cls(spec, home, spec.binder.bind(args, kwargs), above if is_same_run else None)

    async def ask(self) -> bool:
        """Ask the gate whether the call may run.

        Raises
        ------
        Blocked
            It may not, and nothing was given to be returned instead.
        """
        if not self.spec.is_gated:
            return True
        answer: GateAnswer = await self.home.monitor.check(
            self.spec.name, self.args, action=self.spec.action
        )
        if not answer.allowed and self.spec.blocked is RAISE:
            raise Blocked(answer)
        self.started_at = datetime.now(UTC)  # the tool's time, not the gate's
        return answer.allowed

    async def report(self, result: Any = None, error: BaseException | None = None) -> None:
        """Report how the call went; what goes wrong with that is not the agent's concern."""
        monitor = self.home.monitor
        seq = monitor.next_seq
        try:
            await monitor.step(
                self.spec.name,
                self.args,
                result=plain(result),
                error=None if error is None else _error_of(error),
                action=self.spec.action,
                parents=tuple(sorted(self.below)) or None,
                started_at=self.started_at,
                ended_at=datetime.now(UTC),
            )
        except Exception as problem:  # noqa: BLE001
            # Whatever it is, also the fault of somebody's `on_output`: the tool has run, and its
            # result is its caller's.
            _log.warning(
                "step_not_reported",
                run_id=monitor.run_id,
                tool=self.spec.name,
                error=type(problem).__name__,
            )
        # A step that nobody could read has given its number back: it will be another call's.
        if self.above is not None and monitor.next_seq != seq:
            self.above.below.append(seq)

    def inside(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function such that calls in it know what they are part of."""
        token = _running.set(self)
        try:
            return work(*args, **kwargs)
        finally:
            _running.reset(token)

    async def inside_async(self, work: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """As :meth:`inside`, of a coroutine."""
        token = _running.set(self)
        try:
            return await work(*args, **kwargs)
        finally:
            _running.reset(token)


def _error_of(error: BaseException) -> ErrorInfo:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (an error that cannot say what it is)
        text = ""
    return ErrorInfo(type=type(error).__name__, message=plain(text[:ERROR_CHARACTERS_MAX]))
