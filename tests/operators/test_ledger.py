from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import ledger
from ontrack.operators.artifacts import ArtifactParams, Artifacts, extract
from ontrack.operators.ledger import LedgerParams, LedgerState
from ontrack.topics.events import Step
from tests import strategies
from tests.operators import oracle
from tests.operators.oracle import Entered

WIDE = LedgerParams(waiting_max=64)


def fold(
    arrived: list[Entered], params: LedgerParams = WIDE
) -> tuple[LedgerState, list[set[oracle.Edge]]]:
    """Final state, and all edges known after each event."""
    state, known, history = LedgerState(), set[oracle.Edge](), []
    for node, entered in enumerate(arrived):
        state, output = ledger.step(params, state, entered.seq, node, entered.artifacts)
        known = known | set(output.edges)
        history.append(known)
    return state, history


def entered(seq: int, consumed: str = "", produced: str = "", mentioned: str = "") -> Entered:
    """A step whose artifact ids are single letters."""
    return Entered(seq, Artifacts(tuple(consumed), tuple(produced), tuple(mentioned)))


def test_the_papers_example_gets_its_edge_without_metadata_and_with_half_of_it() -> None:
    """Step 5 finds src/config.py in a search, step 15 edits it: the edge is (5, 15)."""
    found = Step(run_id="r", seq=5, tool="search", args={"q": "x"}, result="src/config.py:12: x=5")
    edited = Step(run_id="r", seq=15, tool="edit", args={"file": "src/config.py"}, result="saved")
    nothing = [found, edited]
    partial = [
        found.model_copy(update={"consumed": ()}),
        edited.model_copy(update={"consumed": ("src/config.py",)}),
    ]
    for steps in (nothing, partial):
        arrived = [Entered(step.seq or 0, extract(ArtifactParams(), step, None)) for step in steps]
        assert fold(arrived)[1][-1] == {(0, 1)}


def test_a_consumer_hangs_on_the_first_producer() -> None:
    arrived = [entered(0, produced="a"), entered(1, produced="a"), entered(2, "a")]
    assert fold(arrived)[1][-1] == {(0, 2)}


def test_a_producer_goes_before_an_earlier_mention() -> None:
    arrived = [entered(0, "a", mentioned="a"), entered(1, produced="a"), entered(2, "a")]
    assert fold(arrived)[1][-1] == {(1, 2)}


def test_without_a_producer_the_first_mention_counts() -> None:
    arrived = [entered(n, "a", mentioned="a") for n in range(3)]
    assert fold(arrived)[1][-1] == {(0, 1), (0, 2)}


def test_a_late_producer_gets_its_edges_when_it_arrives() -> None:
    arrived = [entered(1, "a"), entered(2, "a"), entered(0, produced="a")]
    _, history = fold(arrived)
    assert history[1] == set()
    assert history[2] == {(2, 0), (2, 1)}


def test_a_step_never_depends_on_itself_or_on_a_later_one() -> None:
    arrived = [entered(5, "a", produced="a"), entered(3, "a")]
    assert fold(arrived)[1][-1] == set()


def test_an_edge_that_was_found_stays_when_a_better_source_arrives_late() -> None:
    """The documented bound: a consumer that has a source waits for no other.

    By definition the edge would be (2, 1) alone; the paper's Prop. 1 says as much ("provided the
    dependencies discovered online match").
    """
    arrived = [entered(3, produced="a"), entered(5, "a"), entered(1, produced="a")]
    assert fold(arrived)[1][-1] == {(0, 1)}
    assert oracle.artifact_edges(arrived) == {(2, 1)}


def test_the_producer_of_an_id_is_the_earliest_in_the_run_however_late_it_came() -> None:
    state, _ = fold([entered(3, produced="a"), entered(1, produced="a"), entered(0, "b")])
    assert state.producer("a") == 1
    assert state.producer("b") is None
    assert state.producer("never seen") is None


def test_a_full_ledger_says_so_and_still_gives_edges_to_known_ids() -> None:
    params = LedgerParams(artifacts_max=2)
    arrived = [entered(0, produced="ab"), entered(1, "c", produced="d"), entered(2, "a")]
    state, history = fold(arrived, params)
    assert state.full
    assert len(state.entries) == 2
    assert history[-1] == {(0, 2)}


def test_more_consumers_than_can_wait_are_forgotten() -> None:
    params = LedgerParams(waiting_max=2)
    arrived = [*(entered(n, "a") for n in range(1, 5)), entered(0, produced="a")]
    assert fold(arrived, params)[1][-1] == {(4, 0), (4, 1)}


def ids(pool: str = "abcd") -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(pool), max_size=3, unique=True).map(tuple)


@st.composite
def streams(draw: st.DrawFn, late: bool, one_producer: bool) -> list[Entered]:
    size = draw(st.integers(1, 9))
    steps, taken = [], set[str]()
    for seq in range(0, 2 * size, 2):
        produced, mentioned = draw(ids()), draw(ids())
        if one_producer:
            produced = tuple(artifact for artifact in produced if artifact not in taken)
            taken.update(produced)
            mentioned = ()
        steps.append(Entered(seq, Artifacts(draw(ids()), produced, mentioned)))
    return draw(st.permutations(steps)) if late else steps


@given(streams(late=False, one_producer=False))
def test_in_order_the_edges_are_those_of_the_definition_after_every_event(
    arrived: list[Entered],
) -> None:
    for count, known in enumerate(fold(arrived)[1], start=1):
        assert known == oracle.artifact_edges(arrived[:count])


@given(streams(late=True, one_producer=True))
def test_in_any_order_they_are_where_each_id_has_one_producer(arrived: list[Entered]) -> None:
    for count, known in enumerate(fold(arrived)[1], start=1):
        assert known == oracle.artifact_edges(arrived[:count])


@given(streams(late=True, one_producer=False))
def test_in_any_order_each_edge_is_true_and_no_consumer_with_a_source_goes_without(
    arrived: list[Entered],
) -> None:
    for count, known in enumerate(fold(arrived)[1], start=1):
        for source, consumer in known:
            before, after = arrived[source], arrived[consumer]
            shown = {*before.artifacts.produced, *before.artifacts.mentioned}
            assert before.seq < after.seq
            assert shown & set(after.artifacts.consumed)
        by_definition = {consumer for _, consumer in oracle.artifact_edges(arrived[:count])}
        assert {consumer for _, consumer in known} == by_definition


@given(strategies.runs(gaps=False, duplicates=False, late=False))
def test_real_steps_in_order_give_the_edges_of_the_definition(run: strategies.Run) -> None:
    arrived = [
        Entered(step.seq or 0, extract(ArtifactParams(), step, None)) for step in run.arrivals
    ]
    assert fold(arrived)[1][-1] == oracle.artifact_edges(arrived)


def test_ids_that_are_new_in_one_step_share_one_entry() -> None:
    """Entries are most of what a long run keeps."""
    state = fold([entered(3, produced="ab", mentioned="cd")])[0]
    for pair in ("ab", "cd"):
        one, other = (state.entry(name) for name in pair)
        assert one is not None
        assert one is other
    assert state.producer("a") == 3
    assert state.producer("c") is None
