"""``bench hooks``: a coding agent's hooks answered by a real daemon over HTTP, at a steady rate."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import numpy as np
import orjson

from ontrack.pipeline.bench.pipeline import Figure
from ontrack.pipeline.bench.workload import fleet
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.events import Step

WARM_UP_SHARE = 0.1
START_S_MAX = 60.0
HOOKS_PATH = "/v1/hooks/claude-code"
_ADDRESS = re.compile(rb"ontrack serve: (http://[^,\s]+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: which session it belongs to, and its body."""

    session: str
    body: bytes


def requests_of(count: int, seed: int) -> list[Asked]:
    """Return hooks before and after each call of generated runs that go on side by side."""
    found: list[Asked] = []
    for number, message in enumerate(fleet(count, seed=seed)):
        event = codecs.decode_event(message.value).event
        if not isinstance(event, Step):
            continue
        body: dict[str, Any] = {
            "session_id": event.run_id,
            "transcript_path": f"/tmp/{event.run_id}.jsonl",
            "cwd": "/home/agent/project",
            "tool_name": event.tool,
            "tool_input": event.args,
            "tool_use_id": f"toolu_{number}",
        }
        before = body | {"hook_event_name": "PreToolUse"}
        after = body | {"hook_event_name": "PostToolUse", "tool_response": event.result}
        found += [Asked(event.run_id, orjson.dumps(each)) for each in (before, after)]
    return found[:count]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from when a request was due to its answer; of hooks and of a bare page."""

    hooks: list[float]
    bare: list[float]
    answers: dict[str, int]


async def measure(settings: Settings, rate: float, seconds: float) -> Times:
    """Send hooks at a rate, and as many requests of the page that does nothing, by turns.

    Raises
    ------
    BrokerUnavailable
        The daemon does not start, or answers with an error.
    """
    load = requests_of(int(rate * seconds), seed=1)
    gc.collect()
    gc.disable()  # of this process, the instrument; the daemon has its own
    try:
        async with daemon(settings) as url, aiohttp.ClientSession() as session:
            bare = await _bare(session, f"{url}/healthz", rate, len(load) // 4)
            hooks, answers = await _hooks(session, url + HOOKS_PATH, load, rate)
    finally:
        gc.enable()
    return Times(_warm(hooks), _warm(bare), answers)


def figures(times: Times, rate: float) -> list[Figure]:
    """Return the rows of the table."""
    bare = _figure("bare_page", rate, times.bare, None)
    return [_figure("hooks", rate, times.hooks, bare.p50_us), bare]


def _figure(name: str, rate: float, seconds: Sequence[float], bare_us: float | None) -> Figure:
    p50, p95, p99 = (1e6 * np.percentile(seconds, [50, 95, 99])).tolist()
    ratio = None if bare_us is None else p50 / bare_us
    ratio_to = None if bare_us is None else "bare_page"
    size = f"at {rate:g} requests/s"
    return Figure(name, size, p50, p95, p99, rate, ratio_to, ratio, len(seconds))


def _warm(times: Sequence[float]) -> list[float]:
    return list(times[int(len(times) * WARM_UP_SHARE) :])


async def _bare(session: aiohttp.ClientSession, url: str, rate: float, count: int) -> list[float]:
    async def ask(due: float) -> float:
        async with session.get(url) as answer:
            await answer.read()
        return perf_counter() - due

    return await _at_a_rate([ask] * count, rate)


async def _hooks(
    session: aiohttp.ClientSession, url: str, load: Sequence[Asked], rate: float
) -> tuple[list[float], dict[str, int]]:
    turns: dict[str, asyncio.Lock] = {}
    answers: dict[str, int] = {}

    def asker(asked: Asked) -> Any:
        async def ask(due: float) -> float:
            # A host waits for each answer before it goes on.
            async with (
                turns.setdefault(asked.session, asyncio.Lock()),
                session.post(url, data=asked.body) as answer,
            ):
                told = await answer.read()
            if answer.status != 200:
                raise BrokerUnavailable(f"the daemon answered {answer.status}: {told[:500]!r}")
            own = orjson.loads(told).get("hookSpecificOutput", {})
            kind = own.get("permissionDecision") or ("context" if own else "nothing")
            answers[kind] = answers.get(kind, 0) + 1
            return perf_counter() - due

        return ask

    return await _at_a_rate([asker(each) for each in load], rate), answers


async def _at_a_rate(asks: Sequence[Any], rate: float) -> list[float]:
    """Begin each when it is due, whether the others are done or not; return their seconds."""
    began = perf_counter()
    tasks = []
    for number, ask in enumerate(asks):
        due = began + number / rate
        ahead = due - perf_counter()
        if ahead > 0:
            await asyncio.sleep(ahead)
        # From when it was sent, or was due where the sender itself was late.
        tasks.append(asyncio.create_task(ask(max(due, perf_counter()))))
    return list(await asyncio.gather(*tasks))


@asynccontextmanager
async def daemon(settings: Settings, *arguments: str) -> AsyncIterator[str]:
    """Run ``ontrack serve`` with contracts for the generated runs; give its address.

    Raises
    ------
    BrokerUnavailable
        It does not start; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="ontrack-bench-") as name:
        tools, log = Path(name) / "tools.json", Path(name) / "serve.log"
        tools.write_bytes(
            orjson.dumps({"tools": [orjson.loads(codecs.encode(each)) for each in contracts()]})
        )
        own = settings.model_dump(include={"profile", "encoder", "kernel"})
        environment = os.environ | {f"ONTRACK_{key.upper()}": value for key, value in own.items()}
        program = "from ontrack.pipeline.cli import main; main()"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", program, "serve", "--port", "0", "--tools", str(tools)),
                *arguments,
                env=environment,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=file,
            )
        try:
            yield await _address(process, log)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    end = perf_counter() + START_S_MAX
    while perf_counter() < end and process.returncode is None:
        found = _ADDRESS.search(log.read_bytes())
        if found is not None:
            return found.group(1).decode()
        await asyncio.sleep(0.05)
    raise BrokerUnavailable(
        f"`ontrack serve` did not start: {log.read_text(errors='replace')[-2000:]}"
    )
