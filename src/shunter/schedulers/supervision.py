"""Options of schedulers where some program of ours outlives the command that starts a job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from shunter.errors import ConfigError
from shunter.limits import MOST_SECONDS
from shunter.specs.options import CREDENTIALS, PROGRAM, option
from shunter.specs.retries import parse_retries

#: What to do with a job that hangs.
REPORT, STOP = "report", "stop"
ON_HANG = (REPORT, STOP)
_EXAMPLE = "Examples: https://hooks.example.com/ended, 'mail -s ended me@example.com'."


@dataclass
class StopOpts:
    """How and when replicas are stopped, where we stop them ourselves."""

    grace_period: float = option(
        "seconds between SIGTERM and SIGKILL when replicas are stopped", default=10.0
    )
    fail_fast: bool = option(
        "stop the other replicas when one has failed for good; by default they go on", default=False
    )


@dataclass
class NotifyOpts:
    """Who is notified when the job has ended."""

    notify: list[str] | None = option(
        "URLs and commands to notify once when the job has ended: URLs get a JSON document by POST, commands "
        "get it on stdin",
        default=None,
        needs_trust=PROGRAM,
    )
    notify_secret: str | None = option(
        "secret that signs notifications to URLs (HMAC-SHA256); by default SHUNTER_NOTIFY_SECRET; without "
        "either they are not signed",
        default=None,
        secret=True,
        needs_trust=CREDENTIALS,
    )


@dataclass
class RetryOpts:
    """Which failures are retried, and how often."""

    retry: dict[str, str] | None = option(
        "number of retries for each class of failure: oom=2:64G,node=3,preempted=inf,exception=0; after oom "
        "the memory doubles, up to the size after the colon; classes that are not named follow max_retries",
        default=None,
    )


@dataclass
class HangOpts:
    """When a replica counts as hung, and what happens then."""

    hang_timeout: float | None = option(
        "seconds without output, new results or GPU activity after which a replica counts as hung; the "
        "stacks of its processes are then written to its log",
        default=None,
    )
    on_hang: str = option(
        "what to do when a replica hangs: report (mark it and let the job go on) or stop", default=REPORT
    )


#: The prefix of a target that names a variable of the job, which contains the actual target.
IN_VARIABLE = "env:"


def check_supervision(opts: Any, *, in_job: bool = False) -> None:
    """Check these options of a scheduler that has some of them.

    Args:
        opts: the options.
        in_job: whether the notifier runs in the job, and so can read its variables.

    Raises:
        ConfigError: one of them is wrong.
    """
    if retry := getattr(opts, "retry", None):
        parse_retries(retry)
    limit = getattr(opts, "hang_timeout", None)
    if limit is not None and not 0 < limit <= MOST_SECONDS:
        raise ConfigError(f"hang_timeout is {limit:g}, it must be a number of seconds, more than 0")
    on_hang = getattr(opts, "on_hang", REPORT)
    if on_hang not in ON_HANG:
        raise ConfigError(f"on_hang is {on_hang!r}, it must be one of {', '.join(ON_HANG)}")
    if on_hang != REPORT and limit is None:
        raise ConfigError(
            f"on_hang={on_hang} needs hang_timeout, the time after which a replica counts as hung",
            hint="Set it: -cfg hang_timeout=SECONDS.",
        )
    for target in getattr(opts, "notify", None) or ():
        if not target.strip() or "\0" in target or _is_broken_url(target):
            raise ConfigError(f"notify: {target!r} is not a URL or a command", hint=_EXAMPLE)
        if target.startswith(IN_VARIABLE) and not in_job:
            raise ConfigError(
                f"notify: {target!r} is a variable of the job, which only the job itself could read",
                hint="Give the URL or command: on this scheduler no other user can read it.",
            )


def _is_broken_url(target: str) -> bool:
    """Tell whether a target is a URL to which nothing can be sent: of another scheme, without host, ..."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.\-]*://", target) is None:
        return False
    try:
        parts = urlsplit(target)
        port = parts.port
    except ValueError:  # a port that is not a number, or too large
        return True
    return parts.scheme not in ("http", "https") or not parts.hostname or port == 0
