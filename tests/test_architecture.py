"""The picture of the imports: it is what the imports are."""

import re
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


def test_every_file_and_function_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tops = ("pipeline", "operators", "solver", "topics", "tests")
    files = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    named = set(re.findall(r"`([a-z_/]+\.py)`", page))
    assert named
    assert [
        name for name in named if not any(str(path).endswith(f"/{name}") for path in files)
    ] == []
    stems = {path.stem for path in files}
    calls = [
        call
        for call in re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", page)
        if call[0] in stems and call[1] != "py"
    ]
    assert calls
    for module, name in calls:
        texts = [path.read_text(encoding="utf-8") for path in files if path.stem == module]
        assert any(
            re.search(rf"^ *(?:async def |def |class )?{name}\b", text, re.M) for text in texts
        ), f"{module}.{name}"


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
