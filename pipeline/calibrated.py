"""What thresholds were calibrated on, as settings files say it, and whether it fits their use."""

from __future__ import annotations

import functools

import structlog
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

log = structlog.get_logger()


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CalibrationFile(_Part):
    """A file that runs were read from."""

    name: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    runs: int = Field(ge=0)


class Budget(_Part):
    """Largest shares of clean runs that may be disturbed.

    Parameters
    ----------
    loops
        Successes warned by the vital signs.
    halts
        Successes halted by them.
    alarms
        Successes with a verdict as severe as an intervention.
    blocks
        Successes of which the gate blocks a call.
    """

    loops: float = Field(0.015, ge=0, le=1)
    halts: float = Field(0.003, ge=0, le=1)
    alarms: float = Field(0.08, ge=0, le=1)
    blocks: float = Field(0.04, ge=0, le=1)


class Choice(_Part):
    """One threshold: what was chosen, and what choosing so is worth on tasks that had no say.

    Parameters
    ----------
    key
        Name of the setting below ``operators``.
    limit, budget, n
        What was held within a budget: its name, the largest share, and the runs it is measured on.
    disturbed, found
        The share and the gain on the data chosen from; None where nothing could be measured.
    held_out_disturbed, held_out_found
        The same on each fold's own tasks, under the choice made on the others.
    chosen_by_fold
        What each fold's others chose.
    note
        Why the profile's own value stays, where it does.
    """

    key: str
    value: int | float | str
    limit: str | None = None
    budget: float | None = None
    gain: str
    n: int
    disturbed: float | None = None
    found: float | None = None
    held_out_disturbed: float | None = None
    held_out_found: float | None = None
    chosen_by_fold: tuple[int | float | str, ...] = ()
    note: str = ""


class Calibration(_Part):
    """From what data, when, and for which encoder and profile thresholds were chosen.

    Parameters
    ----------
    encoder
        The encoder's full name, such as ``wordllama-256``.
    newest
        Time of the newest event in the data; None where events have no times.
    """

    encoder: str
    profile: str
    newest: AwareDatetime | None = None
    runs: int = Field(ge=0)
    successes: int = Field(ge=0)
    failures: int = Field(ge=0)
    tasks: int = Field(ge=0)
    seed: int
    folds: int = Field(ge=2)
    budget: Budget = Budget()
    files: tuple[CalibrationFile, ...] = ()
    choices: tuple[Choice, ...] = ()


def mismatches(made: Calibration, encoder: str, profile: str) -> list[str]:
    """Return what differs between calibration and use, as sentences."""
    found = []
    if made.encoder != encoder:
        found.append(f"thresholds were calibrated with encoder {made.encoder}, not {encoder}")
    if made.profile != profile:
        found.append(f"thresholds were calibrated for profile {made.profile}, not {profile}")
    return found


def warn_of_mismatch(made: Calibration | None, encoder: str, profile: str) -> None:
    """Log, once a process, that thresholds are used with what they were not chosen for."""
    for sentence in () if made is None else mismatches(made, encoder, profile):
        _warn(sentence)


@functools.cache
def _warn(sentence: str) -> None:
    log.warning(sentence, fix="run ontrack calibrate again, or use what it was run with")
