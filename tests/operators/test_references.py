from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators.artifacts import ArtifactParams
from ontrack.operators.references import ReferenceSet, choose, compile_references, texts
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, ToolContract
from tests import strategies
from tests.operators.lab import SIX_STEPS, embed, reference_of


def compiled(*references: Reference, contracts: tuple[ToolContract, ...] = ()) -> ReferenceSet:
    return compile_references(
        references,
        {contract.name: contract for contract in contracts},
        [embed(text) for text in texts(references)],
        ArtifactParams(),
    )


def of_tools(name: str, *tools: str, provenance: Provenance = Provenance.GOLD) -> Reference:
    return Reference(
        reference_id=name,
        task_id="t",
        provenance=provenance,
        run_id=f"run-{name}",
        steps=tuple(ReferenceStep(tool=tool) for tool in tools),
    )


def test_a_reference_becomes_its_graph_texts_and_masses() -> None:
    found = compiled(reference_of(SIX_STEPS))
    assert (found.count, found.width) == (1, 6)
    assert found.tools == tuple(node.tool for node in SIX_STEPS.nodes)
    parents = [np.flatnonzero(row).tolist() for row in found.arrays.parents[0]]
    assert parents == [[], [0], [0], [1, 2], [3], [4]]
    assert found.arrays.structure[0, 0, 3] == pytest.approx(2 / 3)
    assert found.arrays.nu.tolist() == [[1 / 6] * 6]
    assert found.has_action.all()
    assert np.array_equal(found.actions[1], embed("do read~ref0"))
    assert np.array_equal(found.arguments[1], embed("target read~ref0"))
    assert np.array_equal(found.results[1], embed("result of read ref0"))
    assert found.has_result.all()
    assert set(found.roles.by_tool) == set(found.tools)


def test_references_of_very_different_lengths_stand_side_by_side() -> None:
    found = compiled(of_tools("a", "x"), of_tools("b", *"pqrstuvw"))
    assert (found.count, found.width) == (2, 8)
    assert found.arrays.sizes.tolist() == [1, 8]
    assert found.arrays.mean_size == 4.5
    assert found.tools[:8] == ("x", *[""] * 7)
    assert found.tools[8:] == tuple("pqrstuvw")
    assert not found.actions[1:8].any()


def test_steps_without_an_intent_are_marked() -> None:
    assert not compiled(of_tools("a", "x", "y")).has_action.any()


def test_contracts_give_a_reference_its_edges() -> None:
    contracts = (
        ToolContract(name="x", produces=("=made",)),
        ToolContract(name="y", consumes=("=made",)),
    )
    arrays = compiled(of_tools("a", "x", "y"), contracts=contracts).arrays
    assert arrays.parents[0].tolist() == [[False, False], [True, False]]
    assert not compiled(of_tools("a", "x", "y")).arrays.parents.any()


def test_the_most_trusted_references_are_chosen_and_never_the_run_itself() -> None:
    given_order = [
        of_tools("c", "x", provenance=Provenance.GENERATED),
        of_tools("b", "x", provenance=Provenance.AXIOMATIC),
        of_tools("z", "x", provenance=Provenance.MINED),
        of_tools("a", "x", provenance=Provenance.MINED),
        of_tools("y", "x", provenance=Provenance.GOLD),
        of_tools("long", *"xxxx", provenance=Provenance.GOLD),
    ]
    chosen = choose(given_order, "run-y", count_max=3, steps_max=3)
    assert [reference.reference_id for reference in chosen] == ["a", "z", "b"]
    assert choose([], "r", 3, 3) == ()


@given(strategies.references(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_they_came_in(
    references: tuple[Reference, ...], count_max: int, random: Random
) -> None:
    shuffled = list(references)
    random.shuffle(shuffled)
    assert choose(shuffled, "r", count_max, 100) == choose(references, "r", count_max, 100)


@settings(max_examples=40)
@given(strategies.references(), strategies.contracts())
def test_any_reference_compiles_to_sound_arrays(
    references: tuple[Reference, ...], contracts: tuple[ToolContract, ...]
) -> None:
    found = compiled(*references, contracts=contracts)
    arrays = found.arrays
    assert arrays.sizes.tolist() == [len(reference.steps) for reference in references]
    assert ((arrays.structure >= 0) & (arrays.structure <= 1)).all()
    assert np.array_equal(arrays.structure, arrays.structure.transpose(0, 2, 1))
    assert not np.triu(arrays.parents).any(), "a parent always comes earlier"
    assert np.allclose(arrays.nu.sum(axis=1), 1)
    assert len(found.tools) == len(found.actions) == found.count * found.width
