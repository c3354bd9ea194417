"""Scores as a JUnit file for CI: a test case a threshold, and one a run.

A run fails where it has a defect whose threshold was exceeded, so that the file is red exactly
when the command fails. Runs wait in a temporary file until the thresholds are known.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, BinaryIO, Self
from xml.etree import ElementTree

from ontrack.operators.scoring_results import (
    MISSING_STEP,
    OVER_BUDGET,
    OVER_COST,
    OVER_LATENCY,
    UNSAFE,
)
from ontrack.pipeline.scoring.files import PASSING, ScoredRun
from ontrack.pipeline.scoring.thresholds import COVERAGE, DESTRUCTIVE, LOOK, Check
from ontrack.pipeline.scoring.worst import worth_looking_at
from ontrack.pipeline.terminal import printable


class JUnit:
    """Collects runs, then writes the file."""

    def __init__(self, repeat_ratio_max: float = 0.7) -> None:
        self._repeat_ratio_max = repeat_ratio_max
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spool.close()

    def add(self, run: ScoredRun) -> None:
        """Take one run."""
        worth = worth_looking_at(run, self._repeat_ratio_max)
        line = {
            "task": run.task_id or "(no task)",
            "run": run.run_id,
            "time": run.score.latency_s,
            "found": sorted(_found(run)),
            "text": "\n".join(worth.reasons) if worth else "",
        }
        self._spool.write(json.dumps(line).encode("ascii") + b"\n")
        self._runs += 1

    def write(self, out: BinaryIO, checks: Sequence[Check]) -> None:
        """Write the whole file; may be called once."""
        exceeded = {check.name for check in checks if not check.ok}
        failed_runs = sum(bool(exceeded.intersection(line["found"])) for line in self._lines())
        failed_checks = sum(not check.ok for check in checks)
        tests, failures = self._runs + len(checks), failed_runs + failed_checks
        out.write(b'<?xml version="1.0" encoding="UTF-8"?>\n')
        out.write(f'<testsuites name="ontrack score" tests="{tests}" '.encode())
        out.write(f'failures="{failures}" errors="0">\n'.encode())
        out.write(_opening("thresholds", len(checks), failed_checks))
        for check in checks:
            element = _case("ontrack.thresholds", check.name, None)
            if not check.ok:
                ElementTree.SubElement(element, "failure", message=_clean(check.text))
            out.write(_bytes(element))
        out.write(b"</testsuite>\n" + _opening("runs", self._runs, failed_runs))
        for line in self._lines():
            element = _case(line["task"], line["run"], line["time"])
            broken = sorted(exceeded.intersection(line["found"]))
            if broken:
                failure = ElementTree.SubElement(element, "failure", message=", ".join(broken))
                failure.text = _clean(line["text"])
            elif line["text"]:
                ElementTree.SubElement(element, "system-out").text = _clean(line["text"])
            out.write(_bytes(element))
        out.write(b"</testsuite>\n</testsuites>\n")

    def _lines(self) -> Iterator[dict[str, Any]]:
        self._spool.seek(0)
        for line in self._spool:
            yield json.loads(line)


def _found(run: ScoredRun) -> set[str]:
    """Return the names of thresholds that a run counts for."""
    score, passed = run.score, run.outcome == PASSING
    counting = (UNSAFE, OVER_LATENCY, OVER_COST, *((OVER_BUDGET, MISSING_STEP) if passed else ()))
    found: set[str] = {name for name in counting if name in score.defects}
    if passed:
        if score.look:
            found.add(LOOK)
        if score.missing_steps and run.reference_source == "given":
            found.add(COVERAGE)
    if any(action.response == "stop" for action in score.unsafe_actions):
        found.add(DESTRUCTIVE)
    return found


def _opening(name: str, tests: int, failures: int) -> bytes:
    return f'<testsuite name="{name}" tests="{tests}" failures="{failures}" errors="0">\n'.encode()


def _case(classname: str, name: str, seconds: float | None) -> ElementTree.Element:
    attributes = {"classname": _clean(classname), "name": _clean(name)}
    if seconds is not None:
        attributes["time"] = f"{seconds:.3f}"
    return ElementTree.Element("testcase", attributes)


def _bytes(element: ElementTree.Element) -> bytes:
    text: bytes = ElementTree.tostring(element, encoding="utf-8")
    return text + b"\n"


def _clean(text: str) -> str:
    """Drop what XML cannot hold: control characters and lone surrogates."""
    return printable(text, keep="\n")
