"""The list of jobs: filters, search, pages, actions on several."""

from __future__ import annotations

import htpy as h

from trainyard.runner.jobsearch import REFUSED_STATE, JobFilter
from trainyard.runner.records import REFUSED
from trainyard.specs.status import AppState, is_terminal
from trainyard.terminal import clean
from trainyard.ui.html_parts import badge, duration, problem, shown_time, url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.datastructures import QueryParams

    from trainyard.runner.records import JobRecord
    from trainyard.schedulers.responses import ListAppResponse
    from trainyard.ui.html_parts import Parts

PAGE_SIZE = 50
LAST_PAGE = 1_000_000
MOST_ELSEWHERE = 200
ACTIONS = {"cancel": "Cancel", "rerun": "Rerun", "delete": "Delete"}
_CONFIRM = {
    "cancel": "Ask the selected jobs to stop?",
    "delete": "Remove the selected jobs, with their logs and results?",
}


class Wanted:
    """Which jobs a page shows, as its URL says.

    Args:
        query: of the URL. What it has that means nothing is left out.
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
    def offset(self) -> int:
        """How many jobs are on earlier pages."""
        return (self.page - 1) * PAGE_SIZE

    def filter(self) -> JobFilter:
        """Return the same for the runner."""
        return JobFilter(
            states=set(self.states) or None,
            name=self.text or None,
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
    records: Sequence[JobRecord],
    total: int,
    tally: Iterable[tuple[str, str, str, int]],
    problems: Mapping[str, str],
) -> str:
    """Return the whole page."""
    schedulers, states = _counts(tally)
    return parts.document(
        "Jobs",
        h.h1[h.span["Jobs"]],
        _filters(wanted, schedulers, states),
        jobs_table(parts, wanted, records, total, problems),
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
                            h.a(href=url("/job", handle=job.app_handle))[clean(job.name or job.app_id)]
                        ],
                        h.td(".id")[clean(job.app_id)],
                        h.td[shown_time(job.submitted_at)],
                        h.td(".time")[duration(job.submitted_at, job.ended_at, ended=is_terminal(job.state))],
                    ]
                    for job in shown
                ]
            ]
        ],
    ]


def _counts(tally: Iterable[tuple[str, str, str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    schedulers: dict[str, int] = {}
    states: dict[str, int] = {}
    for scheduler, phase, state, count in tally:
        schedulers[scheduler] = schedulers.get(scheduler, 0) + count
        shown = REFUSED_STATE if phase == REFUSED else state
        states[shown] = states.get(shown, 0) + count
    return schedulers, states


def _filters(wanted: Wanted, schedulers: Mapping[str, int], states: Mapping[str, int]) -> h.Element:
    order = [*AppState.__members__, REFUSED_STATE]
    return h.form(".filters", method="get", action="/", role="search", data_submit_on_change=True)[
        h.input(
            type="search",
            name="q",
            value=wanted.text,
            placeholder="name or id, or a pattern: exp-*",
            aria_label="Search jobs by name or id",
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
    parts: Parts, wanted: Wanted, records: Sequence[JobRecord], total: int, problems: Mapping[str, str]
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
                h.span(".count")[f"{first} to {end} of {total}" if records else "no such jobs"],
            ],
            h.table(".jobs")[
                h.thead[
                    h.tr[
                        h.th[h.span(".hidden")["Selected"]],
                        [h.th(scope="col")[text] for text in ("State", "Name", "Job", "Submitted", "Time")],
                    ]
                ],
                h.tbody[[_row(record, problems) for record in records]],
            ],
        ],
        h.nav(".pages", aria_label="Pages of the list")[
            h.a(href=wanted.url(page=wanted.page - 1), rel="prev")["← newer"] if wanted.page > 1 else None,
            f" page {wanted.page} of {last} " if last > 1 else None,
            h.a(href=wanted.url(page=wanted.page + 1), rel="next")["older →"] if wanted.page < last else None,
        ],
    ]


def _row(record: JobRecord, problems: Mapping[str, str]) -> h.Element:
    ended = is_terminal(record.state) or record.phase == REFUSED
    stale = record.scheduler in problems and not ended
    started = record.submitted_at or record.created_at
    state = REFUSED_STATE if record.phase == REFUSED else record.state.name
    name = clean(record.name or record.app_id or "(without a name)")
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
        h.td(".name")[h.a(href=url("/job", handle=record.handle))[name] if record.handle else name],
        h.td(".id")[
            h.span(".scheduler")[clean(record.scheduler)],
            " ",
            clean(record.app_id),
            h.div(".reason")[clean(record.msg)[:160]] if record.msg else None,
        ],
        h.td[shown_time(started)],
        h.td(".time")[duration(started, record.ended_at, ended=ended)],
    ]
