"""Damaged recordings of every format: a clear error or a flag, never an event that was not there.

A file is cut, has bits flipped, lines lost, repeated, swapped or mixed with those of other files,
or a value put in the place of another one. Whatever is then read must have stood in the file.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.reading.readers import read_events
from ontrack.topics.adapters import PARTIAL
from ontrack.topics.adapters.parts import NO_TOOL
from ontrack.topics.errors import InvalidEvent, InvalidFile
from ontrack.topics.events import Step
from tests.topics.recorded import records

OWN = Path(__file__).parent.parent / "data" / "formats"
NAMES = sorted(str(p.relative_to(OWN)) for p in OWN.rglob("*") if p.is_file())
TEXTS = [name for name in NAMES if not name.endswith(".eval")]

CORPUS = os.environ.get("ONTRACK_CORPUS")

fuzzed = settings(
    max_examples=300 if CORPUS else 15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


# ------------------------------------------------------------------ what a file holds


def parsed(text: str) -> Any:
    """A text as JSON, numbers that are none included; None where it is no JSON."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError):
        return None


def plain(value: Any) -> Any:
    """An OTLP value as what it stands for."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    items = inner.get("values") if isinstance(inner, dict) else None
    if kind in ("kvlistValue", "kvlist_value") and isinstance(items, list):
        pairs = [item for item in items if isinstance(item, dict)]
        return {str(item.get("key")): plain(item.get("value")) for item in pairs}
    if kind in ("arrayValue", "array_value"):
        return [plain(item) for item in items] if isinstance(items, list) else []
    return inner


def without_images(block: Any) -> Any:
    """A block of content with a digest for the long data of its source, if it has any."""
    source = block.get("source") if isinstance(block, dict) else None
    if not isinstance(source, dict) or not isinstance(source.get("data"), str):
        return block
    rest = {name: item for name, item in source.items() if name != "data"}
    return block | {"source": rest | {"data_sha256": sha256(source["data"].encode()).hexdigest()}}


def within(value: Any) -> Iterator[Any]:
    """A value, all that is in it, and in the JSON texts that stand in it."""
    yield value
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"', "n"):
        inner = parsed(value)
        yield from within(inner) if inner is not None else ()
    if isinstance(value, str) and "```" in value:
        yield from re.findall(r"```\w*[ \t]*\n(.*?)\n?```", value, re.DOTALL)
    if isinstance(value, dict):
        if plain(value) is not value:
            yield plain(value)
        for item in value.values():
            yield from within(item)
    if isinstance(value, list):
        yield [without_images(item) for item in value]
        texts = [item.get("text") if isinstance(item, dict) else item for item in value]
        if texts and all(isinstance(text, str) for text in texts):
            yield "\n".join(texts)  # parts of one message
        for item in value:
            yield from within(item)


def canonical(value: Any) -> str:
    """A value as text, the same for what codecs make the same: see ``topics/jsontext.py``."""
    return json.dumps(mended(value), sort_keys=True, default=repr)


def mended(value: Any) -> Any:
    if isinstance(value, dict):
        return {mended(name): mended(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mended(item) for item in value]
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, float) and not -1e308 <= value <= 1e308:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return str(value)
    if isinstance(value, float) and value == int(value):
        return int(value)
    return value


class Held:
    """The values that stand in some records, and how often."""

    def __init__(self, values: list[Any]) -> None:
        found = [value for whole in values for value in within(whole)]
        self.times = Counter(map(canonical, found))
        self.texts = {mended(value) for value in found if isinstance(value, str)}

    def has(self, step: Step) -> bool:
        return (
            self.holds_tool(step.tool)
            and (self.holds_args(step.args) > 0)
            and (step.result is None or canonical(step.result) in self.times)
        )

    def holds_tool(self, tool: str) -> bool:
        # A shell's tool is a word of the command; a span's name begins with what it does.
        return tool == NO_TOOL or any(tool in text for text in self.texts)

    def holds_args(self, args: Any) -> int:
        if args in ({}, {"command": ""}):
            return 1 << 20
        raw = args.get("_raw", args.get("command", args)) if len(args) == 1 else args
        return max(self.times[canonical(args)], self.times[canonical(raw)])


def values_of(raw: bytes) -> list[Any]:
    """All JSON that is in some bytes: the whole, or what lines are JSON."""
    text = raw.decode("utf-8", "replace").removeprefix("\ufeff")
    whole = parsed(text)
    if whole is not None:
        return [whole]
    return [value for line in re.split("[\r\n]", text) if (value := parsed(line)) is not None]


# ------------------------------------------------------------------ what must hold


def read(path: Path) -> tuple[list[SourceEvent], InvalidFile | None]:
    """What is read until an error; any other error is a fault."""
    found: list[SourceEvent] = []
    try:
        for event in read_events([path]):
            found.append(event)
    except InvalidFile as error:
        return found, error
    return found, None


def read_on(path: Path) -> tuple[list[SourceEvent], InvalidFile | None, list[int]]:
    """What is read with bad records handed over."""
    found: list[SourceEvent] = []
    bad: list[int] = []

    def on_bad(source: str, line: int, raw: bytes, error: InvalidEvent) -> None:
        assert (source, str(error) != "") == (str(path), True)
        bad.append(line)

    try:
        for event in read_events([path], on_bad=on_bad):
            found.append(event)
    except InvalidFile as error:
        return found, error, bad
    return found, None, bad


def check(path: Path, raw: bytes) -> None:
    """Read damaged bytes: errors name the file, and steps are those that stood in it."""
    path.write_bytes(raw)
    everything = values_of(raw)
    held = Held(everything)
    strict, error = read(path)
    patient, _, bad = read_on(path)
    assert error is not None or not bad
    if error is not None:
        assert str(error).startswith(f"{path}:")
        # Which record, unless the file as a whole is nothing that is known.
        assert error.line is not None or error.problem.startswith("no runs recognised")
    for found in (strict, patient):
        steps = [source.event for source in found if isinstance(source.event, Step)]
        assert [step for step in steps if not held.has(step)] == []
        numbered = Counter((step.run_id, step.seq) for step in steps if step.seq is not None)
        if not native(raw):
            assert set(numbered.values()) <= {1}
            often = Counter(canonical(step.args) for step in steps)
            args = {canonical(step.args): step.args for step in steps}
            assert {a: n for a, n in often.items() if n > held.holds_args(args[a])} == {}


def native(raw: bytes) -> bool:
    """Whether a file holds our own events: they are read as they are, repeated ones too."""
    return b'"run_started"' in raw or b'"type": "step"' in raw


# ------------------------------------------------------------------ damage


def lines_of(name: str, root: Path = OWN) -> list[bytes]:
    """A file's records, each as a line, whatever they stood in."""
    values = records(root / name)
    return [json.dumps(value, ensure_ascii=False).encode() for value in values]


