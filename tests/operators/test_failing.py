"""Failing: by the error, or by what a result begins with."""

from __future__ import annotations

import pytest

from ontrack.operators.failing import has_failed, says_error
from ontrack.operators.volatile import canonical_result
from ontrack.topics.events import ErrorInfo


@pytest.mark.parametrize(
    "result",
    [
        "Error: no such order",
        "  ** FATAL **: disk full",
        "Traceback (most recent call last):",
        "usage: grep [OPTION]... PATTERNS [FILE]...",
        {"error": "denied", "rows": 0},
        {"error": True},
        {"failed": 3},
        [{"exception": {"kind": "x"}}],
    ],
)
def test_a_result_that_begins_as_errors_do_is_a_failure(result: object) -> None:
    assert says_error(canonical_result(result, None, 4096))
    assert has_failed(None, canonical_result(result, None, 4096))


@pytest.mark.parametrize(
    "result",
    [
        "",
        None,
        "no error",
        "errors: 0",
        "usage of this tool is free",
        {"error": None, "rows": 3},
        {"error": "", "rows": 3},
        {"failed": 0, "passed": 12},
        {"error": False},
        {"exception": []},
    ],
)
def test_a_field_that_holds_no_error_is_no_failure(result: object) -> None:
    assert not says_error(canonical_result(result, None, 4096))


def test_an_error_is_a_failure_whatever_came_back() -> None:
    assert has_failed(ErrorInfo(message="boom"), b"fine")
