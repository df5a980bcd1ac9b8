"""`shunter run -s slurm:a100,slurm:h100`: one job on several schedulers; the first to start runs it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from copy import copy
from typing import Any

from shunter.cli.console import TerminalProgress, note, out, print_json, warn
from shunter.cli.job_request import FollowPlan, JobRequest, follow_job, request_of, requested_job
from shunter.cli.shown_plan import show_plan
from shunter.cli.shown_status import job_json
from shunter.errors import EXIT_OK, BackendError, UsageError
from shunter.runner import Runner
from shunter.runner.races import await_winner, plan_race, submit_race


def names_several(args: Namespace) -> bool:
    """Tell whether a command line names several schedulers."""
    return "," in (args.scheduler or "")


def run_race(args: Namespace, check: Callable[[FollowPlan, Any], None]) -> int:
    """Submit a job to several schedulers; follow the one that starts first, if the job is to be followed.

    Args:
        args: the command line.
        check: checks how the job is to be followed against one that is planned.

    Raises:
        UsageError: fewer than two schedulers are named, or one twice.
    """
    names = [name.strip() for name in args.scheduler.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"-s {args.scheduler}: a race needs different schedulers",
            hint="Example: -s slurm:a100,slurm:h100; a100 and h100 are profiles in shunter.toml.",
        )
    if args.stdin:
        raise UsageError("--stdin takes one job on one scheduler", hint="Race it without --stdin.")
    if args.dryrun and args.json:
        raise UsageError("--dryrun --json shows the request for one scheduler", hint=f"-s {names[0]}")
    args.scheduler = names[0]
    with requested_job(args) as (runner, first):
        requests = [first, *(_request_on(args, runner, name) for name in names[1:])]
        race = plan_race(runner, [request.submission for request in requests], _location(args, runner))
        if args.dryrun:
            for info in race.jobs:
                show_plan(runner, info, args.json)
            note(f"the first to start would take the lease {race.lease}")
            if race.ends is not None:
                names_apart = [info.scheduler for info in race.jobs if not info.lease]
                note(f"before a job's own command, python3 takes it there: {', '.join(names_apart) or '-'}")
            return EXIT_OK
        plan = _follow_plan(requests)
        check(plan, race.jobs[0])
        if race.ends is not None:
            note(
                f"a job that starts after {race.ends.astimezone():%Y-%m-%d %H:%M} does not run: the URLs end"
            )
        runner.progress = progress = TerminalProgress(sys.stderr)
        try:
            handles = submit_race(runner, race, warn)
        except KeyboardInterrupt:
            note("the submission was interrupted; `shunter list` shows what was submitted")
            raise
        finally:
            progress.clear()
        if not args.json:
            for handle in handles:
                out(handle)
        if plan.waits:
            return _follow(runner, race.id, handles, plan)
        note("the first of these jobs to start runs; `shunter list` shows which one that is")
        if args.json:
            print_json([job_json(handle, runner.status(handle)) for handle in handles])
        return EXIT_OK


def _location(args: Namespace, runner: Runner) -> str:
    """Return the place for leases on the command line, or else of the configuration; "" without.

    Raises:
        ConfigError: a project's file names it, and the user has not trusted it.
    """
    if args.lease:
        return str(args.lease)
    settings = runner.config.command("run")
    withheld = {key: setting for key, setting in settings.withheld.items() if key == "lease"}
    runner.config.refuse_withheld(
        withheld, "run", "Or name it on the command line: --lease s3://BUCKET/PREFIX"
    )
    return str(settings["lease"].value) if "lease" in settings else ""


def _request_on(args: Namespace, runner: Runner, name: str) -> JobRequest:
    other = copy(args)
    other.scheduler = name
    return request_of(other, runner)


def _follow_plan(requests: list[JobRequest]) -> FollowPlan:
    """Return how to follow the winner: without being asked, only if each scheduler's jobs are followed."""
    return min((request.follow for request in requests), key=lambda plan: (plan.waits, plan.logs))


def _follow(runner: Runner, race: str, handles: list[str], plan: FollowPlan) -> int:
    try:
        winner = await_winner(runner, race, handles)
    except KeyboardInterrupt:
        note("\nno longer watching; the race goes on. `shunter list` shows who has won")
        raise
    if not winner:
        raise BackendError(
            "none of the jobs has started: " + "; ".join(_end_of(runner, handle) for handle in handles),
            hint="`shunter why JOB` explains the end of each.",
        )
    note(f"{winner} has started")
    return follow_job(runner, winner, plan)


def _end_of(runner: Runner, handle: str) -> str:
    status = runner.status(handle)
    return f"{handle} is gone" if status is None else f"{handle}: {status.state} {status.reason}".rstrip()
