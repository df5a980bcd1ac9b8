"""The follow-up of a job: what is submitted with it for notifications and for retries by class of failure.

The follow-up is a small job that waits in the queue for the end of the other one. Its program is the
toolkit's `follow_up`; what it has to know about the queue is in `QueueWords`.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, field
from typing import Any

from shunter._toolkit import notification, stack_dump
from shunter.diagnosis.causes import causes_table
from shunter.errors import ConfigError
from shunter.schedulers.hpc.options import HpcOpts
from shunter.schedulers.hpc.request import JobPlan
from shunter.schedulers.hpc.shared_folder import (
    FOLLOW_UP,
    FOLLOW_UP_SCRIPT,
    FOLLOW_UP_TOOLKIT,
    HANG,
    TOOLKIT,
    WAITING_BOX,
)
from shunter.schedulers.supervision import check_supervision
from shunter.specs.retries import parse_retries

#: The native name of follow-ups.
JOB_NAME = "shunter-follow-up"
#: Their time limit: notifications are tried for some minutes.
MINUTES = 15
#: Stands in commands for the native id of the job that ended.
AFTER = "@AFTER@"


@dataclass
class QueueWords:
    """How a follow-up speaks to the queue.

    Args:
        directives: the lines of its script that are options for the queue.
        submit: the command that submits the job's script again.
        look: a line of shell that prints ``native=STATE`` for the submission ``$1``.
        states: our state (its name; "" for "see the records") and a reason by native state; others failed.
        live: native states that are not an end.
        cancel: a command that takes native ids.
        memory_option: words by which ``%s`` MB are asked for; [] if the queue knows no memory of the job.
        memory_factor: how many MB these are for each MB of a replica.
        exclude_option: words by which hosts are avoided, ``%s`` for all; [] if the queue cannot avoid hosts.
        exclude_item, exclude_separator: how each host is written there, and what stands between two.
        down: a command that prints which hosts of ``@HOSTS@`` are down; [] if that is not known.
        follow: the command that submits the next follow-up; `AFTER` stands for the native id.
        id_pattern: finds the native id in what they print, as group 1. `HpcScheduler` sets what is missing.
    """

    directives: list[str]
    submit: list[str]
    look: str
    states: dict[str, tuple[str, str]]
    live: list[str]
    cancel: list[str]
    memory_option: list[str] = field(default_factory=list)
    memory_factor: float = 1.0
    exclude_option: list[str] = field(default_factory=list)
    exclude_item: str = "%s"
    exclude_separator: str = ","
    down: list[str] = field(default_factory=list)
    follow: list[str] = field(default_factory=list)
    id_pattern: str = ""


def check(backend: str, opts: HpcOpts) -> None:
    """Check the options of notifications, retries and hang detection.

    Raises:
        ConfigError: one of them is wrong, or cannot be combined with another one.
    """
    check_supervision(opts)
    if opts.retry is None:
        return
    for name, given in (("array", opts.array), ("chain", opts.chain > 1)):
        if given:
            raise ConfigError(
                f"retry: {backend} cannot retry a job by class of failure if it has {name}="
                f"{getattr(opts, name)}",
                hint="Leave one of them out. --max_retries restarts replicas of an array.",
            )


def files_of_supervision(plan: JobPlan, handle: str, words: QueueWords | None) -> dict[str, str]:
    """Return the files with which a job is supervised, beyond those that every job has.

    Args:
        plan: the job.
        handle: the job's handle.
        words: how a follow-up speaks to the queue; None if nothing follows.
    """
    opts = plan.opts
    files: dict[str, str] = {}
    if opts.hang_timeout is not None:
        files[HANG] = f"{opts.hang_timeout:g} {opts.on_hang} {opts.grace_period:g} {TOOLKIT}\n"
        files[f"python/{stack_dump.HANDLER_FILE}"] = stack_dump.HANDLER
    if words is None:
        return files
    if opts.notify:
        outbox = {
            "handle": handle,
            "cwd": plan.folder,
            "targets": notification.new_targets(list(opts.notify)),
            "secret": opts.notify_secret or os.environ.get("SHUNTER_NOTIFY_SECRET") or "",
        }
        files[WAITING_BOX] = json.dumps(outbox)
    files[FOLLOW_UP_TOOLKIT] = f"{TOOLKIT}\n"
    files[FOLLOW_UP] = json.dumps(_document(plan, handle, words))
    command = f'exec "$(command -v python3 || command -v python)" -S {shlex.quote(TOOLKIT)} follow-up'
    files[FOLLOW_UP_SCRIPT] = "\n".join([*words.directives, "", f"{command} {shlex.quote(plan.folder)}", ""])
    return files


def _document(plan: JobPlan, handle: str, words: QueueWords) -> dict[str, Any]:
    """Return ``follow-up.json``."""
    retry = plan.opts.retry
    values = dict(vars(words))
    del values["directives"]
    return {
        **values,
        "look": ["sh", "-c", words.look, "sh"],
        "handle": handle,
        "memory": max((role.resource.memMB for role in plan.app.roles), default=0),
        "retry": None if retry is None else {name: vars(rule) for name, rule in parse_retries(retry).items()},
        "max_retries": max(role.max_retries for role in plan.app.roles),
        "table": causes_table(),
    }


def command_after(files: dict[str, str], native_id: str) -> list[str]:
    """Return the command that submits the follow-up of a submission."""
    words: list[str] = json.loads(files[FOLLOW_UP])["follow"]
    return [word.replace(AFTER, native_id.partition(";")[0]) for word in words]


def without_memory(files: dict[str, str]) -> dict[str, str]:
    """Return a job's files for a queue that knows no memory, so that none is asked for."""
    if FOLLOW_UP not in files:
        return files
    document = json.loads(files[FOLLOW_UP])
    return {**files, FOLLOW_UP: json.dumps({**document, "memory_option": []})}
