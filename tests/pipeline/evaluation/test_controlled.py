"""Controlled experiments: the paper's scenarios through the embedded monitor, both profiles."""

import numpy as np
import pytest

from ontrack.pipeline.evaluation.controlled import (
    SIX_STEPS,
    Controlled,
    SyntheticEncoder,
    random_task,
    valid_order,
)
from ontrack.pipeline.evaluation.controlled_scenarios import (
    BENIGN,
    beyond_lookahead,
    campaign,
    table2,
    table3,
)
from ontrack.pipeline.settings import Settings, load_settings


def settings(profile: str) -> Settings:
    return load_settings(profile=profile, encoder="hashing", kernel="numpy")


def test_the_paper_profile_behaves_as_designed_in_all_eight_scenarios() -> None:
    outcomes = table2(settings("paper"))
    assert [each for each in outcomes if not each.right] == []
    latencies = {each.scenario[0]: each.latency for each in outcomes}
    assert {name: latencies[name] for name in "CDEH"} == {"C": 0, "D": 2, "E": 0, "H": 0}


def test_the_default_profile_finds_every_fault_of_the_six_step_task() -> None:
    outcomes = {each.scenario[0]: each for each in table2(settings("default"))}
    assert [outcomes[name].right for name in "CDEH"] == [True] * 4
    assert [outcomes[name].right for name in "ABF"] == [True] * 3


@pytest.mark.parametrize("profile", ["paper", "default"])
def test_the_gate_decides_as_expected_in_both_directions(profile: str) -> None:
    assert [each for each in table3(settings(profile)) if not each.right] == []


def test_the_campaign_finds_all_faults_and_disturbs_nobody() -> None:
    told: list[None] = []
    found = campaign(settings("paper"), tasks=4, advance=lambda: told.append(None))
    assert found.latencies == {"loop": [0] * 4, "hallucination": [2] * 4, "inversion": [0] * 4}
    assert found.disturbed == dict.fromkeys(BENIGN, 0)
    assert found.gap_max <= 0.013
    assert len(told) == 4


def test_a_paraphrase_is_near_and_other_words_are_far() -> None:
    rows = SyntheticEncoder().encode(["edit~1", "edit~2", "search~1", ""])
    cosines = rows @ rows.T
    assert cosines[0, 1] > 0.85
    assert abs(cosines[0, 2]) < 0.5
    assert not rows[3].any()


@pytest.mark.parametrize("seed", range(20))
def test_a_random_order_keeps_every_dependency(seed: int) -> None:
    task = random_task(seed)
    order = valid_order(task, np.random.default_rng(seed))
    assert sorted(order) == sorted(task.names)
    for node in task.nodes:
        assert all(order.index(parent) < order.index(node.name) for parent in node.parents)
    assert beyond_lookahead(task, order[0])


def test_a_run_without_a_task_has_neither_references_nor_alignment() -> None:
    run = Controlled(settings("paper"), None)
    verdicts = run.feed(SIX_STEPS.steps(SIX_STEPS.names[:2], "run"))
    assert [each.best_reference for each in verdicts] == [None, None]
