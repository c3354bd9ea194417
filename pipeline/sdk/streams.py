"""Tools that are generators: one step each, reported when they end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from functools import partial
from typing import Any, Final

from ontrack.pipeline.sdk.calls import Call

#: Items whose values are reported; of more it is told how many there were.
ITEMS_MAX: Final = 1000


class _Seen:
    """What a generator has yielded."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.count = 0

    def add(self, item: Any) -> None:
        self.count += 1
        if self.count <= ITEMS_MAX:
            self.items.append(item)

    @property
    def result(self) -> list[Any]:
        left_out = self.count - len(self.items)
        return [*self.items, f"… and {left_out} more"] if left_out else self.items


def stream(call: Call, made: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Hand on what a generator yields; ask before its first item, report after its last.

    Closed early by its consumer, it is reported with what was yielded so far, without an error.
    """
    if not call.home.wait(call.ask()):
        made.close()
        return None
    seen = _Seen()
    go_on = partial(made.send, None)
    try:
        while True:
            try:
                item = call.inside(go_on)
            except StopIteration as end:
                call.home.wait(call.report(seen.result))
                return end.value
            seen.add(item)
            try:
                go_on = partial(made.send, (yield item))
            except GeneratorExit:
                raise
            except BaseException as thrown:  # noqa: BLE001 (the generator's to handle)
                go_on = partial(made.throw, thrown)
    except GeneratorExit:
        made.close()
        call.home.wait(call.report(seen.result))
        raise
    except BaseException as error:
        call.home.wait(call.report(seen.result, error))
        raise


async def async_stream(call: Call, made: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """As :func:`stream`, of an async generator."""
    if not await call.home.awaited(call.ask()):
        await made.aclose()
        return
    seen = _Seen()
    go_on = partial(made.asend, None)
    try:
        while True:
            try:
                item = await call.inside_async(go_on)
            except StopAsyncIteration:
                break
            seen.add(item)
            try:
                go_on = partial(made.asend, (yield item))
            except GeneratorExit:
                raise
            except BaseException as thrown:  # noqa: BLE001 (the generator's to handle)
                go_on = partial(made.athrow, thrown)
    except GeneratorExit:
        await made.aclose()
        await call.home.awaited(call.report(seen.result))
        raise
    except BaseException as error:
        await call.home.awaited(call.report(seen.result, error))
        raise
    await call.home.awaited(call.report(seen.result))
