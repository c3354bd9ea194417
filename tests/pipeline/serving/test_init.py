"""``ontrack init``: what it writes into each host's settings, that it takes out only its own, and
that the line of shell it writes does what a host expects when it is really run.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.cli.init import command
from ontrack.pipeline.serving.desk import PROMPTS
from ontrack.pipeline.serving.hooks import HOSTS
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply
from ontrack.pipeline.serving.install import merge
from ontrack.pipeline.serving.install.handlers import (
    CALL_S,
    HOST_S,
    Wanted,
    checked_url,
    handlers,
    is_ours,
)
from ontrack.pipeline.serving.install.setups import SETUPS, Setup, setup_of
from ontrack.topics.errors import InvalidFile, InvalidSettings, UnknownName, WrongShape

HOST_NAMES = sorted(SETUPS)
CURL_HOSTS = [name for name in HOST_NAMES if SETUPS[name].transport == "curl"]
OTHERS = {"type": "command", "command": "echo hi", "bash": "echo hi"}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of its own: nobody's settings are touched."""
    for name in list(os.environ):
        if name.startswith("ONTRACK_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for setup in SETUPS.values():
        if setup.home_variable:
            monkeypatch.delenv(setup.home_variable, raising=False)
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    return place


def init(*arguments: str | Path, answer: str = "") -> Result:
    """Run the command; errors of ours are raised as ``main`` would print them."""
    result = CliRunner().invoke(command, [str(word) for word in arguments], input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def settings_of(host: str, home: Path) -> Path:
    return SETUPS[host].path(None, {}, home)


def all_handlers(document: dict[str, Any], setup: Setup) -> list[tuple[str, dict[str, Any]]]:
    """Every hook of a document, the obvious way."""
    found = []
    for event, entries in document["hooks"].items():
        for entry in entries:
            for handler in entry["hooks"] if setup.shape == "grouped" else [entry]:
                found.append((event, handler))
    return found


# ---- what is written


def test_claude_codes_settings_get_http_hooks(home: Path) -> None:
    result = init("claude-code", "--yes")
    assert result.exit_code == 0
    hook = {
        "type": "http",
        "url": "http://127.0.0.1:8100/v1/hooks/claude-code",
        "headers": {"Authorization": "Bearer $ONTRACK_WEB_TOKEN"},
        "allowedEnvVars": ["ONTRACK_WEB_TOKEN"],
        "timeout": 5,
    }
    events = (
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "UserPromptSubmit",
        "SubagentStart",
        "SubagentStop",
        "SessionEnd",
    )
    written = json.loads((home / ".claude/settings.json").read_text())
    assert written == {"hooks": {event: [{"hooks": [hook]}] for event in events}}


def test_claude_code_fails_closed_before_a_call_only(home: Path) -> None:
    init("claude-code", "--fail-closed", "--yes")
    written = json.loads((home / ".claude/settings.json").read_text())
    hooks = all_handlers(written, SETUPS["claude-code"])
    assert [event for event, hook in hooks if hook.get("onFailure") == "block"] == ["PreToolUse"]
    assert [event for event, hook in hooks if "?fail=closed" in hook["url"]] == ["PreToolUse"]


@pytest.mark.parametrize(
    ("host", "path", "event", "field", "limit"),
    [
        ("codex", ".codex/hooks.json", "PreToolUse", "timeout", 10),
        ("gemini", ".gemini/settings.json", "BeforeTool", "timeout", 10_000),
        ("copilot", ".copilot/hooks/ontrack.json", "preToolUse", "timeoutSec", 10),
        ("cursor", ".cursor/hooks.json", "preToolUse", "timeout", 10),
        ("openhands", ".openhands/hooks.json", "PreToolUse", "timeout", 10),
    ],
)
def test_the_other_hosts_get_a_line_of_shell_with_the_time_limit_in_their_unit(
    home: Path, host: str, path: str, event: str, field: str, limit: int
) -> None:
    init(host, "--yes")
    written = json.loads((home / path).read_text())
    assert written.get("version") == (1 if host in ("copilot", "cursor") else None)
    found = dict(all_handlers(written, SETUPS[host]))
    assert list(found)[0] == event
    assert found[event][field] == limit
    line = found[event]["bash" if host == "copilot" else "command"]
    assert line.startswith("curl -q ")
    assert line.endswith(f"http://127.0.0.1:8100/v1/hooks/{host} || true")


def test_the_events_that_are_written_are_understood() -> None:
    bodies = {
        "claude-code": {"session_id": "s", "agent_id": "a", "tool_name": "t"},
        "codex": {"session_id": "s", "agent_id": "a", "tool_name": "t"},
        "gemini": {"session_id": "s", "tool_name": "t"},
        "cursor": {"conversation_id": "s", "tool_name": "t"},
        "openhands": {"session_id": "s", "tool_name": "t"},
        "copilot": {"sessionId": "s", "toolName": "t"},
    }
    assert all(PROMPTS.intersection(setup.events) for setup in SETUPS.values())
    for name, setup in SETUPS.items():
        key = "event_type" if name == "openhands" else "hook_event_name"
        for event in (setup.before, *setup.events):
            call = HOSTS[name].read({**bodies[name], key: event})
            assert call.moment != "other" or event in PROMPTS
            assert (call.moment == "before") == (event == setup.before)


def test_curl_gives_up_before_the_host_does() -> None:
    assert CALL_S < HOST_S


@pytest.mark.parametrize("host", HOST_NAMES)
def test_shadow_is_a_word_in_the_url(host: str, home: Path) -> None:
    init(host, "--shadow", "--yes", "--url", "https://monitor.example:9000/")
    text = settings_of(host, home).read_text()
    assert f"https://monitor.example:9000/v1/hooks/{host}?shadow=1" in text
    assert "--noproxy" not in text
    init(host, "--yes")
    assert "shadow" not in settings_of(host, home).read_text()


def test_a_project_and_the_hosts_own_variable_choose_the_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    init("copilot", "--project", project, "--yes")
    assert (project / ".github/hooks/ontrack.json").is_file()
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    init("codex", "--user", "--yes")
    assert (tmp_path / "codex/hooks.json").is_file()
    assert list(home.iterdir()) == []


# ---- nothing else is touched

EXISTING = {
    "model": "opus",
    "numbers": [1, 2.5, 10**30, "ä"],
    "hooks": {"Odd": "not a list", "PreToolUse": [{"matcher": "Bash", "hooks": [OTHERS]}]},
}


def test_what_is_there_stays_and_the_old_file_is_kept(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    before = json.dumps(EXISTING, indent=4, ensure_ascii=False)
    path.write_text(before)
    path.chmod(0o640)
    result = init("claude-code", answer="y\n")
    assert "+++ " in result.output
    assert "Write " in result.output
    written = json.loads(path.read_text())
    assert written["hooks"]["PreToolUse"][0] == EXISTING["hooks"]["PreToolUse"][0]  # type: ignore[index]
    assert len(written["hooks"]["PreToolUse"]) == 2
    assert written["hooks"]["Odd"] == "not a list"
    assert written["numbers"] == EXISTING["numbers"]
    assert '\n    "model"' in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (home / ".claude/settings.json.before-ontrack").read_text() == before
    init("claude-code", "--remove", "--yes")
    assert path.read_text() == before


def test_nothing_is_written_when_the_answer_is_no(home: Path) -> None:
    result = init("cursor", answer="n\n")
    assert result.exit_code == 1
    assert not settings_of("cursor", home).exists()
    assert not settings_of("cursor", home).parent.exists()


@pytest.mark.parametrize("host", HOST_NAMES)
def test_a_second_time_changes_nothing(host: str, home: Path) -> None:
    init(host, "--yes")
    path = settings_of(host, home)
    before = (path.read_text(), path.stat().st_mtime_ns)
    result = init(host)  # asks nothing, since there is nothing to write
    assert result.exit_code == 0
    assert result.stdout.startswith("unchanged")
    assert (path.read_text(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("host", HOST_NAMES)
def test_a_file_that_we_made_is_deleted_with_our_hooks(host: str, home: Path) -> None:
    init(host, "--yes")
    assert init(host, "--remove", answer="y\n").exit_code == 0
    assert not settings_of(host, home).exists()
    assert init(host, "--remove").output.startswith("unchanged")


@pytest.mark.parametrize("text", ["{}", "", '{"hooks": {}}', '{"hooks": {"SessionEnd": []}}\n'])
def test_a_file_with_nothing_in_it_comes_back_as_it_was(home: Path, text: str) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(text)
    init("claude-code", "--yes")
    assert path.read_text() != text
    init("claude-code", "--remove", "--yes")
    assert path.read_text() == text


def test_what_was_added_in_the_meantime_stays_when_ours_goes(home: Path) -> None:
    path = settings_of("cursor", home)
    path.parent.mkdir()
    path.write_text('{"version": 1, "hooks": {}}')
    init("cursor", "--yes")
    document = json.loads(path.read_text())
    document["hooks"]["preToolUse"].append({"command": "./mine.sh"})
    path.write_text(json.dumps(document))
    init("cursor", "--remove", "--yes")
    assert json.loads(path.read_text()) == {
        "version": 1,
        "hooks": {"preToolUse": [{"command": "./mine.sh"}]},
    }


def test_a_hook_put_into_our_group_stays_with_its_matcher() -> None:
    setup = SETUPS["claude-code"]
    ours = handlers(setup, Wanted())["PreToolUse"]
    document = {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [OTHERS, ours]}]}}
    assert merge.removed(document, setup) == {
        "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [OTHERS]}]}
    }


def test_another_tools_hook_on_the_same_path_is_not_ours() -> None:
    theirs = {"type": "http", "url": "http://localhost:8100/v1/hooks/claude-code", "timeout": 30}
    assert not is_ours(theirs, SETUPS["claude-code"])
    document = {"hooks": {"PreToolUse": [{"hooks": [theirs]}]}}
    assert merge.removed(document, SETUPS["claude-code"]) == document


def test_openhands_keeps_the_spelling_of_its_file() -> None:
    setup = SETUPS["openhands"]
    document = {"pre_tool_use": [{"matcher": "terminal", "hooks": [OTHERS]}]}
    new = merge.merged(document, setup, handlers(setup, Wanted()))
    assert set(new) == {"pre_tool_use", *setup.events}
    assert len(new["pre_tool_use"]) == 2
    assert merge.removed(new, setup) == document


def test_the_old_file_is_not_kept_where_a_project_has_laid_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "bashrc"
    mine.write_text("export EDITOR=vi")
    project = tmp_path / "cloned"
    (project / ".claude").mkdir(parents=True)
    settings_file = project / ".claude/settings.json"
    settings_file.write_text('{"model": "$(something bad)"}')
    laid = settings_file.with_name("settings.json.before-ontrack")
    laid.symlink_to(mine)
    assert init("claude-code", "--project", project, "--yes").exit_code == 0
    assert mine.read_text() == "export EDITOR=vi"
    assert not laid.is_symlink()
    assert laid.read_text() == '{"model": "$(something bad)"}'


def test_a_link_is_followed_and_stays_a_link(home: Path, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles.json"
    dotfiles.write_text("{}\n")
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.symlink_to(dotfiles)
    init("claude-code", "--yes")
    assert path.is_symlink()
    assert "hooks" in json.loads(dotfiles.read_text())


def test_line_ends_and_byte_order_mark_stay(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_bytes('\ufeff{\r\n\t"a": 1\r\n}\r\n'.encode())
    init("claude-code", "--yes")
    raw = path.read_bytes()
    assert raw.startswith('\ufeff{\r\n\t"a": 1,\r\n'.encode())
    assert raw.count(b"\n") == raw.count(b"\r\n")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@st.composite
def documents(draw: st.DrawFn, setup: Setup) -> dict[str, Any]:
    """Settings as a host has them: other fields, other hooks, on our events and on others."""
    document: dict[str, Any] = {
        f"x{name}": value
        for name, value in draw(st.dictionaries(st.text(max_size=3), JSON_VALUES)).items()
    }
    if setup.versioned:
        document["version"] = 1
    events = st.sampled_from([setup.before, *setup.events, "Another"])
    entry = st.fixed_dictionaries({"command": st.text(max_size=5)})
    if setup.shape == "grouped":
        entry = st.fixed_dictionaries(
            {"hooks": st.lists(entry, max_size=2)}, optional={"matcher": st.text(max_size=3)}
        )
    table = draw(st.dictionaries(events, st.lists(entry, min_size=1, max_size=3), max_size=3))
    if table or setup.name == "openhands":
        document["hooks"] = table
    if not table and setup.name == "openhands":
        document = {}
    return document


@settings(deadline=None)
@given(st.data())
def test_init_and_remove_give_the_original_and_init_twice_is_init_once(data: st.DataObject) -> None:
    setup = SETUPS[data.draw(st.sampled_from(HOST_NAMES))]
    document = data.draw(documents(setup))
    before = copy.deepcopy(document)
    wanted = Wanted(shadow=data.draw(st.booleans()), closed=data.draw(st.booleans()))
    new = merge.merged(document, setup, handlers(setup, wanted))
    assert document == before
    assert merge.removed(new, setup) == document
    assert list(merge.merged(new, setup, handlers(setup, wanted))) == list(new)
    assert merge.merged(new, setup, handlers(setup, wanted)) == new
    ours = [event for event, hook in all_handlers(new, setup) if is_ours(hook, setup)]
    assert sorted(ours) == sorted((setup.before, *setup.events))
    changed = merge.merged(new, setup, handlers(setup, Wanted()))
    assert merge.removed(changed, setup) == document


# ---- what cannot be merged is refused, and nothing is written


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n  // mine\n  "a": 1\n}', r"settings.json:2: not JSON \(a comment is no JSON\)"),
        ('{"a": 1,}', "settings.json:1: not JSON"),
        ("[1]", "expected an object, found an array"),
        ('{"a": 1, "a": 2}', "the name 'a' stands twice"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"hooks": []}', "`hooks`: expected an object, found an array"),
        ('{"hooks": null}', "`hooks`: expected an object, found null"),
        ('{"hooks": {"PreToolUse": {}}}', "`hooks.PreToolUse`: expected an array of objects"),
        ('{"hooks": {"PreToolUse": ["x"]}}', "`hooks.PreToolUse`: expected an array of objects"),
        ('{"hooks": {"PreToolUse": [{"hooks": 1}]}}', "`hooks.PreToolUse`: expected an array"),
        ("[" * 100_000, "nothing was written"),
    ],
)
def test_settings_that_cannot_be_written_without_loss_are_refused(
    home: Path, text: str, problem: str
) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InvalidFile, match=problem) as refused:
        init("claude-code", "--yes")
    assert "nothing was written" in str(refused.value)
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_settings_that_are_no_text_or_a_folder_are_refused(home: Path) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InvalidFile, match="cannot be read"):
        init("claude-code", "--yes")
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidFile, match="cannot be read"):
        init("claude-code", "--yes")


