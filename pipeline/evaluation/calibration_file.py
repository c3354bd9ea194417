"""The settings file that calibration writes: thresholds, and from what data they come."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ontrack.pipeline.calibrated import Budget, Calibration, CalibrationFile, Choice
from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.reading import readers
from ontrack.pipeline.reading.sources import expand
from ontrack.topics.codecs import Limits
from ontrack.topics.errors import InvalidFile


def describe(
    recordings: Sequence[Recording],
    files: Sequence[CalibrationFile],
    choices: Sequence[Choice],
    encoder: str,
    profile: str,
    budget: Budget,
    folds: int,
    seed: int,
) -> Calibration:
    """Return what the file says about its data."""
    times = [step.time for run in recordings for step in run.steps if step.time is not None]
    outcomes = Counter(run.outcome for run in recordings)
    return Calibration(
        encoder=encoder,
        profile=profile,
        newest=max(times, default=None),
        runs=len(recordings),
        successes=outcomes["success"],
        failures=outcomes["failure"],
        tasks=len({run.key for run in recordings}),
        seed=seed,
        folds=folds,
        budget=budget,
        files=tuple(files),
        choices=tuple(choices),
    )


def files_of(paths: Sequence[str], format: str, limits: Limits) -> list[CalibrationFile]:
    """Return every file that runs are read from, with its digest and number of runs.

    Raises
    ------
    InvalidFile
        One cannot be read.
    """
    first: dict[str, str] = {}
    for found in readers.read_events(paths, format, None, limits):
        first.setdefault(found.event.run_id, found.path)
    counts = Counter(first.values())
    return [
        CalibrationFile(
            name=source.path.replace("\\", "/").rsplit("/", 1)[-1],
            sha256=_sha256(source.path),
            runs=counts[source.path],
        )
        for source in expand(paths)
    ]


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidFile(path, None, f"cannot be read: {reason}") from error


def settings_file(
    encoder: str, operators: Mapping[str, Any], made: Calibration, written: str, command: str
) -> str:
    """Return the file's text.

    Parameters
    ----------
    encoder
        The setting, such as ``wordllama``; the calibration holds the full name.
    written, command
        When by this machine's clock and by what it was made, for its comment.
    """
    comment = [
        f"# Written by `{' '.join(command.split())}`",
        f"# at {written} (this machine's clock). Thresholds hold for this encoder and profile;",
        "# `ontrack doctor` tells where others are in use. Use it as ONTRACK_CONFIG, or copy its",
        "# tables into ontrack.toml.",
    ]
    plain = made.model_dump(exclude_none=True)
    tables = {"operators": dict(operators), "calibration": plain}
    head = [f"profile = {_plain(made.profile)}", f"encoder = {_plain(encoder)}"]
    return "\n".join([*comment, "", *head, *_tables(tables, "")]) + "\n"


def _tables(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield lines of TOML: tables by their full names, arrays of tables one by one."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat = {n: v for n, v in value.items() if not _is_nested(v)}
            if flat or not value:
                yield from ("", f"[{key}]", *_lines(flat))
            yield from _tables({n: v for n, v in value.items() if _is_nested(v)}, f"{key}.")
        else:
            for item in value:
                yield from ("", f"[[{key}]]", *_lines(item))


def _is_nested(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)
    )


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_plain(value)}" for name, value in values.items()]


def _plain(value: object) -> str:
    """Write a value: what JSON writes is TOML as well, but for times, and one control character."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, str):
        whole = value.encode("utf-8", "replace").decode()
        return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
