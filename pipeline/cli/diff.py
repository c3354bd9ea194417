"""``ontrack diff``: compare what was said in two streams of verdicts."""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ontrack.pipeline.cli.options import json_option
from ontrack.pipeline.reading.sources import STDIN, Source
from ontrack.pipeline.terminal import printable
from ontrack.topics.errors import InvalidEvent, InvalidFile
from ontrack.topics.jsontext import parse

KINDS: Final = ("verdict", "intervention", "decision", "scorecard", "dead_letter")
STAMP: Final = frozenset({"profile", "settings", "engine"})
_SHOWN_CHARACTERS = 60

Key = tuple[str, str]  # type and id


class Held(NamedTuple):
    """One line: a digest of its bytes, and the bytes compressed."""

    digest: bytes
    packed: bytes


class Said:
    """What one stream says, by type and id.

    A line is held compressed against the first line of its type, so that a long stream fits.

    Attributes
    ----------
    contradictions
        Ids that stand in the stream with different bytes; of decisions the last counts, which may
        rightly be another one than the first, of all else the first.
    """

    def __init__(self) -> None:
        self._held: dict[Key, Held] = {}
        self._patterns: dict[str, bytes] = {}
        self.contradictions: set[Key] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[Key]:
        return iter(self._held)

    def add(self, key: Key, raw: bytes) -> None:
        """Hold a line."""
        held = self._held.get(key)
        digest = hashlib.blake2b(raw, digest_size=16).digest()
        if held is not None and held.digest != digest and key[0] != "decision":
            self.contradictions.add(key)
            return
        pattern = self._patterns.setdefault(key[0], raw)
        press = zlib.compressobj(level=1, wbits=-15, zdict=pattern)
        self._held[key] = Held(digest, press.compress(raw) + press.flush())

    def digest(self, key: Key) -> bytes:
        """Return the digest of a line's bytes."""
        return self._held[key].digest

    def record(self, key: Key) -> dict[str, Any]:
        """Return a line, parsed."""
        press = zlib.decompressobj(wbits=-15, zdict=self._patterns[key[0]])
        raw = press.decompress(self._held[key].packed) + press.flush()
        record: dict[str, Any] = parse(raw).value
        return record


def read_said(path: str) -> Said:
    """Read a stream of JSON lines as ``replay`` and ``tail`` print them.

    Raises
    ------
    InvalidFile
        It cannot be read, or a line is not of that kind.
    """
    if path != STDIN and (not Path(path).exists() or Path(path).is_dir()):
        raise InvalidFile(path, None, "no such file")  # a pipe, as of <(…), is fine
    said = Said()
    for number, raw in Source(path).lines():
        if raw.strip():
            said.add(_key(path, number, raw), raw)
    return said


def _key(path: str, number: int, raw: bytes) -> Key:
    try:
        record = parse(raw).value
    except InvalidEvent as error:
        raise InvalidFile(path, number, str(error)) from error
    if isinstance(record, dict):
        kind, name = record.get("type"), record.get("id")
        if kind in KINDS and isinstance(name, str):
            return kind, name
    raise InvalidFile(
        path,
        number,
        f"expected an object with an id, and of type {', '.join(KINDS)}, as ontrack replay --json "
        "and ontrack tail --json print them",
    )


@dataclass(slots=True)
class Tally:
    """Counts of a comparison.

    Parameters
    ----------
    by_kind
        Per type: same, changed, changed_stamp (only profile, settings or engine), missing_in_a,
        missing_in_b, contradictions.
    verdicts
        Verdict changes, (from, to).
    fields
        In how many changed lines each field differs.
    engines
        (in A, in B) where they differ.
    """

    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    engines: set[tuple[str, str]] = field(default_factory=set)

    def count(self, kind: str, what: str) -> None:
        """Count one line."""
        self.by_kind.setdefault(kind, Counter())[what] += 1

    def total(self, what: str) -> int:
        """Sum over the types."""
        return sum(counts[what] for counts in self.by_kind.values())


class Difference(NamedTuple):
    """One id that A and B do not say alike; ``fields``: name to values in A and B."""

    kind: str
    id: str
    change: str
    fields: dict[str, tuple[Any, Any]]
    record: dict[str, Any]


def differences(a: Said, b: Said, tally: Tally) -> Iterator[Difference]:
    """Compare two streams: what A says, in its order, then what only B says; counts all."""
    for name, said in (("a", a), ("b", b)):
        for kind, id_ in sorted(said.contradictions):
            tally.count(kind, "contradictions")
            record = said.record((kind, id_))
            yield Difference(kind, id_, f"contradiction_in_{name}", {}, record)
    for key in a:
        if key not in b:
            tally.count(key[0], "missing_in_b")
            yield Difference(*key, "missing_in_b", {}, a.record(key))
        elif a.digest(key) == b.digest(key):
            tally.count(key[0], "same")
        else:
            yield _changed(key, a.record(key), b.record(key), tally)
    for key in b:
        if key not in a:
            tally.count(key[0], "missing_in_a")
            yield Difference(*key, "missing_in_a", {}, b.record(key))


def _changed(key: Key, a: dict[str, Any], b: dict[str, Any], tally: Tally) -> Difference:
    names = [*a, *(name for name in b if name not in a)]
    fields = {
        name: (a.get(name), b.get(name))
        for name in names
        if (name in a) != (name in b) or not _equal(a[name], b[name])
    }
    only_stamp = bool(fields) and fields.keys() <= STAMP
    change = "changed_stamp" if only_stamp else "changed"
    tally.count(key[0], change)
    tally.fields.update(fields.keys())
    if "engine" in fields:
        tally.engines.add((str(a.get("engine")), str(b.get("engine"))))
    if key[0] == "verdict" and "verdict" in fields:
        tally.verdicts[str(a.get("verdict")), str(b.get("verdict"))] += 1
    return Difference(*key, change, fields, b)


