"""Options of schedulers on which something of ours outlives the command that starts a job."""

from __future__ import annotations

from trainyard.errors import ConfigError
from trainyard.lazy_dataclass import dataclass
from trainyard.specs.limits import MOST_SECONDS
from trainyard.specs.options import option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What becomes of a job that hangs.
REPORT, STOP = "report", "stop"
ON_HANG = (REPORT, STOP)
_EXAMPLE = "Examples: https://hooks.example.com/ended, 'mail -s ended me@example.com'."


@dataclass
class NotifyOpts:
    """Whom to tell when the job has ended."""

    notify: list[str] | None = option(
        "whom to tell, once, when the job has ended: URLs, which get a JSON document by POST, and commands, "
        "which get it on stdin",
        default=None,
        sends="to",
    )
    notify_secret: str | None = option(
        "the secret with which notifications to URLs are signed (HMAC-SHA256); by default "
        "TRAINYARD_NOTIFY_SECRET, without which they are not signed",
        default=None,
        secret=True,
    )


@dataclass
class RetryOpts:
    """What is retried after which failures."""

    retry: dict[str, str] | None = option(
        "how often to start again by class of failure: oom=2:64G,node=3,preempted=inf,exception=0; "
        "of oom also how far the memory may grow, which doubles; classes that are not named: max_retries",
        default=None,
    )


@dataclass
class HangOpts:
    """When a job counts as hung, and what becomes of it then."""

    hang_timeout: float | None = option(
        "seconds without output, results or work of a GPU after which a replica counts as hung: the stacks "
        "of its processes are written to its log",
        default=None,
    )
    on_hang: str = option(
        "what becomes of a job with a hung replica: report (it is marked and goes on) or stop", default=REPORT
    )


def check_supervision(opts: Any) -> None:
    """Check these options of a scheduler that has some of them.

    Raises:
        ConfigError: one of them is wrong.
    """
    if retry := getattr(opts, "retry", None):
        from trainyard.specs.retries import parse_retries

        parse_retries(retry)
    limit = getattr(opts, "hang_timeout", None)
    if limit is not None and not 0 < limit <= MOST_SECONDS:
        raise ConfigError(f"hang_timeout is {limit:g}, it must be a number of seconds, more than 0")
    on_hang = getattr(opts, "on_hang", REPORT)
    if on_hang not in ON_HANG:
        raise ConfigError(f"on_hang is {on_hang!r}, it must be one of {', '.join(ON_HANG)}")
    if on_hang != REPORT and limit is None:
        raise ConfigError(
            f"on_hang={on_hang} needs hang_timeout, after which a replica counts as hung",
            hint="Set it: -cfg hang_timeout=SECONDS.",
        )
    for target in getattr(opts, "notify", None) or ():
        if not target.strip() or "\0" in target or _is_broken_url(target):
            raise ConfigError(f"notify: {target!r} is not a URL or a command", hint=_EXAMPLE)


def _is_broken_url(target: str) -> bool:
    if not target.lower().startswith(("http://", "https://")):
        return False
    from urllib.parse import urlsplit

    try:
        return not urlsplit(target).hostname
    except ValueError:
        return True