@st.composite
def cut(draw: st.DrawFn, raw: bytes) -> bytes:
    return raw[: draw(st.integers(0, len(raw)))]


@st.composite
def flipped(draw: st.DrawFn, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for place in draw(st.lists(st.integers(0, len(raw) * 8 - 1), min_size=1, max_size=4)):
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


@st.composite
def shuffled(draw: st.DrawFn, lines: list[bytes], others: list[bytes]) -> bytes:
    """Lose, repeat, swap and mix in lines."""
    lines = list(lines)
    for _ in range(draw(st.integers(1, 4))):
        how = draw(st.sampled_from(["lose", "repeat", "swap", "mix"]))
        at, to = (draw(st.integers(0, max(len(lines) - 1, 0))) for _ in "ab")
        if how == "mix" or not lines:
            lines.insert(at, draw(st.sampled_from(others)))
        elif how == "lose":
            del lines[at]
        elif how == "repeat":
            lines.insert(to, lines[at])
        else:
            lines[at], lines[to] = lines[to], lines[at]
    return b"\n".join(lines) + b"\n"


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@st.composite
def replaced(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """Put any JSON in the place of values, or of none."""
    values = [json.loads(line) for line in lines]
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(values))
        if not found:
            break
        container, key = found[draw(st.integers(0, len(found) - 1))]
        if draw(st.integers(0, 4)) == 0:
            del container[key]
        elif draw(st.integers(0, 4)) == 0:
            other, name = found[draw(st.integers(0, len(found) - 1))]
            container[key] = json.loads(json.dumps(other[name]))
        else:
            container[key] = draw(ANY_JSON)
    return b"\n".join(json.dumps(value).encode("utf-8", "surrogatepass") for value in values)


ALL_LINES = [line for name in TEXTS for line in lines_of(name)]


@pytest.mark.parametrize("name", NAMES)
@fuzzed
@given(st.data())
def test_a_file_that_is_cut_or_has_flipped_bits_gives_errors_and_no_wrong_steps(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    raw = (OWN / name).read_bytes()
    damaged = data.draw(cut(raw) | flipped(raw))
    if name.endswith(".eval"):
        path = tmp_path / "x.eval"
        path.write_bytes(damaged)
        whole = Held(records(OWN / name))
        for source in read(path)[0]:
            assert not isinstance(source.event, Step) or whole.has(source.event)
        return
    check(tmp_path / "x.json", damaged)


@pytest.mark.parametrize("name", TEXTS)
@fuzzed
@given(st.data())
def test_lines_lost_repeated_swapped_or_mixed_with_other_files_give_no_wrong_steps(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    check(tmp_path / "x.jsonl", data.draw(shuffled(lines_of(name), ALL_LINES)))


@pytest.mark.parametrize("name", TEXTS)
@fuzzed
@given(st.data())
def test_any_value_in_the_place_of_another_gives_no_wrong_steps(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    check(tmp_path / "x.jsonl", data.draw(replaced(lines_of(name))))


# ------------------------------------------------------------------ runs beside each other

#: What is another in a second recording, which tells of other things under other ids.
OTHER = {
    "shop-": "yard-", "desk-": "yard-", "finder": "seeker", "lf1": "lf3", "lf2": "lf4",
    "a1a1": "c1c1", "b2b2": "d2d2", "obs-": "abs-", "toolu_": "toolu_y", "for_": "for_y",
    "trace_ok": "trace_y", "trace_fail": "trace_z", "span_a": "span_y", '"span_': '"span_y',
    "call_0": "call_x0", "call_shop": "call_yard", '"u-': '"w-', '"Eok': '"Fok', '"Efail': '"Ff',
    "204": "991", "brake pads": "front lamp", "Thu": "Fri", "bell": "horn", "Bell": "Horn",
    "box": "bin", "slot": "place", "stock service": "till", "left": "rest",
}  # fmt: skip


def of_others(line: bytes) -> bytes:
    """The same record of another run: values differ, names of fields do not."""
    text = re.sub("|".join(OTHER), lambda found: OTHER[found[0]], line.decode())
    # A name of a field that was hit by this is put back.
    return re.sub(r'"span_y(start|end|data)"', r'"span_\1"', text).encode()


def run_ids(path: Path, lines: list[bytes]) -> set[str]:
    path.write_bytes(b"\n".join(lines))
    found, error = read(path)
    assert error is None
    return {source.event.run_id for source in found}


@pytest.mark.parametrize("name", [name for name in TEXTS if name.split("/")[0] != "events"])
@fuzzed
@given(st.data())
def test_no_step_of_one_run_stands_in_another_however_their_lines_are_mixed(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    mine = lines_of(name)
    other = [of_others(line) for line in mine]
    path = tmp_path / "x.jsonl"
    sides = [
        (Held([json.loads(line) for line in lines]), run_ids(path, lines))
        for lines in (mine, other)
    ]
    path.write_bytes(data.draw(shuffled([*mine, *other], [*mine, *other])))
    runs: dict[str, list[Step]] = {}
    for source in read_on(path)[0]:
        if isinstance(source.event, Step):
            runs.setdefault(source.event.run_id, []).append(source.event)
    for run_id, steps in runs.items():
        whose = [all(map(held.has, steps)) for held, _ in sides]
        assert any(whose)
        for (_, ids), is_of in zip(sides, whose, strict=True):
            known = run_id.partition("@")[0] in ids and not sides[0][1] & sides[1][1]
            assert is_of or not known


@pytest.mark.parametrize(
    "name", ["claude-code/desk-3.jsonl", "langfuse/rows/observations_v2.jsonl"]
)
@fuzzed
@given(st.data())
def test_runs_that_may_have_stood_in_a_record_that_is_lost_are_flagged(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    lines = lines_of(name)
    at = data.draw(st.integers(1, len(lines) - 1))
    lines[at] = lines[at][: data.draw(st.integers(1, len(lines[at]) - 1))]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(lines))
    found, error, bad = read_on(path)
    assert (error, bad) == (None, [at + 1])
    assert found
    assert {source.flags for source in found} == {(PARTIAL,)}


# ------------------------------------------------------------------ real recordings

RECORDED = Path(CORPUS or "") / "formats"
RECORDINGS = (
    sorted(
        str(path.relative_to(RECORDED))
        for path in RECORDED.rglob("*")
        if path.is_file() and path.suffix != ".eval" and path.parent.name != "mcp"
    )
    if CORPUS
    else []
)


@pytest.mark.skipif(
    not CORPUS, reason="ONTRACK_CORPUS names no folder of real recordings, see test_corpus_formats"
)
@pytest.mark.parametrize("name", RECORDINGS)
@settings(fuzzed, max_examples=40)
@given(st.data())
def test_real_recordings_that_are_damaged_give_errors_and_no_wrong_steps(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    lines = lines_of(name, RECORDED)
    raw = b"\n".join(lines)
    damage = cut(raw) | flipped(raw) | shuffled(lines, ALL_LINES) | replaced(lines)
    check(tmp_path / "x.jsonl", data.draw(damage))
