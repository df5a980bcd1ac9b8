"""The journal of a lab, as a lab book in Markdown and as JSON values."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from shunter.lab.lab_file import BASELINE, DISCARDED, FAILED, KEPT, RUNNING, Experiment, Lab
from shunter.terminal import format_duration

#: How a person reads the outcomes.
_VERBS = {KEPT: "kept", DISCARDED: "discarded", FAILED: "failed", RUNNING: "is running"}


def lab_book(lab: Lab) -> Iterator[str]:
    """Yield the lines of the lab book: what was asked, what each experiment changed and found."""
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(lab.started_at))
    yield f"# Lab {lab.name}"
    yield ""
    goal = "Lowest" if lab.order == "min" else "Highest"
    yield f"{goal} {lab.metric} of `{lab.command}` on {lab.scheduler}."
    yield f"Started {began} in {lab.directory}."
    yield f"Budget: {lab.budget}; left: {lab.left()}."
    if lab.best is not None:
        first = lab.experiments[BASELINE]
        yield f"Best: experiment {lab.best.number}, {value_text(lab.best)} (baseline {value_text(first)})."
        yield f"It ran `{lab.best.command}` as the job `{lab.best.job}`."
    for experiment in lab.experiments:
        yield ""
        yield f"## {experiment.number}. {experiment.note}"
        yield ""
        yield from _paragraph(lab, experiment)


def _paragraph(lab: Lab, experiment: Experiment) -> Iterator[str]:
    result = f": {experiment.reason}" if experiment.reason else ""
    if experiment.value is not None:
        result = f", {lab.metric} {value_text(experiment)}{change_text(experiment)}"
    yield f"- **{_VERBS[experiment.outcome]}**{result}"
    if changes := changes_of(experiment):
        yield f"- changed: {'; '.join(changes)}"
    if experiment.base not in (None, BASELINE):
        yield f"- built on experiment {experiment.base}"
    yield f"- {cost_text(experiment)}, job `{experiment.job or 'not submitted yet'}`"


def changes_of(experiment: Experiment) -> list[str]:
    """Return what an experiment changed of its base: arguments, and files with lines."""
    arguments = [shlex.join(experiment.arguments)] if experiment.arguments else []
    return [*arguments, *experiment.changes]


def value_text(experiment: Experiment) -> str:
    """Return an experiment's value; "-" without one."""
    return "-" if experiment.value is None else f"{experiment.value:.6g}"


def change_text(experiment: Experiment) -> str:
    """Return how its value differs from the best one before: `` (-0.2 from 0.9)``; "" if it has none."""
    if experiment.value is None or experiment.before is None:
        return ""
    return f" ({experiment.value - experiment.before:+.4g} from {experiment.before:.6g})"


def cost_text(experiment: Experiment) -> str:
    """Return what an experiment took, or may take."""
    if experiment.outcome == RUNNING:
        return (
            "without a time limit"
            if experiment.limit is None
            else f"at most {format_duration(experiment.limit)}"
        )
    gpus = f", {experiment.gpu_hours:.3g} GPU-hours" if experiment.gpus else ""
    return format_duration(experiment.seconds) + gpus


def lab_json(lab: Lab) -> dict[str, Any]:
    """Return a lab and its experiments as JSON values."""
    return {
        "name": lab.name,
        "order": lab.order,
        "metric": lab.metric,
        "command": lab.command,
        "scheduler": lab.scheduler,
        "directory": lab.directory,
        "started_at": lab.started_at,
        "budget": asdict(lab.budget),
        "left": asdict(lab.left()),
        "best": None if lab.best is None else lab.best.number,
        "experiments": [experiment_json(each) for each in lab.experiments],
    }


def experiment_json(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as JSON values."""
    change = None
    if experiment.value is not None and experiment.before is not None:
        change = experiment.value - experiment.before
    names = (
        "number", "note", "outcome", "value", "before", "reason", "arguments", "changes", "base",
        "seconds", "gpu_hours", "limit", "fingerprint", "command",
    )  # fmt: skip
    return {name: getattr(experiment, name) for name in names} | {
        "change": change,
        "job": experiment.handle or None,
    }
