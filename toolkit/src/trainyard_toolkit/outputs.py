"""Sends what a job leaves behind to its output URI: the model, the data, checkpoints, intermediate output."""

from __future__ import annotations

import os

from . import log, store, sync
from .errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .environment import Environment
    from .jobs import Job
    from .layout import Layout


class Results:
    """Everything of one host that goes to a store, during and after the run.

    Args:
        layout: where things lie.
        environment: the job as the script sees it.
        job: the job document, or None on SageMaker, where only intermediate output is ours to send.
    """

    def __init__(self, layout: Layout, environment: Environment, job: Job | None) -> None:
        self.layout = layout
        self.environment = environment
        self.job = job
        self.mirrors: list[sync.Mirror] = []

    def open(self) -> None:
        """Begin to watch the folders that are mirrored; nothing is sent yet."""
        job = self.job
        if job is not None and job.checkpoints.get("uri"):
            self.mirrors.append(
                sync.Mirror(job.checkpoint_dir(self.layout), job.checkpoints["uri"], "checkpoints")
            )
        uri = self._intermediate_uri()
        if uri:
            self.mirrors.append(sync.Mirror(self.layout.intermediate, uri, "intermediate output"))

    def start(self) -> None:
        """Begin to send. Call it when the script has been started: a process with threads should not fork."""
        for mirror in self.mirrors:
            mirror.start()

    def finish(self, succeeded: bool) -> None:
        """Send what is left: mirrors first, then the data, and the model unless the script failed.

        Raises:
            StoreError: a store refused.
        """
        steps = [mirror.finish for mirror in self.mirrors]
        self.mirrors = []
        if self.job is not None and self.job.output.get("uri"):
            steps.append(lambda: self._send(self.layout.output_data, "output.tar.gz", "data"))
            if succeeded:
                steps.append(lambda: self._send(self.layout.model, "model.tar.gz", "model"))
        _do_all(steps)

    def _intermediate_uri(self) -> str | None:
        """Where intermediate output goes; None if nowhere, or if the platform has made the folder and sees
        to it.
        """
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

    def _send(self, folder: str, archive_name: str, plain_name: str) -> None:
        """Send one folder; hosts other than the first do so under their own name, and only if there is
        something.
        """
        assert self.job is not None
        first = self.job.host_index == 0
        if not (os.path.isdir(folder) and os.listdir(folder)) and not (first and plain_name == "model"):
            return
        where = [] if first else [self.job.current_host]
        if self.job.output.get("compression") == "none":
            self._send_files(folder, self._output_uri(*where, plain_name) or "")
        else:
            self._send_archive(folder, self._output_uri(*where, archive_name) or "")

    def _send_archive(self, folder: str, uri: str) -> None:
        import tempfile

        from . import archive

        with tempfile.TemporaryDirectory(prefix="trainyard-", dir=self.layout.output) as scratch:
            packed = os.path.join(scratch, "archive.tar.gz")
            archive.pack(folder, packed)
            log.info(f"Sending {folder} as {uri} ({os.path.getsize(packed) / 1e6:.1f} MB)")
            store.open_store(uri).upload(packed, store.split_uri(uri)[2])

    def _send_files(self, folder: str, uri: str) -> None:
        target = store.open_store(uri)
        prefix = store.split_uri(uri)[2]
        paths = [item.key for item in store.FolderStore().listing(folder)]
        log.info(f"Sending {len(paths)} files of {folder} to {uri}")
        store.in_parallel(
            lambda path: target.upload(path, store.join(prefix, os.path.relpath(path, folder))), paths
        )


def _do_all(steps: Sequence[Callable[[], None]]) -> None:
    """Do every step, also after one has failed; then raise the first error."""
    first: Exception | None = None
    for step in steps:
        try:
            step()
        except (StoreError, OSError) as error:
            first = first or error
    if first is not None:
        raise first
