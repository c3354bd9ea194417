"""Self-test of a reference set: would its own members have been stopped by the others?

Leave-one-out through the very rules that judge runs. A set whose members stop each other describes
a task that is done in ways, or on objects, that references cannot hold; what rests on it may then
warn and not intervene. Published with the set, before any run meets it.

A set of three says little by itself, so sets of one kind are pooled as well: a rule that fails on
the pool, beyond chance, may not intervene on any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ontrack.operators import identity, orphans
from ontrack.operators.gate import GateFinding
from ontrack.operators.identity import IdentityParams
from ontrack.operators.limits import require
from ontrack.operators.orphans import OrphanParams
from ontrack.operators.rates import wilson
from ontrack.operators.references import ReferenceSet
from ontrack.operators.sightings import SeenValues, see
from ontrack.operators.transport import TransportParams, cost_row
from ontrack.operators.values import ReferenceValues, ValueParams
from ontrack.operators.vectors import StepVectors
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Authority


@dataclass(frozen=True, slots=True)
class SelfTestParams:
    """What a set must show.

    Parameters
    ----------
    false_alarms_max
        Share of members that a rule may stop, and still intervene.
    members_min
        Members from which on the test says anything.
    untested
        How far the gate and the inversion rule may go on a set with fewer. Plain orphans only warn
        there.
    pool_z
        Standard errors by which the share of a pool must be over ``false_alarms_max``.
    blind_from
        Share of members above which strangers say nothing any more: the task is done on other
        objects each time, and every good run would be warned.
    """

    false_alarms_max: float = 0.10
    members_min: int = 2
    untested: Authority = Authority.INTERVENE
    pool_z: float = 1.64
    blind_from: float = 0.5

    def __post_init__(self) -> None:
        require(self, 0.0, 1.0, "false_alarms_max")
        require(self, 2, 1000, "members_min")
        require(self, 0.0, 10.0, "pool_z")
        require(self, 0.0, 1.0, "blind_from")


@dataclass(frozen=True, slots=True)
class RuleTest:
    """``flagged``: members that the rule would have stopped; how far it may go."""

    flagged: int
    authority: Authority


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Counts of members, and what follows from them.

    Parameters
    ----------
    members
        How many were tested: K, or 0 where K is too small.
    blocked
        Members that the gate would have stopped, by whichever rule, in mode ``values``.
    undeclared, tools, values, sources
        Rules of the gate: a tool without contract that no other member uses; a declared one; a
        value that no other has, and a value from where no other takes it.
    strangers, orphans, inversion
        Rules of the orphan operator: two strangers; two orphans of any kind, whose authority is
        ``plain`` of :func:`ontrack.operators.orphans.step`; an effectful step that is too early.
    steps, orphan_steps
        All their steps, and those without a counterpart in any other member.
    """

    members: int
    blocked: int
    undeclared: RuleTest
    tools: RuleTest
    values: RuleTest
    sources: RuleTest
    strangers: RuleTest
    orphans: RuleTest
    inversion: RuleTest
    steps: int
    orphan_steps: int

    @property
    def gate_mode(self) -> Literal["values", "sources"]:
        """The rule for values that the gate should use: the stricter of those that passed."""
        may = Authority.INTERVENE
        only_sources = self.values.authority is not may and self.sources.authority is may
        return "sources" if only_sources else "values"

    @property
    def false_block_rate(self) -> float:
        """Share of members that the others would have stopped; 0 where none was tested."""
        return self.blocked / self.members if self.members else 0.0

    @property
    def false_orphan_rate(self) -> float:
        """Share of steps without a counterpart in the other members."""
        return self.orphan_steps / self.steps if self.steps else 0.0

    def gate_authority(self, answer: GateFinding) -> Authority:
        """How far an answer of :func:`ontrack.operators.identity.check` may go on this set."""
        return self.authority_of(*(reason.signal for reason in answer.reasons))

    def authority_of(self, *signals: str) -> Authority:
        """How far a finding may go that has reasons with these signals, of gate or orphans."""
        rules = [_RULE_OF_SIGNAL[signal] for signal in signals if signal in _RULE_OF_SIGNAL]
        found: list[Authority] = [getattr(self, rule).authority for rule in rules]
        return min(found, key=_FURTHEST_FIRST.index, default=Authority.INTERVENE)


_FURTHEST_FIRST = (Authority.INTERVENE, Authority.WARN, Authority.INFORM)
RULES = ("undeclared", "tools", "values", "sources", "strangers", "orphans", "inversion")
_GATE_RULES = {"undeclared", "tools", "values"}
_RULE_OF_SIGNAL = {
    identity.UNDECLARED_TOOL: "undeclared",
    identity.UNSEEN_TOOL: "tools",
    identity.UNSEEN_VALUE: "values",
    identity.UNSEEN_SOURCE: "sources",
    orphans.UNKNOWN_TOOL: "undeclared",
    orphans.STRANGERS: "strangers",
    orphans.ORPHANS: "orphans",
    orphans.PARENT_TOOL: "inversion",
}


