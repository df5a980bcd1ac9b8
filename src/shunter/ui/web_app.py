"""The pages' routes: which URL shows or does what. All data come from runners, see `runner_pool`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import htpy as h
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from shunter.errors import ConfigError, ShunterError, UnknownAppException, UsageError, described
from shunter.redaction import redact_text
from shunter.runner import Runner
from shunter.runner.jobsearch import JobFilter, recorded, resolve
from shunter.runner.observation import as_recorded, recorded_status, unknown_job
from shunter.runner.records import JobRecord
from shunter.runner.resource_use import use_lines
from shunter.schedulers.registry import SWEEPS
from shunter.schedulers.responses import LogRange
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, is_terminal
from shunter.sweeps.point_rows import point_rows
from shunter.ui import files_page, job_page, jobs_page, sweep_page
from shunter.ui.assets import ASSETS
from shunter.ui.browser_guard import CSRF_FIELD, CSRF_HEADER, is_secret
from shunter.ui.chart_data import MOST_JOBS, ChartData
from shunter.ui.files_page import FilesView
from shunter.ui.glances import Glances
from shunter.ui.html_parts import Parts, problem, url, verbatim
from shunter.ui.job_actions import ACTIONS, JobActions, run_shunter
from shunter.ui.job_files import (
    CODE,
    FILES_PATIENCE,
    IMAGES,
    Download,
    FilePart,
    beginning_of,
    blocks_of,
    find_file,
    folder_of,
    place_of,
    tar_of,
)
from shunter.ui.job_page import LogView
from shunter.ui.log_parts import CHUNK, LOG_PATIENCE, LogParts
from shunter.ui.log_tail import LogTails
from shunter.ui.runner_pool import HISTORY, OPEN_STATES, Freshness, NoAnswerError, RunnerPool
from shunter.why.comparison import Comparison
from shunter.why.explanation import Explanation, explain
from shunter.workspace.code_store import Store

if TYPE_CHECKING:
    from htpy import Node
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from shunter.metrics.series import Series

#: Seconds that a list waits for the states of jobs, before it is shown with those that were seen last.
LIST_PATIENCE = 0.7
#: Seconds that it waits for metrics and causes of jobs that were not shown before.
GLANCE_PATIENCE = 0.4
#: Seconds that explaining a failure or ending jobs may take.
LONG_PATIENCE = 60.0
MOST_COMPARED = MOST_JOBS
#: Characters of a job's arguments that the legend of a chart shows.
MOST_LABEL = 100
#: Jobs that are offered to compare one with.
MOST_OTHERS = 50


class WebApp:
    """Answers requests about jobs of these schedulers."""

    def __init__(self, schedulers: Sequence[str], pool: RunnerPool) -> None:
        self._schedulers = frozenset((*schedulers, SWEEPS))
        self._pool = pool
        self._freshness = Freshness(pool)
        self._actions = JobActions(pool)
        self._glances = Glances(pool)
        self._chart_data = ChartData(pool)
        self._log_parts = LogParts(pool)
        self._log_tails = LogTails(pool, self._log_parts)
        self.asgi = Starlette(
            routes=[
                Route("/", self.jobs),
                Route("/jobs", self.jobs_table),
                Route("/jobs/elsewhere", self.jobs_elsewhere),
                Route("/jobs/act", self.act, methods=["POST"]),
                Route("/jobs/all", self.confirm_all),
                Route("/jobs/progress", self.progress),
                Route("/job", self.job),
                Route("/job/status", self.job_status),
                Route("/job/cause", self.job_cause),
                Route("/job/used", self.job_used),
                Route("/job/points", self.job_points),
                Route("/job/file", self.file),
                Route("/job/files.tar", self.files_archive),
                Route("/job/log", self.log),
                Route("/job/log/earlier", self.log_earlier),
                Route("/job/log/later", self.log_later),
                Route("/job/log/search", self.log_search),
                Route("/job/log/tail", self.log_tail),
                Route("/compare", self.compare),
                Route("/charts", self.charts),
                Route("/charts/jobs", self.charts_jobs),
                Route("/metrics.json", self.metrics),
                Route("/static/{name}", self.static),
            ],
            exception_handlers={
                HTTPException: _http_problem,
                ShunterError: _problem,
                OSError: _problem,
                NotImplementedError: _problem,
            },
        )

    def close(self) -> None:
        """Drop what was kept of logs."""
        self._log_parts.close()

    # ---- jobs

    async def jobs(self, request: Request) -> Response:
        """Show the list of jobs."""
        return HTMLResponse(await self._list(request, whole=True))

    async def jobs_table(self, request: Request) -> Response:
        """Show its table alone."""
        return HTMLResponse(await self._list(request, whole=False))

    async def jobs_elsewhere(self, request: Request) -> Response:
        """Show the jobs of a scheduler that this machine's history does not know."""
        wanted = jobs_page.Wanted(request.query_params)
        if wanted.scheduler not in self._schedulers:
            raise UnknownAppException("there is no such scheduler")
        try:
            jobs = await self._pool.ask(
                wanted.scheduler, lambda runner: runner.unrecorded_jobs(wanted.filter()), LOG_PATIENCE
            )
        except (ShunterError, NotImplementedError, OSError) as error:
            text = f"{wanted.scheduler} does not list jobs that were started elsewhere: {described(error)}"
            return HTMLResponse(str(problem(redact_text(text))))
        return HTMLResponse(str(h.fragment[jobs_page.elsewhere_table(jobs)]))

    async def _list(self, request: Request, *, whole: bool) -> str:
        wanted = jobs_page.Wanted(request.query_params)
        tally = await self._pool.ask(HISTORY, lambda runner: runner.history.tally())
        with_open = {scheduler for scheduler, _, state, _ in tally if state in OPEN_STATES}
        await self._freshness.refresh(sorted(with_open & self._schedulers), LIST_PATIENCE)
        records, total = await self._pool.ask(
            HISTORY,
            lambda runner: runner.recorded_jobs(wanted.filter(), jobs_page.PAGE_SIZE, wanted.offset),
        )
        if whole and with_open:  # they may have ended meanwhile
            tally = await self._pool.ask(HISTORY, lambda runner: runner.history.tally())
        problems = {name: text for name, text in self._freshness.problems.items() if name in with_open}
        glances = await self._glances.of(records, GLANCE_PATIENCE)
        parts = Parts(request)
        table = jobs_page.jobs_table(parts, wanted, records, total, problems, glances)
        return jobs_page.jobs_page(parts, wanted, table, tally) if whole else str(table)

    async def act(self, request: Request) -> Response:
        """Cancel, repeat or delete jobs."""
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        given = request.headers.get(CSRF_HEADER) or form.get(CSRF_FIELD, [""])[0]
        if not is_secret(given, request.scope["state"]["csrf"]):
            raise HTTPException(
                403, "This form belongs to another server, or to an earlier run of this one: reload the page."
            )
        action = form.get("action", [""])[0]
        if action not in ACTIONS:
            raise UsageError("there is no such action")
        if form.get("all") == ["yes"]:
            until = _number(form.get("until", [""])[0])
            run = await self._actions.start(action, _filter_of(form).filter(), until)
            return RedirectResponse(url("/jobs/progress", id=run.id), 303)
        handles = [self._checked(value) for value in form.get("handle", [])]
        if not handles:
            raise UsageError("no job is selected")
        results = await self._actions.act(action, handles, form.get("arguments", [""])[0])
        if len(handles) == 1 and not results[0][1]:
            if action == "rerun":
                return RedirectResponse(url("/job", handle=results[0][2]), 303)
            if form.get("back") == ["job"] and action == "cancel":
                return RedirectResponse(url("/job", handle=handles[0]), 303)
        return HTMLResponse(jobs_page.results_page(Parts(request), ACTIONS[action], results))

    async def confirm_all(self, request: Request) -> Response:
        """Ask whether to act on all jobs that match, and say how many those are."""
        action = request.query_params.get("action", "")
        if action not in ACTIONS:
            raise UsageError("there is no such action")
        wanted = jobs_page.Wanted(request.query_params)
        total = await self._pool.ask(HISTORY, lambda runner: runner.recorded_jobs(wanted.filter(), 1)[1])
        count, newest = await self._actions.matching(action, wanted.filter(), None)
        return HTMLResponse(jobs_page.confirm_page(Parts(request), action, wanted, total, count, newest))

    async def progress(self, request: Request) -> Response:
        """Show how far an action on many jobs is."""
        run = self._actions.run_of(request.query_params.get("id", ""))
        if run is None:
            raise HTTPException(404, "This action is no longer known; the list shows the states of the jobs.")
        parts = Parts(request)
        part = jobs_page.progress_part(parts, run)
        if request.headers.get("hx-request"):
            return HTMLResponse(str(part))
        return HTMLResponse(parts.document(ACTIONS[run.action], part))

    # ---- one job

    async def job(self, request: Request) -> Response:
        """Show a job, or one of the other parts of its page."""
        handle = self._handle(request)
        record = await self._record(handle)
        tabs = job_page.tabs_of(record)
        tab = request.query_params.get("tab", "")
        tab = tab if tab in tabs else tabs[0]
        parts = Parts(request)
        if tab == "Overview":
            content: list[Node] = await self._overview(parts, request, handle, record)
        elif tab == "Points":
            content = [await self._points(parts, request, handle, record)]
        elif tab == "Definition":
            content = job_page.definition_part(record)
        elif tab == "Files":
            content = await self._files(request, handle, record)
        elif tab == "Plan":
            code, out, problem_text = await run_shunter("rerun", "--dryrun", handle)
            content = [
                problem(problem_text.strip()) if problem_text.strip() else None,
                verbatim(redact_text(out)) if code == 0 else None,
            ]
        elif tab == "Why":
            content = await self._why(handle)
        else:
            content = [
                job_page.compare_form(handle, await self._others(handle)),
                *await self._changes(handle),
            ]
        return HTMLResponse(job_page.frame(parts, handle, record, tab, *content))

    async def job_status(self, request: Request) -> Response:
        """Show a job's state and timeline alone."""
        handle = self._handle(request)
        record = await self._record(handle)
        status, notice = await self._status(handle, record)
        return HTMLResponse(str(job_page.status_part(Parts(request), handle, status, record, notice)))

    async def _overview(
        self, parts: Parts, request: Request, handle: str, record: JobRecord | None
    ) -> list[Node]:
        status, notice = await self._status(handle, record)
        over = status.is_terminal()
        replicas = [(each.role, each.id) for each in status.replicas()]
        failed = [each for each in status.replicas() if each.state is AppState.FAILED]
        failed.sort(key=lambda each: each.ended_at or math.inf)
        if not replicas:
            replicas = await self._known_replicas(handle)
        content: list[Node] = [
            job_page.status_part(parts, handle, status, record, notice),
            job_page.used_part(parts, handle, None, live=not over),
            job_page.charts_part([handle], live=not over),
        ]
        if replicas:
            first = f"{failed[0].role}/{failed[0].id}" if failed else ""
            view = _chosen(request, handle, replicas, first)
            try:
                wanted = LogRange(CHUNK, start=request.query_params.get("start", ""))
                body = await self._log_body(parts, view, wanted, over=over)
            except (ShunterError, NotImplementedError, OSError, ValueError) as error:
                body = problem(f"The log cannot be read: {redact_text(described(error))}")
            content.append(job_page.log_part(parts, view, replicas, body))
        return content

    async def _status(self, handle: str, record: JobRecord | None) -> tuple[AppStatus, str]:
        """Return a job's status, and why it may be out of date."""
        try:
            status = await self._pool.ask(self._lane(handle), lambda runner: runner.status(handle))
        except (NoAnswerError, OSError, NotImplementedError) as error:
            known = recorded_status(record) if record is not None else None
            if record is not None and known is not None and not known.is_terminal():
                known = as_recorded(record, record.msg)
            return known or AppStatus(AppState.UNREACHABLE, -1), f"As last seen: {described(error)}"
        if status is None:
            raise unknown_job(handle)
        if status.state is AppState.UNREACHABLE and record is not None:
            return as_recorded(record, record.msg), f"As last seen: {status.msg}"
        return status, ""

    async def _known_replicas(self, handle: str) -> list[tuple[str, int]]:
        try:
            return list(await self._pool.ask(self._lane(handle), lambda runner: runner.replicas(handle)))
        except (ShunterError, OSError, NotImplementedError):
            return []

    async def _record(self, handle: str) -> JobRecord | None:
        return await self._pool.ask(HISTORY, lambda runner: runner.history.find(handle))

    async def job_cause(self, request: Request) -> Response:
        """Show why a job failed, with a few lines of its log."""
        part = await self._why(self._handle(request), job_page.MOST_CAUSE_LINES)
        return HTMLResponse(str(h.div(".cause")[part]))

    async def job_used(self, request: Request) -> Response:
        """Show what a job has used of what it asked for."""
        handle = self._handle(request)
        status, _ = await self._status(handle, await self._record(handle))
        texts = await self._pool.ask(
            self._lane(handle), lambda runner: use_lines(runner, handle), LOG_PATIENCE
        )
        part = job_page.used_part(Parts(request), handle, texts, live=not status.is_terminal())
        return HTMLResponse(str(part))

    async def _others(self, handle: str) -> list[JobRecord]:
        """Return the jobs that were submitted last, those of the same name first."""

        def select(runner: Runner) -> list[JobRecord]:
            record = runner.history.find(handle)
            name = record.name if record is not None else ""
            latest = list(runner.history.select(JobFilter(), MOST_OTHERS))
            if name:
                latest = [*runner.history.select(JobFilter(names=[name]), MOST_OTHERS), *latest]
            others = {other.handle: other for other in latest if other.handle not in ("", handle)}
            return list(others.values())[:MOST_OTHERS]

        return await self._pool.ask(HISTORY, select)

    async def _why(self, handle: str, most_lines: int = 0) -> list[Node]:
        def explain_job(runner: Runner) -> Explanation:
            status = runner.status(handle)
            if status is None:
                raise unknown_job(handle)
            return explain(runner, handle, status)

        explanation = await self._pool.ask(self._lane(handle), explain_job, LONG_PATIENCE)
        return job_page.why_part(explanation, most_lines)

    async def _changes(self, handle: str, other: str | None = None) -> list[Node]:
        def compare_jobs(runner: Runner) -> Comparison | None:
            record = recorded(runner.history, handle, "compare")
            before = recorded(runner.history, other, "compare") if other else runner.history.before(record)
            if before is not None and before.seq > record.seq:
                before, record = record, before
            return None if before is None else Comparison(before, record, Store())

        found = await self._pool.ask(HISTORY, compare_jobs)
        if found is None:
            return [problem("No job of this name was submitted before it, so there is nothing to compare.")]
        return job_page.comparison_part(found)

    async def compare(self, request: Request) -> Response:
        """Show what differs between two jobs."""
        texts = request.query_params.getlist("handle")
        if len(texts) != 2:
            raise UsageError(f"two jobs can be compared, not {len(texts)}", hint="Select two in the list.")

        def find(runner: Runner) -> list[str]:
            return [self._checked(resolve(text[:2000], lambda: runner.history)) for text in texts]

        handles = await self._pool.ask(HISTORY, find)
        content = await self._changes(handles[0], handles[1])
        return HTMLResponse(Parts(request).document("Compare", h.h1["What differs"], *content))

    # ---- sweeps

    async def job_points(self, request: Request) -> Response:
        """Show the points of a sweep alone."""
        handle = self._handle(request)
        part = await self._points(Parts(request), request, handle, await self._record(handle))
        return HTMLResponse(str(part))

    async def _points(self, parts: Parts, request: Request, handle: str, record: JobRecord | None) -> Node:
        status, _ = await self._status(handle, record)
        rows = await self._pool.ask(self._lane(handle), lambda runner: point_rows(runner, handle, status))
        chosen, order = (request.query_params.get(name, "") for name in ("metric", "order"))
        metrics = await self._chart_data.of_job(
            handle,
            lambda reader, _: (
                None if reader.is_reading else sweep_page.PointMetrics.of(reader.by_name(), chosen, order)
            ),
        )
        for row in rows:
            row["link"] = url("/job", handle=handle, place=row["replica"]) + "#log"
        page = url("/job", handle=handle, tab="Points")
        part = url("/job/points", handle=handle, metric=chosen, order=order)
        return sweep_page.points_part(parts, page, part, rows, metrics, over=status.is_terminal())

    # ---- files

    async def _files(self, request: Request, handle: str, record: JobRecord | None) -> list[Node]:
        places = [f"{role}/{k}" for role, k in await self._known_replicas(handle)]
        places += [CODE] if record is not None and record.fingerprint else []
        query = request.query_params
        wanted = query.get("place", "")
        view = FilesView(handle, wanted if wanted in places or not places else places[0], places)
        path, folder = query.get("file", ""), query.get("folder", "").strip("/")

        def read(runner: Runner) -> list[Node]:
            place = place_of(runner, handle, view.place)
            if not path:
                return files_page.folder_part(view, folder_of(place, folder))
            file = find_file(place, path)
            is_image = os.path.splitext(path)[1].lower() in IMAGES
            return files_page.file_part(view, file, b"" if is_image else beginning_of(place, file))

        try:
            return await self._pool.ask(f"files of {self._lane(handle)}", read, FILES_PATIENCE)
        except (ShunterError, OSError, NotImplementedError) as error:
            hint = (error.hint or "") if isinstance(error, ShunterError) else ""
            return files_page.nothing_part(view, redact_text(described(error)), hint)

    async def file(self, request: Request) -> Response:
        """Send a file of a job, or the part of it that an interrupted download still needs."""
        handle, query = self._handle(request), request.query_params
        path, place = query.get("file", ""), query.get("place", "")
        asked, condition = request.headers.get("range", ""), request.headers.get("if-range", "")

        def read(runner: Runner) -> tuple[FilePart, Iterator[bytes]]:
            where = place_of(runner, handle, place)
            part = FilePart.of(find_file(where, path), asked, condition)
            return part, blocks_of(where, part.file, part.start, part.end)

        download = Download(read, self._pool)
        part = await download.head()
        kind = IMAGES.get(os.path.splitext(path)[1].lower(), "") if query.get("view") == "image" else ""
        headers = {"content-length": str(part.end - part.start), **part.headers()}
        if not kind:
            headers["content-disposition"] = files_page.as_attachment(path.rpartition("/")[2])
        return _Streamed(
            download.blocks(), part.status, headers, media_type=kind or "application/octet-stream"
        )

    async def files_archive(self, request: Request) -> Response:
        """Send a folder of a job, or the results of all replicas, as a tar archive."""
        handle, query = self._handle(request), request.query_params
        wanted, folder = query.get("place", ""), query.get("folder", "").strip("/")

        def read(runner: Runner) -> tuple[str, Iterator[bytes]]:
            job = handle.rpartition("/")[2]
            if wanted:
                return job, tar_of([(job, place_of(runner, handle, wanted))], folder)
            sources = runner.result_sources(handle)
            return job, tar_of([(os.path.join(job, each.folder), each.place) for each in sources])

        download = Download(read, self._pool)
        headers = {"content-disposition": files_page.as_attachment(f"{await download.head()}.tar")}
        return _Streamed(download.blocks(), headers=headers, media_type="application/x-tar")

    # ---- logs

    async def log(self, request: Request) -> Response:
        """Show lines of a log: its end, or those near a place."""
        view, over = await self._view(request)
        at = request.query_params.get("at", "")
        place = int(at) if at.isdecimal() and len(at) < 19 else None
        return HTMLResponse(
            str(await self._log_body(Parts(request), view, LogRange(CHUNK, at=place), over=over))
        )

    async def log_earlier(self, request: Request) -> Response:
        """Show the lines before a position, and the button for those before them."""
        view, over = await self._view(request)
        wanted = LogRange(CHUNK, end=request.query_params.get("end") or "0.0.0")
        part = (await self._log_parts.read(view, wanted, over=over)).part
        assert part is not None
        button = job_page.earlier_button(Parts(request), view, part.start, part.before) if part.before else ""
        return HTMLResponse(f"{button}{job_page.chunk(part.data, part)}")

    async def log_later(self, request: Request) -> Response:
        """Show the lines after a position, and the link to later ones or the live end."""
        view, over = await self._view(request)
        wanted = LogRange(CHUNK, start=request.query_params.get("start") or "0.0.0")
        found = await self._log_parts.read(view, wanted, over=over)
        assert found.part is not None
        return HTMLResponse(str(job_page.log_rest(Parts(request), view, found.part, over=found.is_over)))

    async def log_search(self, request: Request) -> Response:
        """Show the next lines in which an expression matches, or the last ones before a place."""
        view, over = await self._view(request)
        query = request.query_params
        regex, is_backward = query.get("q", ""), query.get("back") == "1"
        place = query.get("end" if is_backward else "start", "")
        result = await self._log_parts.search(view, regex, place, over=over, is_backward=is_backward)
        return HTMLResponse(str(job_page.search_result(Parts(request), view, regex, result, over=over)))

    async def log_tail(self, request: Request) -> Response:
        """Stream what is written from now on."""
        view, _ = await self._view(request)
        start = request.headers.get("last-event-id") or request.query_params.get("start", "")
        return StreamingResponse(self._log_tails.follow(view, start), media_type="text/event-stream")

    async def _view(self, request: Request) -> tuple[LogView, bool]:
        query = request.query_params
        handle = self._handle(request)
        number = query.get("replica", "0")
        replica = int(number) if number.isdecimal() and len(number) < 8 else 0
        view = job_page.LogView(handle, query.get("role", ""), replica, _stream(query.get("stream", "")))
        record = await self._record(handle)
        status, _ = await self._status(handle, record)
        return view, status.is_terminal()

    async def _log_body(self, parts: Parts, view: LogView, wanted: LogRange, *, over: bool) -> Node:
        found = await self._log_parts.read(view, wanted, over=over)
        if found.part is not None:
            return job_page.log_body(parts, view, found.part, over=found.is_over)
        assert found.copy is not None
        data = await self._log_parts.last_lines(view)
        return job_page.log_end(parts, view, data, found.copy.size(), found.copy.problem)

    # ---- metrics

    async def charts(self, request: Request) -> Response:
        """Show the metrics of several jobs, overlaid."""
        handles = [self._checked(text) for text in request.query_params.getlist("handle")]
        parts = Parts(request)
        if not handles:
            text = h.p(".note")["Select jobs in ", h.a(href="/")["the list"], ", and press Charts."]
            return HTMLResponse(parts.document("Charts", h.h1["Charts"], text))
        if len(handles) > MOST_COMPARED:
            raise UsageError(f"{MOST_COMPARED} jobs can be drawn together, not {len(handles)}")
        table = await self._compared(parts, request, handles, waits=False)
        return HTMLResponse(
            parts.document("Charts", h.h1["Charts"], table, job_page.charts_part(handles, live=True))
        )

    async def charts_jobs(self, request: Request) -> Response:
        """Show the table of the jobs that are drawn together alone."""
        handles = [self._checked(text) for text in request.query_params.getlist("handle")][:MOST_COMPARED]
        return HTMLResponse(str(await self._compared(Parts(request), request, handles, waits=True)))

    async def _compared(self, parts: Parts, request: Request, handles: Sequence[str], *, waits: bool) -> Node:
        """Return jobs as a table: arguments in which they differ, and metrics, if they were waited for."""
        records = [record for handle in handles if (record := await self._record(handle)) is not None]
        if not records:
            return None
        metrics = None
        chosen, order = (request.query_params.get(name, "") for name in ("metric", "order"))
        if waits:
            jobs = [await self._metrics_of(record.handle) for record in records]
            known = [job for job in jobs if job is not None]
            if len(known) == len(jobs):
                metrics = sweep_page.PointMetrics.of_jobs(known, chosen, order)
        page = url("/charts", handle=list(handles))
        part = url("/charts/jobs", handle=list(handles), metric=chosen, order=order)
        over = all(is_terminal(record.state) for record in records)
        rows = sweep_page.job_rows(records)
        return sweep_page.points_part(parts, page, part, rows, metrics, over=over, first="Job")

    async def _metrics_of(self, handle: str) -> Mapping[str, Sequence[Series]] | None:
        """Return the metrics of a job, none if they cannot be read; None while they are being read."""
        try:
            return await self._chart_data.of_job(
                handle, lambda reader, _: None if reader.is_reading else reader.by_name()
            )
        except (ShunterError, OSError, NotImplementedError, ValueError):  # the charts say why
            return {}

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of jobs, cut into buckets, as JSON."""
        handles = [self._checked(text) for text in request.query_params.getlist("handle")]
        by = "time" if request.query_params.get("by") == "time" else "step"
        handles = handles[:MOST_COMPARED]
        labels = {}
        if len(handles) > 1:
            records = [record for handle in handles if (record := await self._record(handle)) is not None]
            for record, values in zip(records, sweep_page.differing_values(records), strict=True):
                words = [record.app_id, *(f"{name}={text}" for name, text in values.items() if text)]
                labels[record.handle] = " ".join(words)[:MOST_LABEL]
        return JSONResponse(await self._chart_data.read(handles, by, labels))

    # ---- shared

    async def static(self, request: Request) -> Response:
        """Return a file of the pages: one of a table, so that no path leads elsewhere."""
        asset = ASSETS.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404, "There is no such file.")
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304)
        headers = {"etag": asset.tag, "cache-control": "private, no-cache"}
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    def _handle(self, request: Request) -> str:
        return self._checked(request.query_params.get("handle", ""))

    def _checked(self, handle: str) -> str:
        """Return a handle. Refuses handles of schedulers that do not exist."""
        if parse_app_handle(handle[:2000]).scheduler_backend not in self._schedulers:
            raise UnknownAppException(f"there is no scheduler for the job {handle[:200]!r}")
        return handle

    @staticmethod
    def _lane(handle: str) -> str:
        return handle.partition("://")[0]


class _Streamed(StreamingResponse):
    """An answer that breaks the connection if the rest of it cannot be read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (ShunterError, OSError):
            if "break_off" not in scope["state"]:  # see shunter.ui.connection_limits
                raise
            scope["state"]["break_off"]()


