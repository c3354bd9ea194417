"""The table ``[alerts]`` of the settings: who is told what, and through which sink.

Nothing here imports the settings of the rest: these are a part of them.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from ontrack.pipeline.alerting.quiet import QuietHours

GroupField = Literal["run", "agent", "task", "tenant", "verdict"]
Severity = Annotated[int, Field(ge=0, le=3)]
Patterns = tuple[str, ...]

FROM_ENVIRONMENT: Final = "env:"
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_HTTP: Final = re.compile(r"https?://[^\s/]+\S*")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DEFAULT_ROUTE: Final = "default"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Sink(_Table):
    """What every sink has."""

    timeout_s: float = Field(10.0, gt=0, le=300)
    attempts_max: int = Field(8, ge=1, le=50)
    retry_s: float = Field(1.0, gt=0, le=60)
    retry_s_max: float = Field(60.0, gt=0, le=3600)


class AppriseSink(_Sink):
    """Chat, mail and the like, by an address of the library Apprise."""

    type: Literal["apprise"]
    url: SecretStr

    @field_validator("url")
    @classmethod
    def _address(cls, value: SecretStr) -> SecretStr:
        text = _checked_name(value).get_secret_value()
        if not text.startswith(FROM_ENVIRONMENT) and "://" not in text:
            raise ValueError("no address of Apprise; expected one such as slack://… or mailto://…")
        return value


class AlertmanagerSink(_Sink):
    """Prometheus' Alertmanager, by its API v2."""

    type: Literal["alertmanager"]
    url: SecretStr
    token: SecretStr | None = None
    resolve_after_s: float = Field(300.0, ge=1, le=604_800)

    @field_validator("url")
    @classmethod
    def _address(cls, value: SecretStr) -> SecretStr:
        return _http(value)

    @field_validator("token")
    @classmethod
    def _variable(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else _checked_name(value)


class WebhookSink(_Sink):
    """An HTTP endpoint of your own; with a secret, signed as Standard Webhooks says."""

    type: Literal["webhook"]
    url: SecretStr
    secret: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)

    @field_validator("url")
    @classmethod
    def _address(cls, value: SecretStr) -> SecretStr:
        return _http(value)

    @field_validator("secret")
    @classmethod
    def _variable(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else _checked_name(value)

    @field_validator("headers")
    @classmethod
    def _own_headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, secret in value.items():
            if not _HEADER_NAME.fullmatch(name) or name.lower().startswith("webhook-"):
                raise ValueError(
                    f"{name[:60]!r} is no header that can be set; expected a name such as "
                    "X-Team, and none that begins with webhook-"
                )
            _checked_name(secret)
        return value


Sink = Annotated[AppriseSink | AlertmanagerSink | WebhookSink, Field(discriminator="type")]


class Route(_Table):
    """Which alerts go to which sinks, and how often.

    A condition that is empty holds for all. Patterns are exact values, or globs with ``*``, ``?``
    and ``[…]``; what an alert does not say matches no pattern.
    """

    name: str = Field(pattern=_NAME)
    agent: Patterns = ()
    task: Patterns = ()
    tenant: Patterns = ()
    verdict: Patterns = ()
    intervention: Patterns = ()
    severity_min: Severity = 0
    sinks: tuple[str, ...]
    goes_on: Annotated[bool, Field(alias="continue")] = False
    group_by: tuple[GroupField, ...] = ("run", "verdict")
    dedupe_s: float = Field(300.0, ge=0, le=604_800)
    rate_per_minute: int = Field(20, ge=1, le=100_000)
    quiet: QuietHours | None = None
    quiet_severity_min: Severity = 3


class AlertSettings(_Table):
    """Who is told what. Without routes every alert goes to every sink."""

    sinks: dict[Annotated[str, Field(pattern=_NAME)], Sink] = Field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    default: Route | None = None
    queue_max: int = Field(100, ge=1, le=10_000)
    run_url: str | None = None

    @field_validator("default", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Name the default route, whose table has no name."""
        if isinstance(value, dict):
            return {"name": _DEFAULT_ROUTE} | value
        return value

    @field_validator("run_url")
    @classmethod
    def _link(cls, value: str | None) -> str | None:
        if value is None or _HTTP.fullmatch(value):
            return value
        raise ValueError("expected an address such as https://example.com/runs/{run_id}")

    @model_validator(mode="after")
    def _fits_together(self) -> AlertSettings:
        names = [route.name for route in self.every_route]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two routes are named {name!r}; the last resort is 'default'")
        for route in self.every_route:
            for sink in route.sinks:
                if sink not in self.sinks:
                    known = ", ".join(self.sinks) or "none is set"
                    raise ValueError(
                        f"route {route.name!r} names the sink {sink[:60]!r}, which is not there; "
                        f"sinks: {known}"
                    )
        return self

    @property
    def last_resort(self) -> Route:
        """The route of what no other route takes: by default all sinks."""
        return self.default or Route(name=_DEFAULT_ROUTE, sinks=tuple(self.sinks))

    @property
    def every_route(self) -> tuple[Route, ...]:
        """All routes in their order, the last resort at the end."""
        return (*self.routes, self.last_resort)


def _checked_name(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.strip():
        raise ValueError("it is empty")
    name = text.removeprefix(FROM_ENVIRONMENT)
    if name != text:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("after `env:` stands the name of an environment variable")
        if name.startswith("ONTRACK_"):
            raise ValueError(
                f"{name[:60]} would be taken for a setting of OnTrack; choose another name"
            )
    return value


def _http(value: SecretStr) -> SecretStr:
    text = _checked_name(value).get_secret_value()
    if not text.startswith(FROM_ENVIRONMENT) and not _HTTP.fullmatch(text):
        raise ValueError("expected an address that begins with http:// or https://")
    return value
