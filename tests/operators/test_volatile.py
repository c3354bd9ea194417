"""What is volatile goes, what a call is about stays."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.volatile import (
    MARK,
    canonical_arguments,
    canonical_result,
    identity_of,
    mask,
)
from ontrack.topics.events import ErrorInfo
from tests.strategies import arguments

UUID = "123e4567-e89b-12d3-a456-426614174000"
OTHER_UUID = "00000000-e89b-12d3-a456-426614174fff"

VOLATILE = (
    "2026-01-01T10:00:00Z",
    "2026-01-01 10:00:00.123+02:00",
    "2026-01-01T10:00",
    "9:05:07",
    "23:59:59,250",
    "1767261600",
    "1767261600.25",
    "1767261600123",
    UUID,
    UUID.upper(),
    "0xdeadbeef",
    "12 ms",
    "0.4ms",
    "0.31s",
    "1.5 seconds",
)
STABLE = (
    "2026-01-01",
    "12:30",
    "src/a.py:12:5",
    "12345",
    "2767261600",
    "555-123-2002",
    "0x1",
    "30 seconds",
    "5 items",
    "10 msgs",
    "v1.2.3",
    "order-17",
    "e89b-12d3-a456",
    "timeless=5",
    "runtime=5",
)
# Everything that patterns begin, end or stop at, to be joined without anything between.
PIECES = (
    *VOLATILE,
    *STABLE,
    *('"ts":', '"request_id": ', "time=", "pid=", "took=", '"', "\\", "'", "=", ":", "-", ".", ","),
    *(" ", "\n", "{", "}", "+05:30", "Z", "T", "ms", "s", "x", "_", "é", "0", "1", "7", "\x1a"),
)


def arguments_of(args: dict[str, Any], identity: tuple[str, ...] | None = None) -> bytes:
    return canonical_arguments(args, 4096, identity)


def result_of(result: Any, error: ErrorInfo | None = None) -> bytes:
    return canonical_result(result, error, 4096)


def test_the_same_answer_at_another_time_is_the_same_answer() -> None:
    first = "2 passed in 0.31s at 2026-01-01T10:00:00Z (pid=71, request 0xdeadbeef)"
    second = "2 passed in 1.02s at 2026-01-02T23:15:09Z (pid=9, request 0xfeedf00d)"
    assert result_of(first) == result_of(second)
    assert result_of(first) != result_of(first.replace("2 passed", "3 passed"))


@pytest.mark.parametrize("text", VOLATILE)
def test_volatile_text_is_masked_between_words(text: str) -> None:
    assert mask(f"at {text} it was".encode()) == b"at " + MARK + b" it was"
    assert mask(f'{{"a":"{text}"}}'.encode()) == b'{"a":"' + MARK + b'"}'


@pytest.mark.parametrize("text", [text for text in VOLATILE if " " not in text])
def test_what_looks_volatile_inside_a_word_stays(text: str) -> None:
    assert mask(f"x{text}x".encode()) == f"x{text}x".encode()


@pytest.mark.parametrize("text", STABLE)
def test_dates_places_numbers_and_names_stay(text: str) -> None:
    assert mask(f"at {text} it was".encode()) == f"at {text} it was".encode()


@pytest.mark.parametrize("name", ["time", "pid", "elapsed", "took"])
@pytest.mark.parametrize("value", ["17", "0.3", "noon", '"a b"', "1h2m"])
def test_a_value_named_as_volatile_is_masked(name: str, value: str) -> None:
    assert mask(f"[{name}={value}, n=3]".encode()) == f"[{name}=".encode() + MARK + b", n=3]"


def test_fields_that_say_when_or_by_whom_are_masked_in_records_and_in_their_text() -> None:
    record = {"n": 3, "request_id": "ab\\c", "ts": 17, "elapsed_ms": 4.5, "traceId": None}
    other = {"n": 3, "request_id": 'x"y', "ts": 18, "elapsed_ms": 9, "traceId": "t"}
    assert result_of(record) == result_of(other)
    assert result_of('{"n": 3, "ts": 17}') == result_of('{"n": 3, "ts": 18}')
    assert result_of({"id": 17}) != result_of({"id": 18})


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_masking_twice_changes_nothing(text: str) -> None:
    once = mask(text.encode())
    assert mask(once) == once


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_masking_any_text_twice_changes_nothing(text: str) -> None:
    once = mask(text.encode("utf-8", "replace"))
    assert mask(once) == once
    assert len(once) <= len(text.encode("utf-8", "replace"))


@given(arguments(), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(args: dict[str, Any], order: random.Random) -> None:
    names = list(args)
    order.shuffle(names)
    assert arguments_of({name: args[name] for name in names}) == arguments_of(args)


@given(
    st.lists(st.text("ab\u00e9", min_size=1, max_size=3), max_size=4), st.text(" \t\n", min_size=1)
)
def test_white_space_does_not_matter(words: list[str], space: str) -> None:
    spaced = space + space.join(words) + space
    assert arguments_of({"query": spaced, "deep": [spaced]}) == arguments_of(
        {"query": " ".join(words), "deep": [" ".join(words)]}
    )


@given(st.integers(-(2**53), 2**53))
def test_a_whole_number_is_the_same_however_it_is_written(number: int) -> None:
    assert arguments_of({"n": float(number), "of": [float(number)]}) == arguments_of(
        {"n": number, "of": [number]}
    )
    assert arguments_of({"n": number}) != arguments_of({"n": str(number)})


def test_one_and_true_are_different_arguments() -> None:
    assert len({arguments_of({"n": value}) for value in (1, True, "1", None, 1.5)}) == 5


def test_volatile_arguments_are_dropped() -> None:
    plain = {"path": "a"}
    for name in ("request_id", "requestId", "nonce", "ts", "trace-id", "call_id", "id", "time"):
        assert arguments_of({**plain, name: "x1"}) == arguments_of(plain)
    assert arguments_of({**plain, "options": {"nonce": 1}}) == arguments_of(
        {**plain, "options": {"nonce": 2}}
    )


def test_an_id_stays_where_nothing_else_says_what_the_call_is_about() -> None:
    assert arguments_of({"id": 1}) != arguments_of({"id": 2})
    assert arguments_of({"id": 1, "force": True}) != arguments_of({"id": 2, "force": True})
    assert arguments_of({"id": UUID}) != arguments_of({"id": OTHER_UUID})


def test_what_a_call_is_about_is_never_masked() -> None:
    assert arguments_of({"order_id": UUID}) != arguments_of({"order_id": OTHER_UUID})
    assert arguments_of({"query": f"order {UUID}"}) == arguments_of(
        {"query": f"order {OTHER_UUID}"}
    )
    declared = ("args.ref.value",)
    assert arguments_of({"ref": UUID}) == arguments_of({"ref": OTHER_UUID})
    assert arguments_of({"ref": UUID}, declared) != arguments_of({"ref": OTHER_UUID}, declared)


def test_identity_is_ids_and_paths_then_short_values_then_paths_in_commands() -> None:
    def about(**args: Any) -> bytes:
        return identity_of(args, 4096)

    assert about(path="a", limit=1) == about(path="a", limit=2) != about(path="b", limit=1)
    assert about(city="Rome", query="x") == about(city="Rome", query="y") != about(city="Oslo")
    assert about(command="cat /a -n") == about(command="less /a") != about(command="cat /b")
    assert about(query="foo 1") == about(page=3) == about() == b""


def test_an_error_is_part_of_what_came_back() -> None:
    assert result_of("x", ErrorInfo(message="denied")) != result_of("x")
    assert result_of(None, ErrorInfo(message="after 12 ms")) == result_of(
        None, ErrorInfo(message="after 99 ms")
    )


def test_of_a_long_result_beginning_and_end_are_compared() -> None:
    log = "line\n" * 10_000
    assert len(result_of(log)) <= 4096
    assert result_of(log + "new") != result_of(log)
    assert result_of("new" + log) != result_of(log)
    assert len(result_of([log])) <= 4096


@given(st.text(max_size=300), st.integers(64, 200))
def test_what_is_compared_stays_within_the_limit(text: str, limit: int) -> None:
    assert len(canonical_result(text, None, limit)) <= limit
    assert len(canonical_arguments({"query": text}, limit)) <= limit
