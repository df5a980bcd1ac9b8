"""Calls a Python function as a job's program, and leaves what it returned or raised in the job's results.

The program of the jobs of ``shunter.Executor`` and of ``shunter run module:function``:
``python -m shunter_toolkit call``. The call itself, function and arguments, is a sealed pickle in a variable
or a file; or it is the name of an importable function, with arguments in JSON, which needs no pickle.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import signal
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Callable, Dict, List, Tuple

from . import sealed_pickle
from .current import current

#: The variable with the job's key, in hexadecimal digits.
KEY = "SHUNTER_CALL_KEY"
#: The variables with the sealed calls, compressed, in base64, and with the path of their file.
PAYLOAD = "SHUNTER_CALL"
FILE = "SHUNTER_CALL_FILE"
#: Set while the module of a call is imported: a job that it submitted then would import it too, and so on.
IMPORTING = "SHUNTER_CALL_IMPORT"
#: Result of a process, below the directory of results other than models.
RESULT = "returned-{rank}.pickle"
#: What is to be called after a restart, below the directory of checkpoints.
NEXT_CALL = "next-call-{rank}.pickle"

Call = Tuple[Callable[..., Any], Tuple[Any, ...], Dict[str, Any]]


class CallError(Exception):
    """The call cannot be made; the message says why and what to do."""


def main(words: Sequence[str]) -> int:
    """Make the call and return the exit code: 0, or 1 if the function raised or the call cannot be made.

    Args:
        words: ``--index K``, which of the job's calls it is; or ``--function NAME --arguments JSON``.
    """
    options = dict(zip(words[::2], words[1::2]))
    # taken out of the environment, so that what the function starts does not get them
    key, payload, file = (os.environ.pop(name, "") for name in (KEY, PAYLOAD, FILE))
    process = CallingProcess(bytes.fromhex(key), int(options.get("--index", 0)))
    try:
        call = process.next_call()
        if call is None and "--function" in options:
            from . import named_call

            call = named_call.read(options["--function"], options["--arguments"])
        function, args, kwargs = call or process.call_of_job(payload, file)
    except CallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    process.save_when_stopped(function, args, kwargs)
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        trace = _trace_from_function(error)
        print(trace, end="", file=sys.stderr)
        process.report("exception", error, trace)
        return 1
    except SystemExit as error:
        process.report("exit", None, repr(error.code))
        raise
    return 0 if process.report("value", value) else 1


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import what is called: nothing is submitted meanwhile."""
    os.environ[IMPORTING] = "1"
    try:
        yield
    finally:
        os.environ.pop(IMPORTING, None)


def call_each(function: Callable[..., Any], groups: Sequence[Tuple[Any, ...]]) -> List[Any]:
    """Call a function once with each group of arguments; return the results in order."""
    return [function(*group) for group in groups]


