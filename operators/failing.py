"""Failing: whether a call failed, where its host may know no errors."""

from __future__ import annotations

import re

from ontrack.topics.events import ErrorInfo

# Hosts that know no errors say so in the result's first word; as the name of a field it says so
# only where the field holds something: `{"error": null}` and `{"failed": 0}` say the contrary. A
# text that explains how a tool is called is what it answers to a call that it did not understand.
_SAYS_ERROR = re.compile(
    rb"\W{0,8}(?:error|exception|traceback|failed|failure|fatal|usage:)(?!\w)"
    rb"(?!\"\s*:\s*(?:null|none|false|0(?:\.0)?|\"\"|\[\s*\]|\{\s*\})\s*[,}])",
    re.IGNORECASE,
)


def has_failed(error: ErrorInfo | None, result: bytes) -> bool:
    """Tell whether a call failed: by its error, or by what its result begins with.

    Parameters
    ----------
    result
        As :func:`ontrack.operators.volatile.canonical_result` writes it.
    """
    return error is not None or says_error(result)


def says_error(result: bytes) -> bool:
    """Tell whether a result begins as errors do."""
    return _SAYS_ERROR.match(result) is not None
