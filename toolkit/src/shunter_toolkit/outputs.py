"""Sends a job's results to its output URI: the model, the data, checkpoints, intermediate output."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence

from . import archive, log
from .environment import Environment
from .errors import StoreError
from .job_document import Job
from .layout import Layout
from .store import Place, Store, in_parallel
from .sync import Mirror


class Results:
    """Everything of one host that goes to a store, during and after the run.

    Args:
        layout: the paths of the job.
        environment: the job as the script sees it.
        job: the job document, or None on SageMaker, where only intermediate output is ours to send.
    """

    def __init__(self, layout: Layout, environment: Environment, job: Job | None) -> None:
        self.layout = layout
        self.environment = environment
        self.job = job
        self.mirrors: list[Mirror] = []

    def open(self) -> None:
        """Begin to watch the folders that are mirrored; nothing is sent yet."""
        job = self.job
        if job is not None and job.checkpoints.get("uri"):
            target = Place.of(job.checkpoints["uri"])
            self.mirrors.append(Mirror(job.checkpoint_dir(self.layout), target, "checkpoints"))
        uri = self._intermediate_uri()
        if uri:
            self.mirrors.append(Mirror(self.layout.intermediate, Place.of(uri), "intermediate output"))

    def start(self) -> None:
        """Begin to send. Call it after the script was started: a process with threads should not fork."""
        for mirror in self.mirrors:
            mirror.start()

    def finish(self, succeeded: bool) -> None:
        """Send what is left: mirrors first, then the data, and the model unless the script failed.

        Raises:
            StoreError: a store refused.
        """
        steps: list[Callable[[], object]] = [mirror.finish for mirror in self.mirrors]
        self.mirrors = []
        if self.job is not None and self.job.output.get("uri"):
            steps.append(lambda: self._send(self.layout.output_data, "output", "data"))
            if succeeded:
                steps.append(lambda: self._send(self.layout.model, "model", "model"))
        _do_all(steps)

    def _intermediate_uri(self) -> str | None:
        """Where intermediate output goes; None if nowhere, or the platform made the folder and sends it."""
        if self.job is not None:
            return self._output_uri("intermediate")
        output = self.environment.sagemaker_s3_output()
        if not output or not output.startswith("s3://") or os.path.isdir(self.layout.intermediate):
            return None
        name = self.environment.job_name or os.environ.get("SAGEMAKER_JOB_NAME") or ""
        return "/".join(part for part in (output.rstrip("/"), name, "output/intermediate") if part)

    def _output_uri(self, *parts: str) -> str | None:
        if self.job is None or not self.job.output.get("uri"):
            return None
        return "/".join([self.job.output["uri"].rstrip("/"), self.job.name, "output", *parts])

    def _send(self, folder: str, packed_name: str, plain_name: str) -> None:
        """Send one folder; other hosts than the first send it under their own name, unless it is empty."""
        assert self.job is not None
        first = self.job.host_index == 0
        if not (os.path.isdir(folder) and os.listdir(folder)) and not (first and plain_name == "model"):
            return
        is_packed = self.job.output.get("compression") != "none"
        where = [] if first else [self.job.current_host]
        target = Place.of(self._output_uri(*where, packed_name if is_packed else plain_name) or "")
        log.info(f"Sending {folder} to {target.uri}{'.tar.gz' if is_packed else ''}")
        send(archive.entries_of(folder), target, Store(), is_packed=is_packed, scratch=self.layout.output)


def send(
    entries: Sequence[tuple[str, str]],
    target: Place,
    store: Store,
    *,
    is_packed: bool,
    scratch: str,
    keeps_times: bool = False,
) -> Place:
    """Send files as one archive beside ``target``, named ``.tar.gz``, or one by one below it.

    Args:
        entries: names and paths, as `archive.entries_of` gives them.
        target: where they go.
        store: sends them.
        is_packed: whether they become one archive.
        scratch: a folder with room for the archive, if it goes to S3.
        keeps_times: whether files in the archive keep the time of their last change.

    Returns:
        The place of the archive, or of the folder with the files.

    Raises:
        StoreError: something could not be sent.
        OSError: it could not be packed.
    """
    if not is_packed:
        files = [(name, path) for name, path in entries if os.path.isfile(path)]
        in_parallel(lambda entry: store.upload(entry[1], target.join(entry[0])), files)
        return target.join("")
    place = Place(target.bucket, f"{target.key}.tar.gz")
    if not place.bucket:
        store.make(lambda path: archive.pack(entries, path, keeps_times=keeps_times), place)
        return place
    with tempfile.TemporaryDirectory(prefix="shunter-", dir=scratch) as folder:
        packed = os.path.join(folder, "archive.tar.gz")
        archive.pack(entries, packed, keeps_times=keeps_times)
        store.upload(packed, place)
    return place


def _do_all(steps: Sequence[Callable[[], object]]) -> None:
    """Do every step, also after one has failed; then raise the first error."""
    first: Exception | None = None
    for step in steps:
        try:
            step()
        except (StoreError, OSError) as error:
            first = first or error
    if first is not None:
        raise first
