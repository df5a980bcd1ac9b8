"""Run one command and report, as a line of JSON on stdout, how long it took and what it used.

``python -I -S spawn.py STDOUT STDERR COMMAND...``. It is a program of its own, and imports next to nothing,
because Linux counts the memory of the process that makes a child into the child's peak.
"""

import json
import os
import sys
import time


def main() -> None:
    out, err, *command = sys.argv[1:]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.set_inheritable(1, False)  # a job that outlives the command must not hold the report's pipe open
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, out, flags, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, err, flags, 0o600),
    ]
    started_at = time.time()
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - start
    report = {
        "started_at": started_at,
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak_kib": usage.ru_maxrss,
        "code": os.waitstatus_to_exitcode(status),
    }
    sys.stdout.write(json.dumps(report))


main()
