"""Which commands there are: a name, the module that has it, and a line of help."""

from __future__ import annotations

from trainyard.errors import UsageError, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.plugins import EntryPoint

# In the order in which the help shows them. The module's name is the command's, with _ for -.
COMMANDS: dict[str, str] = {
    "run": "start a job",
    "status": "show the state of a job and its replicas",
    "log": "print or follow the logs of a job",
    "wait": "wait until a job has ended",
    "list": "list jobs",
    "describe": "show what a job was made of",
    "cancel": "ask jobs to stop",
    "diff": "show what changed between two jobs: code, arguments, options, environment",
    "rerun": "start a job again, exactly as it was",
    "delete": "remove what is kept of jobs that have ended",
    "workspace": "show what code travels with a job, and what is left out",
    "components": "list components, show their help, lint them",
    "runopts": "show the options of schedulers",
    "doctor": "check whether jobs could run on a scheduler",
    "config": "show the configuration and where it comes from, or start one",
    "drill": "try out what a job does when its machines are taken away",
    "sagemaker-local": "answer SageMaker's API on this machine",
    "gc": "remove what old jobs left behind",
    "completion": "print the completion script of a shell",
}

# What people who come from the predecessor, or from other tools, type first.
OTHER_NAMES = {
    "builtins": "components",
    "configure": "config init",
    "ls": "list",
    "ps": "list",
    "logs": "log",
    "stop": "cancel",
    "kill": "cancel",
    "rm": "delete",
    "submit": "run",
    "launch": "run",
    "prune": "gc",
    "compare": "diff",
}


def load_command(name: str) -> Any:
    """Return the command: a module of ours, or an instance of a plugin's class.

    Either has ``add_arguments(parser)`` and ``run(args)``.

    Raises:
        UsageError: there is none of this name.
    """
    from importlib import import_module

    if name in COMMANDS:
        return import_module(f"trainyard.cli.commands.{name.replace('-', '_')}")
    plugins = plugin_commands()
    if name in plugins:
        return plugins[name].load()()
    if name in OTHER_NAMES:
        raise UsageError(
            f"there is no command {name!r}", hint=f"It is called `trainyard {OTHER_NAMES[name]}`."
        )
    raise UsageError(f"there is no command {name!r}", hint=did_you_mean(name, [*COMMANDS, *plugins]))


def plugin_commands() -> dict[str, EntryPoint]:
    """Return the commands that plugins add. None of them hides one of ours."""
    from trainyard.plugins import entry_points

    points: dict[str, EntryPoint] = {}
    for point in [*entry_points("cmds"), *entry_points("cli.cmds")]:
        if point.name not in COMMANDS:
            points.setdefault(point.name, point)
    return points
