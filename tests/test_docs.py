"""What README and docs show is run as it stands, and says what is shown.

Every command of a ``console`` block is run, in order, in one folder a document, and its output is
compared where it is shown (``…`` stands for anything). What is not run has its reason in a table
here; a block in neither is an error. Settings load, events are read, programs are run elsewhere.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli import cli
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.settings import load_settings
from ontrack.topics.codecs import decode_event
from tests.pipeline.serving.test_hooks import AFTER, BEFORE

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
HOME, PORT = "/home/ada", "8100"
LOG = re.compile(r"\d{4}-\d\d-\d\dT\S+Z \[\w+ *\]")

BROKER = "needs a broker; tests/pipeline/kafka runs these commands"
INSTALL = "downloads packages"
ENDLESS = "goes on until it is stopped"
PLACEHOLDER = "names files that only the reader has"

#: Commands that are not run here, as they are written, with why.
NOT_RUN = {
    ("README.md", "make kafka"): BROKER,
    ("README.md", "ontrack topics create"): BROKER,
    ("README.md", "ontrack worker"): BROKER,
    ("README.md", "ontrack send --demo"): BROKER,
    ("README.md", "ontrack tail --from-beginning --until-idle 5"): BROKER,
    ("README.md", "ontrack tail --json --from-beginning --until-idle 3 > live.jsonl"): BROKER,
    ("README.md", "ontrack replay --from-topic --json > again.jsonl"): BROKER,
    ("README.md", "ontrack diff live.jsonl again.jsonl | tail -1"): BROKER,
    ("README.md", "ontrack replay --from-topic --run-id demo-5-loop"): BROKER,
    (
        "README.md",
        "ontrack replay --from-topic --encoder hashing --json | ontrack diff live.jsonl -",
    ): BROKER,
    ("README.md", "ontrack dead-letters list"): BROKER,
    ("docs/alerts.md", "pip install 'ontrack[alerts]'"): INSTALL,
    ("docs/alerts.md", "ontrack alerts --test default"): "sends a message to a chat",
    ("docs/alerts.md", "ontrack alerts"): BROKER,
    ("docs/alerts.md", "ontrack replay runs/ --json | ontrack alerts -"): "sends to a chat",
    ("docs/alerts.md", "ontrack alerts --dry-run verdicts.jsonl"): PLACEHOLDER,
    ("docs/alerts.md", "ontrack dead-letters list --error AlertUndelivered"): BROKER,
    ("docs/alerts.md", "ontrack dead-letters replay --error AlertUndelivered"): BROKER,
    ("README.md", "pip install -c constraints.txt -e '.[dashboard]'"): INSTALL,
    ("README.md", "ontrack demo --dashboard"): ENDLESS,
    ("docs/dashboard.md", "pip install -c constraints.txt -e '.[dashboard]'"): INSTALL,
    ("docs/dashboard.md", "ontrack demo --dashboard"): ENDLESS,
    ("docs/dashboard.md", "ontrack dashboard --serve http://127.0.0.1:8100"): ENDLESS,
    ("docs/dashboard.md", "ontrack dashboard --broker kafka-1:9092"): BROKER,
    (
        "docs/detection.md",
        "ontrack evaluate gate|faults|loops|ranking RUNS… --tools TOOLS.json --profile default "
        "--json",
    ): PLACEHOLDER,
    ("docs/operating.md", "ontrack topics create"): BROKER,
    ("docs/operating.md", "ontrack doctor"): BROKER,
    ("docs/operating.md", "ontrack worker --instance worker-1"): BROKER,
    (
        "docs/operating.md",
        "ontrack dead-letters list --since 2026-11-30T08:00:00Z --limit 1",
    ): BROKER,
    (
        "docs/operating.md",
        "ontrack dead-letters replay --error MessageTooLarge --dry-run",
    ): BROKER,
    (
        "docs/operating.md",
        "curl -s http://127.0.0.1:6066/v1/gate -d "
        '\'{"run_id": "live-7", "tool": "issue_refund", "args": {"order": "A-17"}}\'',
    ): "asks a worker; run by tests/pipeline/gating/test_gate_http.py",
    (
        "docs/otlp.md",
        "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    ): INSTALL,
    ("docs/otlp.md", "ONTRACK_OTLP_TOPIC=otlp_spans ontrack worker"): BROKER,
    (
        "docs/otlp.md",
        "ontrack replay spans.binpb.zst",
    ): "its file is made and read by tests/pipeline/reading/test_otlp_protobuf.py",
    (
        "docs/serve.md",
        "ontrack serve --broker 127.0.0.1:9092 --gate-url http://127.0.0.1:6066",
    ): BROKER,
    (
        "docs/shadow.md",
        'ontrack shadow on --agent refund-clerk --reason "false halts since 3 a.m."',
    ): BROKER,
    ("docs/shadow.md", "ontrack shadow list"): BROKER,
    ("docs/shadow.md", "ontrack shadow off --agent refund-clerk"): BROKER,
    ("docs/tutorial.md", "make kafka"): BROKER,
    ("docs/tutorial.md", "ontrack topics create"): BROKER,
    ("docs/tutorial.md", "ontrack worker"): BROKER,
    (
        "docs/tutorial.md",
        "ontrack send new.jsonl --references refs.jsonl --tools tools.yaml",
    ): BROKER,
    ("docs/tutorial.md", "ontrack tail --from-beginning --until-idle 5"): BROKER,
    ("docs/telemetry.md", 'pip install "ontrack[otel]"'): INSTALL,
    ("docs/telemetry.md", "export ONTRACK_TELEMETRY=true"): BROKER,
    (
        "docs/telemetry.md",
        "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318",
    ): BROKER,
    ("docs/telemetry.md", "ontrack worker"): BROKER,
    (
        "docs/telemetry.md",
        "curl -s http://127.0.0.1:6066/metrics | grep '^ontrack_telemetry.*_total'",
    ): BROKER,
}
#: Commands that are run in another way, which says the same sooner.
RUN_AS = {"make demo": "ontrack demo --fast"}

#: Blocks of other languages that another test runs, by document and language.
ELSEWHERE = {
    ("README.md", "python"): "tests/pipeline/sdk/test_client.py",
    ("docs/contracts.md", "yaml"): "tests/pipeline/contracts/test_contracts.py",
    ("docs/distance.md", "pycon"): "tests/operators/test_trajectory.py",
    ("docs/otlp.md", "python"): "tests/pipeline/serving/test_exporter.py",
    ("docs/otlp.md", "yaml"): "tests/pipeline/serving/test_exporter.py",
    ("docs/scoring.md", "python"): "tests/pipeline/scoring/test_score_api.py",
    ("docs/sdk.md", "python"): "tests/pipeline/sdk/test_docs.py",
}
#: Blocks that are not run, by document and first line.
NOT_TRIED = {
    (
        "docs/operating.md",
        "import asyncio",
    ): "needs a broker; sdk/test_client.py has it",
    ("docs/decisions/0005-lambda-per-encoder.md", "import sys"): "measures for minutes",
}
#: Languages of blocks in which nothing is to be run.
SHOWN_ONLY = {"text", "mermaid", "", "{eval-rst}", "{toctree}"}

#: Settings that a block leaves to the reader.
BESIDE = {
    "docs/alerts.md": "".join(
        f'[alerts.sinks.{name}]\ntype = "webhook"\nurl = "https://example.com/{name}"\n'
        for name in ("pager", "ops", "research-chat")
    )
}


# ------------------------------------------------------------------ blocks


class Block(NamedTuple):
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    text: str


def blocks_of(document: str) -> Iterator[Block]:
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    begun: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if begun is None:
            begun = number
            continue
        language = lines[begun].strip().removeprefix("```")
        text = "\n".join(lines[begun + 1 : number]) + "\n"
        yield Block(document, begun + 1, language, text)
        begun = None
    assert begun is None, f"{document}:{begun}: the block has no end"


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]


class Command(NamedTuple):
    """A command of a console block, and the output that is shown for it."""

    line: int
    text: str
    shown: list[str]

    @property
    def name(self) -> str:
        """The command without the comment behind it."""
        return re.sub(r"\s+# .*", "", self.text.splitlines()[0]).strip()


def commands_of(block: Block) -> Iterator[Command]:
    lines = iter(enumerate(block.text.splitlines(), block.line + 1))
    command: Command | None = None
    for number, line in lines:
        if not line.startswith("$ "):
            assert command is not None, f"{block.document}:{number}: output before a command"
            command.shown.append(line)
            continue
        if command is not None:
            yield command
        text = line.removeprefix("$ ")
        while text.endswith("\\"):
            text += "\n" + next(lines)[1]
        here = re.search(r"<<'(\w+)'", text)
        while here is not None and not text.endswith(f"\n{here[1]}"):
            text += "\n" + next(lines)[1]
        command = Command(number, text, [])
    if command is not None:
        yield command


def is_run(document: str, command: Command) -> bool:
    return (document, command.name) not in NOT_RUN


CONSOLE = {
    document: [
        command
        for block in BLOCKS
        if block.document == document and block.language == "console"
        for command in commands_of(block)
    ]
    for document in DOCUMENTS
}


def matches(shown: list[str], printed: str) -> bool:
    """Tell whether an output is what is shown; ``…`` is anything, alone on a line any lines.

    Empty lines do not count, and those of the log only where a line is shown that begins like one.
    """
    logged = any(line.startswith("…  [") for line in shown)
    parts = [
        r"(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n"
        for line in map(str.rstrip, shown)
        if line
    ]
    lines = [line.rstrip() for line in printed.splitlines()]
    text = "".join(f"{line}\n" for line in lines if line and (logged or not LOG.match(line)))
    return re.fullmatch("".join(parts), text) is not None


def first_difference(shown: list[str], printed: str) -> str:
    """Name the last line up to which what is shown fits the output."""
    fits = [n for n in range(len(shown) + 1) if matches([*shown[:n], "…"], printed)]
    return f"not printed as shown: {[*shown, 'the end'][max(fits)]!r}"


# ------------------------------------------------------------------ the reader's files and folder


def write(folder: Path, name: str, *records: object) -> None:
    lines = [item if isinstance(item, str) else json.dumps(item) for item in records]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def prepare(document: str, folder: Path) -> None:
    """Write the files that a document speaks of without showing how they come about."""
    write(folder, ".venv-activate")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text("")
    step = {"type": "step", "run_id": "r"}
    if document == "docs/bad-input.md":
        write(folder, "b.jsonl", step | {"tool": "t"}, "not JSON", step | {"tool": "u"})
        (folder / "empty.jsonl").write_text("")
        (folder / "x.jsonl.xz").write_bytes(b"this was never compressed")
        write(folder, "c.jsonl", {"messages": [{"role": "user", "content": "hello"}]}, {"a": 1})
        write(folder, "t.json", {"tools": [{"effect": "read"}]})
    if document == "docs/kafka-topics.md":
        (folder / "FOLDER").mkdir()
    if document == "docs/references.md":
        write(folder, "tools.json", {"tools": [{"name": "find_order", "effect": "read"}]})
        write(folder, "runs.jsonl", *(event for n in range(4) for event in success(n)))
    if document == "docs/otlp.md":
        shutil.copy(ROOT / "tests/data/formats/otlp/ok.otlp.json", folder / "spans.json")
    if document == "docs/alerts.md":
        toml = next(b.text for b in blocks_of(document) if b.language == "toml")
        write(folder, "ontrack.toml", toml)


def success(number: int) -> Iterator[dict[str, object]]:
    """A run that refunds an order; one of them looks thrice, without anything having changed."""
    run = {"run_id": f"good-{number}", "task_id": "refund"}
    order = {"order": "A-17"}
    for _ in range(3 if number == 0 else 1):
        found = {"tool": "find_order", "args": {"customer": "Ada"}, "result": order}
        yield {"type": "step", **run, **found}
    yield {"type": "step", **run, "tool": "ask_reason", "args": order, "result": "broken"}
    yield {"type": "step", **run, "tool": "issue_refund", "args": order, "result": "paid"}
    yield {"type": "run_ended", **run, "outcome": "success"}


class Reader:
    """Somebody who types the commands of a document, one after the other."""

    def __init__(self, document: str, folder: Path) -> None:
        self.document, self.folder = document, folder
        self.home = folder / "home"
        self.home.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        programs = folder / "programs"
        programs.mkdir()
        ontrack = programs / "ontrack"
        program = "from ontrack.pipeline.cli import main; main()"
        ontrack.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{program}' \"$@\"\n")
        ontrack.chmod(0o755)
        ours = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        self.environment = ours | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "PYTHONUNBUFFERED": "1",
            "ONTRACK_SERVE_PORT": self.port,
        }
        if document != "README.md":  # which shows figures of the default encoder
            self.environment["ONTRACK_ENCODER"] = "hashing"
        self.daemons: list[subprocess.Popen[bytes]] = []
        prepare(document, folder)

    def type(self, command: Command) -> tuple[int, str]:
        """Run a command; return its exit code and all it printed, in the document's words."""
        text = RUN_AS.get(command.name, command.text).replace(f":{PORT}", f":{self.port}")
        if command.name.startswith("ontrack serve"):
            return 0, self._worded(self._serve(text))
        if self.daemons and "/v1/runs" in text and self.document.startswith("docs/hosts/"):
            self._call_tools()
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{text}\nstatus=$?\nexport -p > environment\nexit $status"],
            cwd=self.folder,
            env=self.environment,
            input=b"y\n",  # to whatever asks
            capture_output=True,
            timeout=120,
            check=False,
        )
        self._keep_exported()
        return done.returncode, self._worded(done.stdout.decode())

    def _keep_exported(self) -> None:
        kept = (self.folder / "environment").read_text()
        for name, value in re.findall(r'^declare -x ([A-Z]\w*)="(.*)"$', kept, re.MULTILINE):
            if name not in ("SHLVL", "OLDPWD", "PWD"):
                self.environment[name] = value

    def _worded(self, printed: str) -> str:
        printed = printed.replace(str(self.home), HOME).replace(str(self.folder), ".")
        return printed.replace(f":{self.port}", f":{PORT}")

    def _serve(self, text: str) -> str:
        """Start the daemon in a terminal of its own; return what it says when it is ready."""
        self.stop()
        heard = self.folder / "serve.log"
        with heard.open("wb") as log:
            arguments = ["bash", "-c", f"exec {text}"]
            self.daemons.append(
                subprocess.Popen(
                    arguments, cwd=self.folder, env=self.environment, stdout=log, stderr=log
                )
            )
        end = time.monotonic() + 60
        while time.monotonic() < end and self.daemons[-1].poll() is None:
            if b"ontrack serve: http" in heard.read_bytes():
                break
            time.sleep(0.05)
        said = heard.read_text().splitlines()
        return "\n".join(line for line in said if line.startswith("ontrack")) + "\n"

    def _call_tools(self) -> None:
        """Do what the host would do: tell of a tool call before and after it."""
        host = Path(self.document).stem
        for body in (BEFORE[host], AFTER[host]):
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/v1/hooks/{host}",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200

    def stop(self) -> None:
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGINT)
            daemon.wait(timeout=30)
        self.daemons.clear()


