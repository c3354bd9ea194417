"""The command line: one module a command, imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from typing import Any

import click

from ontrack.pipeline.terminal import drop_output, printable
from ontrack.topics.errors import OnTrackError

# Command -> (module, one line of help). Listed here so that --help imports nothing.
_COMMANDS = {
    "demo": ("demo", "Watch the whole monitor on bundled runs, in this process."),
    "replay": ("replay", "Monitor recorded runs from files or Kafka, in this process."),
    "compare": ("compare", "Tell how far runs are from reference runs, step by step."),
    "diff": ("diff", "Compare what was said in two streams of verdicts."),
    "serve": ("serve", "Answer coding agents' hooks; take events and spans over HTTP."),
    "init": ("init", "Write a coding agent's settings, so that it asks `ontrack serve`."),
    "dashboard": ("dashboard", "Show the fleet as a web page: runs, verdicts, references."),
    "worker": ("worker", "Run the Faust worker: events from Kafka in, verdicts out."),
    "send": ("send", "Publish recorded runs as events to Kafka."),
    "tail": ("tail", "Print verdicts and interventions from Kafka."),
    "alerts": ("alerts", "Tell people about interventions: mail, chat, webhooks, Alertmanager."),
    "dead-letters": ("dead_letters", "List what could not be used, or send it again."),
    "shadow": ("shadow", "Put an agent, a task or a tenant into shadow mode, live."),
    "references": ("references", "Mine, check and show what runs are compared with."),
    "contracts": ("contracts", "Import tool contracts, check task files, print schemas."),
    "topics": ("topics", "Create or show the topics."),
    "doctor": ("doctor", "Check settings, encoder, broker and topics."),
    "evaluate": ("evaluate", "Measure verdicts, scores and the gate on runs with outcomes."),
    "simulate": ("simulate", "Make runs with injected faults, as files or onto Kafka."),
    "score": ("score", "Score the paths of recorded runs: steps, repeats, unsafe calls."),
    "calibrate": ("calibrate", "Choose thresholds on labelled runs, within a false-alarm budget."),
    "bench": ("bench", "Measure everything on this machine, as ratios beside their aims."),
}

_LINE_END = "\n"


class _Commands(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in _COMMANDS:
            near = get_close_matches(cmd_name, _COMMANDS, n=1)
            if near:
                ctx.fail(f"no command {cmd_name[:60]!r}; is {near[0]!r} meant?")
            return None
        module = importlib.import_module(f"ontrack.pipeline.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of our output that went away (``| head``) is no error.

        Caught here because click itself would exit with 1, which means a failed check.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            drop_output()
            sys.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ontrack")
def cli() -> None:
    """Watch LLM agent runs as they happen: loops, stalls, wrong turns, unsafe calls.

    Start with: ontrack demo
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; errors of ours are one message and exit code 2."""
    try:
        return cli.main(args=arguments, prog_name="ontrack", standalone_mode=True)
    except OnTrackError as error:
        click.echo(f"ontrack: {printable(str(error), keep=_LINE_END)}", err=True)
        sys.exit(2)
