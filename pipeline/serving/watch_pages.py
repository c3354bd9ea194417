"""Pages for those who watch: the stream, a run's events and its picture, what is known."""

from __future__ import annotations

import json
from typing import Final

from aiohttp import web

from ontrack.pipeline.gating.wire import Reply, json_reply
from ontrack.pipeline.serving.daemon import Daemon
from ontrack.pipeline.serving.stream import RECENT_MAX, TooManyReaders
from ontrack.pipeline.web import response
from ontrack.topics.errors import WrongShape
from ontrack.topics.verdicts import as_plain

NDJSON: Final = "application/x-ndjson"
_BY_WORKERS: Final = (
    "workers judge here, through Kafka; ask there: ontrack dashboard --broker, "
    "ontrack replay --from-topic --run-id, ontrack references show"
)


class WatchPages:
    """They change nothing."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def close(self, _app: web.Application) -> None:
        """End all streams: the daemon stops."""
        self._daemon.stream.close()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Hand on what the monitor says, until the reader goes; ``?recent=N`` before that."""
        recent = _recent(request.query.get("recent"))

        def abort() -> None:
            if request.transport is not None:
                request.transport.abort()

        try:
            reader = self._daemon.stream.join(recent, abort)
        except TooManyReaders as error:
            return response(json_reply(503, {"error": "TooManyReaders", "text": str(error)}))
        answer = web.StreamResponse(
            headers={
                "Content-Type": NDJSON,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
                "X-Content-Type-Options": "nosniff",
            }
        )
        try:
            await answer.prepare(request)
            async for chunk in reader.chunks(self._daemon.stream.heartbeat):
                await answer.write(chunk)
            await answer.write_eof()
        except ConnectionError:
            pass  # gone, or cut off: either way nobody is left to tell
        finally:
            self._daemon.stream.leave(reader)
        return answer

    async def events(self, request: web.Request) -> web.Response:
        """Return a run's events as they were folded, one a line."""
        run_id = request.match_info["run_id"]
        found = self._daemon.memory.events(run_id)
        if found is None:
            text = self._daemon.memory.why_not(run_id)
            return response(json_reply(404, {"error": "UnknownRun", "text": text}))
        lines = b"".join(b"".join(value.splitlines()) + b"\n" for value in found)
        return web.Response(body=lines, headers={"Content-Type": NDJSON})

    async def picture(self, request: web.Request) -> web.Response:
        """Fold a run again and return what there is to see of it."""
        run_id = request.match_info["run_id"]
        pictures = self._daemon.pictures
        if pictures is None:
            return response(json_reply(409, {"error": "JudgedByWorkers", "text": _BY_WORKERS}))
        try:
            picture = await pictures.json(run_id)
        except LookupError as error:
            return response(json_reply(404, {"error": "UnknownRun", "text": str(error)}))
        return response(Reply(200, picture))

    async def knowledge(self, _request: web.Request) -> web.Response:
        """Return references, contracts and tasks, redacted as events are."""
        monitor = self._daemon.monitor
        if monitor is None:
            return response(json_reply(409, {"error": "JudgedByWorkers", "text": _BY_WORKERS}))
        current = monitor.fold.library.current()
        told = {
            name: [as_plain(item) for item in items] for name, items in current._asdict().items()
        }
        return response(Reply(200, json.dumps(told).encode()))


def _recent(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise WrongShape("parameter 'recent' of the address should be a number from 0")
    return min(int(text), RECENT_MAX)
