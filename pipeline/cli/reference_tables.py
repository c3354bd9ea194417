"""How reference sets look: a table, JSON Lines, or one after the other with steps and edges."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from ontrack.operators.artifacts import ArtifactParams
from ontrack.operators.gate import effect_of
from ontrack.operators.references import graph_of
from ontrack.operators.selftest import RULES, SelfTest
from ontrack.operators.staleness import Shorter, Stale
from ontrack.pipeline.mining import MinedSets, authority, rule_test
from ontrack.pipeline.terminal import printable
from ontrack.topics import codecs
from ontrack.topics.knowledge import Reference, ToolContract

_TEXTS = ("task", "mode", "authority")
_HEADINGS = ("task", "refs", "steps", "false blocks", "lone steps", "mode", "authority")


def show_mined(sets: MinedSets, as_json: bool) -> None:
    """Show what was mined, a line a task."""
    if as_json:
        for task in sets.tasks:
            before, after = sets.before.get(task.task_id), sets.after.get(task.task_id)
            groups = sets.collisions.get(task.task_id, ())
            record = {
                "type": "reference_set",
                "task_id": task.task_id,
                "successes": len(task.successes),
                "groups": [[task.successes[at].run_id for at in group] for group in groups],
                "references": len(task.references),
                "too_long": task.too_long,
                "retries": sum(len(item.mined.retries) for item in task.references if item.mined),
                "dead_ends": sum(
                    len(item.mined.dead_ends) for item in task.references if item.mined
                ),
                "selftest": _test_record(after),
                "selftest_before": _test_record(before),
                "authority": authority(task.references, after),
            }
            _print(record)
        return
    rows = []
    for task in sets.tasks:
        left_out = sum(
            len(item.mined.retries) + len(item.mined.dead_ends)
            for item in task.references
            if item.mined
        )
        before = sets.before.get(task.task_id)
        row = _row(task.task_id, task.references, sets.after.get(task.task_id))
        rows.append(
            (row[0], str(len(task.successes)), row[1], row[2], str(left_out), _blocks(before))
            + row[3:]
        )
    headings = ("task", "runs", "refs", "steps", "stripped", "before", *_HEADINGS[3:])
    _table(headings, rows)


def show_checked(
    references: Sequence[Reference],
    tests: Mapping[str, SelfTest],
    gone: Sequence[Stale],
    undercut: Sequence[Shorter],
    as_json: bool,
) -> None:
    """Show sets with their self-tests, then what is wrong with single references."""
    sets = _by_task(references)
    if as_json:
        for task_id, members in sets.items():
            _print(_set_record(task_id, members, tests.get(task_id)))
    else:
        _table(_HEADINGS, [_row(name, members, tests.get(name)) for name, members in sets.items()])
    for stale in gone:
        found: dict[str, Any] = {
            "type": "stale",
            **_of(stale.reference),
            "kind": stale.kind,
            "tool": stale.tool,
            "text": stale.text,
        }
        _tell(found, "stale", stale.reference, as_json)
    for short in undercut:
        steps = {"steps": len(short.reference.steps), "run_steps": short.run_steps}
        record = {"type": "shorter", **_of(short.reference), "run_id": short.run_id} | steps
        _tell(record | {"text": short.text}, "shorter path", short.reference, as_json)
    click.echo(
        f"{len(references)} references of {len(sets)} tasks; {len(gone)} findings of staleness, "
        f"{len(undercut)} references longer than a recent success",
        err=True,
    )


def show_references(
    references: Sequence[Reference],
    tests: Mapping[str, SelfTest],
    contracts: Mapping[str, ToolContract],
    as_json: bool,
) -> None:
    """Show sets in full."""
    for task_id, members in _by_task(references).items():
        test = tests.get(task_id)
        if as_json:
            for reference in members:
                sys.stdout.buffer.write(codecs.encode(reference) + b"\n")
            _print(_set_record(task_id, members, test))
            continue
        told = "" if test is None or not test.members else f", {_told(test)}"
        click.echo(
            f"task {click.style(_plain(task_id, 120), bold=True)}: {len(members)} references, "
            f"{authority(members, test)}{told}"
        )
        for reference in members:
            _show_one(reference, contracts)
    sys.stdout.flush()


def _show_one(reference: Reference, contracts: Mapping[str, ToolContract]) -> None:
    click.echo(f"  {_plain(reference.reference_id, 80)}  {_origin(reference)}")
    graph = graph_of(reference.steps, contracts, ArtifactParams())
    for place, (step, parents) in enumerate(zip(reference.steps, graph.parents, strict=True)):
        before = ", ".join(str(parent) for parent in sorted(parents))
        effect = effect_of(step.tool, contracts).value if contracts else ""
        failed = "  failed" if step.error is not None else ""
        names = ", ".join(step.args)
        call = f"{_plain(step.tool, 60)}({_plain(names, 80)})"
        after = f"  after {before}" if before else ""
        click.echo(f"    {place:>3}  {call}{f'  {effect}' if effect else ''}{after}{failed}")


def _origin(reference: Reference) -> str:
    """Say where a reference comes from."""
    mined = reference.mined
    parts = [reference.provenance.value]
    if reference.run_id is not None:
        parts.append(f"run {_plain(reference.run_id, 80)}")
    if mined is not None:
        parts.append(f"of {_plain(mined.source, 120)}")
        if mined.run_at is not None:
            parts.append(f"at {mined.run_at.isoformat(timespec='seconds')}")
        parts.append(f"one of {mined.successes} successes")
        for what, seqs in (("retries", mined.retries), ("dead ends", mined.dead_ends)):
            if seqs:
                parts.append(f"without {what} at {', '.join(map(str, seqs))}")
    return ", ".join(parts)


def _told(test: SelfTest) -> str:
    return (
        f"self-test: {_blocks(test)} members blocked by the others, "
        f"{test.false_orphan_rate:.0%} of steps in no other, mode {test.gate_mode}"
    )


def _row(task_id: str, members: Sequence[Reference], test: SelfTest | None) -> tuple[str, ...]:
    lengths = [len(reference.steps) for reference in members]
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    span = str(longest) if shortest == longest else f"{shortest} to {longest}"
    is_tested = test is not None and test.members > 0
    return (
        task_id,
        str(len(members)),
        span,
        _blocks(test),
        f"{test.false_orphan_rate:.0%}" if test is not None and is_tested else "untested",
        test.gate_mode if test is not None and is_tested else "",
        authority(members, test),
    )


def _blocks(test: SelfTest | None) -> str:
    return f"{test.blocked}/{test.members}" if test is not None and test.members else "untested"


def _set_record(
    task_id: str, members: Sequence[Reference], test: SelfTest | None
) -> dict[str, Any]:
    return {
        "type": "reference_set",
        "task_id": task_id,
        "references": len(members),
        "provenance": sorted({reference.provenance.value for reference in members}),
        "steps": [len(reference.steps) for reference in members],
        "selftest": _test_record(test),
        "authority": authority(members, test),
    }


def _test_record(test: SelfTest | None) -> dict[str, Any] | None:
    if test is None:
        return None
    rules = {rule: rule_test(test, rule) for rule in RULES}
    return {
        "members": test.members,
        "blocked": test.blocked,
        "false_block_rate": test.false_block_rate,
        "steps": test.steps,
        "orphan_steps": test.orphan_steps,
        "gate_mode": test.gate_mode,
        "rules": {
            name: {"flagged": rule.flagged, "authority": rule.authority.value}
            for name, rule in rules.items()
        },
    }


def _by_task(references: Iterable[Reference]) -> dict[str, list[Reference]]:
    found: dict[str, list[Reference]] = {}
    for reference in references:
        found.setdefault(reference.task_id, []).append(reference)
    return found


def _of(reference: Reference) -> dict[str, str]:
    return {"task_id": reference.task_id, "reference_id": reference.reference_id}


def _tell(record: dict[str, Any], label: str, reference: Reference, as_json: bool) -> None:
    if as_json:
        _print(record)
        return
    name = f"{_plain(reference.task_id, 60)} {_plain(reference.reference_id, 60)}"
    click.echo(f"{click.style(label, fg='yellow')}  {name}: {_plain(record['text'], 400)}")


def _print(record: dict[str, Any]) -> None:
    sys.stdout.buffer.write(
        json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    )
    sys.stdout.flush()


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns side by side; a table that is wrapped cannot be read or searched."""
    lines = [tuple(headings), *(tuple(_plain(cell, 60) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, cells in enumerate(lines):
        padded = [
            cell.ljust(width) if heading in _TEXTS else cell.rjust(width)
            for heading, cell, width in zip(headings, cells, widths, strict=True)
        ]
        click.echo(click.style("  ".join(padded).rstrip(), bold=number == 0))


def _plain(text: str, width: int) -> str:
    clean = printable(text)
    return clean if len(clean) <= width else clean[: width - 1] + "…"
