"""The page of a job: state, timeline of the replicas, charts, logs, definition, comparison."""

from __future__ import annotations

import difflib
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import htpy as h
from markupsafe import Markup

from shunter.runner.records import JobRecord
from shunter.runner.resource_use import size as memory_size
from shunter.schedulers.lines import iter_lines
from shunter.schedulers.registry import SWEEPS
from shunter.schedulers.responses import LogPart
from shunter.specs.status import NONE, AppState, AppStatus, ReplicaStatus, error_message, is_terminal
from shunter.specs.sweep_points import points_of
from shunter.terminal import clean, clean_lines, format_duration
from shunter.ui.html_parts import (
    Parts,
    badge,
    drawing,
    duration,
    facts,
    problem,
    shown_time,
    size,
    tabs,
    url,
    verbatim,
)
from shunter.ui.log_html import as_html
from shunter.ui.log_parts import SearchResult
from shunter.why.comparison import Comparison, FileChange
from shunter.why.explanation import Explanation

TABS = ("Overview", "Why", "Files", "Definition", "Plan", "Changes")
#: Replicas that a timeline shows: the first failed ones come first where there are more.
MOST_REPLICAS = 200
#: Characters of a job's arguments that the first page shows.
MOST_ARGUMENTS = 2000
WIDTH, ROW = 640.0, 18.0
#: Earlier attempts of a replica that are listed.
MOST_ATTEMPTS = 10
#: How many lines of a log the cause of a failure shows on the first page.
MOST_CAUSE_LINES = 12
#: How many lines of the differences in one file a comparison shows.
MOST_CHANGED_LINES = 2000


def tabs_of(record: JobRecord | None) -> list[str]:
    """Return the names of the parts that the page of a job has."""
    roles = record.app.get("roles") or () if record is not None else ()
    is_sweep = any(points_of(role.get("metadata") or {}) for role in roles)
    is_sweep = is_sweep or (record is not None and record.scheduler == SWEEPS)
    return [*TABS[:1], *(["Points"] if is_sweep else []), *TABS[1:]]


def frame(parts: Parts, handle: str, record: JobRecord | None, tab: str, *content: h.Node) -> str:
    """Return the page of a job with one of its parts."""
    name = record.name if record is not None else handle.rpartition("/")[2]
    names = tabs_of(record)
    entries = [(each, url("/job", handle=handle, tab=None if each == names[0] else each)) for each in names]
    return parts.document(
        name,
        h.h1[h.span[clean(name)], " ", h.code(".handle")[clean(handle)]],
        tabs(entries, tab),
        content,
    )


# ---- overview


def status_part(
    parts: Parts, handle: str, status: AppStatus, record: JobRecord | None, notice: str = ""
) -> h.Element:
    """Return a job's state, actions and timeline; the part reloads itself until the job has ended."""
    over = is_terminal(status.state) or status.state in (AppState.UNSUBMITTED, AppState.UNKNOWN)
    asks = parts.htmx(get=url("/job/status", handle=handle), trigger="refresh", swap="outerHTML")
    return h.section("#status", {} if over else asks, data_refresh=None if over else "2000")[
        h.div(".bar")[
            badge(status.state, stale=bool(notice)),
            h.span[f"restarts {status.num_restarts}"] if status.num_restarts > 0 else None,
            _actions(parts, handle, status, record),
        ],
        problem(notice) if notice else None,
        _cause(parts, handle, status),
        _rerun_with(parts, handle) if over and record is not None else None,
        _facts(status, record),
        _timeline(handle, status, record),
    ]


def _cause(parts: Parts, handle: str, status: AppStatus) -> h.Element:
    """Return the reason of a state; a failure's cause, with the lines that show it, replaces it soon."""
    asks = parts.htmx(get=url("/job/cause", handle=handle), trigger="load", swap="innerHTML")
    has_why = status.state in (AppState.FAILED, AppState.PENDING, AppState.SUBMITTED)
    return h.div("#cause", asks if status.state is AppState.FAILED else {})[
        h.p(".reason")[clean_lines(status.reason)] if status.reason else None,
        h.p[h.a(href=url("/job", handle=handle, tab="Why"))["Why?"]] if has_why else None,
    ]


