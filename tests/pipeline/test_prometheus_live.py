"""A real Prometheus scrapes a real worker under load: rules, board and probe are tried on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, demo_runs, references, simulate_faulty, task_ids
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from tests.deploy.tools import KUBERNETES, PROMETHEUS, metrics_in, queries, rules, tool
from tests.pipeline.fleet import (
    WAIT_S,
    WorkerProcess,
    free_port,
    produce,
    provision,
    settings_for,
)

TOKEN = "a token of the test's own"
#: What comes from processes or exporters that do not run here, after a whole minute, or not at all.
NOT_HERE = {"ontrack_alerts_total", "ontrack_telemetry_exported_total", "ALERTS"}
NOT_HERE |= {"ontrack_telemetry_dropped_total"}
NOT_HERE |= {"ontrack_fleet_aggregates_total", "ontrack_fleet_skipped_total"}


def get(url: str, token: str | None = None) -> bytes:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as page:
        return bytes(page.read())


def wait_until(is_so: Any, what: str, log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # urllib's errors are
            if is_so():
                return
        time.sleep(0.2)
    raise AssertionError(f"{what}; the log ends:\n{log.read_text(errors='replace')[-3000:]}")


@dataclass
class Prometheus:
    """One that scrapes a worker every second, by the files of deploy/prometheus."""

    directory: Path
    worker_port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": "1s",
        }
        config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
        jobs = {job["job_name"]: job for job in config["scrape_configs"]}
        targets = {"ontrack-worker": self.worker_port, "ontrack-alerts": free_port()}
        assert set(jobs) == set(targets)
        for name, port in targets.items():
            jobs[name]["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
        (self.directory / "web-token").write_text(f"{TOKEN}\n", encoding="utf-8")
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = self.directory / "prometheus.log"
        self.process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={self.directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("wb"),
        )
        wait_until(lambda: get(f"{self.url}/-/ready"), "Prometheus does not start", self.log)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=WAIT_S)

    def api(self, path: str, **parameters: str) -> Any:
        question = urllib.parse.urlencode(parameters)
        answer = json.loads(get(f"{self.url}/api/v1/{path}?{question}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        return list(self.api("query", query=expression)["result"])


@dataclass
class Watched:
    """What all tests here look at."""

    settings: Settings
    worker: WorkerProcess
    prometheus: Prometheus


def odd_run() -> list[Event]:
    """A run whose steps have a gap: its step is accepted with a flag."""
    run = {"run_id": "odd", "task_id": "odd"}
    return [
        RunStarted(**run),
        *(Step(**run, seq=seq, tool="look", args={"at": seq}, result=1) for seq in (0, 3)),
        RunEnded(**run, outcome="success"),
    ]


def ask_the_gate(port: int, number: int) -> None:
    question = {"run_id": f"asked-{number}", "tool": "issue_refund", "args": {"order": str(number)}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/gate",
        json.dumps(question).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def load(settings: Settings, port: int, stop: threading.Event) -> None:
    """Runs with and without faults, messages that cannot be read, questions to the gate."""
    events = topics_of(settings).events.name
    asyncio.run(send_events(settings, [e for run in demo_runs() for e in run.events], None))
    asyncio.run(send_events(settings, odd_run(), None))
    number = 0
    while not stop.is_set():
        tasks = task_ids()
        made = simulate_faulty(tasks[number % len(tasks)], number, None, f"load-{number}")
        asyncio.run(send_events(settings, made.events, None))
        asyncio.run(produce(settings, events, [(b"junk", b"this is not JSON")]))
        ask_the_gate(port, number)
        number += 1


@pytest.fixture(scope="module")
def watched(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A worker under load, and a Prometheus that has scraped it for a while."""
    tool("prometheus")
    settings = settings_for(broker, f"prometheus{free_port()}.")
    asyncio.run(provision(settings))
    asyncio.run(send_knowledge(settings, references(), contracts(), ()))
    directory = tmp_path_factory.mktemp("prometheus")
    worker = WorkerProcess(settings, directory, more={"ONTRACK_WEB_TOKEN": TOKEN})
    prometheus = Prometheus(directory, worker.port)
    stop = threading.Event()
    loading = threading.Thread(target=load, args=(settings, worker.port, stop))
    try:
        worker.start()
        ready = f"http://127.0.0.1:{worker.port}/readyz"
        wait_until(lambda: get(ready, TOKEN), "the worker is not ready", worker.log)
        prometheus.start()
        loading.start()
        # The gap of `odd_run` is waited for; all else has come long before.
        flagged = "sum(ontrack_flagged_steps_total)"
        wait_until(lambda: prometheus.query(flagged), "no flag was scraped", worker.log)
        scraped = 'count_over_time(sum(ontrack_gate_seconds_count{way="local"})[1m:1s]) > 5'
        wait_until(lambda: prometheus.query(scraped), "no gate was scraped", worker.log)
        time.sleep(3)  # rates need two samples of what was seen last
        yield Watched(settings, worker, prometheus)
    finally:
        stop.set()
        if loading.ident is not None:
            loading.join(timeout=WAIT_S)
        prometheus.stop()
        worker.stop()


