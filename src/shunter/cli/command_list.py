"""The list of commands, with a line of help for each, and how they are loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shunter.errors import UsageError, did_you_mean
from shunter.plugins import EntryPoint, entry_points

# In the order of the help. The module is named like the command, with _ for -.
COMMANDS: dict[str, str] = {
    "run": "start a job",
    "sweep": "run every combination of some values, as one job",
    "plan": "show in full what run would do, without submitting anything",
    "status": "show the state of a job and its replicas",
    "why": "say why a job failed, or why it waits",
    "points": "show the points of a sweep: values, states, metrics, the best",
    "log": "print or follow the logs of a job",
    "metrics": "show the metrics of one or several jobs, side by side",
    "plot": "draw a metric of one or several jobs",
    "exec": "run a command, or a shell, in a running replica of a job",
    "wait": "wait until a job has ended",
    "list": "list jobs",
    "ui": "serve a page that shows jobs, their logs and charts",
    "describe": "show the definition of a job",
    "cancel": "ask jobs to stop",
    "diff": "show what changed between two jobs: code, arguments, options, environment",
    "rerun": "start a job again, exactly as before",
    "delete": "remove the logs, results and entries of ended jobs",
    "workspace": "show which code would be sent with a job",
    "components": "list components, show their help, lint them",
    "schedulers": "show which schedulers there are, and what each can do",
    "runopts": "show the options of schedulers",
    "tracker": "show what experiment trackers know about jobs",
    "doctor": "check whether jobs could run on a scheduler",
    "config": "show the configuration and where it comes from, or create a configuration file",
    "trust": "let a project's files choose programs, credentials and destinations",
    "drill": "simulate a spot interruption of a job",
    "sagemaker-local": "serve SageMaker's API on this machine",
    "gc": "remove leftovers of old jobs",
    "completion": "print the completion script of a shell",
}

# Names of these commands in the predecessor and in other tools.
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
    "explain": "why",
    "top": "metrics --watch",
}


def load_command(name: str) -> Any:
    """Return a command: a module, or an instance of a plugin's class, with ``add_arguments`` and ``run``.

    Raises:
        UsageError: there is no such command.
    """
    if name in COMMANDS:
        return import_module(f"shunter.cli.commands.{name.replace('-', '_')}")
    plugins = plugin_commands()
    if name in plugins:
        return plugins[name].call()
    if name in OTHER_NAMES:
        raise UsageError(f"there is no command {name!r}", hint=f"It is called `shunter {OTHER_NAMES[name]}`.")
    raise UsageError(f"there is no command {name!r}", hint=did_you_mean(name, [*COMMANDS, *plugins]))


def plugin_commands() -> dict[str, EntryPoint]:
    """Return the commands that plugins add; they cannot replace built-in ones."""
    points: dict[str, EntryPoint] = {}
    for point in [*entry_points("cmds"), *entry_points("cli.cmds")]:
        if point.name not in COMMANDS:
            points.setdefault(point.name, point)
    return points