def _actions(parts: Parts, handle: str, status: AppStatus, record: JobRecord | None) -> h.Element:
    ended = is_terminal(status.state)
    return h.form(".actions", method="post", action="/jobs/act")[
        parts.csrf(),
        h.input(type="hidden", name="handle", value=handle),
        h.input(type="hidden", name="back", value="job"),
        h.button(
            "#cancel", name="action", value="cancel", disabled=ended, data_confirm="Ask this job to stop?"
        )["Cancel"],
        h.button("#rerun", name="action", value="rerun", disabled=record is None)["Rerun"],
        h.button(
            "#delete",
            name="action",
            value="delete",
            disabled=not ended,
            data_confirm="Remove this job, with its logs and results?",
        )["Delete"],
    ]


def _rerun_with(parts: Parts, handle: str) -> h.Element:
    """Return the form that repeats a job with other arguments."""
    return h.details("#rerun-with")[
        h.summary["Rerun with other arguments"],
        h.form(".bar", method="post", action="/jobs/act")[
            parts.csrf(),
            h.input(type="hidden", name="handle", value=handle),
            h.input(type="hidden", name="action", value="rerun"),
            h.input(
                name="arguments",
                required=True,
                maxlength="5000",
                placeholder="--lr 0.1",
                aria_label="Arguments that replace those of the same name, or are added",
            ),
            h.button["Rerun"],
        ],
    ]


def _facts(status: AppStatus, record: JobRecord | None) -> h.Element:
    rows: dict[str, h.Node] = {}
    if record is not None:
        ended = is_terminal(status.state)
        rows = {
            "Submitted": shown_time(record.submitted_at or record.created_at),
            "Started": shown_time(status.started_at) if status.started_at else None,
            "Took" if ended else "For": duration(status.started_at, status.ended_at, ended=ended),
            "Component": clean(record.component or ""),
            "Arguments": clean(record.arguments[:MOST_ARGUMENTS]) or None,
            "Asked for": clean(_asked_for(record.app)),
            "Repeats": h.a(href=url("/job", handle=record.rerun_of))[clean(record.rerun_of)]
            if record.rerun_of
            else None,
            "Directory": clean(record.cwd),
            "Python": clean(record.python) if record.python else None,
        }
    if status.results:
        rows["Results"] = clean(status.results)
    if status.ui_url:
        link = status.ui_url
        is_link = link.startswith(("https://", "http://"))
        rows["Its logs" if link.startswith("file://") else "Its scheduler's page"] = (
            h.a(href=link, rel="noreferrer noopener", target="_blank")[clean(link)]
            if is_link
            else clean(link)
        )
    return facts(rows)


def _asked_for(app: Mapping[str, Any]) -> str:
    """Return the resources of each role's replicas in words."""
    texts = []
    for role in app.get("roles") or ():
        asked, count = role.get("resource") or {}, role.get("num_replicas") or 1
        memory, cpu, gpu = (float(asked.get(name) or 0) for name in ("memMB", "cpu", "gpu"))
        words = [
            f"{number:g} {name}{'s' * (number != 1)}"
            for number, name in ((gpu, "GPU"), (cpu, "CPU"))
            if number > 0
        ]
        words += [f"{memory_size(memory * (1 << 20))} memory"] if memory > 0 else []
        texts.append((f"{count} replicas with " if count > 1 else "") + ", ".join(words) if words else "")
    return "; ".join(filter(None, dict.fromkeys(texts)))


