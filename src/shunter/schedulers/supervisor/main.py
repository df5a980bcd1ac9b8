"""Program of a job's supervisor: detaches, and waits for the job.

It is started as ``python main.py MODULE:CLASS PACKAGES waiting``; PACKAGES is a directory for ``sys.path``.
It loads while the job is being prepared. It writes its identity to standard error, reads a plan from standard
input (without a whole one it ends), and writes READY to standard error as soon as it runs the job, or else
why it does not. It does not care whether the command still hears that. The plan comes through standard input,
with all secrets in it, and is never written to a disk. The class names the class of its jobs in
``job_class``; its constructor takes the job and its plan, and it has a method ``run``.

Nothing watches this process. If it is killed, the kernel kills the replicas (`system.die_with_parent`), and
the next process that looks at the job ends what they have left behind and writes the end (`recovery`).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run as a script, so that it may start without `site`
    sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    sys.path.append(sys.argv[2])

import json
from importlib import import_module
from typing import Any, NoReturn

from shunter import system
from shunter.schedulers.supervisor import outbox
from shunter.schedulers.supervisor.job_directory import JobDirectory, log_exception
from shunter.schedulers.supervisor.start import READY
from shunter.system import processes
from shunter.system.identity import myself

LONGEST_PATH = 300


def main() -> NoReturn:
    """Detach from the command, wait for a job, and run it to its end."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # files that the command has open do not belong to the job
    if os.fork() != 0:
        os._exit(0)
    module, _, attribute = sys.argv[1].partition(":")
    supervisor_class: Any = getattr(import_module(module), attribute)
    system.become_subreaper()
    answer = os.dup(2)
    _tell(answer, f"{myself()}\n")
    with open(0, "rb", closefd=False) as stdin:
        data = stdin.read()
    try:
        plan = json.loads(data.decode())
    except ValueError:  # the command has no job, or was killed while it handed one over
        os._exit(0)
    os._exit(_run(supervisor_class, plan, answer))


def _run(supervisor_class: Any, plan: dict[str, Any], answer: int) -> int:
    """Make the supervisor, say that it is ready, and run the job; returns an exit code."""
    job: JobDirectory = supervisor_class.job_class(plan["job_dir"])
    code = 1
    try:
        try:
            _redirect_output(job.file("supervisor.log"))
            system.set_title(f"shunter: supervisor of {job.name}")
            supervisor = supervisor_class(job, plan)
        except OSError as error:
            path = error.filename or job.path
            shown = path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}..."
            _tell(answer, f"cannot write {shown}: {error.strerror}")
            return code
        _tell(answer, READY.decode())
        os.close(answer)
        answer = -1
        supervisor.run()
        code = 0
    except BaseException as error:
        log_exception()
        if answer >= 0:
            _tell(answer, f"its supervisor ended before it was ready: {type(error).__name__}: {error}")
    processes.kill_descendants()
    if code == 0:
        outbox.send_if_waiting(job.path)
    return code


def _redirect_output(path: str) -> None:
    """Redirect standard input from /dev/null, and append output and errors to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)


def _tell(answer: int, text: str) -> None:
    """Answer the command, if it is still there."""
    try:
        os.write(answer, text.encode("utf-8", "surrogateescape"))
    except OSError:
        pass


if __name__ == "__main__":
    main()
