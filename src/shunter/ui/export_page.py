"""A job as one HTML file, which a browser opens without a server: no script, and nothing is fetched.

It is made of the parts of the page, as far as they need no server.
"""

from __future__ import annotations

import html
import math
import re
import time
from collections.abc import Iterator, Sequence

import htpy as h
from markupsafe import Markup

from shunter.errors import ShunterError, described
from shunter.metrics import Series, decimate
from shunter.metrics.chart import short_number
from shunter.metrics.reader import read
from shunter.metrics.series import Bucket
from shunter.redaction import Redactor
from shunter.runner import Runner
from shunter.runner.exported_run import data_of
from shunter.runner.records import JobRecord
from shunter.schedulers.responses import LogQuery
from shunter.specs.status import AppStatus, is_terminal
from shunter.terminal import clean, clean_lines
from shunter.ui.assets import ASSETS
from shunter.ui.html_parts import badge, drawing, duration, facts, problem, shown_time, size, verbatim
from shunter.ui.job_page import comparison_part, definition_part, why_part
from shunter.ui.log_html import as_html
from shunter.why.comparison import Comparison
from shunter.why.explanation import explain
from shunter.workspace.code_store import Store

#: Lines and bytes of each replica's log, replicas, charts, and bytes of code that the file holds.
MOST_LINES, MOST_LOG_BYTES, MOST_REPLICAS, MOST_CHARTS = 1000, 1 << 18, 32, 24
MOST_CODE_BYTES = 1 << 20
WIDTH, HEIGHT, POINTS = 640.0, 180.0, 300
#: The browser itself keeps the file from running or fetching anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
#: Links to pages of the server; text cannot look like one, as its quotes are escaped.
_SERVERS_LINK = re.compile(r' href="/[^"]*"')
_TEXT = re.compile(r">([^<>]+)<")


def exported(runner: Runner, handle: str, status: AppStatus, record: JobRecord) -> str:
    """Return a job as one HTML file, without secrets.

    Args:
        runner: what asks for logs, metrics and reasons.
        handle: the job.
        status: its state.
        record: what the history has of it.
    """
    store, redactor = Store(), Redactor()
    earlier = runner.history.before(record)
    changes = None if earlier is None else comparison_part(Comparison(earlier, record, store))
    body = h.body[
        h.main[
            h.h1[h.span[clean(record.name)], " ", h.code(".handle")[clean(handle)]],
            h.div(".bar")[badge(status.state)],
            h.p(".reason")[clean_lines(status.reason)] if status.reason else None,
            _facts(status, record),
            _section("Why", why_part(explain(runner, handle, status))),
            _section("Charts", list(_charts(runner, handle))),
            _section("Log", list(_logs(runner, handle, status, redactor))),
            _section("Definition", definition_part(record)),
            _section("Changes since the job before", changes),
            _section("Code", list(_code(store, record))),
            h.p(".note")[f"Exported {time.strftime('%F %T %z')}"],
        ]
    ]
    head = h.head[
        h.meta(charset="utf-8"),
        h.meta(http_equiv="Content-Security-Policy", content=POLICY),
        h.meta(name="viewport", content="width=device-width, initial-scale=1"),
        h.meta(name="color-scheme", content="light dark"),
        h.title[f"{clean(record.name)} · shunter"],
        h.style[Markup(ASSETS["page.css"].content.decode())],
    ]
    data = f'<script type="application/json" id="shunter-job">{data_of(record)}</script>'  # runs nothing
    shown = _without_secrets(str(body), redactor)
    return f'<!doctype html><html lang="en">{head}{shown}{data}</html>\n'


def _without_secrets(body: str, redactor: Redactor) -> str:
    """Mask secrets in each text, whatever part it is from, and take links to the server away."""

    def masked(match: re.Match[str]) -> str:
        text = html.unescape(match.group(1))
        shown = redactor.text(text)
        return match.group() if shown == text else f">{html.escape(shown)}<"

    return _TEXT.sub(masked, _SERVERS_LINK.sub("", body))


def _section(title: str, content: Sequence[h.Node] | None) -> h.Node:
    return h.section[h.h2[title], content] if content else None


