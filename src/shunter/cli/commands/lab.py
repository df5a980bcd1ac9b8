"""Run experiments under a budget: try, compare by a metric, keep or discard; with a journal.

shunter lab start tune --best min:loss --budget 12 ./train.py --lr 0.1    begin: run the baseline
shunter lab try tune "a higher rate" -- --lr 0.3    with other arguments, and the code that is here now
shunter lab tune                                    the experiments, the best one, what is left
shunter lab journal tune                            the lab book, in Markdown
shunter lab restore tune                            bring the best experiment's code back
shunter lab delete tune                             forget the lab; its jobs stay

An experiment with a better value than the best before is kept, and the next one builds on its arguments. The
budget is a number of experiments (12), time (3h), GPU-hours (2gpu-hours), or several with commas; what does
not fit is refused, and each job gets a time limit that fits the rest.

Exit codes of try: 0 kept or discarded, 1 failed (it counts, too), 3 refused, 6 the budget is spent.
"""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from shunter.cli.commands.rerun import parse as parse_changes
from shunter.cli.console import interrupt_message, is_tty, note, out, print_json, print_result, table
from shunter.cli.job_request import add_component_arguments, requested_job
from shunter.cli.parser import (
    Parser,
    add_common_options,
    add_json_option,
    add_scheduler_options,
    number_between,
)
from shunter.cli.requested_component import parse_component
from shunter.cli.watching import StatusLines, wait_for_end
from shunter.errors import EXIT_JOB_FAILED, EXIT_OK, ConfigError, UsageError, did_you_mean
from shunter.lab import lab_file
from shunter.lab.budget import Budget
from shunter.lab.experiments import attempt, look, start
from shunter.lab.journal import (
    change_text,
    changes_of,
    cost_text,
    experiment_json,
    lab_book,
    lab_json,
    value_text,
)
from shunter.lab.lab_file import BASELINE, FAILED, Experiment, Lab
from shunter.lab.restoring import restore
from shunter.runner import Runner, get_runner
from shunter.terminal import clean

ACTIONS = ("start", "try", "status", "journal", "restore", "delete")
#: Options of `run` that a lab does not have, and `requested_job` reads.
_ABSENT: dict[str, Any] = {
    "wait": False,
    "log": False,
    "exit_code_from": None,
    "dryrun": False,
    "notify": [],
    "retry": None,
    "hang_timeout": None,
    "on_hang": None,
    "after": [],
    "workspace": "",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", metavar="|".join(ACTIONS), help="what to do (default: status)")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the lab (default: the one used last)")
    parser.add_argument("note", nargs="?", metavar="WHY", help="try: why you try this, for the journal")
    parser.add_argument(
        "experiment", nargs="?", metavar="NUMBER", help="restore: of which experiment (default: the best)"
    )
    parser.add_flag("--force", help="restore: also overwrite changes that no experiment has, keeping a copy")
    _add_start_options(parser)
    _add_detach_option(parser)
    add_component_arguments(parser)


def _add_start_options(parser: Parser) -> None:
    parser.add_argument(
        "--best",
        metavar="min:METRIC",
        help="start: the metric that is to be low (min:loss) or high (max:acc)",
    )
    parser.add_repeated(
        "--budget", metavar="N|TIME|Ngpu-hours", help="start: what may be spent, such as 12,3h or 2gpu-hours"
    )
    parser.add_argument(
        "--parallel",
        type=number_between(1, 1000),
        default=1,
        metavar="N",
        help="start: how many experiments may run at a time (default: 1)",
    )
    add_scheduler_options(parser, "start: where the experiments run")


def _add_detach_option(parser: Parser) -> None:
    parser.add_flag("--detach", help="start, try: return once the job is submitted")
    add_json_option(parser)


