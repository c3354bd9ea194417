"""A real ``ontrack dashboard`` in a real browser, for tests."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ontrack.pipeline.workplace import contracts, references
from ontrack.topics import codecs
from ontrack.topics.events import Event
from tests.pipeline.serving.served import Listening

ARTEFACTS = Path(__file__).parents[3] / ".cache" / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 20_000


def needed(module: str) -> Any:
    """Import a module of an extra; skip without it, but fail in CI."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(module)
    return pytest.importorskip(module)


def browser_path() -> str:
    """Where a Chromium is; skip without one, but fail in CI, where silence would lie."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    reason = "no Chromium here: apt-get install chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the browser tests. {reason}", pytrace=False)
    pytest.skip(reason)


class Dashboard(Listening):
    """One ``ontrack dashboard``, or the demo with one."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        command = () if arguments[:1] == ("demo",) else ("dashboard",)
        super().__init__(folder, "dashboard", *command, *arguments, "--port", "0", **environment)


@contextmanager
def dashboard(folder: Path, *arguments: str, **environment: str) -> Iterator[Dashboard]:
    process = Dashboard(folder, *arguments, **environment)
    try:
        yield process
    finally:
        code = process.stop()
    assert code == 0, process.log.read_text()


def knowledge(folder: Path) -> list[str]:
    """Options of ``ontrack serve`` that name the workplace's references and contracts."""
    lines, tools = folder / "references.jsonl", folder / "tools.json"
    lines.write_bytes(b"\n".join(map(codecs.encode, references())))
    tools.write_bytes(b'{"tools":[' + b",".join(map(codecs.encode, contracts())) + b"]}")
    return ["--references", str(lines), "--provenance", "gold", "--tools", str(tools)]


def post(url: str, events: Iterable[Event | dict[str, Any] | bytes]) -> dict[str, Any]:
    """Send events to an ``ontrack serve``; of unusable ones it makes dead letters."""

    def line(event: Event | dict[str, Any] | bytes) -> bytes:
        if isinstance(event, bytes):
            return event
        return json.dumps(event).encode() if isinstance(event, dict) else codecs.encode(event)

    body = b"\n".join(map(line, events))
    request = urllib.request.Request(url + "/v1/events", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=100) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as refusal:
        if refusal.code != 400:
            raise
        found = json.load(refusal)
    return found


class Watched:
    """A page whose console and requests are kept: neither may say anything we would regret."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text} {message.location}")

    def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"a script ran: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str = "/") -> Any:
        """Go to a page and wait until it is live."""
        self.page.goto(self.base + path)
        self.page.wait_for_function("window.did_handshake === true")
        return self.page

    def shoot(self, name: str) -> None:
        """Keep a screenshot."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)

    def check(self) -> None:
        """Nothing went wrong, and nothing was asked for elsewhere."""
        assert self.faults == [], self.faults  # this module is no test: pytest says nothing more
        host = self.base.partition("://")[2]
        ours = (f"http://{host}/", f"ws://{host}/", "data:", "blob:")
        assert [url for url in self.requests if not url.startswith(ours)] == []


def serious(page: Any) -> list[str]:
    """What axe finds at fault, serious and critical."""
    from axe_playwright_python.sync_playwright import Axe

    report = Axe().run(page).response
    assert report["passes"], "axe has looked at nothing"
    found = report["violations"]
    return [
        f"{item['id']} ({item['impact']}): {node['html'][:200]}"
        for item in found
        if item["impact"] in ("serious", "critical")
        for node in item["nodes"]
    ]


def keep_figures(name: str, figures: dict[str, Any]) -> None:
    """Print figures, and write them beside the screenshots."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=2)
    (ARTEFACTS / f"{name}.json").write_text(text + "\n")
    sys.stdout.write(f"{name}: {text}\n")
