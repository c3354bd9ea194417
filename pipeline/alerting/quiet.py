"""Quiet hours: when people are not to be disturbed, by the clock on their wall."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]

DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")
_DAY: Final = timedelta(days=1)


class QuietHours(BaseModel):
    """Days and hours of quiet; from 22:00 to 07:00 belongs to the day on which it begins."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: tuple[Day, ...] = Field(DAYS, min_length=1)
    begin: Annotated[str, Field(alias="from")]
    end: Annotated[str, Field(alias="to")]
    zone: str = "UTC"

    @field_validator("begin", "end")
    @classmethod
    def _clock(cls, value: str) -> str:
        if not _CLOCK.fullmatch(value):
            raise ValueError(f"expected hours and minutes such as 22:00, found {value[:20]!r}")
        return value

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (KeyError, OSError, ValueError) as error:  # not there, or no name of one
            raise ValueError(
                f"no time zone {value[:60]!r}; expected a name such as Europe/Berlin or UTC"
            ) from error
        return value

    @model_validator(mode="after")
    def _some_time(self) -> QuietHours:
        if self.begin == self.end:
            raise ValueError("`from` and `to` are the same; a whole day is 00:00 to 24:00")
        if self.begin == "24:00":
            raise ValueError("`from` is 24:00; write 00:00 and name the day after")
        return self

    def covers(self, moment: datetime) -> bool:
        """Tell whether an aware time lies in the quiet."""
        local = moment.astimezone(ZoneInfo(self.zone))
        today, yesterday = DAYS[local.weekday()], DAYS[(local - _DAY).weekday()]
        minute = local.hour * 60 + local.minute
        begin, end = _minutes(self.begin), _minutes(self.end)
        if begin < end:
            return today in self.days and begin <= minute < end
        return (today in self.days and minute >= begin) or (yesterday in self.days and minute < end)


def _minutes(clock: str) -> int:
    if clock == "24:00":
        return 24 * 60
    read = time.fromisoformat(clock)
    return read.hour * 60 + read.minute
