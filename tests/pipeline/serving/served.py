"""A real ``ontrack serve`` process for tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TOOLS: list[dict[str, Any]] = [
    {"name": "Read", "effect": "read"},
    {"name": "mcp__shop__find_order", "effect": "read", "produces": ["result.order"]},
    {"name": "mcp__shop__refund", "effect": "destructive", "consumes": ["args.order"]},
]
START_S_MAX = 60.0
COMPILE_S_MAX = 600.0  # a fresh clone compiles the kernel first; a machine with others longer
QUIET_S = 0.3


@cache
def compile_kernel() -> None:
    """Leave the compiled kernel in numba's cache, once in a session and in a process of its own.

    A command that had to compile it first would take longer to start than one may wait for it.
    """
    program = "from ontrack.solver import kernels; kernels.use('auto')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=COMPILE_S_MAX)


class Listening:
    """A command in a process of its own that says where it listens.

    One that does not within :data:`START_S_MAX` is ended.

    Parameters
    ----------
    name
        What it calls itself where it says so; its log is ``name.log``.
    out
        Where its standard output goes; else to the log as well.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *command: str,
        out: Path | None = None,
        **environment: str,
    ) -> None:
        compile_kernel()
        self.log = folder / f"{name}.log"
        program = "from ontrack.pipeline.cli import main; main()"
        with self.log.open("wb") as log, ExitStack() as files:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *command],
                env=os.environ | {"ONTRACK_ENCODER": "hashing"} | environment,
                stdout=log if out is None else files.enter_context(out.open("ab")),
                stderr=log,
                cwd=folder,
            )
        try:
            self.url = self._address(re.compile(rf"ontrack {name}: (http://[^,\s]+)"))
        except BaseException:  # also of whoever stops the tests: nobody else knows of it
            self.process.kill()
            self.process.wait()
            raise

    def _address(self, said: re.Pattern[str]) -> str:
        end = time.monotonic() + START_S_MAX
        while time.monotonic() < end and self.process.poll() is None:
            found = said.search(self.log.read_text())
            if found:
                return found.group(1)
            time.sleep(0.05)
        raise AssertionError(f"did not start: {self.log.read_text()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=30)


class Served(Listening):
    """One ``ontrack serve``."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.out = folder / "serve.out"
        command = ("serve", "--port", "0", "--json", *arguments)
        super().__init__(folder, "serve", *command, out=self.out, **environment)

    def outputs(self) -> list[dict[str, Any]]:
        """What it has printed: it does so beside its answers, so until it is quiet for a moment."""
        before = -1
        while (now := self.out.stat().st_size) != before:
            before = now
            time.sleep(QUIET_S)
        return [json.loads(line) for line in self.out.read_text().splitlines()]


def tools_file(folder: Path) -> str:
    path = folder / "tools.yaml"
    path.write_text(yaml.safe_dump({"tools": TOOLS}))
    return str(path)


@contextmanager
def served(folder: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    process = Served(folder, *arguments, **environment)
    try:
        yield process
    finally:
        process.stop()
