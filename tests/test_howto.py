"""The guides on adding something are true to the commits that they name."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUIDES = sorted((ROOT / "docs" / "howto").glob("*.md"))
FILE = re.compile(r"`((?:operators|topics|pipeline|tests|docs|solver)/[\w/.-]+\.(?:py|md))`")


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("the history is not here")
    return done.stdout


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_files_of_the_commit_were_touched_by_it_and_files_of_today_exist(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    (commit,) = set(re.findall(r"commit\s`(\w{7})`", text))
    touched = set(git("show", "--name-only", "--format=", commit).split())
    lines = [line for line in text.splitlines() if re.match(r"\| \d\. ", line)]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert len(rows) >= 6
    then = {name for row in rows for name in FILE.findall(row[1])}
    assert then
    assert then - touched == set()
    now = {name for row in rows for name in FILE.findall(row[2])}
    now |= {name for row in rows if "the same" in row[2] for name in FILE.findall(row[1])}
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    now |= {name for name in FILE.findall(prose) if "NAME" not in name}
    missing = {name for name in now if "NAME" not in name and not (ROOT / name).exists()}
    assert missing == set()
