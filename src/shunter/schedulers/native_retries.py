"""Which classes of `run --retry` each scheduler supports: one table, and its checks.

Where shunter counts the retries, every class has its own number. A backend that retries by itself
counts all classes together, and has less evidence than `shunter why`: only exit codes and its own reasons.
A job that asks for more than that is refused before it is submitted, with the class named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shunter.errors import ConfigError
from shunter.limits import MOST_RETRIES
from shunter.specs.retries import (
    CLASSES,
    EXCEPTION,
    NODE,
    OOM,
    OTHER,
    PREEMPTED,
    WITHOUT_LIMIT,
    parse_retries,
)


@dataclass
class ClassSupport:
    """What a scheduler with native retries can do after failures of one class.

    Args:
        most: the largest number of retries; 0 if they are never retried.
        endless: whether there may be no limit (``inf``).
        unasked: how many times it retries them by default; None for ``max_retries``.
        final: whether they can be made final (0).
        why_not: what to say of a number that is not possible.
    """

    most: int = 0
    endless: bool = False
    unasked: int | None = None
    final: bool = True
    why_not: str = ""


@dataclass
class SchedulerSupport:
    """What a scheduler can do by class.

    Args:
        classes: each class.
        alike: classes that it cannot tell from each other.
        note: what to say of its limits, in a sentence.
    """

    classes: Mapping[str, ClassSupport]
    alike: tuple[tuple[str, ...], ...] = ()
    note: str = ""


#: Exit codes that stand for the program's own fault: an exception; wrong arguments; not executable; a
#: missing program; an illegal instruction; a segmentation fault. 137 is SIGKILL, by the kernel mostly.
EXCEPTION_CODES = (1, 2, 126, 127, 132, 139)
OOM_CODES = (137,)
_CODES = ", ".join(map(str, EXCEPTION_CODES))
_COARSE = "other failures with one of these exit codes (NCCL, MemoryError) are counted the same way"
_ONCE = ClassSupport(why_not="it never starts a job again after a failure of the program")
_SAGEMAKER = SchedulerSupport(
    {
        OOM: _ONCE,
        NODE: ClassSupport(30),  # InternalServerError: faults of the service
        PREEMPTED: ClassSupport(
            endless=True,
            unasked=MOST_RETRIES,
            final=False,
            why_not=(
                "it restarts the job after every interruption of spot instances, until max_wait has elapsed"
            ),
        ),
        EXCEPTION: _ONCE,
        OTHER: _ONCE,
    }
)
#: Schedulers on which shunter counts the retries: the classes of failures that occur there.
BY_SHUNTER: dict[str, tuple[str, ...]] = {
    "local_cwd": (OOM, EXCEPTION, OTHER),
    "local_docker": (OOM, EXCEPTION, OTHER),
    **dict.fromkeys(("slurm", "lsf", "sge", "ray"), tuple(CLASSES)),
}
#: Schedulers whose backend retries by itself.
BY_THE_BACKEND: dict[str, SchedulerSupport] = {
    "kubernetes": SchedulerSupport(
        {
            OOM: ClassSupport(MOST_RETRIES - 1),
            NODE: ClassSupport(MOST_RETRIES - 1, endless=True, unasked=MOST_RETRIES),
            PREEMPTED: ClassSupport(MOST_RETRIES - 1, endless=True, unasked=MOST_RETRIES),
            EXCEPTION: ClassSupport(MOST_RETRIES - 1),
            OTHER: ClassSupport(MOST_RETRIES - 1),
        },
        alike=((NODE, PREEMPTED),),  # both are pods with the condition DisruptionTarget
        note=f"exception by the exit codes {_CODES}, oom by 137: {_COARSE}",
    ),
    "aws_batch": SchedulerSupport(
        dict.fromkeys((OOM, NODE, PREEMPTED, EXCEPTION, OTHER), ClassSupport(9)),
        alike=((NODE, PREEMPTED),),  # both are ends with the reason "Host EC2*"
    ),
    "aws_sagemaker": _SAGEMAKER,
    "sagemaker_local": _SAGEMAKER,
}


@dataclass
class BackendRetries:
    """What a backend is to do.

    Args:
        times: retries by class: 0 for never, `MOST_RETRIES` for no limit; all other numbers are equal.
        warnings: differences from what the user may expect.
    """

    times: Mapping[str, int]
    warnings: list[str] = field(default_factory=list)

    @property
    def counted(self) -> int:
        """The number of counted retries, for all classes together."""
        return max((number for number in self.times.values() if 0 < number < MOST_RETRIES), default=0)

    def is_final(self, name: str) -> bool:
        """Tell whether failures of a class are not retried."""
        return self.times[name] == 0

    def is_endless(self, name: str) -> bool:
        """Tell whether failures of a class are retried without limit."""
        return self.times[name] >= MOST_RETRIES


def backend_retries(scheduler: str, given: Mapping[str, str], max_retries: int = 0) -> BackendRetries:
    """Return what a scheduler's backend is to do after failures of each class.

    Args:
        scheduler: one of `BY_THE_BACKEND`.
        given: the rules as they are typed.
        max_retries: of the role, for classes that are not named.

    Raises:
        ConfigError: a rule cannot be read, or the backend cannot honour it; all problems are reported.
    """
    rules = parse_retries(given)
    support = BY_THE_BACKEND[scheduler]
    problems = []
    if OOM in rules and rules[OOM].most_mb:
        problems = [
            f"{scheduler} gives a retry no more memory than the first attempt, so oom cannot have a size"
        ]
    named = {name: rule.times for name, rule in rules.items()}
    for group in support.alike:
        numbers = {named[name] for name in group if name in named}
        if len(numbers) > 1:
            problems.append(f"{scheduler} cannot tell {' from '.join(group)}: give both the same number")
        elif numbers:
            named |= dict.fromkeys(group, max(numbers))
    times = {}
    for name, able in support.classes.items():
        unasked = (max_retries if able.most else 0) if able.unasked is None else able.unasked
        times[name] = number = named.get(name, unasked)
        if name in rules:
            problems += _number_problems(scheduler, name, able, number)
    counted = {name: number for name, number in times.items() if 0 < number < MOST_RETRIES}
    if not problems and len(set(counted.values())) > 1:
        shown = ", ".join(
            f"{name}={number}" + ("" if name in named else " (max_retries)")
            for name, number in counted.items()
        )
        problems.append(f"{scheduler} counts all classes together, so their numbers must be equal: {shown}")
    if problems:
        raise ConfigError(
            "retry: " + "; ".join(dict.fromkeys(problems)),
            hint="`shunter schedulers --json` and docs/supervision.md say what each scheduler can honour.",
        )
    warnings = []
    if len(counted) > 1 and set(rules) & set(counted):
        most = max(counted.values())
        warnings.append(
            f"{scheduler} counts {', '.join(counted)} together: {_retries(most)} in all, not each"
        )
    if support.note and {OOM, EXCEPTION, OTHER} & set(rules):
        warnings.append(f"{scheduler} knows {support.note}")
    return BackendRetries(times, warnings)


def _number_problems(scheduler: str, name: str, able: ClassSupport, number: int) -> list[str]:
    """Return what is wrong with a number of retries of a class."""
    if number >= MOST_RETRIES:
        wrong = not able.endless
    elif number:
        wrong = number > able.most
    else:
        wrong = not able.final
    if not wrong:
        return []
    can = f"at most {able.most}" if able.most else WITHOUT_LIMIT if able.endless else "0"
    shown = WITHOUT_LIMIT if number >= MOST_RETRIES else number
    why = f": {able.why_not}" if able.why_not else ""
    return [f"{scheduler} cannot honour {name}={shown} (supported: {can}){why}"]


def _retries(number: int) -> str:
    return "1 retry" if number == 1 else f"{number} retries"


def words_of(scheduler: str) -> str:
    """Return which classes of failures a scheduler can retry; "" if that is not known."""
    if scheduler not in BY_THE_BACKEND:
        return ", ".join(BY_SHUNTER.get(scheduler, ()))
    able = BY_THE_BACKEND[scheduler].classes
    return ", ".join(name for name in CLASSES if able[name].most or able[name].endless)
