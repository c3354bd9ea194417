"""Settings files: read strictly, shown as a difference, replaced at once, the old one kept."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from ontrack.topics.errors import InvalidFile
from ontrack.topics.jsontext import described

BACKUP_SUFFIX: Final = ".before-ontrack"
_MARK: Final = "\ufeff"
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file as it was read; ``text`` is None where there is none.

    Parameters
    ----------
    path
        As it was named.
    text
        The file's text.
    document
        Its JSON; an empty object for a file that is not there or has nothing in it.
    """

    path: Path
    text: str | None
    document: dict[str, Any]

    def written(self, document: dict[str, Any]) -> str:
        """Return another document's text, indented and ended as this one is."""
        if document == self.document and self.text is not None:
            return self.text
        text = self.text or ""
        found = _INDENT.search(text)
        indent: str | int = found.group(1) if found else 2
        # Written with escapes, it stays so; half a surrogate pair cannot be written otherwise.
        escaped = text.isascii() and "\\u" in text
        body = json.dumps(document, indent=indent, ensure_ascii=escaped)
        try:
            body.encode()
        except UnicodeEncodeError:
            body = json.dumps(document, indent=indent)
        ending = "\n" if text.endswith("\n") or not text.strip() else ""
        lines = "\r\n" if "\r\n" in text else "\n"
        return (_MARK if text.startswith(_MARK) else "") + (body + ending).replace("\n", lines)


def read_settings(path: Path) -> SettingsFile:
    """Read a settings file.

    Raises
    ------
    InvalidFile
        It cannot be read, or is not a JSON object that can be written again without loss: comments,
        a name twice, numbers that are none.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return SettingsFile(path, None, {})
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(str(path), None, f"cannot be read: {error}") from None
    plain = text.removeprefix(_MARK)
    if not plain.strip():
        return SettingsFile(path, text, {})
    try:
        document = json.loads(plain, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        line = plain.splitlines()[error.lineno - 1].lstrip() if plain.splitlines() else ""
        comment = " (a comment is no JSON)" if line.startswith(("//", "/*", "#")) else ""
        _refuse(path, error.lineno, f"not JSON{comment}: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        _refuse(path, None, str(error) or "nested too deep")
    if not isinstance(document, dict):
        _refuse(path, None, f"expected an object, found {described(document)}")
    return SettingsFile(path, text, document)


def _refuse(path: Path, line: int | None, problem: str) -> NoReturn:
    raise InvalidFile(
        str(path),
        line,
        f"{problem}; nothing was written: mend the file, or add the hooks by hand (docs/hosts)",
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def difference(old: SettingsFile, new: str) -> str:
    """Return the change as a unified diff; empty where there is none."""
    before = (old.text or "").splitlines(keepends=True)
    lines = difflib.unified_diff(
        before,
        new.splitlines(keepends=True),
        fromfile=str(old.path) if old.text is not None else os.devnull,
        tofile=str(old.path),
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def replace(old: SettingsFile, new: str, keep: bool) -> Path | None:
    """Put a new text in a file's place, in one step, and return where the old one was kept.

    A link is followed: the file it names is replaced. The file's permissions stay.

    Parameters
    ----------
    keep
        Whether to keep the old text beside it, over an older one.

    Raises
    ------
    InvalidFile
        It cannot be written, or has changed since it was read.
    """
    target = Path(os.path.realpath(old.path))
    backup = backup_of(target) if keep and old.text is not None else None
    try:
        _unchanged(old, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if backup is not None:
            # Not copied over what is there: in a project that may be somebody's link to elsewhere.
            _write(backup, target.read_bytes(), like=target)
        _write(target, new.encode(), like=target if old.text is not None else None)
    except OSError as error:
        raise InvalidFile(str(old.path), None, f"cannot be written: {error}") from None
    return backup


def delete(old: SettingsFile) -> None:
    """Delete a file that held only our hooks. Raises :class:`InvalidFile` as ``replace`` does."""
    try:
        _unchanged(old, old.path)
        old.path.unlink()
    except OSError as error:
        raise InvalidFile(str(old.path), None, f"cannot be deleted: {error}") from None


def backup_of(path: Path) -> Path:
    """Return where the old text of a file is kept."""
    target = Path(os.path.realpath(path))
    return target.with_name(target.name + BACKUP_SUFFIX)


def _unchanged(old: SettingsFile, target: Path) -> None:
    now = target.read_bytes().decode("utf-8", "replace") if target.exists() else None
    if now != old.text:
        raise InvalidFile(
            str(old.path), None, "changed while it was shown; nothing was written: run it again"
        )


def _write(target: Path, content: bytes, like: Path | None) -> None:
    name = target.with_name(f".{target.name}.{os.getpid()}.new")
    mode = 0o666 if like is None else 0o600  # private until it has the old file's permissions
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if like is not None:
            shutil.copymode(like, name)
        name.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
        raise
