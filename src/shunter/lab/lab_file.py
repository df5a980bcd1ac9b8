"""What a lab is and has tried, in one file that all who work in it share.

::

    STATE/labs/NAME.json    the lab, replaced as a whole
    STATE/labs/NAME.lock    held by who reads it in order to change it
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from shunter.errors import ConfigError, StateStoreError, UsageError, did_you_mean
from shunter.lab.budget import Budget
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.schedulers.supervisor.documents import write_json

#: Outcomes of experiments.
RUNNING, KEPT, DISCARDED, FAILED = "running", "kept", "discarded", "failed"
BASELINE = 0
_NAME = re.compile(r"[A-Za-z][\w-]{0,39}")


@dataclass
class Experiment:
    """One experiment; number 0 is the baseline.

    Attributes:
        number: its number in the lab.
        note: why it was tried.
        arguments: the words that replaced those of its base.
        base: number of the experiment whose job it changes.
        fingerprint: the code that it ran with.
        gpus: GPUs of all its nodes.
        limit: seconds that it may take, all attempts together; None without a limit.
        reserved_at: when its share of the budget was reserved, seconds since the epoch.
        submitter: the process that did so.
        host: its machine.
        handle: its job; "" until it is submitted.
        outcome: RUNNING, KEPT, DISCARDED or FAILED.
        value: of the metric.
        before: the best value when it ended.
        seconds: how long it ran.
        reason: why it failed.
        changes: what differs from the code of its base, a line for each file.
        command: what it runs, with all arguments, for people.
    """

    number: int
    note: str
    arguments: list[str]
    base: int | None
    fingerprint: str
    gpus: int
    limit: float | None
    reserved_at: float
    submitter: str
    host: str
    handle: str = ""
    outcome: str = RUNNING
    value: float | None = None
    before: float | None = None
    seconds: float = 0.0
    reason: str = ""
    changes: list[str] = field(default_factory=list)
    command: str = ""

    @property
    def job(self) -> str:
        """The id of its job, which users may type; "" until it is submitted."""
        return self.handle.rpartition("/")[2]

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that it took, or may take while it runs."""
        seconds = (self.limit or 0.0) if self.outcome == RUNNING else self.seconds
        return self.gpus * seconds / 3600


@dataclass
class Lab:
    """A lab.

    Attributes:
        name: its name, which its jobs have too.
        key: names this lab in the history, as the run that its jobs belong to.
        order: "min" or "max".
        metric: by which experiments are compared.
        budget: what they may spend.
        parallel: how many may run at a time.
        limit: seconds that each may take at most; None without such a limit.
        command: what the baseline runs, for people.
        scheduler: where they run.
        directory: where it was started.
        started_at: when that was, seconds since the epoch.
        experiments: all of them, in the order of their numbers.
    """

    name: str
    key: str
    order: str
    metric: str
    budget: Budget
    parallel: int
    limit: float | None
    command: str
    scheduler: str
    directory: str
    started_at: float
    experiments: list[Experiment] = field(default_factory=list)

    @property
    def best(self) -> Experiment | None:
        """The experiment with the best value; None before the baseline has ended."""
        return next((each for each in reversed(self.experiments) if each.outcome == KEPT), None)

    @property
    def running(self) -> list[Experiment]:
        """Experiments whose end has not been seen."""
        return [each for each in self.experiments if each.outcome == RUNNING]

    @property
    def next_number(self) -> int:
        """The number of the next experiment."""
        return self.experiments[-1].number + 1 if self.experiments else BASELINE

    def numbered(self, number: int | None) -> Experiment | None:
        """Return the experiment of a number; None if there is no such experiment."""
        return next((each for each in self.experiments if each.number == number), None)

    def is_better(self, value: float) -> bool:
        """Tell whether a value is better than the best one."""
        best = self.best
        if best is None or best.value is None:
            return True
        return value < best.value if self.order == "min" else value > best.value

    def used(self, now: float | None = None) -> Budget:
        """Return what is used, and reserved for experiments that run."""
        return Budget(
            sum(each.number != BASELINE for each in self.experiments),
            sum(each.gpu_hours for each in self.experiments),
            (time.time() if now is None else now) - self.started_at,
        )

    def left(self) -> Budget:
        """Return what is left of the budget."""
        return self.budget.less(self.used())


def check_name(name: str) -> None:
    """Refuse a name that a lab cannot have.

    Raises:
        UsageError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a lab",
            hint="Use up to 40 letters, digits, - and _, such as tune-lr: its jobs have the name too.",
        )


def labs() -> list[str]:
    """Return the names of all labs, the one that was changed last first."""
    try:
        entries = [entry for entry in os.scandir(_folder()) if entry.name.endswith(".json")]
        entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [entry.name.removesuffix(".json") for entry in entries]


def read(name: str) -> Lab:
    """Return a lab.

    Raises:
        ConfigError: no lab has this name.
        StateStoreError: its file cannot be read.
    """
    lab = find(name)
    if lab is None:
        known = labs()
        raise ConfigError(
            f"there is no lab {name!r}" + (f"; labs: {', '.join(known[:5])}" if known else ""),
            hint=did_you_mean(name, known)
            or f"shunter lab start {name} --best min:loss --budget 12 ./train.py",
        )
    return lab


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Keep others from changing a lab meanwhile.

    Raises:
        UsageError: no lab can have this name.
        StateStoreError: the lock cannot be opened.
    """
    check_name(name)
    make_private_dir(_folder())
    path = os.path.join(_folder(), f"{name}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise state_error("open", path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the kernel drops it when its holder dies
        yield
    finally:
        os.close(descriptor)


def save(lab: Lab) -> None:
    """Write a lab's file, whole or not at all.

    Raises:
        StateStoreError: it cannot be written.
    """
    path = _path(lab.name)
    try:
        write_json(path, dataclasses.asdict(lab))
    except OSError as error:
        raise state_error("write", path, error) from error


def remove(name: str) -> None:
    """Forget a lab. Its jobs stay.

    Raises:
        ConfigError: no lab has this name.
    """
    read(name)
    try:
        os.unlink(_path(name))
    except OSError as error:
        raise state_error("remove", _path(name), error) from error


def kept_code() -> set[str]:
    """Return the fingerprints of the code of all experiments, for which `restore` may be asked."""
    found = (find(name) for name in labs())
    return {each.fingerprint for lab in found if lab is not None for each in lab.experiments}


def find(name: str) -> Lab | None:
    """Return a lab; None if no lab has this name."""
    check_name(name)
    path = _path(name)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        budget = Budget(**data.pop("budget"))
        experiments = [Experiment(**each) for each in data.pop("experiments")]
        return Lab(**data, budget=budget, experiments=experiments)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise state_error("read", path, error) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateStoreError(
            f"the lab's file {path} is damaged, or of a newer shunter: {error}",
            hint=f"Move it away (mv {path} {path}.damaged), or upgrade shunter. The lab's jobs stay.",
        ) from None


def _folder() -> str:
    return os.path.join(state_dir(), "labs")


def _path(name: str) -> str:
    return os.path.join(_folder(), f"{name}.json")
