"""Which commit a job was submitted from: one git command, which runs while the job is being submitted."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

# A repository so large that git takes longer has no facts recorded.
LONGEST_SECONDS = 2.0


class GitProbe:
    """A running ``git status``. Nothing that goes wrong with it is ever an error.

    Args:
        directory: where it runs.
        seconds: how long it may take in all.
    """

    def __init__(self, directory: str, seconds: float = LONGEST_SECONDS) -> None:
        self._deadline = time.monotonic() + seconds
        self._output: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        top = _repository_of(directory)
        if not top:
            return
        import subprocess
        import tempfile

        from trainyard.gitcommand import GitConfigUnreadable, reading_environment, without_filters

        # within a submodule Git would obey that one's configuration
        command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch"]
        command += ["--ignore-submodules=dirty", "--no-renames"]
        try:
            environ = reading_environment(without_filters(directory, top))
        except GitConfigUnreadable:
            return
        try:
            # a file rather than a pipe: nobody has to read along, however many files have changed
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._discard()

    def done(self) -> bool:
        """Tell whether `facts` would return at once."""
        return self._process is None or self._process.poll() is not None

    def facts(self) -> tuple[str | None, bool | None]:
        """Return commit and dirtiness; None for what is not known. Waits, within the time allowed."""
        if self._process is None:
            return None, None
        import subprocess

        try:
            code = self._process.wait(max(self._deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            code = self._give_up()
        try:
            return self._parse() if code == 0 else (None, None)
        finally:
            self._discard()

    def abandon(self) -> None:
        """Stop it; its facts are not wanted."""
        self._deadline = 0.0
        self.facts()

    def _give_up(self) -> int:
        import contextlib
        import subprocess

        if self._process is not None:
            self._process.kill()
            # a process that waits for a dead network file system cannot even be killed
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
        return -1

    def _parse(self) -> tuple[str | None, bool | None]:
        commit, dirty = None, False
        self._output.seek(0)
        for line in self._output:
            if line.startswith(b"# branch.oid "):
                text = line.split()[2].decode("ascii", "replace")
                commit = None if text == "(initial)" else text
            elif not line.startswith(b"#"):
                dirty = True
                break
        return commit, dirty

    def _discard(self) -> None:
        if self._output is not None:
            self._output.close()
        self._output = self._process = None


def _repository_of(directory: str) -> str:
    """Return the top of the checkout that a directory is in; "" outside of any."""
    path = os.path.realpath(directory)
    while True:
        if os.path.lexists(os.path.join(path, ".git")):
            return path
        parent = os.path.dirname(path)
        if parent == path:
            return ""
        path = parent
