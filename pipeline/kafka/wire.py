"""What the gate's questions and answers look like on the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import BaseModel, TypeAdapter, ValidationError

from ontrack.topics import codecs
from ontrack.topics.errors import EventAfterEnd, InvalidEvent, MessageTooLarge, WrongShape
from ontrack.topics.jsontext import parse, shown

GATE_PATH = "/v1/gate"
REDEEM_PATH = "/v1/gate/redeem"
#: Marks a question that has been passed on, and says how many milliseconds are left for it.
FORWARDED_HEADER = "X-Ontrack-Forwarded-Deadline-Ms"
DEADLINE_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer: status and JSON bytes."""

    status: int
    body: bytes


class Redemption(BaseModel):
    """A decision to be used for one call."""

    decision_id: str
    run_id: str
    call_sha256: str


_REDEMPTION = TypeAdapter(Redemption)


def read_redemption(raw: bytes) -> Redemption:
    """Read what is to be redeemed.

    Raises
    ------
    WrongShape
        Naming the field.
    """
    try:
        return _REDEMPTION.validate_json(raw)
    except ValidationError as error:
        raise WrongShape(codecs.explain(error.errors(include_url=False))) from None


def deadline_in(raw: bytes) -> float | None:
    """Return the ``deadline_ms`` of a question that could be read; None where it has none.

    Raises
    ------
    WrongShape
        It is no number from 0.
    """
    if b'"deadline_ms"' not in raw:
        return None
    value = parse(raw).value.get("deadline_ms")
    return None if value is None else deadline(value)


def deadline(value: object) -> float:
    """Read a deadline in milliseconds; one beyond the maximum is the maximum.

    Raises
    ------
    WrongShape
        It is no number from 0.
    """
    try:
        number = -1.0 if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not number >= 0:
        raise WrongShape(
            f"field `deadline_ms` should be a number of milliseconds from 0, found {shown(value)}"
        )
    return min(number, DEADLINE_MS_MAX)


def decision_in(reply: Reply) -> str:
    """Return what another worker has decided, for the metrics."""
    if reply.status != 200:
        return "refused"
    return str(json.loads(reply.body).get("decision", "refused"))


def refusal(error: InvalidEvent) -> Reply:
    """Return the answer to a question that is none: 400, 409 after the end, 413 for too much."""
    status = 413 if isinstance(error, MessageTooLarge) else 400
    if isinstance(error, EventAfterEnd):
        status = 409
    return json_reply(status, {"error": type(error).__name__, "text": str(error)})


def json_reply(status: int, value: object) -> Reply:
    """Return an answer of plain data."""
    return Reply(status, json.dumps(value).encode())
