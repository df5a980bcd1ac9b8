"""TorchX's names for local processes (``torchx.schedulers.local_scheduler``, ``.streams``).

Our local scheduler starts jobs in another process: these are for classes that derive from TorchX's.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, TextIO

from shunter.schedulers.exec.process.log_index import LOG_NAMES
from shunter.specs.app import Role
from shunter.specs.status import is_terminal

log = logging.getLogger(__name__)
AppId = str
AppName = str
RoleName = str
STDOUT_LOG, STDERR_LOG = LOG_NAMES
COMBINED_LOG = "combined.log"
ENV_CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NA = "<N/A>"


class SignalException(Exception):
    """This process got a signal that ends it."""

    def __init__(self, msg: str, sigval: int) -> None:
        super().__init__(msg)
        self.sigval = sigval


class PopenProtocol(Protocol):
    """The part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit code."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def kill(self) -> None:
        """End the process."""


@dataclass
class ReplicaParam:
    """How a replica's process is started."""

    args: list[str]
    env: dict[str, str]
    stdout: str | None = None
    stderr: str | None = None
    combined: str | None = None
    cwd: str | None = None


@dataclass
class PopenRequest:
    """The request of TorchX's own local scheduler, for classes that derive from it."""

    app_id: AppId
    log_dir: str
    role_params: dict[RoleName, list[ReplicaParam]]
    role_log_dirs: dict[RoleName, list[str]]


class ImageProvider(ABC):
    """Locates the files of an image on this machine."""

    @abstractmethod
    def fetch(self, image: str) -> str:
        """Return the directory of an image."""

    def fetch_role(self, role: Role) -> str:
        """Return the directory of a role's image."""
        return self.fetch(role.image)

    def get_cwd(self, image: str) -> str | None:
        """Return the directory in which its programs are started; None for that of this process."""
        return None

    def get_entrypoint(self, img_root: str, role: Role) -> str:
        """Return the path of a role's program."""
        return role.entrypoint

    def get_replica_param(
        self,
        img_root: str,
        role: Role,
        stdout: str | None = None,
        stderr: str | None = None,
        combined: str | None = None,
    ) -> ReplicaParam:
        """Return how a replica of a role is started."""
        return ReplicaParam(
            [self.get_entrypoint(img_root, role), *role.args],
            dict(role.env),
            stdout,
            stderr,
            combined,
            self.get_cwd(role.image),
        )


class LocalDirectoryImageProvider(ImageProvider):
    """An image is the absolute path of a directory."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        pass

    def fetch(self, image: str) -> str:
        """Return the directory.

        Raises:
            ValueError: there is no such directory.
        """
        if not os.path.isdir(image):
            raise ValueError(f"the image {image!r} is not a directory")
        return image

    def get_cwd(self, image: str) -> str | None:
        """Return the directory of the image."""
        return self.fetch(image)


class CWDImageProvider(ImageProvider):
    """Every image is the current directory."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        pass

    def fetch(self, image: str) -> str:
        """Return the current directory."""
        return os.getcwd()

    def get_cwd(self, image: str) -> str | None:
        """Return the current directory."""
        return os.getcwd()


class LogIterator:
    """The lines of a log file with their ends, followed until a job has ended.

    Subclasses override `_check_finished`, for example to fetch the file first, and may set the attributes
    themselves instead of calling this constructor.

    Args:
        app_id: the job.
        log_file: path of the file, which need not exist yet.
        scheduler: knows the job.
        should_tail: whether to follow; otherwise only what is there now.
    """

    def __init__(self, app_id: str, log_file: str, scheduler: Any, should_tail: bool = True) -> None:
        self._app_id = app_id
        self._log_file = log_file
        self._log_fp: TextIO | None = None
        self._scheduler = scheduler
        self._app_finished = not should_tail

    def __iter__(self) -> LogIterator:
        only_now = self._app_finished
        self._check_finished()
        while not os.path.isfile(self._log_file) and not only_now and not self._app_finished:
            time.sleep(0.1)
            self._check_finished()
        self._app_finished = self._app_finished or only_now
        if not os.path.isfile(self._log_file):
            raise RuntimeError(f"the job {self._app_id} has written no {self._log_file}")
        self._log_fp = open(self._log_file, encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115
        return self

    def __next__(self) -> str:
        file = self._log_fp
        if file is None:
            raise StopIteration
        text = ""
        while True:
            over = self._app_finished  # checked before the file is read, so that no last lines are missed
            text += file.readline()
            if text.endswith("\n"):
                return text
            if over:
                file.close()
                self._log_fp = None
                if text:
                    return text
                raise StopIteration
            self._check_finished()
            if not self._app_finished:
                time.sleep(0.1)

    def _check_finished(self) -> None:
        found = self._scheduler.describe(self._app_id)
        self._app_finished = found is None or is_terminal(found.state)


class Tee:
    """Copies growing files to a single stream, line by line, until `close`.

    Args:
        out: where to, a stream of text or of bytes.
        sources: paths of the files, which need not exist yet.
    """

    def __init__(self, out: TextIO | BinaryIO, *sources: str) -> None:
        self._out: Any = out
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._copy, args=(path,), daemon=True) for path in sources]
        for thread in self._threads:
            thread.start()

    def write(self, s: str) -> None:
        """Write a text."""
        with self._lock:
            self._out.write(s if isinstance(self._out, io.TextIOBase) else s.encode())
            self._out.flush()

    def close(self) -> None:
        """Copy what is left, and stop."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _copy(self, path: str) -> None:
        while not os.path.exists(path):
            if self._closed.wait(0.1):
                return
        with open(path, encoding="utf-8", errors="replace") as file:
            while True:
                last = self._closed.is_set()
                for line in file:
                    self.write(line)
                if last:
                    return
                self._closed.wait(0.1)
