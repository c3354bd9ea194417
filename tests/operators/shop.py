"""A small shop: accounts, orders, refunds. Contracts, runs and compiled references for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ontrack.operators import orphans
from ontrack.operators.artifacts import ArtifactParams
from ontrack.operators.identity import IdentityParams
from ontrack.operators.orphans import OrphanParams, OrphanSignal, OrphanState
from ontrack.operators.references import ReferenceSet, compile_references, texts
from ontrack.operators.sightings import SeenValues, see
from ontrack.operators.transport import ROLE_WEIGHTS, TransportParams, cost_row
from ontrack.operators.values import ReferenceValues, ValueParams, compile_values
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Reference, ReferenceStep, ToolContract
from ontrack.topics.verdicts import Authority
from tests.operators.lab import embed

VALUES, IDENTITY = ValueParams(), IdentityParams()
BY_ROLE = TransportParams(cost="role", weights=ROLE_WEIGHTS)
CONTRACTS = {
    contract.name: contract
    for contract in (
        ToolContract(name="find_user", declared_effect="read"),
        ToolContract(name="get_order", declared_effect="read"),
        ToolContract(name="get_product", declared_effect="read"),
        ToolContract(name="refund_order", declared_effect="write"),
        ToolContract(name="close_account", declared_effect="destructive"),
    )
}


def shop_run(name: str = "ann", order: str = "W17", card: str = "card_1") -> list[Step]:
    """Find the account, look at the order, refund it."""
    user = f"{name}_id_9"
    calls = [
        ("find_user", {"email": f"{name}@shop.example"}, user),
        ("get_order", {"order_id": order}, {"order_id": order, "user": user, "card": card}),
        ("refund_order", {"order_id": order, "card": card}, "refunded"),
    ]
    return [
        Step(run_id=name, task_id="t", seq=seq, tool=tool, args=args, result=result)
        for seq, (tool, args, result) in enumerate(calls)
    ]


def reference_of(steps: Sequence[Step], name: str = "ref") -> Reference:
    """A run as a reference."""
    return Reference(
        reference_id=name, task_id="t", steps=tuple(ReferenceStep.of(step) for step in steps)
    )


@dataclass(frozen=True)
class Shop:
    """References, compiled, and a run that is judged against them."""

    references: ReferenceSet
    values: ReferenceValues

    @classmethod
    def of(cls, *runs: Sequence[Step]) -> Shop:
        found = [reference_of(steps, f"ref-{index}") for index, steps in enumerate(runs)]
        vectors = [embed(text) for text in texts(found)]
        return cls(
            compile_references(found, CONTRACTS, vectors, ArtifactParams()),
            compile_values(VALUES, found, CONTRACTS),
        )

    def judge(
        self,
        steps: Sequence[Step],
        params: OrphanParams | None = None,
        plain: Authority = Authority.WARN,
        without: int = 0,
    ) -> list[OrphanSignal]:
        """Run steps through the orphan operator."""
        state, seen, found = OrphanState(), SeenValues(), []
        for seq, step in enumerate(steps):
            vectors = StepVectors(*map(embed, step_texts(step, 1000)))
            row = cost_row(BY_ROLE, self.references, step, vectors)
            state, signal = orphans.step(
                params or OrphanParams(),
                VALUES,
                IDENTITY,
                CONTRACTS,
                self.references,
                self.values,
                state,
                seen,
                seq,
                step,
                row,
                plain,
                without,
            )
            seen = see(VALUES.sightings, seen, seq, step.tool, step.result)
            found.append(signal)
        return found
