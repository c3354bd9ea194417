"""`ontrack contracts`: import, check and schemas, as a user meets them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontrack.operators.predicate import compile_predicate
from ontrack.pipeline.cli import cli, main
from ontrack.pipeline.contracts.importing import import_contracts, tool_record
from ontrack.pipeline.reading.plain_files import plain_text, read_plain
from ontrack.pipeline.reading.readers import read_tools
from ontrack.topics.errors import InvalidFile, OnTrackError, UnknownName
from ontrack.topics.knowledge import Effect, ToolContract
from ontrack.topics.schemas import file_schema, schema_text
from tests.strategies import contracts, json_values

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
READS = {"name": "door_state", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}
ADDS = {
    "name": "add_key",
    "inputSchema": SCHEMA,
    "annotations": {"readOnlyHint": False, "destructiveHint": False},
}
OPENS = {"name": "open_door", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": False}}
SILENT = {"name": "ring", "description": "Ring the bell.", "inputSchema": SCHEMA}
MCP = [READS, ADDS, OPENS, SILENT]

CHAT = {
    "type": "function",
    "function": {"name": "ring", "description": "Ring.", "parameters": SCHEMA},
}
FLAT = {
    "type": "function",
    "name": "ring",
    "description": "Ring.",
    "parameters": SCHEMA,
    "strict": True,
}
MESSAGES = {"name": "ring", "description": "Ring.", "input_schema": SCHEMA, "cache_control": {}}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(cli, ["contracts", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def write(data: Any, name: str = "in.json") -> str:
    Path(name).write_text(json.dumps(data), encoding="utf-8")
    return name


def imported(data: Any, format: str = "auto", *groups: str) -> dict[str, ToolContract]:
    found = import_contracts([write(data)], format, groups)
    return {name: tool.contract for name, tool in found.tools.items()}


# ------------------------------------------------------------------ what is read


@pytest.mark.parametrize(
    "data",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": MCP}},
        {"tools": MCP, "nextCursor": None},
        MCP,
        [
            {"jsonrpc": "2.0", "id": 0, "result": {"serverInfo": {"name": "house"}}},
            {"jsonrpc": "2.0", "id": 1, "result": {"tools": MCP[:2], "nextCursor": "2"}},
            {"jsonrpc": "2.0", "id": 2, "result": {"tools": MCP[2:]}},
        ],
    ],
    ids=["answer", "result", "list", "session of two pages"],
)
@pytest.mark.parametrize("format", ["auto", "mcp"])
def test_mcp_hints_are_kept_and_what_they_leave_open_is_destructive(data: Any, format: str) -> None:
    tools = imported(data, format)
    assert {name: tool.effect for name, tool in tools.items()} == {
        "door_state": Effect.READ,
        "add_key": Effect.WRITE,
        "open_door": Effect.DESTRUCTIVE,
        "ring": Effect.DESTRUCTIVE,
    }
    assert all(tool.declared_effect is None for tool in tools.values())
    guesses = {
        name: tool.guess for name, tool in import_contracts(["in.json"]).tools.items() if tool.guess
    }
    assert list(guesses) == ["open_door", "ring"]
    assert "destructiveHint is missing" in str(guesses["open_door"])


def test_lines_of_a_session_are_read() -> None:
    lines = [{"id": 0, "result": {}}, {"id": 1, "result": {"tools": MCP}}]
    Path("session.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert len(import_contracts(["session.jsonl"]).tools) == 4


@pytest.mark.parametrize(
    ("item", "format"), [(CHAT, "openai"), (FLAT, "openai"), (MESSAGES, "anthropic")]
)
@pytest.mark.parametrize("wrap", [lambda tool: tool, lambda tool: [tool], lambda t: {"tools": [t]}])
def test_tool_schemas_of_models_say_nothing_about_effects(
    item: Any, format: str, wrap: Any
) -> None:
    for chosen in ("auto", format):
        (tool,) = imported(wrap(item), chosen).values()
        assert (tool.name, tool.description, tool.input_schema) == ("ring", "Ring.", SCHEMA)
        assert tool.declared_effect is None
        assert tool.effect is Effect.DESTRUCTIVE
        assert import_contracts(["in.json"], chosen).tools["ring"].guess is not None


def test_what_someone_wrote_beside_a_schema_is_kept() -> None:
    for item in (CHAT, FLAT, MESSAGES, SILENT):
        (tool,) = imported([{**item, "effect": "read", "domain": "house"}]).values()
        assert (tool.effect, tool.domain) == (Effect.READ, "house")
        assert import_contracts(["in.json"]).tools["ring"].guess is None


def test_tools_by_group_state_their_effect_and_domain() -> None:
    data = {
        "house/assistant": [
            {"name": "look", "tool_type": "ToolType.READ", "doc": "Look.\n\nArgs:\n    x: X."},
            {"name": "paint", "tool_type": "WRITE", "params": [["a", "List[str]"], ["b", "How"]]},
            {"name": "add", "tool_type": "ToolType.GENERIC", "params": []},
            {"name": "hand", "tool_type": "ToolType.GENERIC", "kw": {"mutates_state": "True"}},
        ],
        "garden": [CHAT],
    }  # fmt: skip
    tools = imported(data)
    assert [(tool.name, tool.declared_effect, tool.domain) for tool in tools.values()] == [
        ("look", "read", "house"),
        ("paint", "write", "house"),
        ("add", None, "house"),
        ("hand", "write", "house"),
        ("ring", None, "garden"),
    ]
    assert tools["look"].description == "Look."
    assert tools["paint"].input_schema == {
        "type": "object",
        "properties": {"a": {"type": "array"}, "b": {}},
    }
    assert list(imported(data, "corpus", "garden")) == ["ring"]


def test_tools_built_into_a_model_are_passed_over_and_named() -> None:
    vendor = {"type": "text_editor_20250728", "name": "editor"}
    found = import_contracts([write([CHAT, vendor, {"type": "web_search"}])])
    assert list(found.tools) == ["ring", "editor"]
    assert found.unnamed == ("web_search",)


def test_one_name_in_two_groups_is_one_tool_where_the_effect_is_the_same() -> None:
    data = {
        "a": [{"name": "add", "tool_type": "READ", "doc": "Of a.", "params": [["x", "int"]]}],
        "b": [{"name": "add", "tool_type": "READ", "doc": "Of b.", "params": []}],
    }
    tool = imported(data)["add"]
    assert (tool.description, tool.domain, tool.input_schema) == ("Of a.", None, None)
    assert import_contracts(["in.json"]).merged == ("add",)
    data["b"][0]["tool_type"] = "WRITE"
    with pytest.raises(InvalidFile, match=r'"add" has another effect \(write\) than in .* \(read'):
        imported(data)
    assert imported(data, "auto", "b")["add"].effect is Effect.WRITE


def test_a_stated_effect_wins_over_a_guess_from_another_file() -> None:
    stated = {"tools": [{"name": "ring", "effect": "write"}]}
    first, second = write([CHAT], "schemas.json"), write(stated, "effects.json")
    for order in ([first, second], [second, first]):
        tool = import_contracts(order).tools["ring"]
        assert tool.guess is None
        assert (tool.contract.effect, tool.contract.input_schema) == (Effect.WRITE, SCHEMA)


# ------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"id": 1, "error": {"code": -32601, "message": "no"}}, 'error of the server, "no"'),
        ({"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}, "holds no tools: its list is empty"),
        ({"jsonrpc": "2.0", "id": 1, "result": {"prompts": []}}, "holds no tools"),
        ({}, "holds no tools"),
        (3, "holds no tools: found a number"),
        ([1], r"tools\[0\]: expected a tool, found a number"),
        ([SILENT, {"description": "x"}], r"tools\[1\]: field `name` is missing"),
        ([{"type": "function", "function": {}}], r"tools\[0\]: field `name` is missing"),
        ([{"type": "function", "parameters": {}}], r"tools\[0\]: field `name` is missing"),
        ([{**SILENT, "inputSchema": []}], r"tools\[0\]: field `inputSchema`"),
        ([{**SILENT, "effect": "maybe"}], r"tools\[0\]: field `effect`"),
        ([SILENT, {**SILENT, "description": "Other."}], r"tools\[1\]: \"ring\" is described twice"),
        ({"a": [{"name": 3, "tool_type": "READ"}]}, r"a\[0\]: field `name`"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_an_error_with_its_place(data: Any, text: str) -> None:
    with pytest.raises(InvalidFile, match=text) as caught:
        imported(data)
    assert str(caught.value).startswith("in.json: ")


def test_a_format_that_does_not_fit_is_named() -> None:
    with pytest.raises(InvalidFile, match="was read as mcp, try --format auto"):
        imported([CHAT], "mcp")
    with pytest.raises(UnknownName, match="known are auto, mcp"):
        imported([CHAT], "gemini")
    with pytest.raises(UnknownName, match="no group 'c'; there are a, b"):
        imported({"a": [CHAT], "b": [CHAT]}, "auto", "c")


@pytest.mark.parametrize(
    ("name", "raw"),
    [("a.json", b"{"), ("a.yaml", b"a: ["), ("a.toml", b"x"), ("a.jsonl", b"{}\n{")],
)
def test_a_damaged_file_is_an_error(name: str, raw: bytes) -> None:
    Path(name).write_bytes(raw)
    with pytest.raises(InvalidFile, match=f"^{name}: "):
        read_plain(name)
    with pytest.raises(InvalidFile, match="no such file"):
        read_plain("missing.json")


def test_toml_cannot_hold_null() -> None:
    schema = {"type": "object", "properties": {"a": {"default": None}}}
    source = write([{"name": "t", "inputSchema": schema}])
    with pytest.raises(
        InvalidFile, match=r"tools\[0\]\.inputSchema\.properties\.a\.default` is null"
    ):
        run("import", source, "--out", "tools.toml")
    assert not Path("tools.toml").exists()


# ------------------------------------------------------------------ what is written


@pytest.mark.parametrize("name", ["tools.json", "tools.yaml", "tools.yml", "tools.toml", "tools"])
def test_the_file_that_is_written_is_a_tools_file(name: str) -> None:
    result = run("import", write(MCP), "--out", name)
    assert result.exit_code == 0
    assert result.stdout == ""
    tools = {tool.name: tool for tool in read_tools(name)}
    assert tools == imported(MCP)
    assert "4 tools: 2 destructive, 1 read, 1 write" in result.stderr
    assert "2 effects are guesses: write `effect` (read, write or destructive)" in result.stderr
    rows = [line.split() for line in result.stderr.splitlines()]
    assert ["open_door", "destructive"] in [row[:2] for row in rows]
    assert ["door_state", "read"] not in [row[:2] for row in rows]


def test_without_a_file_json_goes_to_standard_output() -> None:
    result = run("import", "-", stdin=json.dumps([CHAT]))
    assert json.loads(result.stdout) == {
        "tools": [{"name": "ring", "description": "Ring.", "inputSchema": SCHEMA}]
    }
    assert "OpenAI tool schemas do not say" in result.stderr


def test_nothing_is_said_of_guesses_where_there_are_none() -> None:
    assert run("import", write([READS, ADDS])).stderr == "2 tools: 1 read, 1 write\n"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def tool_sets(draw: st.DrawFn) -> tuple[ToolContract, ...]:
    made = []
    for tool in draw(contracts()):
        schema = draw(st.none() | st.dictionaries(texts, json_values(), max_size=3))
        hints = draw(
            st.dictionaries(st.sampled_from(("readOnlyHint", "destructiveHint")), st.booleans())
        )
        extra = {
            "input_schema": schema,
            "description": draw(st.none() | texts),
            "annotations": hints,
        }
        made.append(ToolContract.model_validate({**tool.model_dump(), **extra}))
    return tuple(made)


def holds_null(data: Any) -> bool:
    children = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return data is None or any(map(holds_null, children))


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029"])
def test_line_ends_that_only_yaml_knows_are_read_as_they_were_written(
    tmp_path: Path, mark: str
) -> None:
    path, data = str(tmp_path / "t.yaml"), {"name": f"a{mark}b", "alone": mark, "other": "é"}
    Path(path).write_text(plain_text(data, path), encoding="utf-8")
    assert read_plain(path) == data


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '{"day": "2026-01-01", "at": ["2026-01-01T10:00:00"]}'),
        ("t.yaml", "day: 2026-01-01\nat: [2026-01-01T10:00:00]\n"),
        ("t.toml", "day = 2026-01-01\nat = [2026-01-01T10:00:00]\n"),
    ],
)
def test_a_date_is_the_same_text_in_every_kind_of_file(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    read = read_plain(str(tmp_path / name))
    assert read == {"day": "2026-01-01", "at": ["2026-01-01T10:00:00"]}


@pytest.mark.parametrize("suffix", ["json", "yaml", "toml"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tool_sets())
def test_what_is_written_is_read_again_as_it_was(
    suffix: str, tools: tuple[ToolContract, ...]
) -> None:
    name = f"tools.{suffix}"
    records = {"tools": [tool_record(tool) for tool in tools]}
    if suffix == "toml" and holds_null(records):
        with pytest.raises(InvalidFile, match="is null"):
            plain_text(records, name)
        return
    text = plain_text(records, name)
    Path(name).write_text(text, encoding="utf-8")
    assert read_tools(name) == tools
    if tools:
        found = import_contracts([name]).tools.values()
        assert tuple(tool.contract for tool in found) == tools
        again = plain_text({"tools": [tool_record(tool.contract) for tool in found]}, name)
        assert again == text


# ------------------------------------------------------------------ check


def tasks(*items: dict[str, Any]) -> str:
    Path("tasks.yaml").write_text(
        yaml.safe_dump({"tasks": list(items)}, sort_keys=False), encoding="utf-8"
    )
    return "tasks.yaml"


def checked(*items: dict[str, Any]) -> list[tuple[str, str]]:
    result = run("check", write(MCP), "--tasks", tasks(*items), "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(item["type"] == "contract_finding" and item["text"] for item in found)
    assert result.exit_code == (1 if found else 0)
    return [(item["kind"], item["tool"]) for item in found]


def test_a_task_file_that_fits_its_tools_passes() -> None:
    task = {
        "id": "visit",
        "references": [["door_state", "open_door"]],
        "allowed": [{"tool": "open_door", "when": "args.id == task.door"}, "ring"],
        "predicates": {"ring": "seen(args.id)"},
        "vars": {"door": "front"},
    }
    assert checked(task) == []


def test_everything_that_is_wrong_is_found_at_once() -> None:
    task = {
        "id": "visit",
        "references": [["door_stat", "open_door"]],
        "allowed": [
            "door_state",
            "burn",
            {"tool": "open_door", "when": "args.id =="},
            {"tool": "open_door", "when": "args.door == 'front'"},
        ],
        "predicates": {"ring": "true", "open_door": "task.owner == args.id"},
    }
    assert checked(task) == [
        ("unknown_tool", "door_stat"),
        ("pointless", "door_state"),
        ("unknown_tool", "burn"),
        ("bad_predicate", "open_door"),
        ("unknown_argument", "open_door"),
        ("bad_predicate", "ring"),
        ("bad_predicate", "open_door"),
    ]


def test_findings_are_told_to_people_with_what_to_do() -> None:
    path = tasks({"id": "visit", "allowed": ["open_dor"], "predicates": {"ring": "true"}})
    result = run("check", write(MCP), "--tasks", path)
    assert result.exit_code == 1
    assert (
        'visit open_dor: `allowed` names a tool without a contract; did you mean "open_door"?'
        in result.stdout
    )
    assert "remove the predicate" in result.stdout
    assert "1 tasks, 4 tools, 2 findings" in result.stderr


def test_files_that_cannot_be_read_are_errors_and_no_findings() -> None:
    with pytest.raises(OnTrackError, match=r"tasks\.yaml: tasks\[0\]"):
        run("check", write(MCP), "--tasks", tasks({"allowed": []}))


def test_bad_input_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["contracts", "import", write({"tools": []})])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "ontrack: in.json: holds no tools: its list is empty\n"


# ------------------------------------------------------------------ schema


@pytest.mark.parametrize("kind", ["tools", "tasks"])
def test_schemas_are_printed_or_written(kind: str) -> None:
    assert run("schema", kind).stdout == schema_text(kind)
    run("schema", kind, "--out", "s.json")
    assert Path("s.json").read_text(encoding="utf-8") == schema_text(kind)
    assert run("schema", "runs").exit_code == 2


# ------------------------------------------------------------------ docs/contracts.md


def test_the_files_in_the_documentation_fit_each_other_and_their_schemas() -> None:
    page = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for kind, text in zip(("tools", "tasks"), blocks, strict=True):
        jsonschema.validate(yaml.safe_load(text), file_schema(kind))
        Path(f"{kind}.yaml").write_text(text, encoding="utf-8")
    result = run("check", "tools.yaml", "--tasks", "tasks.yaml")
    assert (result.exit_code, result.stdout) == (0, "")


def test_the_conditions_in_the_documentation_compile() -> None:
    page = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")
    (block, _) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    for line in block.splitlines():
        assert compile_predicate(line).arguments
