"""Program of the process that looks after a job of several replicas, or with a time limit.

It applies retry policies of groups, fail_fast, the time limit and cancellations, and removes the job's
network at the end. All that it knows it reads from the daemon, so it may be killed at any time: the next
command that looks at the job starts another. It sleeps until the daemon tells of an event, or somebody
connects to its socket.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run as a script, so that it starts without `site`; its own folder is of no use
    sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))

import math
import threading
import time

from trainyard.docker.engine import Engine, EngineError, EngineUnavailableError
from trainyard.schedulers.exec.container import inventory, reasons, spawn
from trainyard.schedulers.exec.container.events import Events
from trainyard.schedulers.exec.container.judge import LAUNCH, MARK, STOP, Step, judge, submitter_is_alive
from trainyard.schedulers.exec.container.parallel import for_all
from trainyard.schedulers.exec.container.remove import networks_of_jobs, remove_networks

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from trainyard.schedulers.exec.container.inventory import Container, Job

#: Beyond the grace period, the time that the daemon may take to kill a container.
STOP_SECONDS = 120.0
#: After a step that failed it is tried again so many seconds later.
RETRY_SECONDS = 1.0
#: Between two attempts to have a network, while there is none.
NETWORK_SECONDS = 1.0
#: A daemon that has been away for so long is not waited for. A later look at the job starts another.
GIVE_UP_SECONDS = 3600.0


def main(app_id: str) -> None:
    """Watch a job to its end, unless somebody else does."""
    door = spawn.open_door(app_id)
    if door is None:
        spawn.knock(app_id)
        return
    engine = Engine.from_env()
    with Events(engine, app_id) as events:
        threading.Thread(target=_answer, args=(door, events), daemon=True).start()
        watch(engine, app_id, events)
    os._exit(0)  # threads that wait are not waited for


def watch(engine: Engine, app_id: str, events: Events) -> None:
    """Do what has to be done for a job, until there is nothing more to do."""
    watched_submitter = False
    last_seen = time.monotonic()
    while time.monotonic() - last_seen < GIVE_UP_SECONDS:
        seen = events.count()
        timeout = None
        try:
            job = inventory.load_job(engine, app_id)
            if job is None:
                remove_networks(engine, app_id)
                return
            last_seen = math.inf  # it is there; what counts is how long it has been away
            verdict = judge(job, submitter_is_alive)
            if verdict.is_over:
                remove_networks(engine, app_id)
                return
            done = [_do(engine, job, step) for step in verdict.steps]
            if done and all(done):
                continue
            if done:
                timeout = NETWORK_SECONDS
            if verdict.deadline is not None:
                timeout = max(0.0, verdict.deadline - time.time())
            if not watched_submitter:
                watched_submitter = True
                _watch_submitter(job, events)
        except EngineUnavailableError:
            # the events' thread looks for the daemon, and wakes us whenever it has done so
            last_seen = min(last_seen, time.monotonic())
        except EngineError:
            timeout = RETRY_SECONDS
        events.wait(seen, timeout)


def _do(engine: Engine, job: Job, step: Step) -> bool:
    """Do a step; returns False if it has to wait."""
    if step.kind == MARK:
        inventory.make_marker(engine, job.app_id, step.name, step.name.partition("-")[0], step.facts)
    elif step.kind == STOP:
        for_all(lambda container: _stop(engine, container, job.grace), step.containers)
    elif step.kind == LAUNCH and not _has_network(engine, job):
        return False
    else:
        _start(engine, job, step.containers)
    return True


def _has_network(engine: Engine, job: Job) -> bool:
    """Make the network of a job that waits for it; returns False if there are no addresses for it yet."""
    from trainyard.docker.engine import NoSubnetLeftError
    from trainyard.schedulers.exec.container.submission import make_job_network

    if networks_of_jobs(engine, job.app_id):
        return True
    try:
        make_job_network(engine, job.app_id, len(job.containers))
    except NoSubnetLeftError:
        return False
    return True


def _stop(engine: Engine, container: Container, grace: float) -> None:
    """SIGTERM, and SIGKILL after the grace period; the daemon does both, and restarts nothing then."""
    seconds = math.ceil(grace)
    params = {"t": seconds}
    try:
        engine.request(
            "POST", f"/containers/{container.id}/stop", params=params, timeout=seconds + STOP_SECONDS
        )
    except EngineError as error:
        if error.status not in (304, 404, 409):
            raise


def _start(engine: Engine, job: Job, containers: list[Container]) -> None:
    """Start containers that wait for it, or have ended; if one cannot be, the job has failed."""

    def start(container: Container) -> None:
        try:
            engine.request("POST", f"/containers/{container.id}/start", timeout=STOP_SECONDS)
        except EngineError as error:
            facts = {
                "reason": reasons.NOT_STARTED,
                "detail": f"{container.role}/{container.replica}: {error.message}"[:500],
                "at": time.time_ns(),
            }
            inventory.make_marker(engine, job.app_id, inventory.STOPPED, inventory.STOPPED, facts)

    first, *others = containers
    start(first)
    for_all(start, others)


def _answer(door: socket.socket, events: Events) -> None:
    """Take a knock for an event. Visitors may stay, to see when this process ends."""
    import select

    poll = select.poll()
    poll.register(door, select.POLLIN)
    visitors: dict[int, socket.socket] = {}
    while True:
        for handle, _ in poll.poll():
            if handle in visitors:  # it says nothing, so it has left
                poll.unregister(handle)
                visitors.pop(handle).close()
                continue
            visitor, _ = door.accept()
            visitors[visitor.fileno()] = visitor
            poll.register(visitor, select.POLLIN)
            events.wake()


def _watch_submitter(job: Job, events: Events) -> None:
    """Wake up when the process that submits the job ends: if it is killed half-way, the rest is ours."""
    from trainyard.schedulers.exec.container import labels
    from trainyard.system.identity import Process, host_name
    from trainyard.system.processes import wait_for_end

    process = Process.parse(job.labels.get(labels.SUBMITTER, ""))
    if process is None or job.labels.get(labels.HOST) != host_name() or not process.is_alive():
        return

    def wait() -> None:
        wait_for_end(process)
        events.wake()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