# ------------------------------------------------------------------ console blocks


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if any(is_run(d, c) for c in CONSOLE[d])]
)
def test_the_commands_of_a_document_print_what_it_shows(document: str, tmp_path: Path) -> None:
    if any("curl" in command.text for command in CONSOLE[document]) and not shutil.which("curl"):
        pytest.skip("the document uses curl, which is not installed")
    reader = Reader(document, tmp_path)
    try:
        for command in CONSOLE[document]:
            if not is_run(document, command):
                continue
            code, printed = reader.type(command)
            where = f"{document}:{command.line}: {command.text}\n"
            fails = any(line.startswith("ontrack: ") for line in command.shown)
            assert code == 0 or fails, f"{where}exit code {code}\n{printed}"
            if command.shown and not matches(command.shown, printed):
                pytest.fail(f"{where}{first_difference(command.shown, printed)}\n{printed}")
    finally:
        reader.stop()


def test_the_table_of_commands_that_are_not_run_holds_no_others() -> None:
    written = {(document, c.name) for document in DOCUMENTS for c in CONSOLE[document]}
    assert sorted(set(NOT_RUN) - written) == []


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        (["a"], "a\n", True),
        (["a"], "b\n", False),
        (["a …", "…", "c"], "a 1  \n\nb\nc\n", True),
        (["…", "c"], "c\n", True),
        (["a"], "a\nb\n", False),
        (["a", "…"], "a\nb\n", True),
        (["a"], "", False),
    ],
)
def test_an_output_is_compared_with_what_is_shown(
    shown: list[str], printed: str, fits: bool
) -> None:
    assert matches(shown, printed) is fits


