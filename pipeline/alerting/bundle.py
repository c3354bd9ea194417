"""A bundle: alerts that are told together, of which only the gravest are kept in full."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from rpds import HashTrieMap

from ontrack.pipeline.alerting.alert import Alert

KEPT_MAX: Final = 20
KINDS_MAX: Final = 64
_DIGEST_BYTES: Final = 32
_DIGESTS: Final = 1 << (8 * _DIGEST_BYTES)

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Span:
    """Which offsets of a partition a bundle holds: the lowest, the highest, and how many."""

    lowest: int
    highest: int
    count: int

    def with_(self, other: Span) -> Span:
        """Return the span of both."""
        return Span(
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.count + other.count,
        )


@dataclass(frozen=True, slots=True)
class Bundle:
    """Alerts that are told together.

    Parameters
    ----------
    kept
        The gravest, in full, of equals the first; in the order in which they came.
    count
        Of all.
    kinds
        How many there are of each (intervention, verdict), as far as kinds are told apart.
    spans
        Where they stand, by topic and partition.
    first_s, last_s
        Times of the first and the last, in seconds since 1970.
    digest
        Of the ids of all: two bundles of the same alerts have the same, in whatever order they came
        together. After a restart partitions may be merged in another one.
    """

    kept: tuple[Alert, ...]
    count: int
    kinds: HashTrieMap[tuple[str, str], int]
    spans: HashTrieMap[Place, Span]
    first_s: float
    last_s: float
    digest: bytes

    @classmethod
    def of(cls, alert: Alert) -> Bundle:
        """Return the bundle of one."""
        span = Span(alert.record.offset, alert.record.offset, 1)
        return cls(
            kept=(alert,),
            count=1,
            kinds=HashTrieMap({(alert.intervention, alert.verdict): 1}),
            spans=HashTrieMap({alert.place: span}),
            first_s=alert.time_s,
            last_s=alert.time_s,
            digest=hashlib.sha256(alert.id.encode("utf-8", "replace")).digest(),
        )

    @property
    def gravest(self) -> Alert:
        """The first of those with the highest severity."""
        return max(self.kept, key=lambda alert: alert.severity)

    @property
    def severity(self) -> int:
        """The highest of all."""
        return self.gravest.severity

    def with_(self, other: Bundle) -> Bundle:
        """Return the bundle of both, these first."""
        kinds, spans = self.kinds, self.spans
        for kind, count in other.kinds.items():
            if kind in kinds or len(kinds) < KINDS_MAX:
                kinds = kinds.insert(kind, kinds.get(kind, 0) + count)
        for place, span in other.spans.items():
            here = spans.get(place)
            spans = spans.insert(place, span if here is None else here.with_(span))
        return replace(
            self,
            kept=_kept(self.kept + other.kept),
            count=self.count + other.count,
            kinds=kinds,
            spans=spans,
            first_s=min(self.first_s, other.first_s),
            last_s=max(self.last_s, other.last_s),
            digest=_joined(self.digest, other.digest),
        )


def _joined(one: bytes, other: bytes) -> bytes:
    """Add digests modulo 2^256: a sum does not know the order of what was added."""
    added = int.from_bytes(one, "big") + int.from_bytes(other, "big")
    return (added % _DIGESTS).to_bytes(_DIGEST_BYTES, "big")


def _kept(alerts: tuple[Alert, ...]) -> tuple[Alert, ...]:
    """Keep the gravest, of equals the first, in the order in which they came.

    People act on what is named: twenty warnings must not leave a halt a mere count.
    """
    if len(alerts) <= KEPT_MAX:
        return alerts
    gravest = sorted(range(len(alerts)), key=lambda place: -alerts[place].severity)[:KEPT_MAX]
    return tuple(alerts[place] for place in sorted(gravest))
