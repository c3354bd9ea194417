"""How a line of the fleet's minutes looks to people."""

from __future__ import annotations

import click
import pytest

from ontrack.pipeline.cli.show import Printer, fleet_line
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.fleet import FleetAggregate, FleetGroup, GroupKey, line_id, minute_at

NOON = minute_at(29_934_000)


def aggregate(agent: str | None = "clerk", **more: object) -> FleetAggregate:
    group = FleetGroup(agent=agent)
    made = {"id": line_id(NOON, 2, group.key), "minute": NOON, "group": group, "partition": 2}
    return FleetAggregate.model_validate(made | more)


def test_a_line_says_who_when_and_what() -> None:
    told = aggregate(
        open_runs=3,
        started=2,
        finished={"success": 1},
        verdicts={"LOOP": 2, "OK": 14},
        interventions={"halt": 1},
        blocks=1,
        unsafe_runs=1,
        unsafe_checked=4,
        cost_usd={"success": 0.5},
        saved_steps=7.5,
        final=True,
    )
    assert click.unstyle(fleet_line(told)) == (
        "2026-11-30 12:00Z  p2  clerk / – / –  3 open, 2 started, 1 success, 2 LOOP, 14 OK, "
        "1 × halt, 1 blocked, 1 of 4 unsafe, 0.50 USD, 7.5 steps saved final"
    )


def test_names_that_agents_chose_cannot_steer_a_terminal() -> None:
    bad = "\x1b[2J\x07" + "x" * 500
    shown = click.unstyle(fleet_line(aggregate(bad, finished={bad: 1}, verdicts={bad: 1})))
    assert shown.isprintable()
    assert len(shown) < 200


def test_the_bytes_of_the_topic_are_printed_as_they_are_and_others_end_nothing(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    value = codecs.encode(aggregate())
    Printer(as_json=True).show_fleet(value)
    assert capsysbinary.readouterr().out == value + b"\n"
    people = Printer(as_json=False)
    for each in (b"{", b'{"type": "lunch"}', value):
        people.show_fleet(each)
    shown = capsysbinary.readouterr().out.splitlines()
    assert [b"unreadable" in line for line in shown] == [True, True, False]
    assert people.counts["unreadable"] == 2


@pytest.mark.parametrize("value", [b"", b"[]", b'{"type": "verdict"}', b'{"type": "fleet"}'])
def test_what_is_no_line_of_the_fleet_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidEvent):
        codecs.decode_fleet(value)


def test_a_line_comes_back_from_its_bytes_and_its_group_from_its_key() -> None:
    told = aggregate("ü/|", partition=None)
    assert codecs.decode_fleet(codecs.encode(told)) == told
    assert told.group.key == GroupKey("ü/|")
    assert told.id == '2026-11-30T12:00:00Z|2|["ü/|",null,null]'