# ------------------------------------------------------------------ blocks of other languages


def test_every_block_is_run_read_or_named_here_with_its_reason() -> None:
    tried = {"console", "sh", "toml", "json"}
    rest = [
        f"{block.document}:{block.line} {block.language}"
        for block in BLOCKS
        if block.language not in tried | SHOWN_ONLY
        and (block.document, block.language) not in ELSEWHERE
        and (block.document, block.text.splitlines()[0]) not in NOT_TRIED
    ]
    assert rest == []


def test_the_tables_of_blocks_name_what_is_there() -> None:
    assert set(ELSEWHERE) <= {(block.document, block.language) for block in BLOCKS}
    assert set(NOT_TRIED) <= {(b.document, b.text.splitlines()[0]) for b in BLOCKS}
    for (document, _), test in ELSEWHERE.items():
        assert Path(document).name in (ROOT / test).read_text(), test


def of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def id_of(block: Block) -> str:
    return f"{block.document}:{block.line}"


@pytest.mark.parametrize("block", of_language("toml"), ids=id_of)
def test_settings_that_are_shown_load(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    for name in ("OPS_CHAT", "OWN_SECRET"):
        monkeypatch.setenv(name, "whsec_" + "A" * 32)
    monkeypatch.chdir(tmp_path)
    defaults = load_settings()
    beside = BESIDE.get(block.document, "") if "sinks = [" in block.text else ""
    (tmp_path / "ontrack.toml").write_text(block.text + beside, encoding="utf-8")
    assert load_settings() != defaults
    EmbeddedMonitor(load_settings(encoder="hashing"))  # names and ranges of thresholds


@pytest.mark.parametrize("block", of_language("json"), ids=id_of)
def test_events_that_are_shown_are_events(block: Block) -> None:
    assert decode_event(block.text.encode()).event.run_id


def shell_commands() -> list[tuple[str, str]]:
    found = []
    for block in of_language("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("ontrack "):
                found.append((id_of(block), re.sub(r"\s+# .*", "", line)))
    return found


@pytest.mark.parametrize(("where", "command"), shell_commands())
def test_a_command_that_is_shown_without_its_output_is_a_real_one(where: str, command: str) -> None:
    # With --help at its end nothing runs, but unknown commands and options are still refused.
    arguments = [*shlex.split(command.partition("|")[0].partition(">")[0])[1:], "--help"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, f"{where}: {done.output}"
