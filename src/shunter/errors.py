"""Every exception that shunter raises on purpose.

    ShunterError                      exit code 1
    ├── UsageError                      2   the command or call is malformed
    │   ├── MalformedAppHandleException
    │   ├── ComponentArgumentError
    │   └── MountParseError, OptionParseError
    ├── ConfigError                     3   a value, file or component is wrong
    │   ├── InvalidRunConfigException
    │   ├── ComponentNotFoundException
    │   │   └── ComponentFileNotFoundError
    │   ├── ComponentValidationException
    │   ├── UnknownSchedulerException
    │   ├── PluginError                     what another distribution provides does not work
    │   └── WorkspaceError                  files that travel with a job cannot be selected or read
    │       └── WorkspaceChangedError       a file was changed while it was shipped
    ├── BackendError                    4   a scheduler refused or could not be reached
    │   ├── AccessError                     the credentials are refused, or lack permissions
    │   ├── UnreachableError                nothing answers, which says nothing about any job
    │   └── StateStoreError                 the state directory cannot be read or written
    ├── UnknownAppException             5   there is no such job
    ├── BudgetSpentError                6   the budget of a lab does not suffice for another experiment
    ├── AppStatusError                  1   the job ended, but did not succeed
    └── ResultError                     1   a function's result is not there, or cannot be read

Each message says what was attempted and what is wrong; ``hint`` says what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shunter.specs.status import AppStatus

EXIT_OK = 0
EXIT_JOB_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 3
EXIT_BACKEND = 4
EXIT_NO_SUCH_JOB = 5
EXIT_BUDGET_SPENT = 6
EXIT_INTERRUPTED = 130


class ShunterError(Exception):
    """Base class. ``hint`` tells the user what to do."""

    exit_code = EXIT_JOB_FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(ShunterError, ValueError):
    """A command line or another typed value does not parse."""

    exit_code = EXIT_USAGE


class MalformedAppHandleException(UsageError):
    """A handle is not of the form ``scheduler://[session]/app_id``."""

    def __init__(self, app_handle: str, *, hint: str = "") -> None:  # the handle, or all of the message
        super().__init__(app_handle, hint=hint)


class MountParseError(UsageError, KeyError):
    """A mount specification does not parse. Also a `KeyError`, as in TorchX, for code that catches that."""


class OptionParseError(UsageError):
    """A ``key=value`` list does not parse."""


class ConfigError(ShunterError, ValueError):
    """A configuration value, a component or a job definition is invalid."""

    exit_code = EXIT_CONFIG


class PluginError(ConfigError):
    """A plugin of another distribution cannot be loaded, or its function failed (`__cause__`)."""


class InvalidRunConfigException(ConfigError):
    """A scheduler option is unknown, missing or of the wrong type."""

    def __init__(
        self,
        invalid_reason: str,
        cfg_key: str = "",
        cfg: Mapping[str, object] | None = None,
        *,
        hint: str = "",
    ) -> None:
        super().__init__(invalid_reason, hint=hint)
        self.cfg_key = cfg_key
        self.cfg = dict(cfg or {})


class ComponentNotFoundException(ConfigError):
    """No component has this name."""


class ComponentFileNotFoundError(ComponentNotFoundException, FileNotFoundError):
    """The file of a component does not exist. Also a `FileNotFoundError`, as in TorchX."""


class ComponentValidationException(ConfigError):
    """A component is not valid; the message lists all problems with file and line."""


class ComponentArgumentError(UsageError):
    """An argument given to a component does not fit its signature."""


class UnknownSchedulerException(ConfigError, KeyError):
    """No scheduler has this name. Also a `KeyError`, as in TorchX, for code that catches that."""

    def __init__(self, scheduler_backend: str, *, hint: str = "") -> None:  # the name, or all of the message
        super().__init__(scheduler_backend, hint=hint)


class WorkspaceError(ConfigError):
    """A workspace cannot be selected or read; the message names the directory or file."""


class WorkspaceChangedError(WorkspaceError):
    """A file no longer has the content that was hashed. A new snapshot has the new content.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was changed while it was being shipped",
            hint="Try again when nothing writes to the workspace, or leave the file out (.shunterignore).",
        )
        self.path = path


class BackendError(ShunterError):
    """A scheduler refused the request or could not be reached."""

    exit_code = EXIT_BACKEND


class AccessError(BackendError):
    """A scheduler refuses the credentials, or they lack a permission. Retrying does not help."""


class UnreachableError(BackendError):
    """A scheduler does not answer, or not in time. That says nothing about any job."""


class StateStoreError(BackendError):
    """The state directory (jobs, history) cannot be used."""


class UnknownAppException(ShunterError):
    """No job has this handle."""

    exit_code = EXIT_NO_SUCH_JOB

    def __init__(self, app_handle: str, *, hint: str = "") -> None:  # the handle, or all of the message
        super().__init__(app_handle, hint=hint)


class BudgetSpentError(ShunterError):
    """What is left of a lab's budget does not suffice for another experiment."""

    exit_code = EXIT_BUDGET_SPENT


class AppStatusError(ShunterError):
    """Raised by `AppStatus.raise_for_status` when a job did not succeed. ``status`` holds it."""

    def __init__(self, status: AppStatus, *args: object) -> None:  # the message; by default the status
        super().__init__(str(args[0]) if args else f"the job did not succeed: {status}")
        self.status = status


class ResultError(ShunterError):
    """The result of a function that ran as a job is not there, or cannot be read."""


def described(error: BaseException) -> str:
    """Return an error's message, with the type of an exception that is not ours."""
    return error.message if isinstance(error, ShunterError) else f"{type(error).__name__}: {error}"


#: How many names a message shows.
MOST_NAMES = 60


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with similar known names, or else with all of them, up to a limit."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if not near and len(name) > 2:  # p4d: aws_p4d.24xlarge
        near = [known_name for known_name in names if name in known_name][:3]
    if near:
        return "Did you mean " + " or ".join(near) + "?"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return "Known: " + ", ".join(names[:MOST_NAMES]) + f"{more}." if names else ""


def refuse(what: str, problems: Sequence[str], error: type[ConfigError] = ConfigError) -> None:
    """Raise one error with all problems, on one line if there is one; does nothing if there are none."""
    if len(problems) == 1:
        raise error(f"{what}: {problems[0]}")
    if problems:
        raise error(f"{what}:" + "".join(f"\n  - {problem}" for problem in problems))
