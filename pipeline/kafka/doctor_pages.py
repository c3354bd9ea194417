"""Doctor: the pages of the workers, as another worker or an agent would reach them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

import aiohttp
from aiokafka.errors import KafkaError
from pydantic import ValidationError

from ontrack.pipeline.checks import Check
from ontrack.pipeline.gating.wire import GATE_PATH
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.history import Where, opened
from ontrack.pipeline.kafka.owners import Claim
from ontrack.pipeline.kafka.provision import partition_counts
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import OnTrackError

PAGE_S_MAX: Final = 5.0
RUN_ID: Final = "ontrack-doctor"
_BUILD: Final = re.compile(r'^ontrack_build_info\{[^}]*version="([^"]*)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Found:
    """The check, and the addresses of the workers that are ready."""

    check: Check
    urls: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Page:
    url: str
    problem: str | None
    version: str | None = None


async def worker_check(settings: Settings) -> Found:
    """Ask every worker that says it has a partition whether it is ready."""
    try:
        owners = await _owners(settings)
        count = (await partition_counts(settings))[topics_of(settings).events.name]
    except (OnTrackError, KafkaError) as error:
        return Found(Check("workers", False, str(error), "see the broker's log"))
    urls = sorted(set(owners.values()))
    if not urls:
        fix = "wait until a worker has its partitions; its log says partitions_assigned"
        return Found(Check("workers", False, "no worker has said where it can be reached", fix))
    async with _session(settings) as session:
        pages = await asyncio.gather(*(_page(session, url) for url in urls))
    ready = [page.url for page in pages if page.problem is None]
    amiss = [f"{page.url}: {page.problem}" for page in pages if page.problem is not None]
    others = sorted({page.version for page in pages if page.version} - {version("ontrack")})
    if others:
        amiss.append(f"version {', '.join(others)} runs there, {version('ontrack')} here")
    orphans = [str(number) for number in range(count) if number not in owners]
    if orphans:
        amiss.append(
            f"no worker has partitions {', '.join(orphans)}: stop all workers, wait until "
            "nobody is in the group (10 s), start them"
        )
    if amiss:
        fix = (
            "a worker that rebuilds is not ready yet; for the others see web_advertised_url and "
            "web_token, and ask from where the workers can be reached"
        )
        return Found(Check("workers", False, "; ".join(amiss), fix), ready)
    return Found(Check("workers", True, f"ready: {', '.join(ready)}"), ready)


async def gate_check(settings: Settings, url: str) -> Check:
    """Ask the gate about a call of nobody's."""
    question = {"run_id": RUN_ID, "tool": RUN_ID, "args": {}}
    fix = "see docs/operating.md#runbook-the-gate-answers-by-policy"
    began = time.monotonic()
    try:
        async with _session(settings) as session, session.post(url + GATE_PATH, json=question) as r:
            body = await r.read()
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
        return Check("gate", False, f"{url}: {type(error).__name__}", fix)
    took = f"{(time.monotonic() - began) * 1000:.1f} ms"
    try:
        answer = json.loads(body)
        said, by = answer["decision"], answer["decided_by"]
    except (ValueError, KeyError, TypeError):
        return Check("gate", False, f"{url}: status {r.status}, which is no answer", fix)
    detail = f"{url} says {said} of an unknown tool, by the {by}, in {took}"
    return Check("gate", by == "monitor", detail, "" if by == "monitor" else fix)


async def _owners(settings: Settings) -> dict[int, str]:
    """Return who has claimed which partition last, by the topic of owners."""
    found: dict[int, str] = {}
    async with opened(settings, topics_of(settings).owners.name) as history:
        async for batch in history.read(await history.spans(Where())):
            for message in batch:
                try:
                    claim = Claim.model_validate_json(message.value or b"")
                except ValidationError:
                    continue  # workers log it when they meet it
                found[claim.partition] = claim.url
    return found


@asynccontextmanager
async def _session(settings: Settings) -> AsyncIterator[aiohttp.ClientSession]:
    token = settings.web_token
    headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
    timeout = aiohttp.ClientTimeout(total=PAGE_S_MAX)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        yield session


async def _page(session: aiohttp.ClientSession, url: str) -> _Page:
    try:
        async with session.get(f"{url}/readyz", allow_redirects=False) as answer:
            status = answer.status
        if status == 401:
            return _Page(url, "does not take this web_token")
        if status != 200:
            return _Page(url, "not ready" if status == 503 else f"status {status} from /readyz")
        async with session.get(f"{url}/metrics", allow_redirects=False) as answer:
            told = _BUILD.search(await answer.text())
        return _Page(url, None, None if told is None else told[1])
    except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
        return _Page(url, f"cannot be reached ({type(error).__name__})")
