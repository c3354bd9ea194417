"""The examples in docstrings say what they show."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("solver", "operators", "topics", "pipeline")
EXAMPLES = {
    ".".join(("ontrack", *path.relative_to(ROOT).with_suffix("").parts)): shown
    for layer in LAYERS
    for path in sorted((ROOT / layer).rglob("*.py"))
    if (shown := len(re.findall(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)))
}


def test_there_are_examples_of_what_people_call() -> None:
    assert len(EXAMPLES) > 10
    expected = {
        "ontrack.operators.scoring_repeats": 1,
        "ontrack.pipeline.scoring.api": 13,
        "ontrack.pipeline.sdk.client": 8,
        "ontrack.pipeline.sdk.sync": 8,
        "ontrack.pipeline.sdk.tools": 8,
    }
    assert {module: EXAMPLES[module] for module in expected} == expected


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_examples_print_what_they_show(module: str) -> None:
    tried = doctest.testmod(importlib.import_module(module))
    assert tried == (0, EXAMPLES[module])
