"""How notebooks show jobs: state, cause, last values with a chart, replicas, and the ends of logs, as HTML.

All text is escaped, and secrets are masked: notebooks are kept, and shown to others.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.errors import ShunterError, described
from shunter.metrics import MetricReader, Series, decimate
from shunter.metrics.last_values import last_values
from shunter.metrics.usage import PREFIX
from shunter.redaction import redact_text
from shunter.runner import Runner, get_runner
from shunter.runner.observation import unknown_job
from shunter.schedulers.api import LogQuery
from shunter.schedulers.lines import end_of
from shunter.specs.status import AppState, AppStatus
from shunter.specs.sweep_points import index_of, label_of
from shunter.sweeps.point_rows import known_points
from shunter.terminal import clean
from shunter.why.explanation import explain

#: How many of the newest lines of each log are shown.
SHOWN_LINES, SHOWN_BYTES = 10, 64 << 10
#: How many replicas are listed, and of how many the logs and metrics are shown.
SHOWN_REPLICAS, SHOWN_LOGS = 50, 4
#: Lines of a log in which metrics are looked for: a log may be long.
METRIC_LINES = 5000
SHOWN_CHARTS, BUCKETS, WIDTH, HEIGHT = 4, 120, 260, 70
_EXPLAINED = (AppState.FAILED, AppState.PENDING, AppState.SUBMITTED)
_COLOURS = ("#3b6fd8", "#d9822b", "#2f9e6b", "#b84bc0")


def html_of(handle: str) -> str:
    """Return what a notebook shows of a job; an error in the place of what cannot be read."""
    try:
        with get_runner() as runner:
            status = runner.status(handle)
            if status is None:
                raise unknown_job(handle)
            replicas = [(each.role, each.id) for each in status.replicas()] or runner.replicas(handle)
            some = replicas[:SHOWN_LOGS]
            parts = [
                _head(handle, status),
                explain(runner, handle, status)._repr_html_() if status.state in _EXPLAINED else "",
                _metrics(runner, handle, some),
                _replicas(status, known_points(runner, handle)),
                *(_end_of_log(runner, handle, *replica) for replica in some),
            ]
    except (ShunterError, OSError, NotImplementedError) as error:
        return f"<p>{html.escape(handle)}: {html.escape(redact_text(described(error)))}</p>"
    return "\n".join(filter(None, parts))


def _head(handle: str, status: AppStatus) -> str:
    reason = f": {html.escape(clean(status.reason))}" if status.reason else ""
    return f"<p><b>{html.escape(handle)}</b> {status.state}{reason}</p>"


def _replicas(status: AppStatus, points: Sequence[Mapping[str, Any]]) -> str:
    """Return the replicas as a table, which is the legend of the charts, too."""
    replicas = status.replicas()
    heads = ("replica", "state", "host", *(["point"] if points else []))
    table = ""
    for number, replica in enumerate(replicas[:SHOWN_REPLICAS]):
        cells = [clean(f"{replica.role}/{replica.id}"), str(replica.state), clean(replica.hostname or "")]
        index = index_of(replica.role, replica.id)
        cells += [clean(label_of(points[index]))] if index < len(points) else []
        colour = _COLOURS[number] if number < len(_COLOURS) and len(replicas) > 1 else ""
        mark = f'<span style="color: {colour}">&#9632;</span> ' if colour else ""
        row = "</td><td>".join(map(html.escape, cells))
        table += f"<tr><td>{mark}{row}</td></tr>\n"
    more = f"<p>{SHOWN_REPLICAS} of {len(replicas)} replicas</p>" if len(replicas) > SHOWN_REPLICAS else ""
    head = "".join(f"<th>{head}</th>" for head in heads)
    return f"<table><tr>{head}</tr>\n{table}</table>{more}"


def _end_of_log(runner: Runner, handle: str, role: str, k: int) -> str:
    try:
        query = LogQuery(last=SHOWN_LINES, most_bytes=SHOWN_BYTES)
        data = end_of(runner.log_blocks(handle, [(role, k)], query), SHOWN_BYTES)
        text = redact_text(data.decode(errors="replace"))
    except (ShunterError, NotImplementedError) as error:
        text = f"the log cannot be read: {error}"
    if not text:
        return ""
    kept = "\n".join(clean(line) for line in text.splitlines()[-SHOWN_LINES:])
    title = html.escape(clean(f"last lines of {role}/{k}"))
    return f"<details><summary>{title}</summary><pre>{html.escape(kept)}</pre></details>"


# ---- metrics


def _metrics(runner: Runner, handle: str, replicas: Sequence[tuple[str, int]]) -> str:
    try:
        with MetricReader(runner, handle, discovers=True) as reader:
            reader.read_ends(replicas, METRIC_LINES)
            metrics = reader.by_name()
            texts = last_values(metrics, reader.definitions)
    except (ShunterError, NotImplementedError, OSError):  # its log says so, below
        return ""
    first = {role: f"{role}/{k}: " for role, k in reversed(replicas)} if len(replicas) > 1 else {}
    lines = "".join(
        f"<p>{html.escape(clean(first.get(role, '') + text))}</p>" for role, text in texts.items()
    )
    drawn = [name for name in metrics if not name.startswith(PREFIX)][:SHOWN_CHARTS]
    return lines + "".join(_chart(name, metrics[name]) for name in drawn)


def _chart(name: str, several: Sequence[Series]) -> str:
    """Return a small chart of a metric: a line for each replica."""
    lines = [decimate(series, BUCKETS) for series in several[: len(_COLOURS)]]
    buckets = [bucket for line in lines for bucket in line]
    if len(buckets) < 2:
        return ""
    left, right = min(bucket.x for bucket in buckets), max(bucket.x for bucket in buckets)
    low, high = min(bucket.low for bucket in buckets), max(bucket.high for bucket in buckets)
    drawn = []
    for line, colour in zip(lines, _COLOURS, strict=False):
        places = " ".join(
            f"{WIDTH * (bucket.x - left) / (right - left or 1):.1f},"
            f"{HEIGHT - HEIGHT * (bucket.last - low) / (high - low or 1):.1f}"
            for bucket in line
        )
        drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    title = html.escape(f"{clean(name)}: {low:.4g} to {high:.4g}, steps {left:g} to {right:g}")
    box = f'width="{WIDTH}" height="{HEIGHT}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}"'
    return f"<figure><figcaption>{title}</figcaption><svg {box}>{''.join(drawn)}</svg></figure>"
