"""What a job leaves behind: the model and output directories of its hosts, merged and sent."""

from __future__ import annotations

import filecmp
import functools
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shunter._toolkit import archive, outputs, store
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import Tree
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.documents import is_full_disk

if TYPE_CHECKING:
    from shunter.schedulers.sagemaker_local_scheduler.training_supervisor import TrainingSupervisor


@dataclass(frozen=True)
class Unsent:
    """Why something that a job leaves behind could not be sent, in words; and whether a disk was full."""

    problem: str
    is_disk_full: bool


def send_results(run: TrainingSupervisor, trees: dict[str, Tree], *, with_model: bool) -> Unsent | None:
    """Send model and output of the hosts; returns what went wrong, None after success.

    What could not be sent is kept in the job's directory, and the text says where. If a disk is full, this
    waits for space, unless a command waits for the end of the job. The model of a failed job is not sent.
    """
    config = run.request["OutputDataConfig"]
    is_packed = config.get("CompressionType", "GZIP") != "NONE"
    target = store.Place.parse(config["S3OutputPath"]).join(run.request["TrainingJobName"], "output")
    output, _ = merge({name: tree.part("output", "data") for name, tree in trees.items()})
    kinds = [("output", output)] if output else []
    conflicts: list[str] = []
    if with_model:
        model, conflicts = merge({name: tree.part("model") for name, tree in trees.items()})
        kinds.insert(0, ("model", model))
    if not kinds:
        return None
    patience = 0.0 if run.ending == "stop" else None
    run.journal.move("Uploading", _message(conflicts))
    for kind, entries in kinds:
        send = functools.partial(
            outputs.send,
            entries,
            target.join(kind),
            run.store,
            is_packed=is_packed,
            scratch=run.job.work,
            keeps_times=True,
        )
        try:
            sent = run.await_room(send, may_cancel=False, patience=patience)
        except (store.StoreError, OSError) as error:
            problem = str(error).rstrip(".") + _keep(run.job, kinds, trees)
            return Unsent(problem, is_full_disk(error))
        if kind == "model":
            run.journal.set(artifacts=sent.uri)
    return None


def _message(conflicts: list[str]) -> str:
    if not conflicts:
        return ""
    more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
    return (
        "Uploading generated training model; hosts wrote different files to "
        f"{', '.join(conflicts[:3])}{more}: the first host's are there, the others' are below algo-N/"
    )


def _keep(job: TrainingJob, kinds: list[tuple[str, list[tuple[str, str]]]], trees: dict[str, Tree]) -> str:
    folder = job.file("artifacts")
    try:
        os.makedirs(folder, exist_ok=True)
        for kind, entries in kinds:
            archive.pack(entries, os.path.join(folder, f"{kind}.tar.gz"), keeps_times=True)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return _keep_as_it_is(folder, trees)
    return f"; what was to be sent is kept in {folder}"


def _keep_as_it_is(folder: str, trees: dict[str, Tree]) -> str:
    """Move what was to be sent to where it is not removed; moving takes no disk space."""
    try:
        for host, tree in trees.items():
            os.makedirs(os.path.join(folder, host))
            for name in ("model", "output"):
                os.rename(tree.part(name), os.path.join(folder, host, name))
    except OSError:
        return ""
    return f"; what was to be sent is kept, not packed, in {folder}"


def merge(folders: dict[str, str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Merge the folders of several hosts by path: path in the result, and on this machine, of each file.

    If hosts wrote different files to the same path, the first host's file keeps that path; the others go to
    ``algo-N/path``: nothing is lost, and the result does not depend on which host was last. The paths in
    conflict are the second part of the result.

    Args:
        folders: a directory for each host's name, in the order of the hosts.
    """
    merged: dict[str, str] = {}
    conflicts: list[str] = []
    for host, folder in folders.items():
        for path, full in archive.entries_of(folder):
            if path not in merged:
                merged[path] = full
            elif not _is_same(merged[path], full):
                merged[f"{host}/{path}"] = full
                conflicts.append(path)
    return sorted(merged.items()), sorted(set(conflicts))


def _is_same(one: str, other: str) -> bool:
    if os.path.islink(one) or os.path.islink(other):
        return os.path.islink(one) and os.path.islink(other) and os.readlink(one) == os.readlink(other)
    if os.path.isdir(one) or os.path.isdir(other):
        return os.path.isdir(one) and os.path.isdir(other)
    return filecmp.cmp(one, other, shallow=False)