def run(
    params: SelfTestParams,
    value_params: ValueParams,
    identity_params: IdentityParams,
    orphan_params: OrphanParams,
    transport_params: TransportParams,
    contracts: Mapping[str, ToolContract],
    references: ReferenceSet,
    values: ReferenceValues,
) -> SelfTest:
    """Test a compiled set.

    Every step of every member costs one cost row and a few look-ups: tens of milliseconds for ten
    members of twenty steps, once.
    """
    if references.count < params.members_min:
        open_to, warns = RuleTest(0, params.untested), RuleTest(0, Authority.WARN)
        open_rules = {rule: open_to for rule in RULES if rule != "orphans"}
        return SelfTest(0, 0, orphans=warns, steps=0, orphan_steps=0, **open_rules)
    rules = _Rules(
        value_params,
        identity_params,
        orphan_params,
        transport_params,
        contracts,
        references,
        values,
    )
    found = [_leave_out(rules, index) for index in range(references.count)]
    tests = {
        rule: _tested(params, rule, sum(rule in one.flags for one in found), len(found))
        for rule in RULES
    }
    return SelfTest(
        members=len(found),
        blocked=sum(bool(_GATE_RULES & one.flags) for one in found),
        steps=sum(one.steps for one in found),
        orphan_steps=sum(one.orphans for one in found),
        **tests,
    )


def pooled(params: SelfTestParams, tests: Iterable[SelfTest]) -> SelfTest | None:
    """Sum up the tests of sets of one kind (those that share their effectful tools, say).

    A rule keeps its authority unless the lower end of Wilson's interval for its share of false
    alarms lies above ``false_alarms_max``. Plain orphans may then only inform, as a warning in
    every fourth good run helps nobody; so may strangers above ``blind_from``. None where nothing
    was tested.

    Source: Wilson (1927), the score interval of a share.
    """
    known = [test for test in tests if test.members]
    members = sum(test.members for test in known)
    if not members:
        return None
    rules = {}
    for rule in RULES:
        flagged = sum(getattr(test, rule).flagged for test in known)
        low, _ = wilson(flagged, members, params.pool_z)
        is_mute = rule == "orphans" or (rule == "strangers" and low > params.blind_from)
        failed = Authority.INFORM if is_mute else Authority.WARN
        passed = low <= params.false_alarms_max
        rules[rule] = RuleTest(flagged, Authority.INTERVENE if passed else failed)
    return SelfTest(
        members=members,
        blocked=sum(test.blocked for test in known),
        steps=sum(test.steps for test in known),
        orphan_steps=sum(test.orphan_steps for test in known),
        **rules,
    )


def limited(test: SelfTest, pool: SelfTest | None) -> SelfTest:
    """Return a set's test with no rule going further than it may on the pool."""
    if pool is None:
        return test
    held_back = {
        rule: replace(own, authority=weaker(own.authority, whole.authority))
        for rule in RULES
        for own, whole in [(getattr(test, rule), getattr(pool, rule))]
    }
    return replace(test, **held_back)


def weaker(one: Authority, other: Authority) -> Authority:
    """Return the authority that goes less far."""
    return max(one, other, key=_FURTHEST_FIRST.index)


def _tested(params: SelfTestParams, rule: str, flagged: int, members: int) -> RuleTest:
    if flagged <= params.false_alarms_max * members:
        return RuleTest(flagged, Authority.INTERVENE)
    is_blind = rule == "strangers" and flagged > params.blind_from * members
    return RuleTest(flagged, Authority.INFORM if is_blind else Authority.WARN)


@dataclass(frozen=True, slots=True)
class _Rules:
    """Everything that is the same for all members."""

    value: ValueParams
    identity: IdentityParams
    orphan: OrphanParams
    transport: TransportParams
    contracts: Mapping[str, ToolContract]
    references: ReferenceSet
    values: ReferenceValues


@dataclass(frozen=True, slots=True)
class _Member:
    """Which rules would have stopped one member; its steps, and those that are orphans."""

    flags: frozenset[str]
    steps: int
    orphans: int


def _leave_out(rules: _Rules, index: int) -> _Member:
    """Run one member as if it were live, against all others."""
    without = 1 << index
    references, values, contracts = rules.references, rules.values, rules.contracts
    by_value = replace(rules.identity, mode="values")
    by_source = replace(rules.identity, mode="sources")
    seen, state = SeenValues(), orphans.OrphanState()
    flags: set[str] = set()
    found_orphans = 0
    steps = references.references[index].steps
    for node, step in enumerate(steps):
        for mode in (by_value, by_source):
            answer = identity.check(mode, rules.value, contracts, values, seen, step, without)
            flags.update(_RULE_OF_SIGNAL[reason.signal] for reason in answer.reasons)
        cell = index * references.width + node
        vectors = StepVectors(
            references.actions[cell], references.arguments[cell], references.results[cell]
        )
        state, signal = orphans.step(
            rules.orphan,
            rules.value,
            rules.identity,
            contracts,
            references,
            values,
            state,
            seen,
            node,
            step,
            cost_row(rules.transport, references, step, vectors),
            without=without,
        )
        found_orphans += signal.orphan
        if signal.reason is not None:
            flags.add(_RULE_OF_SIGNAL[signal.reason.signal])
            if signal.reason.signal == orphans.STRANGERS:
                flags.add("orphans")  # strangers are orphans
        known = identity.is_known(rules.value, contracts, values, seen, step, without)
        seen = see(rules.value.sightings, seen, node, step.tool, step.result, known)
    return _Member(frozenset(flags), len(steps), found_orphans)
