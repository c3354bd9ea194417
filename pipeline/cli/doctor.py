"""``ontrack doctor``: check what a worker needs, and say how to mend it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import click

from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.settings import Settings, load_settings, masked
from ontrack.topics.errors import OnTrackError


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``fix`` says what to do where it failed."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


@click.command(name="doctor")
@broker_option
@json_option
@click.option("--no-broker", is_flag=True, help="Check only what the embedded monitor needs.")
def command(broker: str | None, as_json: bool, no_broker: bool) -> None:
    """Check settings, encoder, broker and topics; exit 1 if something is amiss."""
    settings = load_settings(broker=broker)
    encoder = _encoder(settings)
    checks = [_python(), _settings(settings), encoder, _profile(settings, encoder.ok)]
    checks += _calibration(settings, encoder.ok)
    if not no_broker:
        checks += [_broker(settings), _topics(settings)]
    for check in checks:
        if as_json:
            click.echo(
                json.dumps(
                    {
                        "type": "check",
                        "name": check.name,
                        "ok": check.ok,
                        "detail": check.detail,
                        "fix": check.fix,
                    }
                )
            )
        else:
            mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
            click.echo(f"{mark} {check.name}: {check.detail}")
            if check.fix:
                click.echo(f"     {check.fix}")
    if not all(check.ok for check in checks):
        sys.exit(1)


def _attempt(name: str, look: Callable[[], str], fix: str) -> Check:
    try:
        return Check(name, True, look())
    except OnTrackError as error:
        return Check(name, False, str(error), fix)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = sys.version_info >= (3, 11)
    return Check("python", fine, version, "" if fine else "install Python 3.11 or newer")


def _settings(settings: Settings) -> Check:
    values = masked(settings)
    values.pop("calibration")  # long, and a check of its own
    shown = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
    return Check("settings", True, shown)


def _encoder(settings: Settings) -> Check:
    def look() -> str:
        from ontrack.pipeline.encoders import make_encoder

        encoder = make_encoder(settings.encoder)
        vector = encoder.encode(["the quick check of an encoder"])
        return f"{encoder.name}, {vector.shape[1]} dimensions"

    return _attempt("encoder", look, "choose another with --encoder or ONTRACK_ENCODER")


def _profile(settings: Settings, encoder_works: bool) -> Check:
    def look() -> str:
        from ontrack.pipeline.embedded import profile_of
        from ontrack.pipeline.encoders import make_encoder

        if not encoder_works:
            return profile_of(settings, settings.encoder).name
        name = make_encoder(settings.encoder).name
        profile = profile_of(settings, name)
        digest = profile.digest(name, settings.redaction.fingerprint)
        return f"{profile.name}, with {name} settings {digest}"

    fix = "choose a known one with --profile or ONTRACK_PROFILE; see [operators] in ontrack.toml"
    return _attempt("profile", look, fix)


def _calibration(settings: Settings, encoder_works: bool) -> list[Check]:
    """Whether what the thresholds were chosen on is what they are used with."""
    made = settings.calibration
    if made is None or not encoder_works:
        return []
    from ontrack.pipeline.calibrated import mismatches
    from ontrack.pipeline.encoders import make_encoder

    amiss = mismatches(made, make_encoder(settings.encoder).name, settings.profile)
    detail = "; ".join(amiss) or f"{made.runs:,} runs, the newest of {made.newest or 'no time'}"
    fix = "calibrate again: ontrack calibrate, with the encoder and profile in use"
    return [Check("calibration", not amiss, detail, fix if amiss else "")]


def _broker(settings: Settings) -> Check:
    def look() -> str:
        from ontrack.pipeline.kafka.provision import partition_counts

        asyncio.run(partition_counts(settings))
        return f"{settings.broker} answers ({settings.security_protocol})"

    return _attempt("broker", look, "start one: make kafka, or docker compose up kafka")


def _topics(settings: Settings) -> Check:
    def look() -> str:
        from ontrack.pipeline.kafka.provision import check_topics

        partitions = asyncio.run(check_topics(settings))
        return f"all there under {settings.topic_prefix!r}, {partitions} partitions"

    return _attempt("topics", look, "create them: ontrack topics create")