def used_part(parts: Parts, handle: str, texts: Sequence[str] | None, *, live: bool) -> h.Element:
    """Return what the replicas have used; the part loads itself where ``texts`` are None."""
    trigger = "refresh" if texts is not None else "load"
    asks = parts.htmx(get=url("/job/used", handle=handle), trigger=trigger, swap="outerHTML")
    return h.div("#used", asks if live or texts is None else {}, data_refresh="30000" if live else None)[
        [h.p(".note")[clean(text)] for text in texts or ()]
    ]


def _timeline(handle: str, status: AppStatus, record: JobRecord | None) -> h.Node:
    replicas = status.replicas()
    if not replicas:
        return None
    shown = replicas
    if len(replicas) > MOST_REPLICAS:  # those that failed, and the first ones
        failed = [each for each in replicas if each.state == AppState.FAILED]
        others = [each for each in replicas if each.state != AppState.FAILED]
        shown = [*failed, *others][:MOST_REPLICAS]
    now = time.time()
    first = status.started_at or now
    if record is not None:
        first = min(first, record.submitted_at or record.created_at)
    now = status.ended_at or now
    last = max([each.ended_at or now for each in replicas if each.started_at], default=now)
    span = max(last - first, 0.1)
    return h.figure(".timeline")[
        h.figcaption["Replicas", h.small[f" {len(shown)} of {len(replicas)}"] if shown != replicas else None],
        h.table[
            h.thead(".hidden")[
                h.tr[[h.th(scope="col")[text] for text in ("Replica", "State", "Time", "What")]]
            ],
            h.tbody[
                [_replica_row(handle, each, first, span, now) for each in shown],
                h.tr(".scale", aria_hidden="true")[
                    h.td,
                    h.td,
                    h.td(".lane")[h.div(".axis")[h.span["0 s"], h.span[format_duration(span)]]],
                    h.td,
                ],
            ],
        ],
    ]


def _replica_row(handle: str, replica: ReplicaStatus, first: float, span: float, now: float) -> h.Element:
    attempt = f"attempt {replica.restarts + 1}" if replica.restarts else ""
    code = f"exit code {replica.exit_code}" if replica.exit_code else ""
    error = "" if replica.structured_error_msg == NONE else error_message(replica.structured_error_msg)[0]
    reason = replica.reason or error.strip().rpartition("\n")[2]
    words = [attempt, code if code not in reason else "", replica.hostname, reason]
    return h.tr[
        h.th(scope="row")[clean(f"{replica.role}/{replica.id}")],
        h.td[badge(replica.state)],
        h.td(".lane")[_bar(replica, first, span, now)],
        h.td(".what")[
            clean(", ".join(word for word in words if word))[:300],
            _attempt_links(handle, replica) if replica.earlier else None,
        ],
    ]


def _attempt_links(handle: str, replica: ReplicaStatus) -> h.Element:
    """Return the attempts before the last one: how each ended, and where its log begins."""
    place = f"{replica.role}/{replica.id}"
    shown = []
    for attempt in replica.earlier[-MOST_ATTEMPTS:]:
        text = f"attempt {attempt.number + 1}"
        ended = clean(
            attempt.reason or ("" if attempt.exit_code is None else f"exit code {attempt.exit_code}")
        )
        target = url("/job", handle=handle, place=place, start=attempt.log_position) + "#log"
        link = h.a(href=target, aria_label=f"Log of {text} of {clean(place)}")[text]
        shown.append(h.li[link if attempt.log_position else text, f": {ended[:200]}" if ended else None])
    left_out = len(replica.earlier) - len(shown)
    return h.ul(".attempts")[h.li[f"{left_out} attempts before"] if left_out else None, shown]


