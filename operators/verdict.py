"""Verdict: one of all findings of a step, with the reasons of all.

All triggers are per-event, per-node quantities; the aggregate score is reported, never
thresholded (section 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ontrack.operators.findings import Finding
from ontrack.topics.verdicts import Authority, InterventionName, Reason, VerdictName


@dataclass(frozen=True, slots=True)
class VerdictOutput:
    """The verdict on one step.

    Parameters
    ----------
    by_transport
        It rests on the coupling, so it needs the converged solve.
    wanted
        What should happen, where that is not what the verdict's name says.
    """

    name: VerdictName
    reasons: tuple[Reason, ...]
    evidence: tuple[int, ...]
    authority: Authority
    by_transport: bool
    wanted: InterventionName | None = None

    @property
    def severity(self) -> int:
        """0 fine, 1 noted, 2 warned, 3 severe; capped by authority."""
        return min(_SEVERITY[self.name], _CAP[self.authority])

    @property
    def intervention(self) -> InterventionName | None:
        """What should happen because of this verdict, if anything."""
        wanted = self.wanted or _INTERVENTION.get(self.name)
        if wanted is None or self.authority is Authority.INFORM:
            return None
        return wanted if self.authority is Authority.INTERVENE else InterventionName.WARN


_SEVERITY = {
    VerdictName.OK: 0,
    VerdictName.EXPLORING: 1,
    VerdictName.WARN: 2,
    VerdictName.STALLED: 3,
    VerdictName.LOOP: 3,
    VerdictName.OFF_TRACK: 3,
    VerdictName.CAUSAL_INVERSION: 3,
    VerdictName.BLOCK: 3,
}
_CAP = {Authority.INTERVENE: 3, Authority.WARN: 2, Authority.INFORM: 1}
_INTERVENTION = {
    VerdictName.WARN: InterventionName.WARN,
    VerdictName.STALLED: InterventionName.REPLAN,
    VerdictName.LOOP: InterventionName.REPLAN,
    VerdictName.OFF_TRACK: InterventionName.REPLAN,
    VerdictName.CAUSAL_INVERSION: InterventionName.REPLAN,
    VerdictName.BLOCK: InterventionName.BLOCK,
}
# Among the severe ones the more certain comes first: what the run shows by itself (L1) needs no
# reference, and says more exactly what to do than "off track".
_GRAVEST_FIRST = (
    VerdictName.BLOCK,
    VerdictName.CAUSAL_INVERSION,
    VerdictName.LOOP,
    VerdictName.STALLED,
    VerdictName.OFF_TRACK,
    VerdictName.WARN,
    VerdictName.EXPLORING,
)


def choose(findings: Sequence[Finding], authority: Authority) -> VerdictOutput:
    """Choose the gravest finding; the reasons of all findings go along, gravest first.

    Parameters
    ----------
    authority
        Of a step without findings: that of the references it was compared with.
    """
    if not findings:
        return VerdictOutput(VerdictName.OK, (), (), authority, False)
    order = {name: rank for rank, name in enumerate(_GRAVEST_FIRST)}
    ordered = sorted(findings, key=lambda finding: order[finding.name])
    gravest = ordered[0]
    return VerdictOutput(
        gravest.name,
        tuple(finding.reason for finding in ordered),
        gravest.evidence,
        gravest.authority,
        gravest.by_transport,
        gravest.wanted,
    )
