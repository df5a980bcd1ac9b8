"""Everything that the toolkit raises on purpose.

    ToolkitError
    ├── ClientError                    the job's description or its inputs are wrong
    │   ├── ConfigError                a file under input/config, or the job document
    │   ├── CodeError                  the code cannot be fetched or unpacked
    │   │   └── StartError             the system would not start the program
    │   ├── StoreError                 an object store refused, or its client is missing
    │   ├── InstallError               requirements or the package could not be installed
    │   ├── ExecuteUserScriptError     the script ran and failed
    │   └── ImportModuleError          a module of the user's could not be imported
    ├── ClusterError                   the hosts of the job did not come together
    ├── StoppedError                   a stop was asked for before or after the script ran
    ├── ChannelDoesNotExistError
    └── UnsupportedFormatError         serving: no encoder or decoder for a content type

Each message says what was attempted, what is wrong and what to do. ``failure_class`` is what
``failure.json`` carries, ``exit_code`` what ``train`` ends with.
"""

from __future__ import annotations

from typing import Any

USER_ERROR = "user_error"
INSTALL_ERROR = "install_error"
CLIENT_ERROR = "client_error"
OUT_OF_MEMORY = "out_of_memory"
SIGNAL = "signal"
PREEMPTED = "preempted"
TIMEOUT = "timeout"
HUNG = "hung"
INTERNAL_ERROR = "internal_error"


class ToolkitError(Exception):
    """Base of every error that the toolkit raises on purpose."""

    failure_class = CLIENT_ERROR
    exit_code = 1


class ClientError(ToolkitError):
    """The job's description or one of its inputs is wrong; running it again changes nothing."""


class ConfigError(ClientError):
    """A configuration file is missing or cannot be used.

    ``missing`` sets exit code 2 (the errno of a file that is not there), as the predecessors end.
    """

    def __init__(self, message: str, missing: bool = False) -> None:
        super().__init__(message)
        if missing:
            self.exit_code = 2


class CodeError(ClientError):
    """The user's code could not be fetched, unpacked or started."""


class StartError(CodeError):
    """The system would not start a program: exit code 127 when it is not there, 126 when it cannot be run."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(
            f"Cannot start {program}: {error.strerror}. "
            "Check the entry point's first line (#!), its format and its permissions."
        )
        self.exit_code = 127 if error.errno == 2 else 126


class StoreError(ClientError):
    """An object store refused a request, or the client library for it is not in the image."""


class _CalledProcessError(ClientError):
    """A program failed. Made from its command, as by the predecessors, or with a message of our own.

    Args:
        cmd: its command line.
        return_code: its exit status, negative for a signal.
        output: what it printed.
        info: a further line for the text.
        message: the whole text, in place of the predecessors' form.
    """

    def __init__(
        self, cmd: Any, return_code: Any = None, output: Any = None, info: Any = None, message: str = ""
    ) -> None:
        super().__init__(message)
        self.cmd = cmd
        self.return_code = str(return_code)
        self.output = output
        self.extra_info = info
        self._message = message

    def __str__(self) -> str:
        if self._message:
            return self._message
        output = self.output.decode("utf-8", "replace") if isinstance(self.output, bytes) else self.output
        lines = [f"{type(self).__name__}:", f"ExitCode {self.return_code}", f'ErrorMessage "{output or ""}"']
        lines += [f'ExtraInfo "{self.extra_info}"'] if self.extra_info else []
        return "\n".join([*lines, f'Command "{self.cmd}"'])


class InstallError(_CalledProcessError):
    """Installing the requirements or the user's package failed; ``output`` has the installer's last lines."""

    failure_class = INSTALL_ERROR


class InstallRequirementsError(InstallError):
    """``requirements.txt`` could not be installed."""


class InstallModuleError(InstallError):
    """The user's package could not be installed."""


class ExecuteUserScriptError(_CalledProcessError):
    """The script ran and failed.

    Attributes:
        return_code: its exit status as text, negative for a signal.
        exit_code: the same as a number, 128 + the number of a signal.
        details: what ``failure.json`` would hold.
    """

    failure_class = USER_ERROR

    def __init__(
        self,
        cmd: Any,
        return_code: Any = None,
        output: Any = None,
        info: Any = None,
        message: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(cmd, return_code, output, info, message)
        status = return_code if isinstance(return_code, int) else 1
        self.exit_code = 128 - status if status < 0 else status
        self.details = details or {}


class ImportModuleError(ClientError):
    """A module of the user's could not be imported."""


class ClusterError(ToolkitError):
    """The hosts of the job did not find each other, or one of them was lost."""


class StoppedError(ToolkitError):
    """A signal asked the job to stop while no script was running that could take it."""

    failure_class = PREEMPTED

    def __init__(self, number: int) -> None:
        super().__init__(f"The job was asked to stop (signal {number}) while its script was not running.")
        self.number = number
        self.exit_code = 128 + number


class ChannelDoesNotExistError(ToolkitError):
    """The job does not have the requested channel."""

    def __init__(self, channel_name: str, known: tuple[str, ...] = ()) -> None:
        have = f" The job's channels: {', '.join(known)}." if known else ""
        super().__init__(
            f"Channel {channel_name} is not a valid channel: the job has none of that name.{have}"
        )


class UnsupportedFormatError(ToolkitError):
    """There is no encoder or decoder for a content type."""

    def __init__(self, content_type: str, supported: tuple[str, ...] = (), **kwargs: Any) -> None:
        can = f" Supported: {', '.join(supported)}." if supported else ""
        super().__init__(
            f"Content type {content_type} is not supported.{can} Define input_fn to read others, output_fn "
            "to write them."
        )
        self.content_type = content_type
        for name, value in kwargs.items():
            setattr(self, name, value)


class SMTrainingCompilerConfigurationError(ClientError):
    """PyTorch/XLA cannot run this job in this image."""


DEFAULT_ERROR_CLASS = ExecuteUserScriptError
# The older predecessor's name.
ChannelDoesNotExistException = ChannelDoesNotExistError
