"""Reads what the calls of a job returned or raised."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from shunter._toolkit import function_call, sealed_pickle
from shunter.errors import ConfigError, ResultError
from shunter.runner import Runner
from shunter.runner.calls import call_file, call_of, key_of
from shunter.specs.app import AppDef, Role
from shunter.specs.training import specification

#: Where the toolkit leaves a result, below a replica's base directory.
_FOLDER = "output/data"


class RemoteTraceback(Exception):
    """The traceback of an exception that a function raised in its job: the cause of that exception here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class CallResults:
    """The results of a job that calls functions.

    Args:
        handle: the job.
        role: its role.

    Attributes:
        count: how many calls the job makes.
        ranks: how many processes make each call together.
    """

    def __init__(self, handle: str, role: Role) -> None:
        self.handle = handle
        self.role = role.name
        self._nonce: str = call_of(role)["nonce"]
        self._digest: str = call_of(role).get("digest", "")
        self.count: int = call_of(role)["count"]
        distribution = specification(role.metadata).get("distribution") or {}
        self._per_host: int = distribution.get("processes_per_host", 1)
        hosts = 1 if self.count > 1 else role.num_replicas
        self.ranks = hosts * self._per_host

    @classmethod
    def of_job(cls, handle: str, app: AppDef) -> CallResults:
        """Return the results of a job.

        Raises:
            ConfigError: it calls no function.
        """
        for role in app.roles:
            if call_of(role):
                return cls(handle, role)
        raise ConfigError(
            f"{handle} calls no function, so it has no result",
            hint="`shunter fetch` gets the files that a job leaves.",
        )

    def call(self, index: int) -> function_call.Call:
        """Return a call itself: the function and its arguments.

        Raises:
            ResultError: it cannot be read.
        """
        process = function_call.CallingProcess(key_of(self._nonce), index)
        try:
            return process.call_of_job("", call_file(self._digest))
        except function_call.CallError as error:
            raise ResultError(f"a call of {self.handle} cannot be read: {error}") from None

    def read(self, runner: Runner, index: int) -> Any:
        """Return what a call returned; of a call that several processes make, a list by rank.

        Raises:
            Exception: what the function raised, with `RemoteTraceback` as its cause.
            ResultError: there is no result, or it cannot be read.
        """
        values = [self._value(runner, index, rank) for rank in range(self.ranks)]
        return values if self.ranks > 1 else values[0]

    def raise_error(self, runner: Runner, index: int) -> None:
        """Raise what a call raised, if it left that.

        Raises:
            Exception: what the function raised, with `RemoteTraceback` as its cause.
        """
        for rank in range(self.ranks):
            try:
                sealed = self._sealed(runner, index, rank)
            except ResultError:
                continue
            _raise_if_no_value(sealed)

    def _value(self, runner: Runner, index: int, rank: int) -> Any:
        sealed = self._sealed(runner, index, rank)
        _raise_if_no_value(sealed)
        return _loaded(self.handle, sealed)

    def _sealed(self, runner: Runner, index: int, rank: int) -> sealed_pickle.Sealed:
        """Return the result of a process, checked and not yet unpickled.

        Raises:
            ResultError: there is none, or it is not the job's.
        """
        replica = index if self.count > 1 else rank // self._per_host
        path = f"{_FOLDER}/{function_call.RESULT.format(rank=rank)}"
        what = f"the result of {self.handle}" + (f" {self.role}/{index}" if self.count > 1 else "")
        try:
            data = b"".join(runner.results(self.handle, self.role, replica).read(path))
        except ConfigError as error:
            raise ResultError(f"{what} is not there: {error.message}", hint=error.hint) from None
        try:
            return sealed_pickle.unseal(data, key_of(self._nonce), f"result {index} {rank}")
        except sealed_pickle.SealError as error:
            raise ResultError(
                f"{what} is not read: {error}",
                hint="It has to be read by the user who submitted the job, on the same machine.",
            ) from None


def _raise_if_no_value(sealed: sealed_pickle.Sealed) -> None:
    """Raise what a call raised, or why what it returned cannot be had."""
    header = sealed.header
    if header["kind"] == "exception":
        raise _exception(sealed)
    if header["kind"] == "exit":
        raise ResultError(
            f"the function ended its process by sys.exit({header['text']}), so it returned nothing",
            hint="Return a value, or raise an exception.",
        )
    if "unpicklable" in header:
        raise ResultError(
            f"the function returned a {header['type']}, which cannot be pickled: {header['unpicklable']}",
            hint="Return plain data, or write a file to shunter.current().model_dir; see `shunter fetch`.",
        )


def _exception(sealed: sealed_pickle.Sealed) -> Exception:
    """Return the exception that a function raised."""
    text = sealed.header["text"]
    error: Any = None
    if "unpicklable" not in sealed.header:
        try:
            error = pickle.loads(sealed.body)
        except Exception:  # its class cannot be imported here
            error = None
    if not isinstance(error, Exception):
        lines: Sequence[str] = text.strip().splitlines() or [sealed.header["type"]]
        error = ResultError(f"the function raised {lines[-1]}")
    raised: Exception = error
    raised.__cause__ = RemoteTraceback(text)
    return raised


def _loaded(handle: str, sealed: sealed_pickle.Sealed) -> Any:
    here = sealed_pickle.python_version()
    try:
        return pickle.loads(sealed.body)
    except Exception as error:
        version = sealed.header["python"]
        other = f" It was written by Python {version}, and this is {here}." if version != here else ""
        raise ResultError(
            f"the result of {handle}, a {sealed.header['type']}, cannot be unpickled: "
            f"{type(error).__name__}: {error}.{other}",
            hint="Read it where the modules of its classes are installed; its file stays with the job.",
        ) from error
