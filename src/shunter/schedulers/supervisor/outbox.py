"""The notifications of a job of this machine: a private document, and starting the program that sends them.

The process that sees the job end starts the program: a supervisor, or the next command that asks for the job.
A lock lets only one of them send. The toolkit's `notification` has what is sent, once for each target.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from shunter._toolkit import notification
from shunter.system.locks import is_locked

#: The document while there is something to send (with the secret, mode 0600), and afterwards.
WAITING, SETTLED = "notify.waiting.json", "notify.json"
LOG = "notify.log"
SECRET_VARIABLE = "SHUNTER_NOTIFY_SECRET"
#: The program that sends; nothing is imported from it here.
SENDER = os.path.join(os.path.dirname(__file__), *[os.pardir] * 2, "why", "notifying.py")

#: Through a shell that exits at once, so that the sender is not a child of this process, and outlives it.
_DETACH = 'cd / && "$0" -P "$1" "$2" </dev/null >>"$3" 2>&1 &'


def prepare(directory: str, handle: str, targets: Sequence[str], secret: str | None) -> None:
    """Record the targets to notify when a job has ended.

    Args:
        directory: the job's, which exists and is private.
        handle: the job.
        targets: URLs and commands.
        secret: signs requests to URLs; by default the one of the environment.

    Raises:
        OSError: it cannot be written.
    """
    document = {
        "handle": handle,
        "cwd": os.getcwd(),
        "targets": notification.new_targets(list(targets)),
        "secret": secret or os.environ.get(SECRET_VARIABLE) or "",
    }
    path = os.path.join(directory, WAITING)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(document))


def send_if_waiting(directory: str) -> None:
    """Start the sender of a job that has ended, unless nothing is to be sent or a sender is running."""
    path = os.path.join(directory, WAITING)
    if not os.path.exists(path) or is_locked(path + ".lock"):
        return
    log = os.path.join(directory, LOG)
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _DETACH, sys.executable, os.path.abspath(SENDER), directory, log],
            os.environ,
            setsid=True,
        )
        os.waitpid(pid, 0)
    except OSError:  # the next command that asks for the job tries again
        pass