def parse(parser: Parser, argv: list[str]) -> Namespace:
    """Parse an action with its own arguments; only `start` takes those of `run`."""
    if argv[:1] in (["-h"], ["--help"]):
        return parser.parse_arguments(argv)
    named = bool(argv) and argv[0] in ACTIONS
    action, words = (argv[0], argv[1:]) if named else ("status", argv)
    if not named and words[1:] and not any(word.startswith("-") for word in words[:2]):
        raise UsageError(
            f"{words[0]} is not an action of `{parser.prog}`", hint=did_you_mean(words[0], ACTIONS)
        )
    own = Parser(f"{parser.prog} {action}", parser.description or "")
    if action == "start":
        own.prog += f" {words[0]}" if words and not words[0].startswith("-") else ""
        _add_start_options(own)
        _add_detach_option(own)
        add_component_arguments(own)
        add_common_options(own)
        own.set_defaults(**_ABSENT)
        if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
            raise UsageError("the name of the lab comes first", hint=_start_of("NAME"))
        args = parse_component(own, words if words[:1] in (["-h"], ["--help"]) else words[1:])
        args.name = words[0] if words else None
    else:
        own.add_argument("name", nargs=None if action == "delete" else "?", metavar="NAME")
        if action == "try":
            own.add_argument("note", nargs="?", metavar="WHY")
            _add_detach_option(own)
        elif action == "restore":
            own.add_argument("experiment", nargs="?", metavar="NUMBER")
            own.add_flag("--force", help="also overwrite changes that no experiment has, keeping a copy")
        if action not in ("try", "delete"):
            add_json_option(own)
        add_common_options(own)
        args = parse_changes(own, words) if action == "try" else own.parse_arguments(words)
        if action == "try" and args.note is None:
            name = next(iter(lab_file.labs()), "tune")
            raise UsageError(
                "an experiment needs the name of the lab, and why you try it",
                hint=f'Example: shunter lab try {name} "a higher rate learns faster" -- --lr 0.3',
            )
    args.action, args.words = action, words
    return args


def run(args: Namespace) -> int:
    if args.action == "start":
        return _start(args)
    if args.action == "delete":
        lab_file.remove(args.name)
        note(f"the lab {args.name} is forgotten; its jobs stay: shunter list")
        return EXIT_OK
    name = args.name or next(iter(lab_file.labs()), None)
    if name is None:
        raise ConfigError("there is no lab yet", hint=_start_of("tune"))
    if args.action == "restore":
        return _restore(args, name)
    with get_runner() as runner:
        if args.action == "try":
            lab = attempt(runner, name, args.note, args.changes)
            return _follow(runner, lab, lab.experiments[-1], args)
        lab = look(runner, name)
    print_result(args.json, lab_json(lab), lab_book(lab) if args.action == "journal" else _status(lab))
    return EXIT_OK


def _start_of(name: str) -> str:
    return f"Begin one: shunter lab start {name} --best min:loss --budget 12 ./train.py --lr 0.1"


def _start(args: Namespace) -> int:
    if not args.name:
        raise UsageError("the lab needs a name", hint=_start_of("tune"))
    if args.name in ACTIONS:
        raise UsageError(f"{args.name} is a word of `shunter lab`, and cannot be a lab's name")
    lab_file.check_name(args.name)
    goal = _goal(args)
    if not args.budget:
        raise UsageError("say before the script what may be spent: --budget", hint=_start_of(args.name))
    budget = Budget.of_texts(args.budget)
    if any(word.partition("=")[0] == "--name" for word in args.before):
        raise UsageError(f"--name cannot be given: the jobs of a lab have its name, {args.name}")
    with requested_job(args) as (runner, request):
        if request.announcement:
            note(request.announcement)
        command = shlex.join([*([args.component] if args.component else []), *args.component_args])
        lab = start(runner, request.submission, args.name, goal, budget, args.parallel, command)
        return _follow(runner, lab, lab.experiments[BASELINE], args)


def _goal(args: Namespace) -> tuple[str, str]:
    """Return "min" or "max", and the metric.

    Raises:
        UsageError: --best is not given, or does not say both.
    """
    if not args.best:
        raise UsageError(
            "say before the script by which metric experiments are compared: --best min:METRIC",
            hint=_start_of(args.name),
        )
    order, _, metric = args.best.partition(":")
    if order not in ("min", "max") or not metric:
        name = args.best.rpartition(":")[2] or "METRIC"
        raise UsageError(
            f"--best {args.best} is neither min:METRIC nor max:METRIC",
            hint=f"Write --best min:{name} or --best max:{name}.",
        )
    return order, metric


