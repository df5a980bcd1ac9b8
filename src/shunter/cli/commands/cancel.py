"""Ask jobs to stop. Jobs that have ended stay as they are.

A pattern means every job of the history whose name or id matches: `shunter cancel 'exp-*'`. Of an array on
this machine, Slurm, LSF or Grid Engine, such as a sweep, single replicas can be cancelled:
`shunter cancel HANDLE/ROLE/0,2`.
"""

from __future__ import annotations

from argparse import Namespace

from shunter.cli.console import interrupt_message, note
from shunter.cli.job_names import NamedJobs, jobs_to_end, named_jobs, select_replicas, split_target
from shunter.cli.parser import Parser, add_handle_argument
from shunter.cli.watching import wait_for_end
from shunter.errors import ShunterError
from shunter.runner import Runner, get_runner
from shunter.runner.observation import unknown_job
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser, "*")
    parser.add_flag("--wait", help="wait until the jobs have ended")


def run(args: Namespace) -> int:
    """Run the command. If one job cannot be cancelled, the others still are."""
    with get_runner() as runner:
        names = args.handles or ["-"]
        parts = [name for name in names if split_target(name)[1]]
        jobs = named_jobs(runner, [name for name in names if name not in parts], jobs_to_end)
        for name in parts:
            _cancel_replicas(runner, jobs, name)
        ended, active = [], []
        for handle, status in jobs.statuses.items():
            if status.is_terminal():
                ended.append(handle)
                if handle not in jobs.by_pattern:
                    note(f"{handle} has already ended: {status.state}")
            elif status.state is AppState.UNKNOWN and _is_forgotten(runner, handle):
                jobs.add_error(unknown_job(handle))
            else:
                active.append(handle)
        errors = runner.cancel_many(active)
        cancelled = [handle for handle, error in errors.items() if error is None]
        for handle in cancelled:
            note(f"asked {handle} to stop")
        for error in filter(None, errors.values()):
            jobs.add_error(error)
        jobs.note_rest("have ended already", ended)
        if args.wait:
            with interrupt_message("no longer waiting; the jobs have been asked to stop"):
                for handle in cancelled:
                    note(f"{handle} {wait_for_end(runner, handle, None).state}")
    return jobs.code


def _cancel_replicas(runner: Runner, jobs: NamedJobs, name: str) -> None:
    """Ask replicas that are named ``HANDLE/ROLE/0,1`` to stop."""
    job, choices = split_target(name)
    try:
        for handle in jobs_to_end(runner, job):
            replicas = select_replicas(runner.replicas(handle), choices)
            runner.cancel_replicas(handle, replicas)
            note(f"asked {', '.join(f'{role}/{k}' for role, k in replicas)} of {handle} to stop")
    except ShunterError as error:
        jobs.add_error(error)


def _is_forgotten(runner: Runner, handle: str) -> bool:
    """Tell whether a job's scheduler no longer knows it, so that nothing can be stopped."""
    job = parse_app_handle(handle)
    try:
        return not runner.scheduler(job.scheduler_backend).exists(job.app_id)
    except ShunterError:  # which asking it to stop the job reports
        return False
