"""Show what jobs recorded with a tracker: metadata, artifacts, and the runs that they build on.

shunter tracker list jobs                  the runs that are known
shunter tracker list metadata RUN          the facts that a run recorded
shunter tracker list artifacts RUN         the files and directories that a run made
shunter tracker list lineage RUN           what a run builds on, and which runs build on it

RUN is the handle of a job, the beginning of its id, or - for the latest. Trackers are set up in the
configuration ([tracker.fsspec] of shunter.toml, [torchx:tracker] of .torchxconfig).
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from shunter._toolkit.tracking import runs
from shunter.cli.console import print_result, table
from shunter.cli.parser import Parser, add_json_option
from shunter.errors import (
    BackendError,
    ConfigError,
    ShunterError,
    UnknownAppException,
    UsageError,
    did_you_mean,
)
from shunter.runner import get_runner
from shunter.runner.config import load_config
from shunter.tracker.api import TrackerBase

#: What can be listed, and the headers of its table.
SUBJECTS = {
    "jobs": ("JOB ID",),
    "metadata": ("ID", "VALUE"),
    "artifacts": ("ARTIFACT", "PATH", "METADATA"),
    "lineage": ("RELATION", "JOB ID", "ARTIFACT"),
}
Rows = list[tuple[Any, ...]]


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "action", nargs="?", default="list", choices=["list"], metavar="list", help="what to do"
    )
    parser.add_argument(
        "subject",
        nargs="?",
        default="jobs",
        choices=list(SUBJECTS),
        metavar="|".join(SUBJECTS),
        help="what to list (default: jobs)",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="the job", completer="job_completer")
    parser.add_argument("--tracker", metavar="NAME", help="which tracker to ask (default: the first)")
    parser.add_argument("--parent-run-id", metavar="RUN", help="jobs: only those that build on this run")
    parser.add_argument("--artifact", metavar="NAME", help="artifacts, lineage: only those with this name")
    add_json_option(parser)


def run(args: Namespace) -> None:
    if args.subject == "jobs" and args.run:
        raise UsageError("`tracker list jobs` takes no job", hint="Did you mean --parent-run-id RUN?")
    if args.subject != "jobs" and not args.run:
        raise UsageError(
            f"`tracker list {args.subject}` needs a job: its handle, the beginning of its id, or -"
        )
    tracker = _tracker(args.tracker)
    try:
        data, rows = _look_up(args, tracker)
    except (ShunterError, AttributeError, NameError, TypeError):
        raise
    except Exception as error:  # a tracker is a plugin, or a library's client
        raise BackendError(f"the tracker cannot be read: {type(error).__name__}: {error}") from error
    texts = [[str(cell or "") for cell in row] for row in rows]
    print_result(args.json, data, [table(SUBJECTS[args.subject], texts)])


def _tracker(name: str | None) -> TrackerBase:
    configured = load_config().trackers()
    if not configured:
        raise ConfigError(
            "no tracker is configured",
            hint='In shunter.toml: [tracker.fsspec] and config = "/path/or/url/of/the/runs".',
        )
    name = name or next(iter(configured))
    if name not in configured:
        raise ConfigError(
            f"the tracker {name!r} is not configured; configured: {', '.join(configured)}",
            hint=did_you_mean(name, configured),
        )
    try:
        for tracker in runs.build_trackers({name: configured[name]}):
            return tracker
    except runs.ConfigError as error:
        raise ConfigError(str(error)) from error
    raise ConfigError(
        f"there is no tracker {name!r}: it is not built in, not an entry point, and not of the form "
        "module:function"
    )


def _run_id(text: str) -> str:
    """Return the run that a user names: a job of the history, or else the text itself."""
    try:
        with get_runner() as runner:
            return text if "://" in text else runner.resolve_handle(text)
    except UnknownAppException:
        return text


def _look_up(args: Namespace, tracker: TrackerBase) -> tuple[Any, Rows]:
    """Return what is asked for as JSON values, and as rows of a table."""
    if args.subject == "jobs":
        parent = {"parent_run_id": _run_id(args.parent_run_id)} if args.parent_run_id else {}
        run_ids = list(tracker.run_ids(**parent))
        return run_ids, [(run_id,) for run_id in run_ids]
    run_id = _run_id(args.run)
    if args.subject == "metadata":
        metadata = dict(tracker.metadata(run_id))
        return metadata, [(key, str(value)) for key, value in metadata.items()]
    if args.subject == "artifacts":
        artifacts = [a for a in tracker.artifacts(run_id).values() if args.artifact in (None, a.name)]
        return [vars(a) for a in artifacts], [(a.name, a.path, a.metadata) for a in artifacts]
    sources = list(tracker.sources(run_id, args.artifact))
    descendants = list(tracker.run_ids(parent_run_id=run_id))
    if args.artifact is not None:

        def uses_artifact(descendant: str) -> bool:
            return any(s.source_run_id == run_id for s in tracker.sources(descendant, args.artifact))

        descendants = list(filter(uses_artifact, descendants))
    rows: Rows = [("source", source.source_run_id, source.artifact_name) for source in sources]
    rows += [("descendant", descendant, args.artifact) for descendant in descendants]
    return {"sources": [vars(source) for source in sources], "descendants": descendants}, rows
