"""How a call is written down: the bytes that stored digests hang on, and what no message holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.canonical import call_key, call_sha256, canonical_json, reference_id
from ontrack.topics.codecs import decode_proposal, encode
from ontrack.topics.errors import MalformedMessage, TooDeep
from ontrack.topics.events import Proposal
from ontrack.topics.knowledge import ReferenceStep

# Everything that the codec lets through in one object: these digests are stored in snapshots, ids
# of references and records of decisions.
PLAIN: dict[str, Any] = {
    "z": None,
    "a": [True, False, 0, -1, 2**64 - 1, -(2**63)],
    "float": [0.1, 1e16, 1e-7, -0.0, 1.5e300],
    "text": 'é😀"\\\n\u2028',
    "é": {"b": {}, "a": []},
}


def test_the_bytes_of_plain_data_stay_as_they_are() -> None:
    assert canonical_json(PLAIN).decode() == (
        '{"a":[true,false,0,-1,18446744073709551615,-9223372036854775808],'
        '"float":[0.1,1e+16,1e-7,-0.0,1.5e+300],"text":"é😀\\"\\\\\\n\u2028",'
        '"z":null,"é":{"a":[],"b":{}}}'
    )
    assert call_sha256("pay", PLAIN)[:16] == "a904f44d9121cca6"
    assert call_key("pay", PLAIN).hex() == "cea3c0a766e0d98d"


def test_a_reference_keeps_the_id_that_mining_gave_it() -> None:
    steps = (ReferenceStep(tool="pay", args=PLAIN), ReferenceStep(tool="tell", result=1e16))
    assert reference_id("refund", "run-1", steps) == "0075066ea4446f20"
    assert reference_id("refund", "run-2", steps) != reference_id("refund", "run-1", steps)


class _Silent:
    def __str__(self) -> str:
        raise ValueError("no text")


UNUSUAL = [
    {"a": 2**70},
    {"a": -(10**5000)},
    {"a": "\ud800"},
    {"\udfff": {"\ud83d": ["\ude00x"]}},
    {"a": [float("nan"), float("-inf"), 2**64, "\ud800", (1, 2)]},
    {"a": {2**70: 1, None: 2, "b": "\xff\ud83d"}},
    {"a": [b"\xff", 2**70, _Silent()]},
]


@pytest.mark.parametrize("args", UNUSUAL)
def test_what_no_message_holds_is_written_as_it_is_read_after_it_was_sent(
    args: dict[str, Any],
) -> None:
    proposal = Proposal.model_construct(run_id="r", tool="pay", args=args)
    there = decode_proposal(encode(proposal)).event
    assert call_sha256("pay", args) == call_sha256("pay", there.args)
    assert json.loads(canonical_json(args)) == there.args


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=2), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3))
def test_both_sides_of_a_message_name_a_call_alike(args: dict[str, Any]) -> None:
    there = decode_proposal(encode(Proposal(run_id="r", tool="t", args=args))).event
    assert call_sha256("t", args) == call_sha256("t", there.args)


def test_an_object_that_holds_itself_is_refused_in_words() -> None:
    circle: dict[str, Any] = {}
    circle["a"] = circle
    with pytest.raises(TooDeep, match="flatten"):
        canonical_json(circle)
    with pytest.raises(TooDeep, match="flatten"):
        encode(Proposal(run_id="r", tool="t", args={"a": circle}))


def test_an_object_of_another_type_with_bad_text_is_refused_in_words() -> None:
    step = {"step": ReferenceStep.model_construct(tool="\ud800")}
    with pytest.raises(MalformedMessage, match="not Unicode"):
        encode(Proposal(run_id="r", tool="t", args=step))
