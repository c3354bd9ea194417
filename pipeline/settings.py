"""One frozen settings object: ``ontrack.toml``, then ``ONTRACK_…`` variables, then flags."""

from __future__ import annotations

import json
import os
import tomllib
import unicodedata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ontrack.operators.redaction import Redaction
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.calibrated import Calibration
from ontrack.topics.codecs import Limits
from ontrack.topics.errors import InvalidSettings


def _from_commas(value: object) -> object:
    """Variables and flags are text; an empty text is an empty list."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


def _from_json(value: object) -> object:
    """Read a table that came as text, from a variable."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"expected a JSON object: {error}") from error


Paths = Annotated[tuple[str, ...], BeforeValidator(_from_commas)]
Table = Annotated[dict[str, Any], BeforeValidator(_from_json)]
EffectClasses = Annotated[
    tuple[Literal["read", "write", "destructive", "unknown"], ...], BeforeValidator(_from_commas)
]


class Settings(BaseSettings):
    """Everything that can be set, with its default.

    A flag wins over an environment variable, which wins over ``ontrack.toml`` in the working
    directory (or the file that ``ONTRACK_CONFIG`` names).
    """

    model_config = SettingsConfigDict(
        env_prefix="ONTRACK_", frozen=True, extra="forbid", toml_file="ontrack.toml"
    )

    # What the monitor does.
    profile: str = Field("default", description="profile of operator settings")
    encoder: Literal["wordllama", "hashing", "minilm"] = Field(
        "wordllama", description="text encoder"
    )
    encoder_cache_entries: int = Field(
        65_536, ge=1, description="texts whose vectors are kept, 1 KiB each"
    )
    kernel: Literal["auto", "numpy", "numba"] = Field(
        "auto", description="numerics: compiled by numba, or numpy; auto is numba where installed"
    )
    intervene: bool = Field(True, description="publish interventions; false is shadow mode")
    operators: Table = Field(
        default_factory=dict, description="changes to the profile, by name, as tables in tables"
    )
    calibration: Annotated[Calibration | None, BeforeValidator(_from_json)] = Field(
        None, description="what `operators` were chosen on: written by `ontrack calibrate`"
    )

    # What nobody shall see.
    redact: Paths = Field(
        (), description="paths whose values are replaced by digests, such as args.password"
    )
    redact_key: SecretStr | None = Field(
        None, min_length=16, description="makes these digests HMACs, so that nobody can guess"
    )
    show_arguments: bool = Field(
        False, description="texts of verdicts, decisions and errors may quote arguments"
    )

    # Limits.
    message_bytes_max: int = Field(1_048_576, ge=1024, description="bytes an event may have")
    depth_max: int = Field(64, ge=4, description="nesting of arguments and results")
    ended_runs_max: int = Field(
        20_000, ge=1, description="ended runs remembered a partition, to refuse late events"
    )

    # Kafka.
    broker: str = Field("127.0.0.1:9092", description="bootstrap servers, host:port,…")
    topic_prefix: str = Field("ontrack.", pattern=r"^[a-zA-Z0-9._-]*$")
    partitions: int = Field(4, ge=1, le=1000, description="partitions of the events topic")
    replication: int = Field(1, ge=1, le=10)
    group: str = Field("ontrack", description="consumer group, and name of the Faust app")
    instance: str | None = Field(
        None, description="static membership: a name that is stable over restarts"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None

    # Worker.
    runtime: Literal["faust", "aiokafka"] = Field(
        "faust", description="what delivers events to the worker: Faust agents, or a bare loop"
    )
    web_host: str = "127.0.0.1"
    web_port: int = Field(6066, ge=0, le=65_535)
    web_advertised_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+(/\S*)?$",
        description="where other workers reach this one; none: http://web_host:web_port",
    )
    web_token: SecretStr | None = Field(
        None, min_length=1, description="bearer token of the pages; needed beyond loopback"
    )
    gate_deadline_ms: float = Field(
        200.0, ge=0, le=60_000, description="time for a gate's answer, if the asker names none"
    )
    gate_fail_open: EffectClasses = Field(
        ("read",), description="effect classes that pass when the gate cannot answer in time"
    )
    gate_decision_ttl_s: float = Field(
        60.0, gt=0, le=86_400, description="how long an allowed call may be redeemed"
    )
    serve_host: str = "127.0.0.1"
    serve_port: int = Field(8100, ge=0, le=65_535, description="port of `ontrack serve`")
    serve_sessions_max: int = Field(
        20_000, ge=1, description="open sessions that `ontrack serve` keeps; then the idle go first"
    )
    serve_spans_s: float = Field(
        2.0, ge=0, le=600, description="how long a trace may take to name the run of its calls"
    )
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = Field(8200, ge=0, le=65_535, description="port of `ontrack dashboard`")
    data_dir: str = Field(".cache/worker", description="Faust's data directory")
    batch_events_max: int = Field(
        200, ge=1, description="events folded before their outputs are sent"
    )
    checkpoint_events: int = Field(
        5000, ge=1, description="events of a partition between two checkpoints of its runs"
    )
    reorder_ms: int = Field(
        1000, ge=1, le=60_000, description="how long a step waits for one missing before it"
    )
    run_idle_s: int = Field(
        21_600, ge=1, description="silence after which a run is closed as cancelled"
    )
    warm_runs_max: int = Field(
        5000, ge=1, description="open runs a partition kept as states; idle ones are kept as bytes"
    )
    watermark_check_s: float = Field(
        5.0, gt=0, description="how often the log's end is compared with what was folded"
    )
    otlp_topic: str | None = Field(
        None, description="topic of an OpenTelemetry collector's Kafka exporter: one more source"
    )
    otlp_encoding: Literal["auto", "json", "proto"] = Field(
        "auto", description="encoding of that topic; auto looks at each message"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False

    # What is told to other systems.
    telemetry: bool = Field(
        False,
        description="export by OTLP; OTEL_… variables say where to",
    )
    telemetry_verdicts: Literal["all", "not_ok"] = Field(
        "not_ok", description="which verdicts become evaluation events"
    )
    telemetry_traces_ratio: float = Field(
        0.01, ge=0, le=1, description="share of the monitor's own batches and questions traced"
    )
    alerts: Annotated[AlertSettings, BeforeValidator(_from_json)] = Field(
        default_factory=AlertSettings,
        description="who is told of interventions, and how: `[alerts]`",
    )
    telemetry_guardrails: bool = Field(
        False, description="also write the guardrail attributes that are still proposals"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put flags over environment over file."""
        return (
            init_settings,
            _Environment(settings_cls),
            TomlConfigSettingsSource(settings_cls, _config_file()),
        )

    @field_validator("broker")
    @classmethod
    def _hosts_and_ports(cls, value: str) -> str:
        """Refuse here what a Kafka client would fail on without a word about the setting."""
        for server in value.split(","):
            host, colon, port = server.strip().rpartition(":")
            is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536
            if not (is_port and host if colon else port):
                raise ValueError(f"expected host:port,… found {value[:80]!r}")
        return value

    @field_validator("web_token")
    @classmethod
    def _one_line(cls, value: SecretStr | None) -> SecretStr | None:
        """Take the line end off that files end with; refuse what no header can hold.

        With it nobody else's token would be equal, and no request could be sent at all.
        """
        if value is None:
            return None
        text = value.get_secret_value().strip()
        if not text or any(unicodedata.category(char) == "Cc" for char in text):
            raise ValueError("expected one line that is not blank")
        return SecretStr(text)

    @field_validator("redact")
    @classmethod
    def _readable_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            Redaction(value)
        except InvalidSettings as error:
            raise ValueError(str(error)) from error
        return value

    @property
    def limits(self) -> Limits:
        """The codec's limits."""
        return Limits(self.message_bytes_max, self.depth_max, quote_values=self.show_arguments)

    @property
    def redaction(self) -> Redaction:
        """The rules of ``redact``, with their key."""
        key = self.redact_key
        return Redaction(self.redact, None if key is None else key.get_secret_value().encode())


# Variables that name a file, a folder or a test broker, not a setting.
_NOT_SETTINGS = {"ONTRACK_CONFIG", "ONTRACK_CORPUS", "ONTRACK_TEST_BROKER"}


class _Environment(PydanticBaseSettingsSource):
    """``ONTRACK_…`` variables; a misspelt one is an error, not silence."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Return one variable's text."""
        return os.environ.get(f"ONTRACK_{field_name.upper()}"), field_name, False

    def __call__(self) -> dict[str, Any]:
        """Collect every ``ONTRACK_…`` variable."""
        found = {}
        for name, value in os.environ.items():
            if name.startswith("ONTRACK_") and name not in _NOT_SETTINGS:
                found[name.removeprefix("ONTRACK_").lower()] = value
        return found


def _config_file() -> Path:
    """Return the settings file; one that is named must be there.

    Raises
    ------
    InvalidSettings
        ``ONTRACK_CONFIG`` names no file.
    """
    named = os.environ.get("ONTRACK_CONFIG")
    if named is not None and not Path(named).is_file():
        raise InvalidSettings(
            f"ONTRACK_CONFIG names {named!r}, which is no file; "
            "name an existing one, or unset ONTRACK_CONFIG to use ontrack.toml where there is one"
        )
    return Path(named or "ontrack.toml")


def load_settings(**flags: Any) -> Settings:
    """Read the settings; flags that are None were not given.

    Raises
    ------
    InvalidSettings
        Naming each setting that is unknown or out of range, and where settings come from.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"settings file {str(_config_file())!r}: {error}") from error
    except ValidationError as error:
        lines = [
            f"  {_known_as(item['loc'])}: {_problem(item['type'], item['msg'])}"
            for item in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidSettings(
            "settings are not valid (ontrack.toml, ONTRACK_… variables, flags):\n"
            + "\n".join(lines)
        ) from error


def _known_as(place: tuple[int | str, ...]) -> str:
    """Name a setting as the user wrote it: a variable in capitals, or as in the file."""
    setting = "".join(map(str, place[:1]))
    variable = f"ONTRACK_{setting.upper()}"
    return f"{setting} ({variable})" if variable in os.environ else ".".join(map(str, place))


def _problem(kind: str, message: str) -> str:
    return "no such setting" if kind == "extra_forbidden" else message.removeprefix("Value error, ")


def masked(settings: Settings) -> dict[str, Any]:
    """Return the effective values with secrets masked."""
    return settings.model_dump(mode="json")
