"""The whole monitor step as a workload: event bytes in, verdict bytes out."""

from __future__ import annotations

from random import Random

from ontrack.operators.state import RunState
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep

_TASK = "bench"
_RUN = "bench-run"
_TOOL_NAMES = (
    "search_orders get_order get_customer list_invoices read_policy check_stock "
    "quote_shipping reserve_item update_ticket add_note send_summary get_calendar"
)
_VOCABULARY = (
    "order customer invoice parcel refund address ticket policy stock price shipping date "
    "warehouse payment account return exchange label discount receipt item delivery carrier "
    "window damaged missing urgent confirmed pending approved second first latest original"
)
_TOOLS, _WORDS = _TOOL_NAMES.split(), _VOCABULARY.split()
_RESULT_WORDS = 90
"""Gives results of about 700 characters, the median of the recorded runs at hand."""
_LETTERS = "bcdfghjklmnpqrstvwxz"


class MonitorStep:
    """The last step of a run of ``size`` steps, against ``count`` references as long as it.

    The run follows its references in other words, so nothing intervenes. Events declare no
    artifacts: these are found by the built-in rules, as for most hosts.

    Parameters
    ----------
    settings
        Profile and encoder are measured as set.
    variants
        How many wordings of the step take turns; each has been met before, so all its texts come
        out of the encoder's cache. None: each message has texts that were never seen before, and
        one word in each of them that was never seen either, as recorded runs have them.
    """

    def __init__(
        self, settings: Settings, size: int, count: int, variants: int | None = None
    ) -> None:
        references = [_reference(size, index) for index in range(count)]
        self._monitor = EmbeddedMonitor(settings, references)
        for seq in range(size - 1):
            self._monitor.feed(_step(seq, variant=f"run {seq}"))
        self._before: RunState = self._monitor.state.runs[_RUN]
        self._last = size - 1
        self._made = 0
        self._variants = variants
        for _ in range(variants or 0):
            self.apply(self.message())

    def message(self) -> bytes:
        """Put the run back to before its last step; return that step in other words."""
        self._monitor.state.runs[_RUN] = self._before
        self._made += 1
        number = self._made if self._variants is None else self._made % self._variants
        return codecs.encode(_step(self._last, variant=f"fresh {_made_up(number)}"))

    def apply(self, message: bytes) -> list[bytes]:
        """Fold one message; return the encoded outputs."""
        monitor = self._monitor
        return [
            codecs.encode(output) for output in monitor.fold.apply(monitor.state, Record(message))
        ]


def _reference(size: int, index: int) -> Reference:
    said = [_step(seq, variant=f"reference {index} {seq}") for seq in range(size)]
    return Reference(
        reference_id=f"{_TASK}-{index}",
        task_id=_TASK,
        provenance=Provenance.GOLD,
        steps=tuple(ReferenceStep.of(step) for step in said),
    )


def _made_up(number: int) -> str:
    """Return a word that no text has and no other number gives."""
    word = _LETTERS[number % len(_LETTERS)]
    while number := number // len(_LETTERS):
        word += _LETTERS[number % len(_LETTERS)]
    return f"x{word}"


def _step(seq: int, variant: str) -> Step:
    """Step ``seq`` of the task: the same deed under every variant, in slightly other words."""
    deed, wording = Random(f"deed {seq}"), Random(f"{seq} {variant}")
    topic = [deed.choice(_WORDS) for _ in range(9)]
    used = f"doc-{seq - 1 - deed.randrange(min(seq, 3)):03d}" if seq else "inbox-1"
    text = [*(wording.choice(_WORDS) for _ in range(3)), variant]
    filler = [wording.choice(_WORDS) for _ in range(_RESULT_WORDS)]
    return Step(
        run_id=_RUN,
        task_id=_TASK,
        seq=seq,
        action=f"Now {' '.join(topic)}, then {' '.join(text)}",
        tool=_TOOLS[deed.randrange(len(_TOOLS))],
        args={"document": used, "topic": " ".join(topic), "note": " ".join(text), "limit": 20},
        result={
            "id": f"doc-{seq:03d}",
            "title": " ".join(topic),
            "lines": [" ".join(filler[i : i + 15]) for i in range(0, _RESULT_WORDS, 15)],
            "comment": variant,
        },
    )
