"""What is known of each host's settings and abilities: the one table that help and docs show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ontrack.topics.errors import UnknownName

Shape = Literal["grouped", "flat"]
"""``grouped``: an event has groups (a matcher and its hooks); ``flat``: an event has hooks."""

Transport = Literal["http", "curl"]


@dataclass(frozen=True, slots=True)
class Setup:
    """One host: where its hooks stand, how they are written, what they can do.

    Parameters
    ----------
    name
        As in ``ontrack init NAME`` and ``/v1/hooks/NAME``.
    title
        For people.
    home
        Folder of the user's settings below the home directory; ``home_variable`` replaces it.
    home_variable
        Environment variable that names the folder, where the host has one.
    user_file, project_file
        The settings below that folder, and below a project.
    shape, transport
        How hooks are written: see :data:`Shape`; an HTTP hook of the host, or curl.
    before
        The event before a tool call, the only one that can block.
    events
        The others. With a prompt a person lets a halted agent go on.
    timeout
        The field of the host's time limit and what it is multiplied with to be in seconds.
    versioned
        Whether the file starts with ``"version": 1``.
    asks, halts
        Whether a person can be asked about any call, and whether the agent can be stopped.
    context
        When the model hears a text that comes with no denial.
    subagents
        How calls of subagents are seen.
    fail_closed
        How a call is kept from running while the daemon does not answer.
    still_open
        What runs all the same although it was asked to fail closed.
    """

    name: str
    title: str
    home: str
    user_file: str
    project_file: str
    shape: Shape
    transport: Transport
    before: str
    events: tuple[str, ...]
    timeout: tuple[str, int]
    versioned: bool
    asks: bool
    halts: bool
    context: str
    subagents: str
    fail_closed: str
    still_open: str
    home_variable: str | None = None

    def path(self, project: Path | None, environment: Mapping[str, str], home: Path) -> Path:
        """Return the settings file: of a project, or the user's."""
        if project is not None:
            return project / self.project_file
        named = self.home_variable and environment.get(self.home_variable)
        return (Path(named) if named else home / self.home) / self.user_file

    def shown_path(self) -> str:
        """Return the user's settings file as people write it."""
        return f"~/{self.home}/{self.user_file}"


SETUPS: Final[dict[str, Setup]] = {
    setup.name: setup
    for setup in (
        Setup(
            name="claude-code",
            title="Claude Code",
            home=".claude",
            home_variable="CLAUDE_CONFIG_DIR",
            user_file="settings.json",
            project_file=".claude/settings.json",
            shape="grouped",
            transport="http",
            before="PreToolUse",
            # SessionStart takes no HTTP hooks; a session starts with its first call.
            events=(
                "PostToolUse",
                "PostToolUseFailure",
                "UserPromptSubmit",
                "SubagentStart",
                "SubagentStop",
                "SessionEnd",
            ),
            timeout=("timeout", 1),
            versioned=False,
            asks=True,
            halts=True,
            context="with the call, and after it",
            subagents="runs of their own",
            fail_closed='"onFailure": "block" on PreToolUse, from Claude Code 2.1.295 on',
            still_open="versions before 2.1.295, which do not know the field",
        ),
        Setup(
            name="codex",
            title="Codex CLI",
            home=".codex",
            home_variable="CODEX_HOME",
            user_file="hooks.json",
            project_file=".codex/hooks.json",
            shape="grouped",
            transport="curl",
            before="PreToolUse",
            events=(
                "PostToolUse",
                "UserPromptSubmit",
                "SessionStart",
                "SubagentStart",
                "SubagentStop",
                "SessionEnd",
            ),
            timeout=("timeout", 1),
            versioned=False,
            asks=False,
            halts=True,
            context="with the call, and after it",
            subagents="runs of their own",
            fail_closed="the hook exits with 2 and says why",
            still_open="a hook that Codex ends at its time limit, or that is not trusted yet",
        ),
        Setup(
            name="gemini",
            title="Gemini CLI",
            home=".gemini",
            user_file="settings.json",
            project_file=".gemini/settings.json",
            shape="grouped",
            transport="curl",
            before="BeforeTool",
            events=("AfterTool", "BeforeAgent", "SessionStart", "SessionEnd"),
            timeout=("timeout", 1000),
            versioned=False,
            asks=True,
            halts=True,
            context="after the call",
            subagents="as calls of the session",
            fail_closed="the hook exits with 2 and says why",
            still_open="a hook that Gemini CLI itself ends at its time limit",
        ),
        Setup(
            name="copilot",
            title="GitHub Copilot CLI",
            home=".copilot",
            home_variable="COPILOT_HOME",
            user_file="hooks/ontrack.json",
            project_file=".github/hooks/ontrack.json",
            shape="flat",
            transport="curl",
            before="preToolUse",
            events=(
                "postToolUse",
                "postToolUseFailure",
                "userPromptSubmitted",
                "sessionStart",
                "sessionEnd",
            ),
            timeout=("timeoutSec", 1),
            versioned=True,
            asks=True,
            halts=False,
            context="after the call",
            subagents="as calls of the session",
            fail_closed="the hook exits with 2, which denies",
            still_open="a hook that Copilot itself ends at its time limit",
        ),
        Setup(
            name="cursor",
            title="Cursor",
            home=".cursor",
            user_file="hooks.json",
            project_file=".cursor/hooks.json",
            shape="flat",
            transport="curl",
            before="preToolUse",
            events=(
                "postToolUse",
                "postToolUseFailure",
                "beforeSubmitPrompt",
                "sessionStart",
                "sessionEnd",
            ),
            timeout=("timeout", 1),
            versioned=True,
            asks=False,
            halts=False,
            context="after a call that succeeded",
            subagents="as calls of their conversation",
            fail_closed='the hook exits with 2; "failClosed": true covers crashes and time limits',
            still_open="nothing that Cursor documents",
        ),
        Setup(
            name="openhands",
            title="OpenHands",
            home=".openhands",
            user_file="hooks.json",
            project_file=".openhands/hooks.json",
            shape="grouped",
            transport="curl",
            before="PreToolUse",
            events=("PostToolUse", "UserPromptSubmit", "SessionStart", "SessionEnd"),
            timeout=("timeout", 1),
            versioned=False,
            asks=False,
            halts=False,
            context="with the next prompt",
            subagents="as calls of the session",
            fail_closed="the hook exits with 2 and says why",
            still_open="a hook that OpenHands itself ends at its time limit",
        ),
    )
}


def setup_of(name: str) -> Setup:
    """Return a host's setup. Raises :class:`UnknownName` with the list of hosts."""
    if name not in SETUPS:
        raise UnknownName(f"no host is called {name!r}; there are {', '.join(SETUPS)}")
    return SETUPS[name]