def test_another_version_of_cursors_file_is_refused() -> None:
    setup = SETUPS["cursor"]
    with pytest.raises(WrongShape, match="`version`: expected 1"):
        merge.merged({"version": 2}, setup, handlers(setup, Wanted()))


def test_a_file_that_changes_while_it_is_shown_is_not_overwritten(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text("{}")

    def meanwhile(*_arguments: object, **_options: object) -> bool:
        path.write_text('{"theirs": 1}')
        return True

    monkeypatch.setattr("click.confirm", meanwhile)
    with pytest.raises(InvalidFile, match="changed while it was shown"):
        init("claude-code")
    assert path.read_text() == '{"theirs": 1}'


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8100",
        "ftp://x",
        "http://",
        "http://u:p@x",
        "http://x?y=1",
        "http://x#y",
        "http://x'; rm -rf ~; '",
        "http://x/$HOME",
        "http://x:port",
        "http://[::1",
        "http://ä",
    ],
)
def test_a_url_that_does_not_belong_into_a_shell_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="--url"):
        checked_url(url)


def test_an_unknown_host_is_refused_with_the_list() -> None:
    with pytest.raises(UnknownName, match=r"'emacs'.*claude-code, codex"):
        setup_of("emacs")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--yes"],
        ["codex", "--shadow", "--fail-closed"],
        ["codex", "--remove", "--shadow"],
        ["codex", "--user", "--project", "."],
    ],
)
def test_options_that_contradict_each_other_are_bad_usage(arguments: list[str]) -> None:
    assert init(*arguments).exit_code == 2


