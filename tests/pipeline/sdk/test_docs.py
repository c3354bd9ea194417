"""The snippets of docs/sdk.md run as they stand and print what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from ontrack.pipeline.sdk import declared
from tests.pipeline.serving.served import served

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\s*prints\s*```\n(.*?)```)?", re.DOTALL)
ADDRESS = "http://127.0.0.1:8100"


def test_the_snippets_print_what_the_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(declared, "_contracts", {})
    blocks = BLOCKS.findall(TEXT)
    assert len(blocks) == 7
    names: dict[str, Any] = {"__name__": "example"}
    with served(tmp_path) as server:
        for code, printed in blocks:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code.replace(ADDRESS, server.url), "sdk.md", "exec"), names)
            assert out.getvalue() == printed, code
