"""Runs of one task on other objects each time: what a newcomer's first own data looks like."""

from __future__ import annotations

import json
from pathlib import Path

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.reading.readers import read_events, references_from_successes
from ontrack.pipeline.settings import Settings
from ontrack.topics.verdicts import Intervention, Verdict


def booking(number: int, guest: str, *more: str) -> dict[str, object]:
    room, hold, paid = f"R-{number}", f"HOLD-{number}", f"PAY-{number}"
    calls = [
        ("search_hotels", {"city": "Porto"}, {"hotel": "H-7"}),
        *((tool, {"hotel": "H-7"}, {"stars": 4.4}) for tool in more),
        ("check_rooms", {"hotel": "H-7", "nights": 3}, {"rooms": [{"room": room}]}),
        ("hold_room", {"room": room, "guest": guest}, {"hold": hold}),
        ("charge_card", {"hold": hold, "amount": 360}, {"payment": paid}),
        ("confirm_booking", {"hold": hold, "payment": paid}, {"booking": f"BK-{number}"}),
        ("email_guest", {"to": guest, "booking": f"BK-{number}"}, "sent"),
    ]
    return {
        "run_id": f"good-{number}",
        "task_id": "book-room",
        "success": True,
        "calls": [{"name": name, "args": args, "result": result} for name, args, result in calls],
    }


def test_good_runs_on_other_objects_are_not_warned(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [booking(501, "ana"), booking(502, "bea", "read_reviews"), booking(503, "caio")]
    path.write_text("\n".join(map(json.dumps, runs)))
    monitor = EmbeddedMonitor(Settings(), references_from_successes([path]))
    said = [output for found in read_events([path]) for output in monitor.feed(found.event)]
    assert [each for each in said if isinstance(each, Intervention)] == []
    verdicts = {each.verdict.value for each in said if isinstance(each, Verdict)}
    assert "OK" in verdicts
    assert verdicts <= {"OK", "EXPLORING"}