def _equal(a: object, b: object) -> bool:
    """Compare as JSON does: true is not 1, and the order of an object's fields does not count."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@click.command(name="diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@json_option
@click.option(
    "--only-changed",
    is_flag=True,
    help="Look only at ids that both say; what one lacks is counted, but is no difference.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Differences shown to people; --json prints all.",
)
def command(a: str, b: str, as_json: bool, only_changed: bool, examples: int) -> None:
    """Compare two streams of JSON lines, as replay --json and tail --json print them, by id.

    A and B are files (.gz, .xz and .zst are opened as they are), one of them may be - for standard
    input. The order of lines, and lines that are there twice, do not count. A run that was judged
    under other settings differs in profile, settings or engine at least; that alone is counted
    apart. Decisions of the gate count where both streams have some: what agents asked does not
    stand among the events. Exits 0 when both say the same bytes, 1 when they differ.
    """
    if a == b == STDIN:
        raise click.UsageError("only one of A and B can be standard input")
    said_a, said_b = read_said(a), read_said(b)
    unasked = _unasked(said_a, said_b)
    tally = Tally()
    shown: list[str] = []
    for difference in differences(said_a, said_b, tally):
        missing = difference.change.startswith("missing")
        if missing and (only_changed or (unasked and difference.kind == "decision")):
            continue
        if as_json:
            click.echo(_as_json(difference))
        elif len(shown) < examples and difference.change != "changed_stamp":
            shown.append(_line(difference))
    different = sum(
        tally.total(what)
        for what in ("changed", "changed_stamp", "contradictions")
        + (() if only_changed else ("missing_in_a", "missing_in_b"))
    )
    if unasked is not None and not only_changed:
        different -= tally.by_kind["decision"][f"missing_in_{unasked}"]
    if as_json:
        click.echo(_summary(tally, equal=not different))
    else:
        _show(tally, shown, different)
        if unasked is not None:
            click.echo(
                f"(nobody asked the gate in {unasked.upper()}: questions are not in the events, "
                "so its decisions are no difference)",
                err=True,
            )
    sys.exit(1 if different else 0)


def _unasked(a: Said, b: Said) -> str | None:
    """Name the stream without any decision, where the other one has some.

    Questions to the gate do not stand among the events: a replay of these cannot hold the answers.
    """
    in_a, in_b = ({kind for kind, _ in said} for said in (a, b))
    if in_a and "decision" in in_b - in_a:
        return "a"
    return "b" if in_b and "decision" in in_a - in_b else None


def _as_json(difference: Difference) -> str:
    record = {
        "type": "difference",
        "of": difference.kind,
        "id": difference.id,
        "run_id": difference.record.get("run_id"),
        "seq": difference.record.get("seq"),
        "change": difference.change,
        "fields": difference.fields,
    }
    return json.dumps(record)


_COUNTED = ("same", "changed", "changed_stamp", "missing_in_a", "missing_in_b", "contradictions")


def _summary(tally: Tally, equal: bool) -> str:
    record: dict[str, Any] = {"type": "summary", "equal": equal}
    record |= {what: tally.total(what) for what in _COUNTED}
    record["by_type"] = {
        kind: {what: tally.by_kind[kind][what] for what in _COUNTED}
        for kind in KINDS
        if kind in tally.by_kind
    }
    record["verdict_changes"] = [
        {"from": before, "to": after, "count": number}
        for (before, after), number in tally.verdicts.most_common()
    ]
    record["fields"] = dict(tally.fields.most_common())
    return json.dumps(record)


def _show(tally: Tally, examples: list[str], different: int) -> None:
    heads = ("same", "changed", "stamp only", "not in A", "not in B", "contradictions")
    click.echo(f"{'':13}" + "".join(f"{head:>15}" for head in heads))
    for kind in KINDS:
        if kind in tally.by_kind:
            counts = "".join(f"{tally.by_kind[kind][what]:>15,}" for what in _COUNTED)
            click.echo(f"{kind.replace('_', ' '):13}{counts}")
    if tally.verdicts:
        click.echo("\nverdicts, A → B")
        for (before, after), number in tally.verdicts.most_common():
            click.echo(f"  {printable(before):16} → {printable(after):16} {number:>8,}")
    if tally.fields:
        listed = ", ".join(f"{printable(name)} {n:,}" for name, n in tally.fields.most_common())
        click.echo(f"\nfields that differ: {listed}")
    if examples:
        click.echo(f"\nthe first {len(examples)}")
        for example in examples:
            click.echo(f"  {example}")
    click.echo(f"\n{different:,} differences" if different else "\nequal")
    for one, other in sorted(tally.engines):
        click.echo(
            f"(engine {printable(one)} in A, {printable(other)} in B: last digits of figures may "
            "differ; ONTRACK_KERNEL=numpy, or the same version, on both sides makes them alike)",
            err=True,
        )


_TOLD = {
    "missing_in_a": "missing in A",
    "missing_in_b": "missing in B",
    "contradiction_in_a": "A says it twice, in two ways",
    "contradiction_in_b": "B says it twice, in two ways",
}


def _line(difference: Difference) -> str:
    where = f"{difference.kind.replace('_', ' ')} {difference.id}"
    if difference.change != "changed":
        told = _TOLD[difference.change]
        name = difference.record.get("verdict") or difference.record.get("outcome")
        return printable(f"{where}: {told}" + (f" ({name})" if isinstance(name, str) else ""))
    told = ", ".join(
        f"{name} {_short(a)} → {_short(b)}"
        for name, (a, b) in difference.fields.items()
        if name not in STAMP
    )
    return printable(f"{where}: {told or 'other bytes, same content'}")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
