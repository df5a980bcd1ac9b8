"""Which component a command line means: a script with its header, or any command; whose options are whose."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from argparse import Namespace
from typing import Any

from shunter.cli.console import ask, is_tty, warn
from shunter.cli.parser import Parser
from shunter.components.finder import is_script
from shunter.errors import ShunterError, UsageError
from shunter.paths import read_regular_file
from shunter.runner import get_runner
from shunter.runner.config import Config
from shunter.schedulers.short_names import full_name
from shunter.specs.script_header import without_header

#: What runs a command that is no component.
COMMAND_COMPONENT = "utils.sh"
SCRIPT_COMPONENT = "train.script"
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_NAME = re.compile(r"[A-Za-z][\w.-]*")
_DRYRUN = re.compile(r"--dry[-_]?run")


def parse_component(parser: Parser, argv: list[str]) -> Namespace:
    """Parse the options before the component, and leave what follows it as it is.

    ``python train.py`` is the script; what begins with any other Python is a command.
    """
    try:
        end = parser.index_of_argument(argv)
    except UsageError as error:
        at = next(k for k, word in enumerate(argv) if word.startswith("-") and not parser.has_option(word))
        error.hint = _of_scheduler(parser, argv, at) or error.hint + _corrected(parser, argv, at)
        error.hint += _behind_script(parser, argv)
        raise
    args, rest = parser.parse_arguments(argv[:end]), argv[end:]
    names_python = bool(rest) and _PYTHON.fullmatch(rest[0]) is not None
    if names_python and rest[0] in ("python", "python3") and rest[1:] and rest[1].endswith(".py"):
        rest = rest[1:]
        names_python = False
    args.component = rest[0] if rest and rest[0] != "--" else None
    args.component_args = rest[1:]
    if names_python:
        _run_command(args, rest)
    args.prog, args.before = parser.prog, argv[:end]
    args.misplaced = {
        position: parser.with_value(args.component_args[position:])
        for position, word in enumerate(args.component_args)
        if parser.has_option(word) and word not in ("-h", "--help")
    }
    return args


def _of_scheduler(parser: Parser, argv: list[str], at: int) -> str:
    """Return the hint about an unknown option, at an index, that is one of a scheduler; "" if none has it."""
    option, equals, value = argv[at].lstrip("-").partition("=")
    name, rest = option.replace("-", "_"), argv[at + 1 :]
    if not equals and rest:
        value, *rest = rest
    named = [full_name(argv[k + 1]) for k in range(at) if argv[k] in ("-s", "--scheduler")]
    having = []
    with get_runner() as runner:
        for scheduler in named or runner.scheduler_backends():
            with contextlib.suppress(ShunterError):
                if name in runner.scheduler_run_opts(scheduler):
                    having.append(scheduler)
    if not having:
        return ""
    chosen = [] if named else ["-s", having[0]]
    command = [*parser.prog.split(), *argv[:at], *chosen, "-cfg", f"{name}={value}", *rest]
    return f"{name} is an option of {', '.join(having)}: {shlex.join(command)}"


def _corrected(parser: Parser, argv: list[str], at: int) -> str:
    """Return a line of a hint: the command with another option for an unknown one, or without it."""
    near = parser.options_like(argv[at])
    if len(near) == 1:
        _, equals, value = argv[at].partition("=")
        command = [*parser.prog.split(), *argv[:at], f"{near[0]}{equals}{value}", *argv[at + 1 :]]
        return f"\nFor shunter: {shlex.join(command)}"
    return "" if near else parser.without(argv, argv[at])


def _behind_script(parser: Parser, argv: list[str]) -> str:
    """Return the hint about an unknown option: those of a script stand behind it."""
    at = next((k for k, word in enumerate(argv) if word.endswith((".py", ".sh"))), None)
    if at is None:
        return "\nOptions of a script or component stand behind it."
    ours: list[str] = []
    others: list[str] = []
    words = argv[:at]
    while words:
        is_ours = parser.has_option(words[0])
        taken = parser.with_value(words) if is_ours else words[: 1 + (not words[1:2] or words[1][:1] != "-")]
        (ours if is_ours else others).extend(taken)
        words = words[len(taken) :]
    command = [*parser.prog.split(), *ours, argv[at], *others, *argv[at + 1 :]]
    return f"\nFor the script: {shlex.join(command)}"


def _run_command(args: Namespace, words: list[str]) -> None:
    """Let the job run a command, and have its name unless it is given one."""
    name = os.path.splitext(os.path.basename(words[0]))[0]
    if args.word_name is None and _NAME.fullmatch(name):
        args.word_name = [name]
    args.component, args.component_args = COMMAND_COMPONENT, ["--", *words]


def settle_component(args: Namespace, config: Config) -> None:
    """Turn a command into the component that runs it, and take over the header of a script.

    Raises:
        ConfigError: the header is malformed.
        UsageError: an option of ours stands behind a script, and is not meant for it.
    """
    configured = config.command("run").get("component")
    component = args.component or (configured.value if configured is not None else None)
    words = args.component_args
    if component is None and words and not words[0].startswith("-"):
        _run_command(args, words)
        return
    script = _script_of(component or "", words)
    if os.path.isfile(os.path.expanduser(script)) and script.endswith((".py", ".sh")):
        config.add_header(script, component or "")
        if args.misplaced and script == component:
            _check_misplaced(args, script)


def _script_of(component: str, arguments: Any) -> str:
    """Return the script that a component runs; "" if it is another component."""
    if component != SCRIPT_COMPONENT:
        return component if is_script(component) else ""
    if isinstance(arguments, dict):
        return str(arguments.get("script", ""))
    words: list[str] = list(arguments)
    own = words[: words.index("--")] if "--" in words else words
    named = [word for word in own if word.startswith("--script=")]
    if named:
        return named[0].partition("=")[2]
    return own[own.index("--script") + 1] if "--script" in own[:-1] else ""


def _check_misplaced(args: Namespace, script: str) -> None:
    """Ask about, or warn of, options of ours behind a script that its source does not mention.

    Raises:
        UsageError: they are not meant for the script; or nobody can be asked, and no job was to be started.
    """
    source = without_header(read_regular_file(os.path.expanduser(script)).decode("utf-8", "replace"))
    misplaced = {at: words for at, words in args.misplaced.items() if not _mentions(source, words[0])}
    if not misplaced:
        return
    options = [words[0] for words in misplaced.values()]
    message = (
        f"{script} does not mention {', '.join(options)}, which "
        f"{'is an option' if len(options) == 1 else 'are options'} of `{args.prog}`"
    )
    positions = {at + k for at, words in misplaced.items() for k in range(len(words))}
    others = [word for at, word in enumerate(args.component_args) if at not in positions]
    ours = [word for words in misplaced.values() for word in words]
    command = [*args.prog.split(), *args.before]
    hint = f"For shunter: {shlex.join([*command, *ours, script, *others])}\nFor the script: " + shlex.join(
        [*command, SCRIPT_COMPONENT, "--script", script, "--", *args.component_args]
    )
    if args.dryrun or args.prog.endswith(" plan"):
        warn(f"{message}; it goes to the script. {hint}")
    elif is_tty(sys.stdin) and is_tty(sys.stderr):
        if not ask(f"{message}. Start the job, and give it to the script?"):
            raise UsageError(f"{message}; nothing was started", hint=hint)
    elif any(_DRYRUN.fullmatch(word) for word in options):
        raise UsageError(f"{message}; nothing was started", hint=hint)
    else:
        warn(f"{message}; it goes to the script. {hint}")


def _mentions(source: str, word: str) -> bool:
    """Tell whether a script mentions an option: ``--dry-run`` also as the name ``dry_run``."""
    head = word.partition("=")[0]
    if not head.startswith("--"):
        return re.search(rf"(['\"]){re.escape(head)}\1", source) is not None
    name = "[-_]".join(map(re.escape, re.split("[-_]", head.lstrip("-"))))
    return re.search(rf"\b{name}\b", source) is not None