# ---- the list of hosts


def test_without_a_host_all_are_listed_with_files_and_abilities() -> None:
    shown = init().output
    for setup in SETUPS.values():
        for word in (setup.name, setup.title, setup.shown_path(), setup.project_file):
            assert word in shown
        assert setup.fail_closed in shown
    lines = [json.loads(line) for line in init("--json").output.splitlines()]
    assert [line["name"] for line in lines] == list(SETUPS) == list(HOSTS)
    assert {line["name"]: line["can"] for line in lines}["copilot"] == ["deny", "ask"]


def test_json_says_what_was_done(home: Path) -> None:
    result = init("gemini", "--yes", "--json")
    assert json.loads(result.stdout) == {
        "type": "init",
        "host": "gemini",
        "path": str(settings_of("gemini", home)),
        "result": "written",
        "backup": None,
    }


def test_what_keeps_hooks_from_working_is_said(home: Path) -> None:
    assert "/hooks" in init("codex", "--yes").stderr
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text('{"disableAllHooks": true}')
    noted = init("claude-code", "--yes", "--fail-closed", "--url", "http://far.example").stderr
    for word in ("disableAllHooks", "unencrypted", "ONTRACK_WEB_TOKEN", "2.1.295"):
        assert word in noted


def test_what_a_host_can_do_is_what_its_answers_do() -> None:
    """The table for help and docs, against the functions that answer."""
    for name, setup in SETUPS.items():
        before = HookCall(moment="before", run_id="r", tool="t", event=setup.before)
        after = HookCall(moment="after", run_id="r", tool="t", event=setup.events[0])
        asks = json.dumps(HOSTS[name].answer(before, HookReply(decision="ask", reason="r")))
        # Cursor takes the word at this event, but does not obey it.
        assert ('"ask"' in asks) == (setup.asks or name == "cursor")
        halts = HOSTS[name].answer(after, HookReply(halt="r"))
        assert (halts.get("continue") is False) == setup.halts