def _bar(replica: ReplicaStatus, first: float, span: float, now: float) -> h.Node:
    inside: list[h.Node] = []
    known = [each for each in replica.earlier if each.started_at is not None]
    following = [*(each.started_at for each in known), replica.started_at][1:]
    bars = [
        (each.started_at, each.ended_at or then, "succeeded" if each.exit_code == 0 else "failed")
        for each, then in zip(known, following, strict=False)
    ]
    if replica.started_at is not None:
        bars.append((replica.started_at, replica.ended_at, replica.state.name.lower()))
    for number, (started, ended, name) in enumerate(bars):
        assert started is not None
        begin = min(max((started - first) / span * WIDTH, 0.0), WIDTH - 2)
        end = ((ended or now) - first) / span * WIDTH
        if not number:
            inside.append(drawing("rect", class_="waited", x=0.0, y=ROW / 2 - 1, width=begin, height=2.0))
        is_earlier = number < len(known)
        inside.append(
            drawing(
                "rect",
                class_=f"bar-{name}" + (" earlier" if is_earlier else ""),
                x=begin,
                y=5.0 if is_earlier else 3.0,
                width=min(max(end - begin, 2.0), WIDTH - begin),
                height=ROW - (10 if is_earlier else 6),
                rx=2.0,
            )[drawing("title")[format_duration((ended or now) - started)]]
        )
        if number or (replica.restarts and not known):
            inside.append(drawing("circle", class_="restart", cx=begin, cy=ROW / 2, r=4.0))
    return drawing(
        "svg", viewBox=f"0 0 {WIDTH:.0f} {ROW:.0f}", preserveAspectRatio="none", aria_hidden="true"
    )[inside]


# ---- logs


@dataclass(frozen=True)
class LogView:
    """Which log is shown: of a job, one of its replicas, and a stream of it."""

    handle: str
    role: str
    replica: int
    stream: str

    def url(self, path: str = "/job/log", **more: Any) -> str:
        """Return a URL about this log."""
        return url(path, **vars(self), **more)


def log_part(
    parts: Parts,
    view: LogView,
    replicas: Sequence[tuple[str, int]],
    body: h.Node,
) -> h.Element:
    """Return the log part: the choice of replica and stream, the navigation, and the lines."""
    targets = {"target": "#log-body", "swap": "innerHTML"}
    return h.section("#log", aria_label="Log")[
        h.div(".bar")[
            h.h2["Log"],
            h.form(method="get", action="/job", data_submit_on_change=True)[
                h.input(type="hidden", name="handle", value=view.handle),
                h.select(name="place", aria_label="Replica")[
                    [
                        h.option(value=f"{role}/{k}", selected=(role, k) == (view.role, view.replica))[
                            clean(f"{role}/{k}")
                        ]
                        for role, k in replicas[:5000]
                    ]
                ],
                h.select(name="stream", aria_label="Stream")[
                    [
                        h.option(value=value, selected=value == view.stream)[text]
                        for value, text in (("", "all output"), ("stdout", "stdout"), ("stderr", "stderr"))
                    ]
                ],
                h.button(".submit", type="submit")["Show"],
            ],
            h.button(parts.htmx(get=view.url(at=0), **targets), type="button")["Beginning"],
            h.button(parts.htmx(get=view.url(), **targets), type="button", data_end=True)["End"],
            h.form(
                ".find",
                parts.htmx(get="/job/log/search", trigger="submit", **targets),
                method="get",
                action="/job/log/search",
                role="search",
            )[
                [h.input(type="hidden", name=name, value=str(value)) for name, value in vars(view).items()],
                h.input(
                    type="search",
                    name="q",
                    required=True,
                    maxlength="500",
                    placeholder="search the log",
                    aria_label="Search the log: a regular expression",
                    data_find=True,
                ),
                h.button(type="submit")["Find"],
                h.button(type="submit", name="back", value="1", title="from the end of the log")["Find last"],
            ],
        ],
        h.div("#log-body")[body],
    ]


def log_body(parts: Parts, view: LogView, part: LogPart, *, over: bool, matching: bytes = b"") -> h.Element:
    """Return lines of a log with links to earlier and later ones, or with the live end.

    ``over`` says that nothing more will be written; ``matching`` are the lines that were searched for.
    """
    is_empty = over and not part.size
    return _box(view)[
        earlier_button(parts, view, part.start, part.before) if part.before else None,
        h.p(".note")["It wrote nothing."] if is_empty else None,
        h.div("#lines")[chunk(part.data, part, matching)],
        _onward(parts, view, part, over=over),
    ]


