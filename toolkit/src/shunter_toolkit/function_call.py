"""Calls a Python function as a job's program, and leaves what it returned or raised in the job's results.

The program of the jobs of ``shunter.Executor`` and of ``shunter run module:function``:
``python -m shunter_toolkit call``. The call itself, function and arguments, is a sealed pickle in a variable
or a file; or it is the name of an importable function, with arguments in JSON, which needs no pickle.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import enum
import importlib
import inspect
import json
import os
import pickle
import signal
import sys
import tempfile
import traceback
import typing
import zlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import FrameType
from typing import Any, Callable, Dict, List, Tuple

from . import sealed_pickle
from .current import current

#: The variable with the job's key, in hexadecimal digits.
KEY = "SHUNTER_CALL_KEY"
#: The variables with the sealed calls, compressed, in base64, and with the path of their file.
PAYLOAD = "SHUNTER_CALL"
FILE = "SHUNTER_CALL_FILE"
#: Result of a process, below the directory of results other than models.
RESULT = "returned-{rank}.pickle"
#: What is to be called after a restart, below the directory of checkpoints.
NEXT_CALL = "next-call-{rank}.pickle"

Call = Tuple[Callable[..., Any], Tuple[Any, ...], Dict[str, Any]]


class CallError(Exception):
    """The call cannot be made; the message says why and what to do."""


def main(words: Sequence[str]) -> int:
    """Make the call and return the exit code: 0, or 1 if the function raised or the call cannot be made."""
    options = _parser().parse_args(list(words))
    # taken out of the environment, so that what the function starts does not get them
    key, payload, file = (os.environ.pop(name, "") for name in (KEY, PAYLOAD, FILE))
    process = CallingProcess(bytes.fromhex(key), options.index)
    try:
        call = process.next_call()
        if call is None and options.function:
            call = _named_call(options.function, json.loads(options.arguments))
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
    return 0 if process.report("value", value) else 1


def call_each(function: Callable[..., Any], groups: Sequence[Tuple[Any, ...]]) -> List[Any]:
    """Call a function once with each group of arguments; return the results in order."""
    return [function(*group) for group in groups]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shunter_toolkit call")
    parser.add_argument("--index", type=int, default=0, help="which of the job's calls")
    parser.add_argument("--function", default="", help="an importable function, module:function")
    parser.add_argument(
        "--arguments",
        default='{"args": [], "kwargs": {}}',
        help="its arguments as JSON: {args: [], kwargs: {}}",
    )
    return parser


def _named_call(name: str, arguments: Mapping[str, Any]) -> Call:
    """Return the call of a named function with JSON values, as its annotations want them.

    Raises:
        CallError: there is no such function.
    """
    function = named_function(name)
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that only a type checker knows
        hints = {}
    kwargs = {key: _as_annotated(hints.get(key), value) for key, value in arguments["kwargs"].items()}
    names = list(inspect.signature(function).parameters)
    positional = enumerate(arguments["args"])
    args = (_as_annotated(hints.get(names[min(k, len(names) - 1)]), value) for k, value in positional)
    return function, tuple(args), kwargs


def _as_annotated(annotation: Any, value: Any) -> Any:
    """Return a path or a member of an enum, where the annotation says so; other values as they are."""
    if isinstance(annotation, type) and isinstance(value, str):
        if issubclass(annotation, enum.Enum):
            return annotation[value]
        if issubclass(annotation, PurePath):
            return annotation(value)
    return value


def named_function(name: str) -> Callable[..., Any]:
    """Import the function that ``module:function`` names.

    Raises:
        CallError: there is no such module or function.
    """
    module, _, attribute = name.partition(":")
    try:
        function: Any = importlib.import_module(module)
        for part in attribute.split("."):
            function = getattr(function, part)
    except ModuleNotFoundError as error:
        raise CallError(
            f"cannot import {name}: there is no module {error.name}. {_advice(error.name)}"
        ) from error
    except AttributeError:
        raise CallError(f"cannot call {name}: {module} has no {attribute!r}") from None
    result: Callable[..., Any] = function
    return result


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
            kind: ``value`` or ``exception``.
            value: what was returned or raised.
            trace: the traceback, if it was raised.
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
                header = {"python": sealed_pickle.python_version()}
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
    if header["python"] != here:
        raise CallError(
            f"the function was submitted by Python {header['python']}, and this job runs Python {here}, "
            f"which cannot read its pickle. Use an image or environment with Python {header['python']}."
        )
    sys.path += [folder for folder in header.get("path", ()) if folder not in sys.path]
    try:
        function, args, kwargs = pickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise CallError(
            f"the function or its arguments need the module {error.name}, which this job's Python "
            f"({sys.executable}) does not have. {_advice(error.name)}"
        ) from error
    except Exception as error:
        raise CallError(
            f"the function or its arguments cannot be unpickled: {type(error).__name__}: {error}. "
            "The code that they come from may be another version here."
        ) from error
    return function, args, kwargs


def _advice(module: str | None) -> str:
    if (module or "").partition(".")[0] == "cloudpickle":
        return "Install cloudpickle there, or move the function into a module that travels with the job."
    return "Install it there, or let the directory that has it travel with the job (workspace)."


def _dumps(value: Any) -> bytes:
    """Pickle a value; by cloudpickle if it is installed, which also takes what ``__main__`` defines."""
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return pickle.dumps(value, protocol=4)
    result: bytes = cloudpickle.dumps(value, protocol=4)
    return result


def _write_whole(path: str, data: bytes) -> None:
    """Write a file that appears complete or not at all."""
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=folder, prefix=".new-")
    try:
        with open(descriptor, "wb") as file:
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
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
