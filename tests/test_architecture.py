"""The picture of the imports: it is what the imports are."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAW = ROOT / "scripts" / "imports"


def drawn() -> str:
    command = [sys.executable, str(DRAW)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_the_page_has_the_picture_of_the_imports_as_they_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- scripts/imports: begin -->\n")
    shown, found, _ = rest.partition("<!-- scripts/imports: end -->")
    assert found
    assert shown == drawn(), "run scripts/imports --write"


def test_every_package_of_the_pipeline_is_a_box_and_no_arrow_points_up() -> None:
    lines = drawn().splitlines()
    packages = {path.parent.name for path in (ROOT / "pipeline").glob("*/__init__.py")}
    named = [line for line in lines if '["' in line and "subgraph" not in line]
    boxes = {line.split("[")[0].strip() for line in named}
    assert boxes == packages | {"operators", "solver", "topics"}
    arrows = [line.split(" --> ") for line in lines if " --> " in line]
    assert arrows
    for user, used in arrows:
        assert user.strip() not in {"solver", "topics"}
        assert not (user.strip() == "operators" and used in packages)