def log_end(parts: Parts, view: LogView, data: bytes, copied: int, trouble: str) -> h.Element:
    """Return the last lines of a log of which the rest is still being read.

    ``copied`` bytes have been read; ``trouble`` says why no more is read, "" if it goes on.
    """
    again = parts.htmx(get=view.url(), trigger="refresh", target="#log-body", swap="innerHTML")
    text = (
        f"The end of the log, as of now: {trouble}. `shunter log` prints all of it."
        if trouble
        else f"The end of the log. The rest is being read: {size(copied)} so far …"
    )
    return _box(view)[
        h.p(".note", again, data_refresh="5000" if trouble else "2000")[clean_lines(text)],
        h.div("#lines")[chunk(data)],
    ]


def search_result(parts: Parts, view: LogView, regex: str, result: SearchResult, *, over: bool) -> h.Fragment:
    """Return the next lines that match, or how far there are none."""

    def get(place: str, *, is_backward: bool) -> dict[str, str]:
        where = {"end": place, "back": "1"} if is_backward else {"start": place}
        address = view.url("/job/log/search", q=regex, **where)
        return {"get": address, "target": "#log-body", "swap": "innerHTML"}

    if result.part is None:
        how_far = f"{size(result.searched)} of {size(result.size)}"
        if not result.is_done:
            again = parts.htmx(trigger="refresh", **get(result.reached, is_backward=result.is_backward))
            return h.fragment[h.p(".note", again, data_refresh="0", role="status")[f"Searching: {how_far} …"]]
        searched = f"; {how_far} were searched" if result.size else ""  # nothing lies behind the last match
        text = f"No {'earlier' if result.is_backward else 'more'} lines match{searched}."
        return h.fragment[h.p(".note", role="status")[text]]
    lines = sum(1 for _ in iter_lines(result.matching))
    return h.fragment[
        h.p(".note.search", role="status", data_backward=result.is_backward)[
            f"{lines} line{'s match' if lines != 1 else ' matches'} here ",
            [
                h.button(f"#{name}", parts.htmx(**get(place, is_backward=back)), type="button")[text]
                for name, place, back, text in (
                    ("previous-match", result.part.start, True, "Previous"),
                    ("next-match", result.part.end, False, "Next"),
                )
            ],
        ],
        log_body(parts, view, result.part, over=over, matching=result.matching),
    ]


def _box(view: LogView) -> h.Element:
    address = view.url().partition("?")[2]
    return h.div(".log", tabindex="0", role="log", aria_label="Lines of the log", data_view=address)


def log_rest(parts: Parts, view: LogView, part: LogPart, *, over: bool) -> h.Fragment:
    """Return the lines of a part, and the link to later ones or the live end."""
    return h.fragment[chunk(part.data, part), _onward(parts, view, part, over=over)]


def _onward(parts: Parts, view: LogView, part: LogPart, *, over: bool) -> h.Element:
    at_end = part.before + len(part.data) >= part.size or not part.data
    return _following(parts, view, part, over=over) if at_end else later_button(parts, view, part)


def chunk(data: bytes, part: LogPart | None = None, matching: bytes = b"") -> h.Element:
    """Return some lines, with the position of the first one; those that match are marked."""
    return h.div(
        ".chunk", data_start=part.start if part else None, data_before=part.before if part else None
    )[as_html(data, matching)]


def earlier_button(parts: Parts, view: LogView, start: str, before: int) -> h.Element:
    """Return the button that loads the lines before a position."""
    return h.button(
        "#earlier",
        parts.htmx(get=view.url("/job/log/earlier", end=start), target="this", swap="outerHTML"),
        type="button",
    )[f"Earlier ({size(before)})"]


