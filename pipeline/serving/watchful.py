"""How soon a coding agent is told that it repeats itself."""

from __future__ import annotations

from typing import Any, Final

from ontrack.pipeline.settings import Settings

#: A nudge before a hook costs the model one sentence, an alarm in a fleet costs a person's time: so
#: here the third equal call in a row is spoken of, and a halt comes no sooner than anywhere else.
REPEATS: Final[dict[str, Any]] = {"repeats_max": 2, "grace": 4}


def watchful(settings: Settings) -> Settings:
    """Return the settings of a monitor behind hooks; what the user has set stays."""
    if settings.profile != "default":
        return settings
    given = settings.operators.get("repeats", {})
    if not isinstance(given, dict):
        return settings  # the profile's own check says what is wrong with that
    operators = settings.operators | {"repeats": REPEATS | given}
    return settings.model_copy(update={"operators": operators})
