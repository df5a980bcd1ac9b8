"""A function on its way into a job, with what submitit's users expect to find there."""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from shunter._toolkit.current import DelayedSubmission as _DelayedSubmission
from shunter.compat.submitit import names
from shunter.compat.submitit.job_environment import JobEnvironment
from shunter.system.files import opened_path


class DelayedSubmission(_DelayedSubmission):
    """A call to make later: what ``checkpoint`` methods return.

    Args:
        function: what is called.
        args, kwargs: its arguments.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(function, *args, **kwargs)
        self._done = False
        self._result: Any = None

    def result(self) -> Any:
        """Make the call, unless it was made, and return its value."""
        if not self._done:
            self._result = self.function(*self.args, **self.kwargs)
            self._done = True
        return self._result

    def done(self) -> bool:
        """Tell whether the call was made."""
        return self._done

    def dump(self, filepath: Path | str) -> None:
        """Write it to a file, with its value if the call was made."""
        Path(filepath).write_bytes(cloudpickle.dumps(self))

    @classmethod
    def load(cls, filepath: Path | str) -> DelayedSubmission:
        """Read one that `dump` wrote. Pickles run code: read only files that nobody else can write."""
        loaded = pickle.loads(Path(filepath).read_bytes())
        assert isinstance(loaded, cls), f"{filepath} holds no {cls.__name__}"
        return loaded


class SubmittedFunction:
    """A function that finds ``submitit`` where it was installed, and whose logs are linked from the folder.

    Args:
        function: the user's.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        with contextlib.suppress(ValueError):  # a builtin without a signature
            self.__signature__ = inspect.signature(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Link the logs, and call the function."""
        link_logs()
        return self.func(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickle in the pickle, since reading it may import modules that import submitit
        return _restored, (names.is_installed(), cloudpickle.dumps(self.func))


class CheckpointableFunction(SubmittedFunction):
    """One that says how to go on after its job was stopped."""

    def checkpoint(self, *args: Any, **kwargs: Any) -> _DelayedSubmission | None:
        """Return what is to be called after the restart."""
        delayed = checkpoint_of(self.func)(*args, **kwargs)
        if delayed is None:
            return None
        return _DelayedSubmission(submitted(delayed.function), *delayed.args, **delayed.kwargs)


def submitted(function: Callable[..., Any]) -> SubmittedFunction:
    """Return a function as it is submitted."""
    is_checkpointable = checkpoint_of(function) is not None
    return (CheckpointableFunction if is_checkpointable else SubmittedFunction)(function)


def checkpoint_of(function: Callable[..., Any]) -> Any:
    """Return the method that says how to go on; None if there is none. It has an old and a new name."""
    old = getattr(function, "__submitit_checkpoint__", None)
    return old or getattr(function, "checkpoint", None)


def _restored(is_installed: bool, pickled: bytes) -> SubmittedFunction:
    if is_installed:
        names.install()
    return submitted(pickle.loads(pickled))


def link_logs() -> None:
    """Link this process's logs from the job's folder, where they are files."""
    paths = JobEnvironment().paths
    with contextlib.suppress(OSError):
        paths.folder.mkdir(parents=True, exist_ok=True)
        for descriptor, link in ((1, paths.stdout), (2, paths.stderr)):
            file = Path(opened_path(descriptor))
            if file.is_file():
                link.unlink(missing_ok=True)
                link.symlink_to(file)