class CallingProcess:
    """This process, as one that makes a call of its job: it reads the call and writes the result.

    Args:
        key: the job's key.
        index: the number of the call among those of the job.
    """

    def __init__(self, key: bytes, index: int) -> None:
        self.here = current()
        self._key = key
        self._number = f"{index} {self.here.rank}"

    # ---- the call

    def call_of_job(self, payload: str, file: str) -> Call:
        """Return the function and the arguments that the job was submitted with.

        Args:
            payload: the sealed calls, compressed, in base64; "" if they are in a file.
            file: path of that file.

        Raises:
            CallError: they cannot be read.
        """
        if payload:
            data = zlib.decompress(base64.b64decode(payload))
        else:
            try:
                with open(file, "rb") as stream:
                    data = stream.read()
            except OSError as error:
                raise CallError(
                    f"the job's call is in {file!r}, which cannot be read here: {error.strerror}. "
                    "Give a workspace, so that it travels with the code."
                ) from None
        header, body = self._unsealed(data, "calls", file or "the job's variables")
        start, end = header["places"][int(self._number.split()[0])]
        return _loaded(header, body[start:end])

    def next_call(self) -> Call | None:
        """Return what an earlier run of this process left to go on with; None if it left nothing.

        Raises:
            CallError: it cannot be read.
        """
        path = self._next_call_path()
        if not path or not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            sealed = self._unsealed(file.read(), f"next {self._number}", path)
        return _loaded(sealed.header, sealed.body)

    def _unsealed(self, data: bytes, purpose: str, place: str) -> sealed_pickle.Sealed:
        try:
            return sealed_pickle.unseal(data, self._key, purpose)
        except sealed_pickle.SealError as error:
            raise CallError(f"the call in {place} is not made: {error}") from None

    # ---- the result

    def report(self, kind: str, value: Any, trace: str = "") -> bool:
        """Write the result; False, after a message, if a value cannot be pickled or written.

        Args:
            kind: ``value``, ``exception`` or, after ``sys.exit``, ``exit``.
            value: what was returned or raised.
            trace: the traceback, if it was raised; after ``sys.exit``, its argument.
        """
        header = {
            "kind": kind,
            "python": sealed_pickle.python_version(),
            "type": type(value).__name__,
            "text": trace,
        }
        try:
            body = _dumps(value)
            if kind == "exception":
                pickle.loads(body)  # some exceptions can be pickled and not be read again
        except Exception as error:
            header["unpicklable"] = f"{type(error).__name__}: {error}"
            body = b""
        path = os.path.join(self.here.output_dir or ".", RESULT.format(rank=self.here.rank))
        try:
            _write_whole(path, sealed_pickle.seal(header, body, self._key, f"result {self._number}"))
        except OSError as error:
            print(f"error: the result cannot be written to {path}: {error.strerror}", file=sys.stderr)
            return False
        if "unpicklable" in header and kind == "value":
            print(
                f"error: the function returned a {header['type']}, which cannot be pickled "
                f"({header['unpicklable']}). Return plain data, or write a file to "
                "shunter.current().model_dir.",
                file=sys.stderr,
            )
            return False
        with contextlib.suppress(OSError):
            os.remove(self._next_call_path())
        return True

    # ---- going on after a stop

    def save_when_stopped(
        self, function: Callable[..., Any], args: Tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Let a function with a ``checkpoint`` method say, when the job is stopped, how to go on.

        The method is called with the function's arguments, in the main thread, between two instructions of
        the function, as submitit does. Without it the signal has the system's own effect.
        """
        checkpoint = getattr(function, "checkpoint", None)
        path = self._next_call_path()
        if checkpoint is None or not path:
            return

        def stop(number: int, frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_IGN)
            delayed = checkpoint(*args, **kwargs)
            if delayed is not None:
                body = _dumps((delayed.function, delayed.args, delayed.kwargs))
                header = {"python": sealed_pickle.python_version() if b"cloudpickle" in body else ""}
                _write_whole(path, sealed_pickle.seal(header, body, self._key, f"next {self._number}"))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)

        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, stop)

    def _next_call_path(self) -> str:
        folder = self.here.checkpoint_dir
        return os.path.join(folder, NEXT_CALL.format(rank=self.here.rank)) if folder else ""


def _loaded(header: Mapping[str, Any], pickled: bytes) -> Call:
    """Return the call in a pickle whose seal was checked.

    Raises:
        CallError: this Python cannot read it.
    """
    here = sealed_pickle.python_version()
    if header["python"] not in ("", here):
        raise CallError(
            f"the function was submitted by Python {header['python']}, and this job runs Python {here}, "
            f"which cannot read its pickle. Use an image or environment with Python {header['python']}."
        )
    sys.path += [folder for folder in header.get("path", ()) if folder not in sys.path]
    try:
        with importing():
            function, args, kwargs = pickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise CallError(
            f"the function or its arguments need the module {error.name}, which this job's Python "
            f"({sys.executable}) does not have. {advice(error.name)}"
        ) from error
    except Exception as error:
        raise CallError(
            f"the function or its arguments cannot be unpickled: {type(error).__name__}: {error}. "
            "The code that they come from may be another version here."
        ) from error
    return function, args, kwargs


def advice(module: str | None) -> str:
    """Return what to do about a module that the job lacks."""
    if (module or "").partition(".")[0] == "cloudpickle":
        return "Install cloudpickle there, or move the function into a module that travels with the job."
    return (
        "Install it there, take the packages along (environment='requirements.txt'), or let the directory "
        "that has it travel with the job (workspace)."
    )


def _dumps(value: Any) -> bytes:
    """Pickle a value; what pickle refuses, such as functions of ``__main__``, by cloudpickle."""
    try:
        return pickle.dumps(value, protocol=4)
    except Exception:
        try:
            import cloudpickle  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
    result: bytes = cloudpickle.dumps(value, protocol=4)
    return result


def _write_whole(path: str, data: bytes) -> None:
    """Write a file that appears complete or not at all."""
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    partial = f"{path}.{os.getpid()}.new"
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


def _trace_from_function(error: Exception) -> str:
    """Return the traceback from the user's function on; the frame that calls it is ours."""
    import traceback

    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
