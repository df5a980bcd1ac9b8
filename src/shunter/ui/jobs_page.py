"""The list of jobs: filters, search, pages, actions on several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import htpy as h

from shunter.runner.jobsearch import REFUSED_STATE, JobFilter, is_pattern
from shunter.runner.records import REFUSED, JobRecord
from shunter.schedulers.responses import ListAppResponse
from shunter.specs.status import AppState, is_terminal
from shunter.terminal import clean
from shunter.ui.glances import Glance
from shunter.ui.html_parts import Parts, badge, duration, problem, shown_time, url
from shunter.ui.job_actions import ACTIONS, MOST_RESULTS, ActionRun, Result

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

PAGE_SIZE = 50
LAST_PAGE = 1_000_000
MOST_ELSEWHERE = 200
#: Characters of arguments and reasons that a row shows, and that appear under the pointer.
MOST_TEXT, MOST_TITLE = 160, 2000
_COLUMNS = ("State", "Name", "Arguments, last values, reason", "Submitted", "Time")
_CONFIRM = {
    "cancel": "Ask the selected jobs to stop?",
    "delete": "Remove the selected jobs, with their logs and results?",
}


class Wanted:
    """Which jobs a page shows, as its URL says.

    Args:
        query: the query of the URL. Values without a meaning are ignored.
    """

    def __init__(self, query: QueryParams) -> None:
        there = (*AppState.__members__, REFUSED_STATE)
        self.text = query.get("q", "").strip()[:200]
        self.states = [state for state in query.getlist("state") if state in there]
        self.scheduler = query.get("scheduler", "")[:100]
        number = query.get("page", "1")
        self.page = min(int(number), LAST_PAGE) if number.isdecimal() and len(number) < 10 else 1
        self.page = max(self.page, 1)

    @property
    def is_filtered(self) -> bool:
        """Whether only some of the jobs are wanted."""
        return bool(self.text or self.states or self.scheduler)

    @property
    def offset(self) -> int:
        """How many jobs are on earlier pages."""
        return (self.page - 1) * PAGE_SIZE

    def filter(self) -> JobFilter:
        """Return this selection as a filter for the runner."""
        return JobFilter(
            states=set(self.states) or None,
            name=self.text if is_pattern(self.text) else None,
            words=[] if is_pattern(self.text) else re.split(r"[\s=]+", self.text.strip("= ")),
            refused=REFUSED_STATE in self.states,
            scheduler=self.scheduler or None,
        )

    def url(self, path: str = "/", **changes: object) -> str:
        """Return the URL of the same page, with some differences."""
        query = {"q": self.text, "state": self.states, "scheduler": self.scheduler}
        return url(path, **{**query, "page": self.page if self.page > 1 else None, **changes})


def jobs_page(
    parts: Parts,
    wanted: Wanted,
    table: h.Element,
    tally: Iterable[tuple[str, str, str, int]],
) -> str:
    """Return the whole page, around the table."""
    schedulers, states = _counts(tally)
    return parts.document(
        "Jobs",
        h.h1[h.span["Jobs"]],
        _filters(wanted, schedulers, states),
        h.nav("#views", hidden=True, aria_label="Saved views")[
            h.button("#save-view", type="button", hidden=not wanted.is_filtered)["Save this view"]
        ],
        table,
        h.section(
            "#elsewhere",
            parts.htmx(get=wanted.url("/jobs/elsewhere", page=None), trigger="load", swap="innerHTML"),
            aria_label="Jobs that were started elsewhere",
        )
        if wanted.scheduler and wanted.page == 1
        else None,
    )


def elsewhere_table(jobs: Sequence[ListAppResponse]) -> h.Node:
    """Return the jobs that a scheduler lists and the history does not know."""
    if not jobs:
        return None
    shown = sorted(jobs, key=lambda job: -(job.submitted_at or 0.0))[:MOST_ELSEWHERE]
    return h.fragment[
        h.h2["Started elsewhere", h.small[f" {len(shown)} of {len(jobs)}"]],
        h.table(".jobs")[
            h.tbody[
                [
                    h.tr[
                        h.td(".check"),
                        h.td[badge(job.state)],
                        h.td(".name")[
                            h.a(href=url("/job", handle=job.app_handle))[clean(job.name or job.app_id)],
                            h.div(".id")[clean(job.app_id)],
                        ],
                        h.td(".what"),
                        h.td[shown_time(job.submitted_at)],
                        h.td(".time")[duration(job.started_at, job.ended_at, ended=is_terminal(job.state))],
                    ]
                    for job in shown
                ]
            ]
        ],
    ]


def _counts(tally: Iterable[tuple[str, str, str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    schedulers: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for scheduler, phase, state, count in tally:
        schedulers[scheduler] += count
        states[REFUSED_STATE if phase == REFUSED else state] += count
    return schedulers, states


def _filters(wanted: Wanted, schedulers: Mapping[str, int], states: Mapping[str, int]) -> h.Element:
    order = [*AppState.__members__, REFUSED_STATE]
    return h.form(".filters", method="get", action="/", role="search", data_submit_on_change=True)[
        h.input(
            type="search",
            name="q",
            value=wanted.text,
            placeholder="name, id or arguments: train lr 0.3, or a pattern: exp-*",
            aria_label="Search jobs by name, id or arguments",
            data_search=True,
        ),
        h.select(name="scheduler", aria_label="Scheduler")[
            h.option(value="")["all schedulers"],
            [
                h.option(value=name, selected=name == wanted.scheduler)[f"{clean(name)} ({count})"]
                for name, count in sorted(schedulers.items())
            ],
        ],
        h.fieldset(".states")[
            h.legend(".hidden")["States"],
            [
                h.label(class_=f"chip {state.lower()}")[
                    h.input(type="checkbox", name="state", value=state, checked=state in wanted.states),
                    f"{state} ",
                    h.small[states[state]],
                ]
                for state in order
                if states.get(state)
            ],
        ],
        h.button(".submit", type="submit")["Show"],
    ]


def jobs_table(
    parts: Parts,
    wanted: Wanted,
    records: Sequence[JobRecord],
    total: int,
    problems: Mapping[str, str],
    glances: Mapping[str, Glance],
) -> h.Element:
    """Return only the table, which reloads itself periodically."""
    last = max((total - 1) // PAGE_SIZE + 1, 1)
    first, end = wanted.offset + 1, wanted.offset + len(records)
    return h.section(
        "#jobs",
        parts.htmx(get=wanted.url("/jobs"), trigger="refresh", swap="outerHTML"),
        data_refresh="3000",
    )[
        [
            problem(f"{name} cannot be reached, so its jobs are shown as last seen: {text}")
            for name, text in sorted(problems.items())
        ],
        h.form("#selection", method="post", action="/jobs/act")[
            parts.csrf(),
            h.div(".bar")[
                h.label(".all")[
                    h.input(type="checkbox", data_all=True, aria_label="Select all on this page"), " all"
                ],
                [
                    h.button(type="submit", name="action", value=name, data_confirm=_CONFIRM.get(name))[label]
                    for name, label in ACTIONS.items()
                ],
                h.button(type="submit", formaction="/charts", formmethod="get")["Charts"],
                h.button(type="submit", formaction="/compare", formmethod="get")["Compare"],
                h.span(".count", role="status")[
                    f"{first} to {end} of {total}" if records else "no such jobs"
                ],
            ],
            h.table(".jobs")[
                h.thead[
                    h.tr[
                        h.th[h.span(".hidden")["Selected"]],
                        [h.th(scope="col")[text] for text in _COLUMNS],
                    ]
                ],
                h.tbody[[_row(record, problems, glances.get(record.handle, Glance())) for record in records]],
            ],
            None if records else _nothing(wanted, total),
        ],
        _act_on_all(wanted, total) if total > len(records) else None,
        h.nav(".pages", aria_label="Pages of the list")[
            h.a(href=wanted.url(page=wanted.page - 1), rel="prev")["← newer"] if wanted.page > 1 else None,
            f" page {wanted.page} of {last} " if last > 1 else None,
            h.a(href=wanted.url(page=wanted.page + 1), rel="next")["older →"] if wanted.page < last else None,
        ],
    ]


def _nothing(wanted: Wanted, total: int) -> h.Element:
    """Return why the table is empty, and what to do."""
    if total:
        return h.p(".note")["There are no older jobs. ", h.a(href=wanted.url(page=None))["The latest"]]
    if wanted.is_filtered:
        return h.p(".note")["No job of this machine's history matches. ", h.a(href="/")["Show all jobs"]]
    return h.p(".note")[
        "No job was started on this machine yet. Start one: ", h.code["shunter run ./train.py"]
    ]


def _row(record: JobRecord, problems: Mapping[str, str], glance: Glance) -> h.Element:
    ended = is_terminal(record.state) or record.phase == REFUSED
    stale = record.scheduler in problems and not ended
    submitted = record.submitted_at or record.created_at
    state = REFUSED_STATE if record.phase == REFUSED else record.state.name
    name = clean(record.name or record.app_id or "(without a name)")
    arguments, why = record.arguments, glance.why or record.msg
    return h.tr(id=f"job-{record.seq}", data_row=True)[
        h.td(".check")[
            h.input(
                type="checkbox",
                name="handle",
                value=record.handle,
                disabled=not record.handle,
                aria_label=f"Select {name}",
            )
        ],
        h.td[badge(state, stale=stale), h.small[" not reachable now"] if stale else None],
        h.td(".name")[
            h.a(href=url("/job", handle=record.handle))[name] if record.handle else name,
            h.div(".id")[h.span(".scheduler")[clean(record.scheduler)], " ", clean(record.app_id)],
        ],
        h.td(".what")[
            h.code(".arguments", title=clean(arguments[:MOST_TITLE]))[clean(arguments[:MOST_TEXT])],
            h.div(".values")[clean(glance.metrics)] if glance.metrics else None,
            h.div(".reason")[clean(why)[:MOST_TEXT]] if why else None,
        ],
        h.td[shown_time(submitted)],
        h.td(".time")[duration(record.started_at, record.ended_at, ended=ended)],
    ]


# ---- actions


def _act_on_all(wanted: Wanted, total: int) -> h.Element:
    """Return links to actions on all jobs that match, on other pages too."""
    return h.p(".all-pages")[
        f"All {total} {'that match' if wanted.is_filtered else 'jobs'}: ",
        [
            h.a(".button", href=wanted.url("/jobs/all", page=None, action=name))[f"{label} …"]
            for name, label in ACTIONS.items()
        ],
    ]


def confirm_page(parts: Parts, action: str, wanted: Wanted, total: int, count: int, newest: int) -> str:
    """Return the question whether to act on all ``total`` jobs that match.

    The action is for ``count`` of them; ``newest`` is the number of the newest of these.
    """
    label = ACTIONS[action]
    which = [
        f"name, id or arguments: {wanted.text}" if wanted.text else "",
        f"scheduler: {wanted.scheduler}" if wanted.scheduler else "",
        f"state: {', '.join(wanted.states)}" if wanted.states else "",
    ]
    others = {"cancel": "have ended already", "delete": "have not ended"}.get(action, "were never submitted")
    fields = [
        ("q", wanted.text),
        ("scheduler", wanted.scheduler),
        *(("state", name) for name in wanted.states),
    ]
    back = h.a(".button", href=wanted.url(page=None))["Back"]
    question = f"{label} {count} job{'s' if count != 1 else ''}?"
    return parts.document(
        label,
        h.h1[question if count else f"There is no job to {action}"],
        h.p[clean("; ".join(text for text in which if text) or "all jobs of all schedulers")],
        h.p[f"{total - count} more match, but {others}."] if total > count else None,
        h.p["Their logs and results are removed, too."] if action == "delete" and count else None,
        h.form(".bar", method="post", action="/jobs/act")[
            parts.csrf(),
            h.input(type="hidden", name="all", value="yes"),
            h.input(type="hidden", name="until", value=str(newest)),
            [h.input(type="hidden", name=name, value=value) for name, value in fields],
            h.button(".danger", type="submit", name="action", value=action)[question.rstrip("?")]
            if count
            else None,
            back,
        ],
    )


def progress_part(parts: Parts, run: ActionRun) -> h.Element:
    """Return how far an action on many jobs is; it reloads itself until that has ended."""
    total, label = len(run.handles), ACTIONS[run.action]
    asks = parts.htmx(get=url("/jobs/progress", id=run.id), trigger="refresh", swap="outerHTML")
    return h.section("#progress", {} if run.is_over else asks, data_refresh=None if run.is_over else "1000")[
        h.h1(role="status")[
            f"{label}: {run.done - run.failed} of {total} done"
            + (f", {run.failed} not" if run.failed else "")
        ],
        None if run.is_over else h.progress(max=str(total), value=str(run.done), aria_label=label),
        h.p[f"It was ended at {run.done} of {total}."] if run.is_over and run.done < total else None,
        _results_table(run.results),
        h.p(".note")[f"The first {MOST_RESULTS} are shown."] if len(run.results) == MOST_RESULTS else None,
        h.p[h.a(href="/")["Back to the jobs"]],
    ]


def results_page(parts: Parts, action: str, results: Sequence[Result]) -> str:
    """Return a page with the results of an action on several jobs."""
    failed = sum(1 for _, wrong, _ in results if wrong)
    return parts.document(
        action,
        h.h1[f"{action}: {len(results) - failed} of {len(results)} done"],
        _results_table(results),
        h.p[h.a(href="/")["Back to the jobs"]],
    )


def _results_table(results: Sequence[Result]) -> h.Element:
    return h.table(".results")[
        [
            h.tr[
                h.th(scope="row")[h.a(href=url("/job", handle=handle))[clean(handle)]],
                h.td[problem(wrong) if wrong else "done"],
                h.td[h.a(href=url("/job", handle=made))[clean(made)] if made else None],
            ]
            for handle, wrong, made in results
        ]
    ]