def test_the_worker_is_up_and_shows_itself_to_nobody_without_the_token(watched: Watched) -> None:
    (up,) = watched.prometheus.query('up{job="ontrack-worker"}')
    assert up["value"][1] == "1"
    targets = watched.prometheus.api("targets")["activeTargets"]
    (worker,) = [t for t in targets if t["labels"]["job"] == "ontrack-worker"]
    assert worker["lastError"] == ""
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(f"http://127.0.0.1:{watched.worker.port}/metrics")


def test_every_rule_is_evaluated_without_an_error(watched: Watched) -> None:
    def found() -> list[Any]:
        groups = watched.prometheus.api("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def evaluated() -> bool:
        return all(rule["health"] != "unknown" for rule in found())

    wait_until(evaluated, "not every rule was evaluated", watched.prometheus.log)
    amiss = {rule["name"]: rule.get("lastError") for rule in found() if rule["health"] != "ok"}
    assert amiss == {}
    assert {rule["name"] for rule in found()} == {rule["alert"] for rule in rules()}


def test_a_rule_fires_on_what_really_happened(watched: Watched) -> None:
    firing = 'ALERTS{alertname="OnTrackDeadLetters",alertstate="firing",error="MalformedMessage"}'
    log = watched.prometheus.log
    wait_until(lambda: watched.prometheus.query(firing), "malformed messages go unnoticed", log)
    assert watched.prometheus.query('ALERTS{alertname="OnTrackNoWorker"}') == []


@pytest.mark.parametrize(("title", "expression"), list(queries()))
def test_a_query_of_the_board_is_answered_and_has_data(
    watched: Watched, title: str, expression: str
) -> None:
    found = watched.prometheus.query(expression)
    if not metrics_in(expression) & NOT_HERE:
        assert found, f"{title}: nothing for {expression}"


def test_the_readiness_probe_of_kubernetes_tells_ready_from_not(watched: Watched) -> None:
    text = (KUBERNETES / "worker.yaml").read_text(encoding="utf-8")
    (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    program = container["readinessProbe"]["exec"]["command"][-1]
    assert ":6066/" in program

    def probe(port: int, token: str) -> int:
        environment = {"ONTRACK_WEB_TOKEN": token}
        here = program.replace(":6066/", f":{port}/")
        command = [sys.executable, "-c", here]
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    assert probe(watched.worker.port, TOKEN) == 0
    assert probe(watched.worker.port, f"{TOKEN}\n") == 0  # a Secret that was made of a file
    assert probe(watched.worker.port, "another") != 0
    assert probe(free_port(), TOKEN) != 0


def test_what_the_load_sent_was_judged(watched: Watched) -> None:
    (verdicts,) = watched.prometheus.query("sum(ontrack_verdicts_total)")
    assert float(verdicts["value"][1]) > 50
