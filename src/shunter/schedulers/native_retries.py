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


@dataclass(frozen=True)
class ClassSupport:
    """What a scheduler with native retries can do after failures of one class.

    Args:
        most: the largest number of retries; 0 if they are never retried.
        endless: whether there may be no limit (``inf``).
        default: how many times it retries them unasked; None for ``max_retries``.
        final: whether they can be made final (0).
        why_not: what to say of a number that is not possible.
    """

    most: int = 0
    endless: bool = False
    default: int | None = None
    final: bool = True
    why_not: str = ""


#: Exit codes that stand for the program's own fault: an exception; wrong arguments; not executable; a
#: missing program; an illegal instruction; a segmentation fault. 137 is SIGKILL, by the kernel mostly.
EXCEPTION_CODES = (1, 2, 126, 127, 132, 139)
OOM_CODES = (137,)
_ONCE = ClassSupport(why_not="it never starts a job again after a failure of the program")
_SAGEMAKER = {
    OOM: _ONCE,
    NODE: ClassSupport(30),  # InternalServerError: faults of the service
    PREEMPTED: ClassSupport(
        endless=True,
        default=MOST_RETRIES,
        final=False,
        why_not="it restarts the job after every interruption of spot instances, until max_wait has elapsed",
    ),
    EXCEPTION: _ONCE,
    OTHER: _ONCE,
}
_COUNTED = ClassSupport(MOST_RETRIES - 1)
_TAKEN_AWAY = ClassSupport(MOST_RETRIES - 1, endless=True, default=MOST_RETRIES)
#: Schedulers on which shunter counts the retries: the classes of failures that occur there.
BY_SHUNTER: dict[str, tuple[str, ...]] = {
    "local_cwd": (OOM, EXCEPTION, OTHER),
    "local_docker": (OOM, EXCEPTION, OTHER),
    **dict.fromkeys(("slurm", "lsf", "sge", "ray"), tuple(CLASSES)),
}
#: Schedulers whose backend retries by itself: what they can do by class.
BY_THE_BACKEND: dict[str, dict[str, ClassSupport]] = {
    "kubernetes": {
        OOM: _COUNTED,
        NODE: _TAKEN_AWAY,
        PREEMPTED: _TAKEN_AWAY,
        EXCEPTION: _COUNTED,
        OTHER: _COUNTED,
    },
    "aws_batch": dict.fromkeys((OOM, NODE, PREEMPTED, EXCEPTION, OTHER), ClassSupport(9)),
    "aws_sagemaker": _SAGEMAKER,
    "sagemaker_local": _SAGEMAKER,
}
#: Where a lost machine cannot be told from preemption: both are pods with the condition DisruptionTarget, or
#: ends with the reason "Host EC2*".
_NODE_IS_PREEMPTED = ("kubernetes", "aws_batch")


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
    times = {name: rule.times for name, rule in rules.items()}
    problems = []
    if OOM in rules and rules[OOM].most_mb:
        problems.append(
            f"{scheduler} gives a retry no more memory than the first attempt, so oom cannot have a size"
        )
    if scheduler in _NODE_IS_PREEMPTED and {NODE, PREEMPTED} & set(times):
        numbers = {times[name] for name in (NODE, PREEMPTED) if name in times}
        if len(numbers) > 1:
            problems.append(f"{scheduler} cannot tell {NODE} from {PREEMPTED}: give both the same number")
        times |= dict.fromkeys((NODE, PREEMPTED), max(numbers))
    named = set(times)
    for name, support in BY_THE_BACKEND[scheduler].items():
        default = (max_retries if support.most else 0) if support.default is None else support.default
        times.setdefault(name, default)
        if name in rules and not _can(support, times[name]):
            problems.append(_refusal(scheduler, name, support, times[name]))
    counted = {name: times[name] for name in BY_THE_BACKEND[scheduler] if 0 < times[name] < MOST_RETRIES}
    if not problems and len(set(counted.values())) > 1:
        numbers_given = ", ".join(
            f"{name}={number}" + ("" if name in named else " (max_retries)")
            for name, number in counted.items()
        )
        problems.append(
            f"{scheduler} counts all classes together, so their numbers must be equal: {numbers_given}"
        )
    if problems:
        raise ConfigError(
            "retry: " + "; ".join(problems),
            hint="`shunter schedulers --json` and docs/supervision.md say what each scheduler can honour.",
        )
    warnings = []
    if len(counted) > 1 and set(rules) & set(counted):
        most = max(counted.values())
        retries = "1 retry" if most == 1 else f"{most} retries"
        warnings.append(f"{scheduler} counts {', '.join(counted)} together: {retries} in all, not each")
    if scheduler == "kubernetes" and {OOM, EXCEPTION, OTHER} & set(rules):
        codes = ", ".join(map(str, EXCEPTION_CODES))
        warnings.append(
            f"{scheduler} knows exception by the exit codes {codes}, oom by 137: other failures with one of "
            "these exit codes (NCCL, MemoryError) are counted the same way"
        )
    return BackendRetries(times, warnings)


def _can(support: ClassSupport, number: int) -> bool:
    if number >= MOST_RETRIES:
        return support.endless
    return number <= support.most if number else support.final


def _refusal(scheduler: str, name: str, support: ClassSupport, number: int) -> str:
    possible = f"at most {support.most}" if support.most else WITHOUT_LIMIT if support.endless else "0"
    asked = WITHOUT_LIMIT if number >= MOST_RETRIES else number
    why = f": {support.why_not}" if support.why_not else ""
    return f"{scheduler} cannot honour {name}={asked} (supported: {possible}){why}"


def words_of(scheduler: str) -> str:
    """Return which classes of failures a scheduler can retry; "" if that is not known."""
    if scheduler not in BY_THE_BACKEND:
        return ", ".join(BY_SHUNTER.get(scheduler, ()))
    classes = BY_THE_BACKEND[scheduler]
    return ", ".join(name for name in CLASSES if classes[name].most or classes[name].endless)
