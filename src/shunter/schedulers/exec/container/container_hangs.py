"""Detects hung containers: no output and no GPU activity for some time. Their stacks go to their logs.

The watcher calls `check` several times within that time. A finding is stored as a marker of the job, so that
it is reported only once and the next watcher knows about it.
"""

from __future__ import annotations

import io
import tarfile
import time

from shunter._toolkit import stack_dump
from shunter.backoff import Backoff
from shunter.docker.daemon_errors import EngineError
from shunter.docker.engine import Engine
from shunter.schedulers.exec import reasons
from shunter.schedulers.exec.container import inventory
from shunter.schedulers.exec.container.inventory import Container, Job
from shunter.schedulers.exec.container.logs import lines_since, time_ns

#: How often containers are checked within the time after which they count as hung.
CHECKS = 8
#: Seconds that writing the stacks of a container may take.
DUMP_SECONDS = 60.0
#: Where the module is that makes Python processes write their stacks.
PYTHON_DIR = "/opt/shunter-python"

# Runs in the container as root, privileged if possible. Uses what every image has, and py-spy if it exists.
_SCRIPT = r"""
exec >>/proc/1/fd/2 2>/dev/null || exit 1
echo "shunter: $1; the stacks of its processes:"
for place in /proc/[0-9]*; do
    pid=${place#/proc/}
    [ "$pid" != 1 ] && [ "$pid" != "$$" ] || continue
    words=$(tr '\000\n' '  ' <"$place/cmdline")
    [ -n "$words" ] || continue
    echo "--- process $pid: $words"
    if command -v py-spy >/dev/null && py-spy dump --pid "$pid"; then continue; fi
    caught=$(sed -n 's/^SigCgt:[^0-9a-f]*//p' "$place/status")
    if tr '\000' '\n' <"$place/environ" | grep -qx "$3=$2"; then
        case $caught in [13579bdf]???????????????) kill -"$2" "$pid" && sleep 1 && continue ;; esac
    fi
    for task in "$place"/task/*; do
        state=$(sed -n 's/^State:[^A-Z]*//p' "$task/status")
        echo "  thread ${task##*/} ($(cat "$task/comm")): $state, waits in $(cat "$task/wchan")"
        sed 's/^/    /' "$task/stack"
    done
done
echo "shunter: end of the stacks"
"""


def check(engine: Engine, job: Job) -> None:
    """Mark the running containers of a job that hang, and the job if it has to end.

    Raises:
        EngineError: the daemon refuses something.
        EngineUnavailableError: the daemon does not answer.
    """
    assert job.hang_timeout is not None
    known = {(m.facts["container"], m.facts["started"]) for m in job.markers if m.kind == inventory.HUNG}
    for container in job.containers:
        if container.state != "running" or (container.name, container.started) in known:
            continue
        silent = time.time() - last_sign(engine, container) / 1e9
        if silent < job.hang_timeout or stack_dump.gpu_at_work(None):
            continue
        seconds = f"{job.hang_timeout:g}"
        found = f"no output for {seconds} s and no GPU activity"
        problem = write_stacks(engine, container.id, found)
        stacks = f"its stacks cannot be read: {problem}" if problem else "its log has the stacks"
        number = 1 + sum(m.kind == inventory.HUNG for m in job.markers)
        facts = {
            "container": container.name,
            "started": container.started,
            "culprit": f"{container.role}/{container.replica}",
            "note": f"it hung: {found}; {stacks}",
            "at": time.time_ns(),
        }
        inventory.make_marker(engine, job.app_id, f"{inventory.HUNG}-{number}", facts)
        if job.stops_on_hang:
            end = {"reason": reasons.HUNG, "detail": seconds, "at": time.time_ns()}
            inventory.make_marker(engine, job.app_id, inventory.STOPPED, end)
        return  # the next look sees the marker


def last_sign(engine: Engine, container: Container) -> int:
    """Return when a container last wrote something, or was started, nanoseconds since the epoch."""
    lines = lines_since(engine, container.id, container.started, 1)
    return max([container.started, *(time_ns(stamp) for stamp, _ in lines)])


def write_stacks(engine: Engine, container: str, headline: str) -> str:
    """Write the stacks of a container's processes to its log; returns what went wrong, or "".

    Stacks of the kernel and those that py-spy reads need privileges, which not every daemon can give.
    """
    words = ["sh", "-c", _SCRIPT, "sh", headline, str(int(stack_dump.SIGNAL)), stack_dump.VARIABLE]
    problem = ""
    for is_privileged in (True, False):
        body = {"Cmd": words, "User": "0", "Privileged": is_privileged}
        try:
            made = engine.request("POST", f"/containers/{container}/exec", json=body)
            engine.request("POST", f"/exec/{made['Id']}/start", json={"Detach": True})
        except EngineError as error:
            problem = error.message
            continue
        polls = Backoff(0.1, 1.0, jitter=0, limit=DUMP_SECONDS).start()
        while engine.request("GET", f"/exec/{made['Id']}/json").get("Running") and polls.pause():
            pass
        return ""
    return problem


def handler_archive() -> bytes:
    """Return a tar archive with the module that containers get in `PYTHON_DIR`."""
    buffer = io.BytesIO()
    content = stack_dump.HANDLER.encode()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo(PYTHON_DIR.strip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        entry = tarfile.TarInfo(f"{PYTHON_DIR.strip('/')}/{stack_dump.HANDLER_FILE}")
        entry.size, entry.mode = len(content), 0o644
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
