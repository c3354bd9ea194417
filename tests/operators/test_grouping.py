from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.grouping import GroupParams, colliding, groups
from ontrack.operators.mining import Success
from ontrack.topics.knowledge import ReferenceStep
from tests.operators.shop import shop_run

PARAMS = GroupParams()


def of(name: str, order: str, card: str, run_id: str = "") -> Success:
    steps = tuple(ReferenceStep.of(step) for step in shop_run(name, order, card))
    return Success(run_id or f"{name}-{order}", steps)


ANN, ANN_AGAIN = of("ann", "W17", "card_1"), of("ann", "W18", "card_1")
BOB, CY = of("bob", "W55", "card_9"), of("cy", "W66", "card_4")


def test_runs_about_the_same_account_are_one_task() -> None:
    assert groups(PARAMS, {}, [ANN, ANN_AGAIN]) == ((0, 1),)


def test_two_tasks_under_one_id_are_told_apart_and_the_larger_comes_first() -> None:
    assert groups(PARAMS, {}, [BOB, ANN, ANN_AGAIN]) == ((1, 2), (0,))
    assert colliding(PARAMS, {}, {"17": [BOB, ANN, ANN_AGAIN], "18": [ANN]}) == {
        "17": ((1, 2), (0,))
    }


def test_other_tools_on_the_same_values_are_another_task() -> None:
    other = tuple(step.model_copy(update={"tool": f"other_{step.tool}"}) for step in ANN.steps)
    assert groups(PARAMS, {}, [ANN, Success("other", other)]) == ((0,), (1,))


def test_a_run_that_names_nothing_goes_with_the_largest_group() -> None:
    silent = Success("silent", (ReferenceStep(tool="find_user"),))
    assert groups(PARAMS, {}, [silent, BOB, ANN, ANN_AGAIN]) == ((0, 2, 3), (1,))
    assert groups(PARAMS, {}, [silent, silent]) == ((0, 1),)


def test_runs_of_which_no_two_share_anything_prove_nothing_by_themselves() -> None:
    lone = {"1": [ANN, BOB], "2": [ANN, BOB, CY]}
    assert colliding(PARAMS, {}, lone) == {}
    proof = {"3": [ANN, ANN_AGAIN, BOB]}
    assert set(colliding(PARAMS, {}, lone | proof)) == {"1", "2", "3"}


@given(st.permutations([ANN, ANN_AGAIN, BOB, CY]))
def test_groups_share_out_all_runs_whatever_their_order(runs: list[Success]) -> None:
    found = groups(PARAMS, {}, runs)
    assert sorted(place for group in found for place in group) == [0, 1, 2, 3]
    named = {frozenset(runs[place].run_id for place in group) for group in found}
    assert named == {
        frozenset({"ann-W17", "ann-W18"}),
        frozenset({"bob-W55"}),
        frozenset({"cy-W66"}),
    }
