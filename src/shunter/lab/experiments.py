"""Running experiments: what may start and for how long, how it ended, and whether it is kept.

A share of the budget is reserved in the lab's file before a job is submitted, so that several at once cannot
overdraw it. The job's end replaces the reservation by what it took. The next look at a lab
settles what has ended meanwhile: no client has to live for that.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from shunter.errors import BudgetSpentError, ConfigError, UsageError
from shunter.lab import lab_file
from shunter.lab.budget import Budget
from shunter.lab.lab_file import DISCARDED, FAILED, KEPT, Experiment, Lab
from shunter.metrics import read as read_metrics
from shunter.metrics.series import best_by_point
from shunter.metrics.usage import PREFIX
from shunter.redaction import Redactor
from shunter.runner import Runner
from shunter.runner.observation import reconcile, submitter_is_gone
from shunter.runner.records import INTENT, REFUSED, JobRecord
from shunter.schedulers.ids import random_id
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.job_words import time_limit_in, time_option
from shunter.specs.options import as_mapping
from shunter.specs.status import AppState, AppStatus
from shunter.specs.submission import Submission
from shunter.specs.workspace import Workspace
from shunter.system.identity import host_name, myself
from shunter.why.comparison import Comparison, FileChange
from shunter.why.explanation import explain
from shunter.workspace.code_store import Store
from shunter.workspace.snapshot import Snapshot, snapshot


def start(
    runner: Runner,
    submission: Submission,
    name: str,
    goal: tuple[str, str],
    budget: Budget,
    parallel: int = 1,
    command: str = "",
) -> Lab:
    """Start a lab: submit its baseline, with the code of the current directory. Does not wait for its end.

    Args:
        runner: what submits it.
        submission: the baseline. Its workspace is not used.
        name: of the lab and of its jobs. A lab whose baseline failed is replaced.
        goal: "min" or "max", and the metric.
        budget: what may be spent.
        parallel: how many experiments may run at a time.
        command: what the baseline runs, for people.

    Raises:
        ConfigError: there is such a lab, or its budget cannot be enforced.
        ShunterError: the baseline cannot be submitted; no lab was started.
    """
    code = freeze()
    scheduler = runner.scheduler(submission.scheduler or runner.default_scheduler()).backend
    submission = replace(submission, scheduler=scheduler)
    app = runner.app_of(submission)
    if budget.gpu_hours is not None and not _gpus(app):
        raise ConfigError(
            "the budget has GPU-hours, and the job asks for no GPUs",
            hint="Ask for them before the script: --gpu 1; or give another budget: --budget 12, --budget 3h.",
        )
    lab = Lab(
        name=name,
        key=f"lab-{name}-{random_id()}",
        order=goal[0],
        metric=goal[1],
        budget=budget,
        parallel=parallel,
        limit=time_limit_in(as_mapping(submission.options), runner.scheduler_run_opts(scheduler)),
        command=command,
        scheduler=scheduler,
        directory=os.getcwd(),
        started_at=time.time(),
    )
    with lab_file.locked(name):
        earlier = lab_file.find(name)
        if earlier is not None:
            settle(runner, earlier)
            lab_file.save(earlier)
            if earlier.best or earlier.running:
                raise ConfigError(
                    f"there is a lab {name!r}, started in {earlier.directory}",
                    hint=f"Choose another name; or forget it (its jobs stay): shunter lab delete {name}",
                )
        experiment, info = _reserve(runner, lab, submission, "baseline", (), code)
        lab_file.save(lab)
    try:
        return _send(runner, lab, experiment, info)
    except BaseException:
        with lab_file.locked(name):
            lab = lab_file.read(name)
            settle(runner, lab)
            lab_file.save(lab) if lab.experiments else lab_file.remove(name)
        raise


def attempt(runner: Runner, name: str, note: str, arguments: Sequence[str] = ()) -> Lab:
    """Start an experiment with the code of the current directory. Does not wait for its end.

    Args:
        runner: what submits it.
        name: the lab's.
        note: why it is tried.
        arguments: words that replace those of the best experiment, such as ``["--lr", "0.3"]``.

    Returns:
        The lab, whose last experiment it is.

    Raises:
        BudgetSpentError: the rest of the budget does not suffice; nothing was submitted.
        ConfigError: too many experiments run, the baseline has not ended, or the current directory has none
            of the lab's files; nothing was submitted.
        ShunterError: the job cannot be submitted. It does not count.
    """
    if not note.strip():
        raise UsageError("say why you try this", hint=f'shunter lab try {name} "a higher rate" -- --lr 0.3')
    lab = look(runner, name)
    _check_place(lab, _base(lab))
    share(lab, 0, time.time())  # before the directory is read, which may take long
    code = freeze()
    with lab_file.locked(name):
        lab = lab_file.read(name)
        settle(runner, lab)
        lab_file.save(lab)
        base = _base(lab)
        submission = runner.repeated(base.handle, workspace=f"@{code}", arguments=arguments, name=name)
        experiment, info = _reserve(runner, lab, submission, note, arguments, code, base.number)
        lab_file.save(lab)
    try:
        return _send(runner, lab, experiment, info)
    except BaseException:
        look(runner, name)  # if nothing was submitted, nothing stays reserved
        raise


def look(runner: Runner, name: str) -> Lab:
    """Return a lab, with the outcomes of all experiments that have ended.

    Raises:
        ConfigError: no lab has this name.
    """
    with lab_file.locked(name):
        lab = lab_file.read(name)
        if lab.running:
            settle(runner, lab)
            lab_file.save(lab)
    return lab


def freeze() -> str:
    """Keep the code of the current directory in the store; returns its fingerprint.

    Raises:
        WorkspaceError: it has no files, or is no project's directory.
    """
    code, store = current_code(), Store()
    store.add(code)
    return code.manifest.fingerprint


def current_code(*, may_be_empty: bool = False) -> Snapshot:
    """Return the code of the current directory.

    Raises:
        WorkspaceError: it has no files and may not be empty, or is no project's directory.
    """
    return snapshot(Workspace({os.getcwd(): ""}, implicit=True), may_be_empty=may_be_empty)


def _check_place(lab: Lab, base: Experiment) -> None:
    """Refuse a directory that has none of the files of an experiment's code.

    Raises:
        ConfigError: it has none.
    """
    manifest = Store().manifest(base.fingerprint)
    if manifest is not None and not any(os.path.lexists(entry.path) for entry in manifest.entries):
        raise ConfigError(
            f"{os.getcwd()} has none of the files of the lab {lab.name}",
            hint=f"Run the command in {lab.directory}, where it was started, or in a copy of that.",
        )


# ---- the budget


def _base(lab: Lab) -> Experiment:
    """Return the experiment that the next one changes, if there may be a next one now.

    Raises:
        ConfigError: there may not.
    """
    if lab.best is None:
        running = lab.running
        if running:
            raise ConfigError(
                f"the baseline of {lab.name} still runs, so there is nothing to compare with",
                hint=f"Wait for it: shunter wait {running[0].job}",
            )
        raise ConfigError(
            f"the baseline of {lab.name} failed, so there is nothing to compare with: "
            f"{lab.experiments[0].reason if lab.experiments else 'it was not submitted'}",
            hint="When that is corrected, start it again: "
            f"shunter lab start {lab.name} --best {lab.order}:METRIC --budget ... {lab.command}",
        )
    if len(lab.running) >= lab.parallel:
        job = lab.running[0].job
        raise ConfigError(
            f"{len(lab.running)} of at most {lab.parallel} experiments of {lab.name} run already: "
            f"{', '.join(f'{each.number} ({each.job})' for each in lab.running)}",
            hint=f"Wait for one: shunter wait {job}. A lab started with --parallel N runs N at a time.",
        )
    return lab.best


def _reserve(
    runner: Runner,
    lab: Lab,
    submission: Submission,
    note: str,
    arguments: Sequence[str],
    code: str,
    base: int | None = None,
) -> tuple[Experiment, AppDryRunInfo[Any]]:
    """Add an experiment to a lab, whose lock the caller holds, and plan its job, limited to its share."""
    app = runner.app_of(submission)
    limit = share(lab, _gpus(app), time.time())
    options = dict(as_mapping(submission.options))
    if limit is not None:
        name, value = _time_option(runner, submission.scheduler, limit / _attempts(app))
        options[name] = value
    info = runner.plan(
        replace(
            submission,
            name=lab.name,
            options=options,
            workspace=Workspace(frozen=code),
            parent_run_id=lab.key,
            directory=None,
        )
    )
    redactor = Redactor()
    experiment = Experiment(
        number=lab.next_number,
        note=redactor.text(" ".join(note.split())),
        arguments=redactor.words(list(arguments)),
        base=base,
        fingerprint=code,
        gpus=_gpus(app),
        limit=limit,
        reserved_at=time.time(),
        submitter=str(myself()),
        host=host_name(),
        command=redactor.text("; ".join(shlex.join([role.entrypoint, *role.args]) for role in app.roles)),
    )
    lab.experiments.append(experiment)
    return experiment, info


def share(lab: Lab, gpus: int, now: float) -> float | None:
    """Return how many seconds the next experiment may take; None without a limit.

    Of the GPU-hours that are left it gets what leaves the same to those that may run beside it.

    Raises:
        BudgetSpentError: it may not start.
    """
    left = lab.budget.less(lab.used(now))
    limits = [] if lab.limit is None else [lab.limit]
    if left.seconds is not None:
        limits.append(left.seconds)
    if left.gpu_hours is not None and gpus:
        limits.append(left.gpu_hours * 3600 / gpus / max(lab.parallel - len(lab.running), 1))
    is_spent = left.experiments == 0 and bool(lab.experiments)
    if is_spent or (limits and min(limits) < 1):
        reserved = sum(each.gpu_hours for each in lab.running)
        held = f"; {reserved:.3g} GPU-hours are reserved for those that run" if reserved else ""
        raise BudgetSpentError(
            f"the budget of {lab.name} is spent: {lab.budget}; left: {left}{held}. Nothing was submitted",
            hint=f"`shunter lab restore {lab.name}` brings the best code back, and "
            f"`shunter lab journal {lab.name}` shows what was found.",
        )
    return min(limits) if limits else None


def _gpus(app: AppDef) -> int:
    return sum(role.num_replicas * max(role.resource.gpu, 0) for role in app.roles)


def _attempts(app: AppDef) -> int:
    return 1 + max((role.max_retries for role in app.roles), default=0)


def _time_option(runner: Runner, scheduler: str, seconds: float) -> tuple[str, Any]:
    try:
        return time_option(max(math.floor(seconds), 1), scheduler, runner.scheduler_run_opts(scheduler))
    except ConfigError as error:
        error.message = (
            f"{scheduler} has no time limit for jobs, so only a number of experiments can be enforced"
        )
        error.hint = "Give that: --budget 12."
        raise


# ---- jobs


def _send(runner: Runner, lab: Lab, experiment: Experiment, info: AppDryRunInfo[Any]) -> Lab:
    """Submit the job of a reserved experiment, and note its handle; returns the lab as it is then."""
    handle = runner.schedule(info)
    with lab_file.locked(lab.name):
        lab = lab_file.read(lab.name)
        sent = lab.numbered(experiment.number)
        if sent is not None:
            sent.handle = handle
        lab_file.save(lab)
    return lab


def settle(runner: Runner, lab: Lab) -> None:
    """Note how experiments have ended, and stop those for which there is no time left.

    The caller holds the lab's lock.
    """
    for experiment in lab.running:
        if not experiment.handle and not _adopt(runner, lab, experiment):
            continue
        status = runner.status(experiment.handle)
        if status is None or status.is_terminal() or status.state == AppState.UNKNOWN:
            _judge(runner, lab, experiment, status)
        elif lab.left().seconds == 0:
            experiment.reason = "the time of the lab was over"  # perhaps it waited in a queue for all of it
            runner.cancel(experiment.handle)


def _adopt(runner: Runner, lab: Lab, experiment: Experiment) -> bool:
    """Find the job of an experiment whose client has not noted it; tells whether there is one.

    An experiment without a job is removed once its client can submit none any more: it does not count.
    """
    taken = {each.handle for each in lab.experiments}
    records = [
        record
        for record in runner.history.of_parent(lab.key)
        if record.submitter == experiment.submitter
        and record.created_at >= experiment.reserved_at
        and record.handle not in taken - {""}
    ]
    reconcile(runner.history, runner.scheduler, records)
    record = runner.history.get(records[0].key) if records else None
    if record is not None and record.phase not in (INTENT, REFUSED):
        experiment.handle = record.handle
        return True
    is_gone = experiment.submitter == str(myself()) or submitter_is_gone(
        experiment.host, experiment.submitter, experiment.reserved_at
    )
    if (record is None and is_gone) or (record is not None and record.phase == REFUSED):
        lab.experiments.remove(experiment)
    return False


def _judge(runner: Runner, lab: Lab, experiment: Experiment, status: AppStatus | None) -> None:
    """Note how an experiment has ended."""
    record = runner.history.find(experiment.handle)
    best = lab.best
    experiment.seconds = _seconds(status, record)
    experiment.changes = _changes(runner, lab, experiment, record)
    experiment.before = None if best is None else best.value
    experiment.outcome = FAILED
    if status is None:
        experiment.reason = "its job is gone"
    elif status.state == AppState.FAILED:
        experiment.reason = explain(runner, experiment.handle, status).headline or status.reason
    elif status.state != AppState.SUCCEEDED:
        experiment.reason = experiment.reason or f"{status.state} {status.reason}".rstrip()
    else:
        experiment.value, experiment.reason = _value(runner, experiment.handle, lab.metric, lab.order)
        if experiment.value is not None:
            experiment.outcome = KEPT if lab.is_better(experiment.value) else DISCARDED


def _seconds(status: AppStatus | None, record: JobRecord | None) -> float:
    """Return how long a job ran; 0 if it did not, or that is not known."""
    times = [(each.started_at, each.ended_at) for each in (status, record) if each is not None]
    return next((end - begin for begin, end in times if begin is not None and end is not None), 0.0)


def _value(runner: Runner, handle: str, metric: str, order: str) -> tuple[float | None, str]:
    """Return the best value that a job has reported of a metric; None, and why, if there is none."""
    series = read_metrics(runner, handle, [metric]).get(metric, [])
    value = next(iter(best_by_point(series, order).values()), None)
    if value is not None:
        return value, ""
    if series:
        return None, f"its {metric} is never a finite number"
    others = [name for name in read_metrics(runner, handle) if not name.startswith(PREFIX)]
    reported = f"it reported {', '.join(sorted(others)[:10])}" if others else "it reported none"
    return None, f"it reported no metric {metric!r}; {reported}"


def _changes(runner: Runner, lab: Lab, experiment: Experiment, record: JobRecord | None) -> list[str]:
    """Return what differs from the code of an experiment's base, a line for each file."""
    base = lab.numbered(experiment.base)
    before = None if base is None else runner.history.find(base.handle)
    if before is None or record is None:
        return []
    return [_change_of(file) for file in Comparison(before, record, Store()).files]


def _change_of(file: FileChange) -> str:
    texts = file.texts()
    if texts is None:
        return f"{file.path} {file.change}"
    blocks = [
        each for each in SequenceMatcher(None, *texts, autojunk=False).get_opcodes() if each[0] != "equal"
    ]
    added = sum(end - begin for _, _, _, begin, end in blocks)
    removed = sum(end - begin for _, begin, end, _, _ in blocks)
    word = "" if file.change == "modified" else f" {file.change}"
    return f"{file.path}{word} +{added} -{removed}"