def later_button(parts: Parts, view: LogView, part: LogPart) -> h.Element:
    """Return the button that loads the lines after a part."""
    rest = part.size - part.before - len(part.data)
    return h.button(
        "#later",
        parts.htmx(get=view.url("/job/log/later", start=part.end), target="this", swap="outerHTML"),
        type="button",
    )[f"Later ({size(max(rest, 0))})"]


def _following(parts: Parts, view: LogView, part: LogPart, *, over: bool) -> h.Element:
    if over:
        return h.p(".note")["The end: the job has ended."]
    connect = view.url("/job/log/tail", start=part.end)
    return h.p(
        "#tail.note",
        parts.htmx(sse_connect=connect, sse_close="ended", target="#lines", swap="beforeend"),
        data_follow=True,
    )["Following …"]


# ---- the other parts


def charts_part(handles: Sequence[str], *, live: bool) -> h.Fragment:
    """Return how charts of jobs are drawn, and the element in which `static/charts.js` draws them."""
    return h.fragment[
        h.form("#chart-options.bar", hidden=True, aria_label="How charts are drawn")[
            h.input(
                type="search", name="show", placeholder="metrics: loss acc", aria_label="Metrics to draw"
            ),
            h.select(name="by", aria_label="Horizontal axis")[
                h.option(value="step")["by step"],
                h.option(value="elapsed")["by seconds since the first value"],
                h.option(value="time")["by time of day"],
            ],
            [
                h.label[h.input(type="checkbox", name=name), f" {text}"]
                for name, text in (("log", "logarithmic"), ("together", "in one chart"))
            ],
            h.label["smoothing ", h.input(type="range", name="smooth", min="0", max="99", value="0")],
        ],
        h.section(
            "#charts",
            aria_label="Charts",
            data_charts=url("/metrics.json", handle=list(handles)),
            data_live="3000" if live else None,
        )[h.p(".note")["Looking for metrics …"]],
    ]


def why_part(explanation: Explanation, most_lines: int = 0) -> list[h.Node]:
    """Return why a job failed or waits, as `shunter why` says it.

    Args:
        most_lines: how many of the lines of its log are shown, the last ones; 0 for all.
    """
    failure, waiting = explanation.failure, explanation.waiting
    content: list[h.Node] = []
    if failure is not None:
        content += [
            h.h2(".headline")[clean_lines(explanation.headline)],
            [h.p[f"{explanation.scheduler} says: ", clean_lines(failure.reason)] if failure.reason else None],
            problem(f"Its log cannot be read: {failure.problem}") if failure.problem else None,
            [h.h3["Traceback"], verbatim("\n".join(failure.traceback[-most_lines:]))]
            if failure.traceback
            else None,
            [h.h3[f"Log of {clean(failure.place)}"], verbatim("\n".join(failure.log[-most_lines:]))]
            if failure.log and not failure.traceback
            else None,
        ]
        if explanation.changes:
            content += [
                h.h3["Changed since ", clean(explanation.last_good), ", which succeeded"],
                verbatim("\n".join(explanation.changes)),
            ]
        advice = failure.cause.advice
    elif waiting is not None:
        content += [
            h.h2(".headline")[clean_lines(f"The job waits: {waiting.text}")],
            [h.p[clean_lines(text)] for text in (waiting.reason, waiting.position) if text],
        ]
        advice = waiting.advice
    else:
        content.append(h.p["It neither failed nor waits: it is ", badge(explanation.status.state), "."])
        advice = ""
    if advice:
        content.append(h.p[h.b["What helps: "], clean_lines(advice)])
    if explanation.try_command:
        content += [h.h3["Try"], verbatim(explanation.try_command)]
    return content


