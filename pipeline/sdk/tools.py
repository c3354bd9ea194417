"""Decorators: a function that is an agent's tool asks the gate and reports itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypeVar, overload

from pydantic import ValidationError

from ontrack.pipeline.sdk.arguments import Binder
from ontrack.pipeline.sdk.calls import RAISE, Call, Run, Spec, run_of
from ontrack.pipeline.sdk.declared import declare
from ontrack.pipeline.sdk.streams import async_stream, stream
from ontrack.topics.codecs import explain
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.knowledge import ToolContract

F = TypeVar("F", bound=Callable[..., Any])
EffectName = Literal["read", "write", "destructive"]


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    action: str | None = None,
    blocked: Any = RAISE,
    gate: bool = True,
    effect: EffectName | None = None,
    identity: Iterable[str] | None = None,
    produces: Iterable[str] = (),
    consumes: Iterable[str] = (),
    poll: bool = False,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    action: str | None = None,
    blocked: Any = RAISE,
    gate: bool = True,
    effect: EffectName | None = None,
    identity: Iterable[str] | None = None,
    produces: Iterable[str] = (),
    consumes: Iterable[str] = (),
    poll: bool = False,
) -> F | Callable[[F], F]:
    """Let a function that is an agent's tool ask the gate and report itself to the current run.

    The current run is the one whose ``with`` block (``async with`` for a
    :class:`~ontrack.pipeline.sdk.client.Monitor`) the call is in. Outside of any block the function
    does what it did before.

    Before the function runs, the gate is asked; then it runs; then a step is reported with its
    arguments by name (defaults included, ``self`` left out), its result or its error, and its
    times. Errors pass through. Calls of other tools inside it become its ``parents``. A generator
    is one step, reported when it ends, with the list of what it yielded.

    Parameters
    ----------
    name
        The tool's name; by default the function's.
    action
        What it is called for, in words.
    blocked
        What a call returns that the gate blocks, in place of raising
        :class:`~ontrack.pipeline.sdk.client.Blocked`. A generator yields nothing then.
    gate
        Whether the gate is asked.
    effect, identity, produces, consumes, poll
        The tool's contract, as :class:`~ontrack.topics.knowledge.ToolContract` has it. With any of
        them it is declared: runs that begin later know it.

    Raises
    ------
    InvalidSettings
        What is given makes no contract.
    TypeError
        It is no function: put the decorator below ``@classmethod`` and ``@staticmethod``.

    Examples
    --------
    >>> from ontrack.pipeline.embedded import EmbeddedMonitor
    >>> from ontrack.pipeline.sdk import SyncMonitor
    >>> from ontrack.pipeline.settings import Settings
    >>> @tool(effect="read", produces=("result.order",))
    ... def find_order(customer: str) -> dict[str, str]:
    ...     return {"order": "ord-12345"}
    >>> @tool(effect="destructive", consumes=("args.order",), blocked="not before it was found")
    ... def refund(order: str, amount: float = 10.0) -> str:
    ...     return f"{amount} paid back"
    >>> settings = Settings(encoder="hashing")
    >>> monitor = EmbeddedMonitor(settings)
    >>> with SyncMonitor(embedded=monitor, run_id="r-tool", settings=settings):
    ...     print(refund("ord-12345"))
    ...     order = find_order("Ada")["order"]
    ...     print(refund(order))
    not before it was found
    10.0 paid back
    """
    contract: dict[str, Any] = {
        "effect": effect,
        "identity": None if identity is None else tuple(identity),
        "produces": tuple(produces),
        "consumes": tuple(consumes),
        "poll": poll,
    }

    def decorate(function: F) -> F:
        spec = _spec(function, name, action, blocked, gate)
        if any(value not in (None, (), False) for value in contract.values()):
            _declare(spec.name, function, contract)
        return _wrapped(function, spec, None)

    return decorate if function is None else decorate(function)


def monitored(
    run: Run,
    *,
    name: str | None = None,
    action: str | None = None,
    blocked: Any = RAISE,
    gate: bool = True,
) -> Callable[[F], F]:
    """Let a function report itself to one run, wherever it is called; else as :func:`tool`.

    For functions that are made for a run, or that somebody else calls. The run's block must be
    open when the function is called.
    """

    def decorate(function: F) -> F:
        return _wrapped(function, _spec(function, name, action, blocked, gate), run)

    return decorate


def _spec(
    function: Callable[..., Any], name: str | None, action: str | None, blocked: Any, gate: bool
) -> Spec:
    if not callable(function) or isinstance(function, type | classmethod | staticmethod):
        raise TypeError(
            f"{function!r} is no function; put the decorator directly above a `def`, below "
            "@classmethod and @staticmethod"
        )
    found = str(name or getattr(function, "__name__", type(function).__name__))
    return Spec(found, action, Binder(function), blocked, gate)


def _declare(name: str, function: Callable[..., Any], fields: dict[str, Any]) -> None:
    about = (inspect.getdoc(function) or "").partition("\n")[0]
    try:
        contract = ToolContract(name=name, description=about or None, **fields)
    except ValidationError as error:
        text = explain(error.errors(include_url=False))
        raise InvalidSettings(f"the contract of tool {name[:80]!r}: {text}") from None
    declare(contract)


def _wrapped(function: F, spec: Spec, given: Run | None) -> F:
    wrapper: Any
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            run = run_of(given)
            made = function(*args, **kwargs)
            items: AsyncGenerator[Any, Any] = made
            if run is not None:
                items = async_stream(Call.of(spec, run, args, kwargs), made)
            go_on = partial(items.asend, None)
            async with aclosing(items):
                while True:
                    try:
                        item = await go_on()
                    except StopAsyncIteration:
                        return
                    try:
                        go_on = partial(items.asend, (yield item))
                    except GeneratorExit:
                        raise
                    except BaseException as thrown:  # noqa: BLE001 (the generator's to handle)
                        go_on = partial(items.athrow, thrown)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            run = run_of(given)
            made = function(*args, **kwargs)
            if run is None:
                return (yield from made)
            return (yield from stream(Call.of(spec, run, args, kwargs), made))

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            run = run_of(given)
            if run is None:
                return await function(*args, **kwargs)
            call = Call.of(spec, run, args, kwargs)
            if not await call.home.awaited(call.ask()):
                return spec.blocked
            try:
                result = await call.inside_async(function, *args, **kwargs)
            except BaseException as error:
                await call.home.awaited(call.report(error=error))
                raise
            await call.home.awaited(call.report(result))
            return result

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            run = run_of(given)
            if run is None:
                return function(*args, **kwargs)
            call = Call.of(spec, run, args, kwargs)
            if not call.home.wait(call.ask()):
                return spec.blocked
            try:
                result = call.inside(function, *args, **kwargs)
            except BaseException as error:
                call.home.wait(call.report(error=error))
                raise
            call.home.wait(call.report(result))
            return result

    found: F = wrapper
    return found
