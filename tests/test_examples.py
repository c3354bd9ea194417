"""The examples in docstrings say what they show."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("solver", "operators", "topics", "pipeline")
EXAMPLES = sorted(
    ".".join(("ontrack", *path.relative_to(ROOT).with_suffix("").parts))
    for layer in LAYERS
    for path in (ROOT / layer).rglob("*.py")
    if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 10


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_examples_print_what_they_show(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert (failed, tried > 0) == (0, True)
