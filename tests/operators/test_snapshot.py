"""Snapshots: a run that is written down and read back goes on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import snapshot
from ontrack.operators.knowledge import Knowledge
from ontrack.topics.errors import InvalidSnapshot
from tests.operators.lab import SIX_STEPS, Lab, failed, foreign, reference_of, step_of
from tests.operators.test_table2 import CONTRACTS, ORDER, lab, paraphrased


def copied(monitored: Lab, offset: int = 7) -> Lab:
    """The same run, read back from its bytes."""
    state = monitored.state
    found, read, beside = snapshot.read(snapshot.dump(state, offset, [1, b"x", ["y"]]))
    assert (found, beside) == (offset, (1, b"x", ("y",)))
    other = Lab(profile=monitored.profile)
    other.state = snapshot.restore(read, state.stamp, state.knowledge)
    return other


def test_a_restored_run_goes_on_with_the_same_verdicts_and_the_same_end() -> None:
    straight, stopped = lab(contracts=CONTRACTS), lab(contracts=CONTRACTS)
    steps = [*paraphrased()[:3], foreign(1), failed(foreign(2)), *paraphrased()[3:]]
    straight.feed(*steps)
    stopped.feed(*steps[:4])
    resumed = copied(stopped)
    resumed.feed(*steps[4:])
    assert resumed.verdicts == straight.verdicts[4:]
    assert resumed.end() == straight.end()
    assert resumed.propose(steps[-1]) == straight.propose(steps[-1])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([*ORDER, "foreign", "failed"]), min_size=1, max_size=9),
    st.booleans(),
)
def test_equal_states_give_equal_bytes_however_often_they_are_copied(
    names: list[str], aligned: bool
) -> None:
    monitored = lab(contracts=CONTRACTS) if aligned else Lab(contracts=CONTRACTS)
    for number, name in enumerate(names):
        if name in ORDER:
            monitored.feed(step_of(SIX_STEPS, name, number, seq=2 * number))
        else:
            step = foreign(number, seq=2 * number, parents=(1,))
            monitored.feed(step if name == "foreign" else failed(step))
    once = snapshot.dump(monitored.state, 3)
    assert snapshot.dump(copied(copied(monitored)).state, 3) == once


def test_damage_anywhere_is_noticed() -> None:
    monitored = lab()
    monitored.feed(*paraphrased()[:2])
    whole = snapshot.dump(monitored.state, 1)
    for place in range(0, len(whole), 97):
        broken = bytearray(whole)
        broken[place] ^= 0x40
        with pytest.raises(InvalidSnapshot):
            snapshot.read(bytes(broken))
    for cut in (0, 3, 19, 25, len(whole) - 1):
        with pytest.raises(InvalidSnapshot):
            snapshot.read(whole[:cut])


def test_other_settings_another_engine_or_other_references_are_refused() -> None:
    monitored = lab()
    monitored.feed(*paraphrased()[:2])
    state = monitored.state
    _, read, _ = snapshot.read(snapshot.dump(state, 1))
    for change in ({"settings": "other"}, {"engine": "0.0.9"}, {"profile": "other"}):
        with pytest.raises(InvalidSnapshot, match="other settings"):
            snapshot.restore(read, replace(state.stamp, **change), state.knowledge)
    fewer = Lab([reference_of(SIX_STEPS)]).state.knowledge
    for knowledge in (Knowledge(), fewer):
        with pytest.raises(InvalidSnapshot, match="other references"):
            snapshot.restore(read, state.stamp, knowledge)


def test_another_schema_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monitored = lab()
    monitored.feed(*paraphrased()[:1])
    written = snapshot.dump(monitored.state, 1)
    monkeypatch.setattr(snapshot, "SCHEMA", "another")
    with pytest.raises(InvalidSnapshot, match="another schema"):
        snapshot.read(written)