# ---- the documentation


DOCS = Path(__file__).parents[3] / "docs" / "hosts"


def test_the_table_in_the_documentation_is_the_one_here() -> None:
    text = (DOCS / "README.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if "| [" in line}
    assert len(rows) == len(SETUPS)
    for name, setup in SETUPS.items():
        row = rows[f"[{setup.title}]({name}.md)"]
        can = ["deny", *["ask"] * setup.asks, *["halt"] * setup.halts]
        assert [cell.strip() for cell in row.split("|")[2:-1]] == [
            f"`{setup.shown_path()}`",
            f"`{setup.project_file}`",
            ", ".join(can),
            setup.context,
            setup.subagents,
            setup.fail_closed,
            setup.still_open,
        ]


@pytest.mark.parametrize("host", HOST_NAMES)
def test_every_init_that_a_hosts_page_shows_does_what_it_shows(host: str, home: Path) -> None:
    text = (DOCS / f"{host}.md").read_text()
    (shown,) = re.findall(r"^\$ ontrack init (.*?) +#.*\n…\n(.*)$", text, re.MULTILINE)
    result = init(*shown[0].split())
    assert result.output.splitlines()[-1] == shown[1].replace("/home/ada", str(home))
    for line in re.findall(r"`ontrack init ([^`]*)`", text):
        words = [str(home) if word == "DIR" else word for word in line.split()]
        assert init(*words, *["--yes"] * ("--yes" not in words)).exit_code == 0


# ---- the line of shell, really run


@dataclass
class Daemon:
    """A small HTTP server that remembers what was posted and answers as told."""

    answer: bytes = b"{}"
    status: int = 200
    posted: list[tuple[str, str | None, bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    told = Daemon()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802 (the name that http.server calls)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.posted.append((self.path, self.headers["Authorization"], body))
            self.send_response(told.status)
            self.send_header("Content-Length", str(len(told.answer)))
            self.end_headers()
            self.wfile.write(told.answer)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield told
    server.shutdown()
    server.server_close()
    thread.join()


def line_of(host: str, wanted: Wanted, event: str | None = None) -> str:
    hook = handlers(SETUPS[host], wanted)[event or SETUPS[host].before]
    line = hook["bash" if host == "copilot" else "command"]
    assert isinstance(line, str)
    return line


def run(
    line: str, body: bytes = b"{}", shell: str = "sh", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [shell, "-c", line],
        input=body,
        capture_output=True,
        timeout=30,
        env={**os.environ, "http_proxy": "http://127.0.0.1:9", **variables},
        check=False,
    )


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")


@needs_curl
@pytest.mark.parametrize("host", CURL_HOSTS)
def test_the_line_posts_standard_input_with_the_token_and_prints_the_answer(
    host: str, daemon: Daemon
) -> None:
    daemon.answer = '{"decision":"deny","reason":"it\'s not \\"done\\", ä"}'.encode()
    body = json.dumps({"tool_input": {"command": "echo '$HOME' \"x\"\n@file"}}).encode()
    line = line_of(host, Wanted(url=daemon.url, shadow=True))
    done = run(line, body, ONTRACK_WEB_TOKEN="it's a token")
    assert (done.returncode, done.stdout, done.stderr) == (0, daemon.answer, b"")
    assert daemon.posted == [(f"/v1/hooks/{host}?shadow=1", "Bearer it's a token", body)]


@needs_curl
@pytest.mark.parametrize("closed", [False, True])
def test_an_answer_that_allows_is_printed_whether_open_or_closed(
    daemon: Daemon, closed: bool
) -> None:
    done = run(line_of("codex", Wanted(url=daemon.url, closed=closed)))
    assert (done.returncode, done.stdout) == (0, b"{}")


@needs_curl
@pytest.mark.parametrize("host", CURL_HOSTS)
@pytest.mark.parametrize("trouble", ["down", "refusing"])
def test_without_an_answer_open_says_nothing_and_closed_blocks_with_a_reason(
    host: str, trouble: str, daemon: Daemon
) -> None:
    daemon.status, daemon.answer = 400, b'{"error":"WrongShape"}'
    url = daemon.url if trouble == "refusing" else "http://127.0.0.1:9"
    opened = run(line_of(host, Wanted(url=url)))
    assert (opened.returncode, opened.stdout) == (0, b"")
    closed = run(line_of(host, Wanted(url=url, closed=True)))
    assert (closed.returncode, closed.stdout) == (2, b"")
    assert b"the call was not run" in closed.stderr
    later = run(line_of(host, Wanted(url=url, closed=True), SETUPS[host].events[0]))
    assert (later.returncode, later.stdout) == (0, b"")  # only a call that has not run can be kept


@needs_curl
def test_a_big_call_is_posted_whole(daemon: Daemon) -> None:
    body = b"x" * 3_000_000
    assert run(line_of("gemini", Wanted(url=daemon.url)), body).returncode == 0
    assert daemon.posted[0][2] == body


@needs_curl
@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish"])
def test_the_line_is_no_matter_of_the_shell(shell: str, daemon: Daemon) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    wanted = Wanted(url=daemon.url, shadow=True)
    assert run(line_of("codex", wanted), shell=shell).stdout == b"{}"
    down = run(line_of("codex", Wanted(url="http://127.0.0.1:9", closed=True)), shell=shell)
    assert down.returncode == 2
    assert b"the call was not run" in down.stderr