def _follow(runner: Runner, lab: Lab, experiment: Experiment, args: Namespace) -> int:
    """Wait for an experiment unless that is not wanted, and print how it ended."""
    what = "the baseline" if experiment.number == BASELINE else f"experiment {experiment.number}"
    limit = "" if experiment.limit is None else f", {cost_text(experiment)}"
    note(f"{what} of {lab.name}: {experiment.handle}{limit}")
    if not args.detach:
        lines = StatusLines(experiment.handle) if is_tty(sys.stderr) and not args.json else None
        with interrupt_message(
            f"no longer waiting; {what} goes on. `shunter lab {lab.name}` shows how it ended"
        ):
            wait_for_end(runner, experiment.handle, lines, lab.left().seconds)
            lab = look(runner, lab.name)
            if any(each.number == experiment.number for each in lab.running):
                # its time is over: `look` has asked it to stop
                wait_for_end(runner, experiment.handle, lines)
                lab = look(runner, lab.name)
            experiment = lab.numbered(experiment.number) or experiment
    if args.json:
        print_json(experiment_json(experiment) | {key: lab_json(lab)[key] for key in ("best", "left")})
    elif args.detach:
        out(experiment.handle)
    else:
        for line in _outcome(lab, experiment):
            out(line)
    return EXIT_JOB_FAILED if experiment.outcome == FAILED else EXIT_OK


def _outcome(lab: Lab, experiment: Experiment) -> Iterator[str]:
    """Yield what the end of an experiment means."""
    name = "baseline" if experiment.number == BASELINE else f"experiment {experiment.number}"
    if experiment.outcome == FAILED:
        yield f"{name} failed: {clean(experiment.reason)}"
        yield f"why: shunter why {experiment.job}; its output: shunter log {experiment.job}"
        if experiment.number == BASELINE:
            yield f"when that is corrected, start {lab.name} again; this start does not count"
    else:
        yield f"{name} {experiment.outcome}: {lab.metric} {value_text(experiment)}{change_text(experiment)}"
    for change in changes_of(experiment):
        yield f"  {clean(change)}"
    best = lab.best
    if best is not None and best.number != experiment.number:
        yield f"best: experiment {best.number}, {lab.metric} {value_text(best)}"
        if experiment.changes:
            yield f"its code: shunter lab restore {lab.name}"
    yield f"left: {lab.left()}"


def _status(lab: Lab) -> Iterator[str]:
    """Yield the experiments as a table, and what is left."""
    rows = [
        [
            f"{each.number}{'*' if each is lab.best else ''}",
            each.outcome,
            value_text(each),
            cost_text(each),
            each.job or "-",
            "; ".join(changes_of(each)) or "-",
            each.note,
        ]
        for each in lab.experiments
    ]
    yield table(("#", "OUTCOME", lab.metric, "TIME", "JOB", "CHANGED", "WHY"), rows, sys.stdout)
    yield ""
    yield f"{lab.order}:{lab.metric} of {clean(lab.command)} on {lab.scheduler}; * is the best"
    if lab.best is not None:
        yield f"best: experiment {lab.best.number}, {clean(lab.best.command)}"
    yield f"budget: {lab.budget}; left: {lab.left()}"


def _restore(args: Namespace, name: str) -> int:
    result = restore(name, args.experiment or "", force=args.force)
    lines = [f"wrote {path}" for path in result.written] + [f"removed {path}" for path in result.removed]
    print_result(args.json, vars(result), map(clean, lines or ["nothing differs"]))
    if result.left and not args.json:
        note(clean(f"left, since no experiment has them: {', '.join(result.left)}"))
    if result.kept:
        copy = result.kept[:12]
        note(f"what was there is kept until `shunter gc`: shunter lab restore {name} @{copy}")
    return EXIT_OK
