from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given

from ontrack.operators.paths import canonical_value, plain_path, scalars
from tests import strategies


def test_a_path_joins_names_and_hides_indices() -> None:
    value = {"a": [{"b": 1}, {"b": 2}], "c": {"d": None}}
    assert list(scalars(value)) == [("a[*].b", 1), ("a[*].b", 2), ("c.d", None)]
    assert list(scalars([1, [2], {"a": [3]}, 4])) == [
        ("[*]", 1),
        ("[*][*]", 2),
        ("[*].a[*]", 3),
        ("[*]", 4),
    ]


def test_a_contracts_path_is_written_as_places_are() -> None:
    assert plain_path("$.args.items[0].id") == plain_path("items[*].id") == "items[*].id"


@pytest.mark.parametrize(("left", "right"), [(3, "3"), (3.0, 3), ("A  b", "a b"), (" #W1 ", "#w1")])
def test_equal_identities_are_written_alike(left: Any, right: Any) -> None:
    assert canonical_value(left) == canonical_value(right) is not None


@pytest.mark.parametrize(
    "value", [None, "", "  ", "2026-01-31", "2026-01-31T10:00:00Z", "10:30", "1/2/2026"]
)
def test_nothing_and_dates_are_no_identity(value: Any) -> None:
    assert canonical_value(value) is None


@given(strategies.json_values(8))
def test_writing_a_value_twice_changes_nothing(value: Any) -> None:
    for _, scalar in scalars(value):
        once = canonical_value(scalar)
        if once is not None and len(once) <= 200:
            assert canonical_value(once) == once


def test_a_long_name_is_shortened_and_stays_distinct() -> None:
    one, other = "n" * 100_000 + "1", "n" * 100_000 + "2"
    paths = [path for path, _ in scalars({one: {"a": 1}, other: {"a": 1}})]
    assert len(set(paths)) == 2
    assert max(map(len, paths)) < 200


def test_many_values_below_a_long_name_take_no_more_memory_than_they_are_long() -> None:
    names = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=4)]
    value = {"k" * 100_000: dict.fromkeys(names, 1)}
    tracemalloc.start()
    assert sum(1 for _ in scalars(value, keys=True)) == len(names)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
