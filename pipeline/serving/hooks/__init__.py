"""The hosts whose hooks are understood: pure functions from their JSON to ours and back."""

from __future__ import annotations

from ontrack.pipeline.serving.hooks import (
    claude_code,
    codex,
    copilot,
    cursor,
    gemini,
    openhands,
)
from ontrack.pipeline.serving.hooks.model import Host

#: By the last part of the path ``/v1/hooks/<NAME>``.
HOSTS: dict[str, Host] = {
    claude_code.NAME: claude_code,
    codex.NAME: codex,
    gemini.NAME: gemini,
    copilot.NAME: copilot,
    cursor.NAME: cursor,
    openhands.NAME: openhands,
}
