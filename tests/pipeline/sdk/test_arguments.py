"""Arguments and results as JSON: equal where JSON has them, else shown as text."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections import OrderedDict, namedtuple
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ontrack.pipeline.sdk.arguments import DEPTH_MAX, TEXT_MAX, Binder, plain
from ontrack.topics import codecs
from ontrack.topics.events import Step
from tests.strategies import json_values


class Color(Enum):
    RED = "red"


class Item(BaseModel):
    name: str
    at: dt.date


@dataclasses.dataclass
class Point:
    x: int
    near: list[Color]


Pair = namedtuple("Pair", "left right")


class Unspeakable:
    def __str__(self) -> str:
        raise ValueError("secret")


@given(json_values(leaves_max=12))
def test_a_json_value_comes_through_equal(value: Any) -> None:
    assert plain(value) == value
    read = codecs.decode_event(codecs.encode(Step(run_id="r", tool="t", result=plain(value))))
    assert isinstance(read.event, Step)
    assert json.dumps(read.event.result) == json.dumps(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((1, (2,)), [1, [2]]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        (OrderedDict(a=1), {"a": 1}),
        ({3, 1, 2}, [1, 2, 3]),
        (Pair(1, "r"), [1, "r"]),
        (Color.RED, "red"),
        (Point(1, [Color.RED]), {"x": 1, "near": ["red"]}),
        (Item(name="n", at=dt.date(2026, 1, 2)), {"name": "n", "at": "2026-01-02"}),
        (Path("/a/b"), "/a/b"),
        (Decimal("1.50"), "1.50"),
        (b"\xff" * 7, "7 bytes"),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02 00:00:00+00:00"),
        (Unspeakable(), "Unspeakable (ValueError)"),
        ("half \ud800 a pair", "half \ufffd a pair"),
        (True, True),
        (2**70, 2**70),
    ],
)
def test_what_json_lacks_is_shown(value: Any, shown: Any) -> None:
    found = plain(value)
    assert found == shown
    assert type(found) is type(shown)
    codecs.encode(Step(run_id="r", tool="t", result=found))


def test_what_is_too_long_or_too_deep_is_cut() -> None:
    text = plain("x" * (TEXT_MAX + 5))
    assert text == "x" * TEXT_MAX + f"… ({TEXT_MAX + 5} characters)"
    nested: Any = "end"
    for _ in range(5000):
        nested = [nested]
    assert codecs.decode_event(
        codecs.encode(Step(run_id="r", tool="t", result=plain(nested)))
    ).event
    itself: dict[str, Any] = {}
    itself["me"] = itself
    depth, node = 0, plain(itself)
    while isinstance(node, dict):
        depth, node = depth + 1, node["me"]
    assert depth == DEPTH_MAX
    assert isinstance(node, str)


def call(a: Any, b: Any = 2, *rest: Any, c: Any = None, **more: Any) -> None:
    """Takes arguments in every way."""


@given(
    json_values(), json_values(), st.lists(json_values(), max_size=2), json_values(), json_values()
)
def test_arguments_are_named_however_they_are_passed(
    a: Any, b: Any, rest: list[Any], c: Any, extra: Any
) -> None:
    binder = Binder(call)
    assert binder.bind((a, b, *rest), {"c": c, "extra": extra}) == {
        "a": a,
        "b": b,
        "rest": rest,
        "c": c,
        "extra": extra,
    }
    assert binder.bind((), {"a": a}) == {"a": a, "b": 2, "rest": [], "c": None}


def test_arguments_that_do_not_fit_are_the_calls_own_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        Binder(call).bind((), {})


class Desk:
    def book(self, room: str) -> None: ...

    @classmethod
    def of(cls, name: str) -> None: ...

    @staticmethod
    def plain(self_: str) -> None: ...


def test_self_and_cls_are_left_out_of_methods_only() -> None:
    assert Binder(Desk.book).bind((Desk(), "a"), {}) == {"room": "a"}
    assert Binder(Desk.__dict__["of"].__func__).bind((Desk, "a"), {}) == {"name": "a"}
    assert Binder(Desk.plain).bind(("a",), {}) == {"self_": "a"}

    def function(self: str) -> None: ...

    assert Binder(function).bind(("a",), {}) == {"self": "a"}


def test_a_further_argument_of_the_same_name_hides_none() -> None:
    def odd(a: int, /, **more: int) -> None: ...

    assert Binder(odd).bind((1,), {"a": 2}) == {"a": 1, "more": {"a": 2}}
