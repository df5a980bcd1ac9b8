"""What a job leaves behind: the model and output directories of its hosts, merged and sent."""

from __future__ import annotations

import filecmp
import functools
import os
import shutil
from dataclasses import dataclass
from typing import Any

from shunter._toolkit import archive, outputs, store
from shunter.schedulers.kept_results import JoinedResults, LocalResults, ResultPlace
from shunter.schedulers.sagemaker_local_scheduler.attempt import await_room
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import Tree
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.sent_results import SentResults
from shunter.schedulers.supervisor.documents import is_full_disk


@dataclass(frozen=True)
class Unsent:
    """Why something that a job leaves behind could not be sent, in words; and whether a disk was full."""

    problem: str
    is_disk_full: bool


class Results:
    """The model and the output of a job's hosts.

    Args:
        job: the job.
        request: its request.
        trees: the hosts' files, by the hosts' names.
        with_model: whether there is to be a model: that of a failed job is not sent.

    Attributes:
        kinds: what is to be sent: ``model`` or ``output``, and the entries of each.
        message: what is to be said while that is sent, "" for nothing in particular.
        model_uri: where the model is, once it has been sent; "" until then.
    """

    def __init__(
        self, job: TrainingJob, request: dict[str, Any], trees: dict[str, Tree], *, with_model: bool
    ) -> None:
        self._job = job
        self._request = request
        self._trees = trees
        self.message = self.model_uri = ""
        output, _ = merge({name: tree.part("output", "data") for name, tree in trees.items()})
        self.kinds = [("output", output)] if output else []
        if with_model:
            model, conflicts = merge({name: tree.part("model") for name, tree in trees.items()})
            self.kinds.insert(0, ("model", model))
            self.message = _message(conflicts)

    def send(self, data_store: store.Store, patience: float) -> Unsent | None:
        """Send them; returns what went wrong, None after success.

        What could not be sent is kept in the job's directory, and the text says where. If a disk is full,
        this waits for space, for ``patience`` seconds.
        """
        config = self._request["OutputDataConfig"]
        target = store.Place.parse(config["S3OutputPath"]).join(self._request["TrainingJobName"], "output")
        for kind, entries in self.kinds:
            send = functools.partial(
                outputs.send,
                entries,
                target.join(kind),
                data_store,
                is_packed=config.get("CompressionType", "GZIP") != "NONE",
                scratch=self._job.work,
                keeps_times=True,
            )
            try:
                sent = await_room(send, data_store, patience, may_cancel=False)
            except (store.StoreError, OSError) as error:
                problem = str(error).rstrip(".") + _keep(self._job, self.kinds, self._trees)
                return Unsent(problem, is_full_disk(error))
            if kind == "model":
                self.model_uri = sent.uri
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


def place_of_results(job: TrainingJob, base: str) -> ResultPlace:
    """Return where the results of a job are now.

    Args:
        job: the job.
        base: the host's files, which are there until the job has ended.
    """
    if os.path.isdir(base):
        return LocalResults.below(base)
    request = (job.read_request() or {}).get("request", {})
    sent_to = request.get("OutputDataConfig", {}).get("S3OutputPath", "")
    place = store.Place.parse(sent_to).join(job.name, "output")
    config = request.get("CheckpointConfig") or {}
    sent = SentResults(place.uri, checkpoints=config.get("S3Uri", ""))
    kept = job.file("artifacts")
    if not os.path.isdir(kept):
        return sent
    return JoinedResults([SentResults(kept), sent])


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
