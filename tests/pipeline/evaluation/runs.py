"""Small corpora with outcomes: runs of the simulated workplace, and runs written by hand."""

from pathlib import Path

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.workplace import contracts, simulate_run
from ontrack.topics.codecs import encode
from ontrack.topics.events import Step
from ontrack.topics.knowledge import ToolContract

TASKS = ("bugfix/add-column", "refunds/damaged-item", "scheduling/move-meeting")


def recording(
    run_id: str,
    tools: str,
    task: str = "t",
    success: bool = True,
    model: str | None = None,
    corpus: str = "c",
) -> Recording:
    """A run whose tools are single letters."""
    steps = tuple(
        Step(run_id=run_id, task_id=task, seq=seq, tool=tool, result=f"{tool}{seq}")
        for seq, tool in enumerate(tools)
    )
    outcome = "success" if success else "failure"
    return Recording(corpus, run_id, task, True, model, outcome, steps)


def write_workplace(folder: Path, good: int = 4, bad: int = 2) -> Path:
    """Write runs of three tasks, clean ones and faulty ones, as event lines."""
    path = folder / "workplace.jsonl"
    lines = []
    for task in TASKS:
        for seed in range(good):
            lines += simulate_run(task, seed).events
        for seed, fault in enumerate(("loop", "hallucination", "stall")[:bad]):
            lines += simulate_run(task, 100 + seed, fault).events
    path.write_bytes(b"\n".join(encode(event) for event in lines) + b"\n")
    return path


def write_tools(folder: Path) -> Path:
    """Write the workplace's contracts."""
    path = folder / "tools.json"
    made: tuple[ToolContract, ...] = contracts()
    lines = ",".join(tool.model_dump_json(by_alias=True, exclude_none=True) for tool in made)
    path.write_text(f'{{"tools": [{lines}]}}')
    return path
