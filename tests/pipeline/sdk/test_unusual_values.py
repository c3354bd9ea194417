"""Values that a program holds and no message can: the gate answers, the step is judged."""

from __future__ import annotations

from typing import Any

import pytest

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.sdk.client import Monitor
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Verdict

FIND = ToolContract(name="find", effect="read")
PLAIN = Settings(encoder="hashing")
REDACTING = Settings(encoder="hashing", redact=("args.a",))
UNUSUAL: list[dict[str, Any]] = [
    {"a": 2**70},
    {"a": 10**5000},
    {"a": "\ud800"},
    {"\udfff": {"b": ["\ud800", -(2**70)]}},
    {"a": object()},
]


@pytest.mark.parametrize("settings", [PLAIN, REDACTING], ids=["plain", "redacting"])
@pytest.mark.parametrize("args", UNUSUAL, ids=["big", "huge", "half", "inside", "object"])
async def test_a_call_with_an_unusual_value_is_answered_and_judged(
    args: dict[str, Any], settings: Settings
) -> None:
    monitor = EmbeddedMonitor(settings, contracts=[FIND])
    async with Monitor(embedded=monitor, run_id="r", settings=settings) as run:
        answer = await run.check("find", args)
        silent = await run.check("find", args, deadline_ms=0)
        assert (answer.decided_by, silent.decided_by) == ("monitor", "policy")
        assert answer.call_sha256 == silent.call_sha256
        _, verdict = await run.step("find", args, result=args, action="\ud800", error="\ud800")
        assert isinstance(verdict, Verdict)
        assert run.next_seq == 1


async def test_a_call_that_holds_itself_is_refused_in_words() -> None:
    circle: dict[str, Any] = {}
    circle["a"] = circle
    monitor = EmbeddedMonitor(PLAIN, contracts=[FIND])
    async with Monitor(embedded=monitor, run_id="r", settings=PLAIN) as run:
        with pytest.raises(InvalidEvent, match="flatten"):
            await run.check("find", circle, deadline_ms=0)
        with pytest.raises(InvalidEvent, match="flatten"):
            await run.check("find", circle)
