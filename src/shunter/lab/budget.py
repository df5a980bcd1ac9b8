"""What a lab may spend: a number of experiments, GPU-hours, and time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields

from shunter.errors import UsageError
from shunter.specs.durations import has_units, parse_duration
from shunter.terminal import format_duration

_EXPERIMENTS = re.compile(r"([1-9]\d{0,5})( ?experiments?)?")
_GPU_HOURS = re.compile(r"(\d+(?:\.\d+)?)[ -]?gpu-?(?:hours?|h)")
_EXAMPLE = "Examples: --budget 12 for experiments, --budget 3h for time, --budget 2gpu-hours; or 12,3h."


@dataclass(frozen=True)
class Budget:
    """A budget, or what is left of one. None is no limit.

    Attributes:
        experiments: their number; the baseline does not count.
        gpu_hours: GPUs of all nodes, times the hours for which they run; the baseline counts.
        seconds: time from the start of the lab.
    """

    experiments: int | None = None
    gpu_hours: float | None = None
    seconds: float | None = None

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Budget:
        """Read ``12``, ``3h``, ``2gpu-hours``, each at most once; one text may have several, with commas.

        Raises:
            UsageError: a part is not a limit, or the second of its kind.
        """
        values: dict[str, float] = {}
        for part in ",".join(texts).split(","):
            name, value = _part(part.strip().lower())
            if name in values:
                raise UsageError(f"--budget: {part!r} is the second limit of its kind", hint=_EXAMPLE)
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        texts = [] if self.experiments is None else [counted_experiments(self.experiments)]
        texts += [] if self.gpu_hours is None else [f"{self.gpu_hours:.3g} GPU-hours"]
        texts += [] if self.seconds is None else [format_duration(self.seconds)]
        return ", ".join(texts)

    def less(self, used: Budget) -> Budget:
        """Return what is left when this has been used; never less than nothing."""
        left = {
            field.name: None
            if (limit := getattr(self, field.name)) is None
            # `used` has a number for each
            else max(limit - getattr(used, field.name), 0)
            for field in fields(self)
        }
        return Budget(**left)


def counted_experiments(number: int) -> str:
    """Return ``1 experiment``, ``2 experiments``."""
    return f"{number} experiment" + ("" if number == 1 else "s")


def _part(text: str) -> tuple[str, float]:
    if match := _EXPERIMENTS.fullmatch(text):
        return "experiments", int(match[1])
    if (match := _GPU_HOURS.fullmatch(text)) and float(match[1]):
        return "gpu_hours", float(match[1])
    if has_units(text) and (seconds := parse_duration(text)):
        return "seconds", seconds
    raise UsageError(f"--budget: {text!r} is not a budget", hint=_EXAMPLE)