def definition_part(record: JobRecord | None) -> list[h.Node]:
    """Return what was submitted: definition, options and origin."""
    if record is None:
        return [problem("This job is not in the history of this machine.")]
    origin = {
        "Submitted by": clean(f"{record.user} on {record.host}"),
        "Command": clean(" ".join(record.argv or [])),
        "Directory": clean(record.cwd),
        "Workspace": clean(record.workspace or ""),
        "Commit": clean(record.git_commit or "") + (" with uncommitted changes" if record.git_dirty else ""),
        "Code": clean(record.fingerprint or ""),
        "Id of the backend": clean(record.native_id or ""),
    }
    return [
        facts(origin),
        [_environment(role) for role in record.app.get("roles") or ()],
        h.h2["Definition"],
        verbatim(json.dumps(record.app, indent=2)),
        h.h2[f"Options of {clean(record.scheduler)}"],
        verbatim(json.dumps(record.cfg, default=str, indent=2)),
    ]


def _environment(role: Mapping[str, Any]) -> h.Node:
    variables = role.get("env") or {}
    return h.fragment[
        h.h2[f"Environment of {clean(role['name'])}"],
        facts({"Image": "" if role.get("image") == NONE else clean(role.get("image") or "")}),
        h.table(".changes")[
            [
                h.tr[h.th(scope="row")[clean(name)], h.td[h.code[clean_lines(str(value))]]]
                for name, value in sorted(variables.items())
            ]
        ]
        if variables
        else h.p(".note")["No variables were set."],
    ]


def compare_form(handle: str, others: Sequence[JobRecord]) -> h.Element:
    """Return the choice of another job to compare a job with."""
    return h.form(".bar", method="get", action="/compare")[
        h.input(type="hidden", name="handle", value=handle),
        h.label[
            "Compare with ",
            h.input(
                type="search",
                name="handle",
                list="others",
                required=True,
                placeholder="id or name of any job",
            ),
        ],
        h.datalist("#others")[
            [
                h.option(value=other.handle)[
                    clean(f"{other.name} {other.state.name}: {other.arguments}"[:120])
                ]
                for other in others
            ]
        ],
        h.button["Compare"],
    ]


def comparison_part(comparison: Comparison) -> list[h.Node]:
    """Return what differs between two jobs."""
    content: list[h.Node] = [
        h.p(".pair")[
            "- ",
            h.a(href=url("/job", handle=comparison.first.handle))[clean(comparison.first.handle)],
            h.br,
            "+ ",
            h.a(href=url("/job", handle=comparison.second.handle))[clean(comparison.second.handle)],
        ],
        h.h2["Code"],
        h.p[clean(comparison.code)],
    ]
    for file in comparison.files:
        content += [h.h3[f"{file.change}: {clean(file.path)}"], _changed_lines(file)]
    for section, differences in comparison.values.items():
        if differences:
            content += [
                h.h2[section.capitalize()],
                h.table(".changes")[
                    [
                        h.tr[
                            h.th(scope="row")[clean(name)],
                            h.td[h.del_[_shown(old)] if old is not None else None],
                            h.td[h.ins[_shown(new)] if new is not None else None],
                        ]
                        for name, (old, new) in differences.items()
                    ]
                ],
            ]
    if not comparison:
        content.append(h.p["Nothing that is recorded differs."])
    return content


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return clean_lines(shlex.join(value))
    return clean_lines(value if isinstance(value, str) else json.dumps(value))


def _changed_lines(file: FileChange) -> h.Node:
    texts = file.texts()
    if texts is None:
        return h.p(".note")["It is not text, or no longer stored."]
    lines = list(difflib.unified_diff(*texts, "before", "after", lineterm=""))[2:]
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return h.pre(tabindex="0")[
        [
            Markup('<span class="{}">{}</span>\n').format(kinds.get(line[:1], "same"), clean_lines(line))
            for line in lines[:MOST_CHANGED_LINES]
        ],
        h.i(".note")[f"… {len(lines) - MOST_CHANGED_LINES} more lines"]
        if len(lines) > MOST_CHANGED_LINES
        else None,
    ]
