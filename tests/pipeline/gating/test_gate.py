"""The gate's promises without the engine: the policy, and decisions that are used once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.canonical import call_sha256
from ontrack.operators.report import Stamp
from ontrack.pipeline.gating.answers import GateAnswer, GatePolicy, Tickets
from ontrack.topics import codecs
from ontrack.topics.events import Proposal
from ontrack.topics.verdicts import Decision

STAMP = Stamp("paper", "abc", "0")
ASKED = Proposal(run_id="r", tool="pay", args={"amount": 5, "secret": "hunter2"})


def decision(id_: str = "r:0:abc", outcome: str = "allow", sha: str = "s") -> Decision:
    answer = GatePolicy.of(["read"]).decide(STAMP, ASKED, "read", 0, "why")
    return answer.model_copy(update={"id": id_, "decision": outcome, "call_sha256": sha})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# ------------------------------------------------------------------ policy


@pytest.mark.parametrize(
    ("effect", "says"),
    [("read", "allow"), ("write", "block"), ("destructive", "block"), ("unknown", "block")],
)
def test_by_default_only_reads_pass_without_the_monitor(effect: str, says: str) -> None:
    made = GatePolicy.of(["read"]).decide(STAMP, ASKED, effect, 7, "the broker is away")
    assert (made.decision, made.effect, made.seq) == (says, effect, 7)
    assert made.reasons[0].signal == "policy"
    assert made.reasons[0].text.startswith("the broker is away; ")
    assert made.call_sha256 == call_sha256("pay", ASKED.args)


@given(
    st.sets(st.sampled_from(["read", "write", "destructive", "unknown"])),
    st.sampled_from(["read", "write", "destructive", "unknown"]),
)
def test_the_policy_lets_pass_exactly_the_classes_it_is_given(
    opened: set[str], effect: str
) -> None:
    made = GatePolicy.of(opened).decide(STAMP, ASKED, effect, 0, "why")
    assert (made.decision == "allow") is (effect in opened)


def test_a_policys_decision_is_no_decision_of_the_monitor_and_shows_no_argument() -> None:
    made = GatePolicy.of(()).decide(STAMP, ASKED, "read", 3, "why")
    assert made.id.endswith(":policy")
    assert b"hunter2" not in codecs.encode(made)
    numbered = ASKED.model_copy(update={"seq": 9})
    assert GatePolicy.of(()).decide(STAMP, numbered, "read", 3, "why").seq == 9


def test_an_answer_is_a_decision_with_more_fields() -> None:
    made = decision()
    answer = GateAnswer.of(made, "monitor", 60.0)
    assert codecs.decode_output(codecs.encode(answer)) == made
    assert (answer.decided_by, answer.expires_in_s, answer.stale) == ("monitor", 60.0, False)
    assert answer.allowed
    assert GateAnswer.of(decision(outcome="unknown"), "monitor").allowed
    assert not GateAnswer.of(decision(outcome="block"), "monitor").allowed


# ------------------------------------------------------------------ tickets


def test_a_decision_is_redeemed_once() -> None:
    tickets = Tickets(60)
    assert tickets.note(decision()) == 60
    assert tickets.redeem("r:0:abc", "r", "s") is None
    assert tickets.redeem("r:0:abc", "r", "s") == "used"


def test_a_decision_is_for_its_own_call_and_run_only() -> None:
    tickets = Tickets(60)
    tickets.note(decision())
    assert tickets.redeem("r:0:abc", "r", "other") == "other_call"
    assert tickets.redeem("r:0:abc", "other", "s") == "other_call"
    assert tickets.redeem("r:0:xyz", "r", "s") == "unknown"
    assert tickets.redeem("r:0:abc", "r", "s") is None  # the wrong tries have not used it


def test_a_decision_expires() -> None:
    clock = Clock()
    tickets = Tickets(60, clock=clock)
    tickets.note(decision())
    clock.now += 60
    assert tickets.redeem("r:0:abc", "r", "s") == "expired"
    assert tickets.note(decision()) == 60  # asked again, answered again
    assert tickets.redeem("r:0:abc", "r", "s") is None


def test_asking_again_does_not_make_a_used_decision_good_again_while_it_would_have_lasted() -> None:
    clock = Clock()
    tickets = Tickets(60, clock=clock)
    tickets.note(decision())
    tickets.redeem("r:0:abc", "r", "s")
    clock.now += 59
    assert tickets.note(decision()) == 0
    assert tickets.redeem("r:0:abc", "r", "s") == "used"


def test_a_block_cannot_be_redeemed_and_withdraws_what_was_allowed_before() -> None:
    tickets = Tickets(60)
    assert tickets.note(decision(outcome="block")) is None
    assert tickets.redeem("r:0:abc", "r", "s") == "unknown"
    tickets.note(decision())
    tickets.note(decision(outcome="block"))
    assert tickets.redeem("r:0:abc", "r", "s") == "unknown"


def test_the_oldest_tickets_go_first() -> None:
    tickets = Tickets(60, kept_max=3)
    for number in range(5):
        tickets.note(decision(f"r:{number}"))
    assert len(tickets) == 3
    assert [f"r:{number}" in tickets for number in range(5)] == [False, False, True, True, True]
    assert tickets.redeem("r:0", "r", "s") == "unknown"


def test_a_block_after_its_use_does_not_make_a_decision_good_again() -> None:
    tickets = Tickets(60)
    tickets.note(decision())
    assert tickets.redeem("r:0:abc", "r", "s") is None
    tickets.note(decision(outcome="block"))
    assert tickets.note(decision()) == 0
    assert tickets.redeem("r:0:abc", "r", "s") == "used"


def test_in_whatever_order_they_are_used_each_stays_used_for_its_own_time() -> None:
    clock = Clock()
    tickets = Tickets(60, clock=clock)
    tickets.note(decision("first"))
    clock.now += 30
    tickets.note(decision("second"))
    for name in ("second", "first"):
        assert tickets.redeem(name, "r", "s") is None
    clock.now += 40  # the first has run out, the second has not
    assert tickets.note(decision("first")) == 60
    assert tickets.redeem("first", "r", "s") is None
    assert tickets.note(decision("second")) == 0


def test_a_flood_of_questions_does_not_make_a_used_decision_good_again() -> None:
    tickets = Tickets(60, kept_max=3)
    tickets.note(decision("first"))
    assert tickets.redeem("first", "r", "s") is None
    for number in range(10):
        tickets.note(decision(f"r:{number}"))
    assert tickets.note(decision("first")) == 0
    assert tickets.redeem("first", "r", "s") == "used"


def test_where_no_further_use_can_be_remembered_nothing_is_redeemed() -> None:
    clock = Clock()
    tickets = Tickets(60, kept_max=2, clock=clock)
    for number, says in enumerate((None, None, "full")):
        tickets.note(decision(f"r:{number}"))
        assert tickets.redeem(f"r:{number}", "r", "s") == says
    assert len(tickets) == 3
    clock.now += 60
    tickets.note(decision("r:2"))
    assert tickets.redeem("r:2", "r", "s") is None
    assert len(tickets) == 1  # what has run out is forgotten


@given(
    st.lists(
        st.tuples(st.sampled_from("nrb"), st.integers(0, 2), st.sampled_from([0, 0, 0, 20, 60])),
        min_size=20,
        max_size=60,
    ),
    st.integers(1, 5),
)
def test_whatever_happens_a_decision_is_used_at_most_once_in_its_time(
    events: list[tuple[str, int, int]], kept_max: int
) -> None:
    clock = Clock()
    tickets = Tickets(60, kept_max, clock)
    noted: dict[str, float] = {}  # when the latest ticket that can be used was given
    blocked_until: dict[str, float] = {}  # a use counts until that ticket has run out
    for what, number, pause in events:
        clock.now += pause
        name = f"r:{number}"
        is_spent = clock.now < blocked_until.get(name, 0.0)
        if what == "b":
            assert tickets.note(decision(name, "block")) is None
            noted.pop(name, None)
        elif what == "n":
            assert tickets.note(decision(name)) == (0 if is_spent else 60)
            if not is_spent:
                noted[name] = clock.now
        elif tickets.redeem(name, "r", "s") is None:
            assert not is_spent
            given_at = noted.pop(name)  # something was given, and not withdrawn since
            assert clock.now < given_at + 60
            blocked_until[name] = given_at + 60
        assert len(tickets) <= 2 * kept_max
