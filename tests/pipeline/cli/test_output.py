"""Files that commands write: whole or not at all, and errors in plain words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ontrack.pipeline.cli.output import opened, write_text
from ontrack.topics.errors import InvalidFile


def test_a_file_appears_when_it_is_whole_and_the_old_one_stays_until_then(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def half() -> None:
        with opened(str(path)) as out:
            out.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]
    write_text(str(path), "new \ud800")
    assert path.read_text() == "new ?"


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "kept", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(str(link), "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_plain_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(str(pipe), "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"gone/report\.html: cannot be written: No such file"):
        write_text(str(tmp_path / "gone" / "report.html"), "x")