def _filter_of(form: dict[str, list[str]]) -> jobs_page.Wanted:
    from starlette.datastructures import QueryParams

    return jobs_page.Wanted(QueryParams([(name, value) for name, values in form.items() for value in values]))


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise UsageError("the form does not say which job is the last one")
    return int(text)


def _stream(text: str) -> str:
    return text if text in ("stdout", "stderr") else ""


def _chosen(request: Request, handle: str, replicas: Sequence[tuple[str, int]], default: str) -> LogView:
    """Return the log that is asked for, or else the default one, or the first."""
    role, _, number = request.query_params.get("place", default).rpartition("/")
    stream = _stream(request.query_params.get("stream", ""))
    for name, k in replicas:
        if (name, str(k)) == (role, number):
            return job_page.LogView(handle, name, k, stream)
    return job_page.LogView(handle, *replicas[0], stream)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return HTMLResponse(
        Parts(request).document("Not possible", problem(error.detail)), error.status_code, error.headers
    )


async def _problem(request: Request, error: Exception) -> Response:
    """Say what is wrong: a page, or a part of one where a part was asked for."""
    text = redact_text(described(error))
    hint = (error.hint or "") if isinstance(error, ShunterError) else ""
    code = 400 if isinstance(error, UsageError) else 502
    if isinstance(error, (UnknownAppException, ConfigError)):  # there is no such job, or no such file
        code = 404
    name = text.partition(" ")[0]
    shown = problem(text if "_" in name else text[:1].upper() + text[1:], hint)
    if request.headers.get("hx-request"):
        return HTMLResponse(str(shown), code)
    return HTMLResponse(Parts(request).document("Not possible", shown), code)
