"""Show what jobs recorded with a tracker: metadata, artifacts, and the runs that they build on.

shunter tracker list jobs                  the runs that are known
shunter tracker list metadata RUN          the facts that a run recorded
shunter tracker list artifacts RUN         the files and directories that a run made
shunter tracker list lineage RUN           what a run builds on, and which runs build on it

RUN is the handle of a job, the beginning of its id, or - for the latest. Trackers are set up in the
configuration ([tracker.fsspec] of shunter.toml, [torchx:tracker] of .torchxconfig).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from shunter._toolkit.tracking import runs
from shunter.cli.console import out, print_json, table
from shunter.cli.parser import add_json_option, complete_with
from shunter.errors import (
    EXIT_OK,
    BackendError,
    ConfigError,
    ShunterError,
    UnknownAppException,
    UsageError,
    did_you_mean,
)
from shunter.runner import get_runner
from shunter.runner.config import load_config
from shunter.terminal import clean
from shunter.tracker.api import TrackerBase

SUBJECTS = ("jobs", "metadata", "artifacts", "lineage")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", metavar="list", help="what to do")
    parser.add_argument(
        "subject", nargs="?", default="jobs", metavar="|".join(SUBJECTS), help="what to list (default: jobs)"
    )
    complete_with(parser.add_argument("run", nargs="?", metavar="RUN", help="the job"), "job_completer")
    parser.add_argument("--tracker", metavar="NAME", help="which tracker to ask (default: the first)")
    parser.add_argument(
        "--parent-run-id", "--parent_run_id", metavar="RUN", help="jobs: only those that build on this run"
    )
    parser.add_argument("--artifact", metavar="NAME", help="artifacts, lineage: only those with this name")
    parser.add_argument("--sources-only", action="store_true", help="lineage: only what the run builds on")
    parser.add_argument(
        "--descendants-only", action="store_true", help="lineage: only what builds on the run"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    _check(args)
    tracker = _tracker(args.tracker)
    try:
        if args.subject == "jobs":
            _show_jobs(args, tracker)
        else:
            show = {"metadata": _show_metadata, "artifacts": _show_artifacts, "lineage": _show_lineage}
            show[args.subject](args, tracker, _run_id(args.run))
    except ShunterError:
        raise
    except Exception as error:  # a tracker is a plugin, or a library's client
        if isinstance(error, (AttributeError, NameError, TypeError)) and not isinstance(error, OSError):
            raise
        raise BackendError(f"the tracker cannot be read: {type(error).__name__}: {error}") from error
    return EXIT_OK


def _check(args: Namespace) -> None:
    if args.action != "list":
        raise UsageError(
            f"the action must be list, not {args.action!r}",
            hint="Example: shunter tracker list jobs",
        )
    if args.subject not in SUBJECTS:
        raise UsageError(
            f"the subject must be one of {', '.join(SUBJECTS)}, not {args.subject!r}",
            hint=did_you_mean(args.subject, SUBJECTS),
        )
    if args.subject == "jobs" and args.run:
        raise UsageError("`tracker list jobs` takes no job", hint="Did you mean --parent-run-id RUN?")
    if args.subject != "jobs" and not args.run:
        raise UsageError(
            f"`tracker list {args.subject}` needs a job: its handle, the beginning of its id, or -"
        )
    if args.sources_only and args.descendants_only:
        raise UsageError("--sources-only and --descendants-only are mutually exclusive")


def _tracker(wanted: str | None) -> TrackerBase:
    configured = load_config().trackers()
    if not configured:
        raise ConfigError(
            "no tracker is configured",
            hint='In shunter.toml: [tracker.fsspec] and config = "/path/or/url/of/the/runs".',
        )
    name = wanted or next(iter(configured))
    if name not in configured:
        raise ConfigError(
            f"the tracker {name!r} is not configured; configured: {', '.join(configured)}",
            hint=did_you_mean(name, configured),
        )
    try:
        made = list(runs.build_trackers({name: configured[name]}))
    except runs.ConfigError as error:
        raise ConfigError(str(error)) from error
    if not made:
        raise ConfigError(
            f"there is no tracker {name!r}: it is not built in, not an entry point, and not of the form "
            "module:function"
        )
    return made[0]


def _run_id(text: str) -> str:
    """Return the run that a user names: a job of the history, or else the text itself."""
    if "://" in text:
        return text
    with get_runner() as runner:
        try:
            return runner.resolve_handle(text)
        except UnknownAppException:
            return text


def _show_jobs(args: Namespace, tracker: TrackerBase) -> None:
    parent = {"parent_run_id": _run_id(args.parent_run_id)} if args.parent_run_id else {}
    found = list(tracker.run_ids(**parent))
    if args.json:
        print_json(found)
    else:
        out(table(("JOB ID",), [[clean(run_id)] for run_id in found]))


def _show_metadata(args: Namespace, tracker: TrackerBase, run_id: str) -> None:
    found = dict(tracker.metadata(run_id))
    if args.json:
        print_json(found)
    else:
        out(table(("ID", "VALUE"), [[clean(key), clean(str(value))] for key, value in found.items()]))


def _show_artifacts(args: Namespace, tracker: TrackerBase, run_id: str) -> None:
    found = [each for each in tracker.artifacts(run_id).values() if args.artifact in (None, each.name)]
    if args.json:
        print_json([vars(each) for each in found])
        return
    rows = [[clean(each.name), clean(each.path), clean(str(each.metadata or ""))] for each in found]
    out(table(("ARTIFACT", "PATH", "METADATA"), rows))


def _show_lineage(args: Namespace, tracker: TrackerBase, run_id: str) -> None:
    sources: list[Any] = [] if args.descendants_only else list(tracker.sources(run_id, args.artifact))
    descendants = [] if args.sources_only else _descendants(tracker, run_id, args.artifact)
    if args.json:
        shown = {"sources": [vars(each) for each in sources], "descendants": descendants}
        dropped = {"sources": args.descendants_only, "descendants": args.sources_only}
        print_json({key: value for key, value in shown.items() if not dropped[key]})
        return
    rows = [["source", clean(each.source_run_id), clean(each.artifact_name or "")] for each in sources]
    rows += [["descendant", clean(each), clean(args.artifact or "")] for each in descendants]
    out(table(("RELATION", "JOB ID", "ARTIFACT"), rows))


def _descendants(tracker: TrackerBase, run_id: str, artifact: str | None) -> list[str]:
    found = list(tracker.run_ids(parent_run_id=run_id))
    if artifact is None:
        return found
    return [
        each
        for each in found
        if any(source.source_run_id == run_id for source in tracker.sources(each, artifact))
    ]
