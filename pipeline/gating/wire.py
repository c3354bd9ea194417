"""What the gate's questions and answers look like on the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from ontrack.pipeline.gating.answers import GateAnswer
from ontrack.topics import codecs
from ontrack.topics.errors import EventAfterEnd, InvalidEvent, MessageTooLarge, WrongShape
from ontrack.topics.events import Proposal
from ontrack.topics.jsontext import parse, shown

GATE_PATH = "/v1/gate"
REDEEM_PATH = "/v1/gate/redeem"
#: Marks a question that has been passed on, and says how many milliseconds are left for it.
FORWARDED_HEADER = "X-Ontrack-Forwarded-Deadline-Ms"
#: On a record of the decisions topic that answers no proposal there: who has decided.
DECIDED_BY_HEADER = "ontrack_decided_by"
DEADLINE_MS_MAX = 60_000
_REFUSALS = frozenset({400, 409, 413})


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
_ANSWER = TypeAdapter(GateAnswer)


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


def answer_in(reply: Reply, proposal: Proposal) -> str:
    """Return what another worker has decided, ``refused`` where the question was none.

    Checked, because an address may have gone to another program, which says 200 to everything.

    Raises
    ------
    ValueError
        No worker of ours answers like that, or not to this question.
    """
    if reply.status in _REFUSALS:
        if isinstance(fields_of(reply.body).get("error"), str):
            return "refused"
    elif reply.status == 200:
        return read_answer(reply.body, proposal).decision
    raise ValueError(f"status {reply.status} without an answer to the question")


def read_answer(body: bytes, proposal: Proposal) -> GateAnswer:
    """Read the answer to a question.

    Raises
    ------
    ValueError
        It cannot be read (pydantic's ValidationError), or is about another call.
    """
    answer = _ANSWER.validate_json(body)
    # Not its hash: the worker may redact more of the call than whoever asks knows.
    is_same = (answer.run_id, answer.tool) == (proposal.run_id, proposal.tool)
    if not is_same or proposal.seq not in (None, answer.seq):
        raise ValueError("the answer is about another call")
    return answer


def is_redemption_result(reply: Reply) -> bool:
    """Tell whether a worker of ours has answered a redemption: only ``ok: true`` allows."""
    if reply.status not in (200, 400, 409, 503):
        return False
    told = fields_of(reply.body)
    if reply.status == 400:
        return isinstance(told.get("error"), str)
    return told.get("ok") is (reply.status == 200)


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object; none where it is no such thing."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def refusal(error: InvalidEvent) -> Reply:
    """Return the answer to a question that is none: 400, 409 after the end, 413 for too much."""
    status = 413 if isinstance(error, MessageTooLarge) else 400
    if isinstance(error, EventAfterEnd):
        status = 409
    return json_reply(status, {"error": type(error).__name__, "text": str(error)})


def json_reply(status: int, value: object) -> Reply:
    """Return an answer of plain data."""
    return Reply(status, json.dumps(value).encode())