def _facts(status: AppStatus, record: JobRecord) -> h.Element:
    ended = is_terminal(status.state)
    return facts(
        {
            "Submitted": shown_time(record.submitted_at or record.created_at),
            "Started": shown_time(status.started_at) if status.started_at else None,
            "Took": duration(status.started_at, status.ended_at, ended=ended),
            "Component": clean(record.component or ""),
            "Python": clean(record.python or ""),
            "Replicas": ", ".join(
                clean(f"{each.role}/{each.id} {each.state} {each.reason}".rstrip())
                for each in status.replicas()[:MOST_REPLICAS]
            ),
        }
    )


def _charts(runner: Runner, handle: str) -> Iterator[h.Node]:
    """Yield a chart for each metric, as SVG."""
    try:
        metrics = read(runner, handle)
    except (ShunterError, OSError, NotImplementedError) as error:
        yield problem(f"The metrics cannot be read: {described(error)}")
        return
    if len(metrics) > MOST_CHARTS:
        yield h.p(".note")[f"{MOST_CHARTS} of {len(metrics)} metrics are drawn."]
    for name in sorted(metrics)[:MOST_CHARTS]:
        if chart := _chart(name, metrics[name][:MOST_REPLICAS]):
            yield chart


def _chart(name: str, several: Sequence[Series]) -> h.Node:
    lines = [(series, decimate(series, POINTS)) for series in several]
    points = [bucket for _, buckets in lines for bucket in buckets if math.isfinite(bucket.last)]
    if not points:
        return None
    left, right = min(point.x for point in points), max(point.x for point in points)
    low, high = min(point.last for point in points), max(point.last for point in points)

    def place(bucket: Bucket) -> str:
        x = (bucket.x - left) / ((right - left) or 1.0) * WIDTH
        y = HEIGHT - (bucket.last - low) / ((high - low) or 1.0) * HEIGHT
        return f"{x:.1f},{y:.1f}"

    drawn = [
        drawing(
            "polyline",
            points=" ".join(place(bucket) for bucket in buckets if math.isfinite(bucket.last)),
            fill="none",
            stroke=f"hsl({number * 67 % 360} 70% 50%)",
            stroke_width=1.5,
        )
        for number, (_, buckets) in enumerate(lines)
    ]
    last = ", ".join(clean(f"{series.place} {short_number(series.last)}") for series, _ in lines)
    scale = f"{short_number(low)} to {short_number(high)}, {short_number(left)} to {short_number(right)}"
    return h.figure[
        h.figcaption[h.b[clean(name)], f" ({scale}); last: {last}"],
        drawing("svg", viewBox=f"0 -2 {WIDTH:.0f} {HEIGHT + 4:.0f}", width="100%", role="img")[drawn],
    ]


def _logs(runner: Runner, handle: str, status: AppStatus, redactor: Redactor) -> Iterator[h.Node]:
    """Yield the end of each replica's log."""
    replicas = [(each.role, each.id) for each in status.replicas()]
    if len(replicas) > MOST_REPLICAS:
        yield h.p(".note")[f"The logs of {MOST_REPLICAS} of {len(replicas)} replicas."]
    query = LogQuery(last=MOST_LINES, most_bytes=MOST_LOG_BYTES)
    for role, k in replicas[:MOST_REPLICAS]:
        yield h.h3[clean(f"{role}/{k}"), h.small[f" the last {MOST_LINES} lines at most"]]
        try:
            data = b"".join(block.data for block in runner.log_blocks(handle, [(role, k)], query))
        except (ShunterError, OSError, NotImplementedError) as error:
            yield problem(f"The log cannot be read: {described(error)}")
            continue
        # as a whole, since a secret may have several lines
        text = redactor.text(data[-MOST_LOG_BYTES:].decode("utf-8", "replace"))
        yield h.div(".log", tabindex="0")[as_html(text.encode())]


def _code(store: Store, record: JobRecord) -> Iterator[h.Node]:
    """Yield the files that went with the job, the text of small ones."""
    manifest = store.manifest(record.fingerprint) if record.fingerprint else None
    if manifest is None:
        return
    yield h.p(".note")[f"Fingerprint {manifest.fingerprint}"]
    room = MOST_CODE_BYTES
    for entry in manifest.entries:
        if entry.kind != "file":
            continue
        title = f"{clean(entry.path)} ({size(entry.size)})"
        content = store.read_blob(entry.digest) if entry.size <= room else None
        if content is None or b"\0" in content:
            yield h.p[title]
            continue
        room -= entry.size
        yield h.details[h.summary[title], verbatim(content.decode("utf-8", "replace"))]
