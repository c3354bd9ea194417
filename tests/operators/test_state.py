from __future__ import annotations

from dataclasses import replace

import pytest

from ontrack.operators.knowledge import Knowledge
from ontrack.operators.report import Stamp
from ontrack.operators.state import RunState, changed

STATE = RunState("r", Stamp("default", "0" * 8, "ontrack"), Knowledge(), task_id="t", errors=2)


def test_a_changed_state_is_the_one_that_replace_gives() -> None:
    made = changed(STATE, highest=3, flags=("gap",), task_id=None)
    assert made == replace(STATE, highest=3, flags=("gap",), task_id=None)
    assert made.ledger is STATE.ledger, "what is not changed is shared"
    assert STATE.highest == -1


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="higest"):
        changed(STATE, higest=3)
