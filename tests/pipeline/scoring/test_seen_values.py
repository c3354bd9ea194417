"""What an allowance holds for seen: live, where the gate remembers it as well, and recorded."""

from __future__ import annotations

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.scoring.api import unsafe_actions
from ontrack.pipeline.settings import Settings
from ontrack.topics.events import Proposal, RunEnded, Step
from ontrack.topics.knowledge import Reference, ReferenceStep, Task, ToolContract
from ontrack.topics.verdicts import Scorecard

TOOLS = [ToolContract(name="find", effect="read"), ToolContract(name="write", effect="write")]
TASK = Task(id="t", allowed=[{"tool": "write", "when": "seen(args.to)"}])
GOOD = Reference(
    reference_id="ref",
    task_id="t",
    run_id="other",
    steps=(
        ReferenceStep(tool="find", args={"name": "ann"}, result={"account": "acc-17"}),
        ReferenceStep(tool="write", args={"to": "acc-17"}),
    ),
)
STEPS = [
    Step(run_id="r", task_id="t", seq=0, tool="find", args={"name": "ann"}, error="not acc-66?"),
    Step(run_id="r", task_id="t", seq=1, tool="write", args={"to": "acc-66"}, result="ok"),
    Step(run_id="r", task_id="t", seq=2, tool="find", args={"name": "ann"}, result="acc-17"),
    Step(run_id="r", task_id="t", seq=3, tool="write", args={"to": "acc-17"}, result="ok"),
]


def test_a_value_that_only_an_error_named_was_not_seen_live_nor_recorded() -> None:
    for references in ([], [GOOD]):
        live = EmbeddedMonitor(
            Settings(encoder="hashing"), contracts=TOOLS, references=references, tasks=[TASK]
        )
        for step in STEPS[:1]:
            live.feed(step)
        asked = Proposal(run_id="r", task_id="t", seq=1, tool="write", args={"to": "acc-66"})
        assert "allowance" in {reason.signal for reason in live.propose(asked).reasons}
        for step in STEPS[1:]:
            live.feed(step)
        (card,) = (
            output
            for output in live.feed(RunEnded(run_id="r", task_id="t", outcome="success"))
            if isinstance(output, Scorecard)
        )
        assert [each.seq for each in card.unsafe_actions or ()] == [1]
    assert [each.seq for each in unsafe_actions(STEPS, TASK, TOOLS)] == [1]
