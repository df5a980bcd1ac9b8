"""The watcher of a job: its program, and starting and waking it.

It keeps samples of what the job's containers use. For a job of several replicas, or with a time limit, it
applies retry policies of groups, fail_fast, the time limit and cancellations, and removes the job's
network at the end. It reads everything that it knows from the daemon, so it may be killed at any time: the
next command that asks for the job starts another. It sleeps until the daemon reports an event, or a client
connects to its socket.

Only one process at a time has a job's door (`watcher_door`), which is free again when that process ends. A
connection wakes the watcher, and ends when it ends.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run as a script, so that it starts without `site`; its folder holds no packages
    sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))

import contextlib
import math
import select
import socket
import threading
import time
from signal import SIGCONT

from shunter import system
from shunter.docker.daemon_errors import EngineError, EngineUnavailableError, NoSubnetLeftError
from shunter.docker.engine import Engine
from shunter.errors import BackendError
from shunter.parallel import for_all
from shunter.schedulers.exec import outbox, reasons
from shunter.schedulers.exec.container import container_hangs, inventory, labels
from shunter.schedulers.exec.container.container_usage import ContainerSampler
from shunter.schedulers.exec.container.inventory import Container, Job
from shunter.schedulers.exec.container.job_events import JobEvents
from shunter.schedulers.exec.container.judge import DECIDE, LAUNCH, MARK, STOP, Step, judge
from shunter.schedulers.exec.container.retry_step import decide, memory_for
from shunter.schedulers.exec.container.watcher_door import (
    connect_to_watcher,
    forget_door,
    is_own,
    open_door,
    pid_of_watcher,
)
from shunter.system.identity import Process
from shunter.system.processes import wait_for_end

ENDING_MS = 10_000
#: Seconds until a process looks again at a door that another one is about to open.
DOOR_SECONDS = 0.05
#: The shell starts it in the background and exits at once, so that it is not a child of this process.
_DETACH = 'exec "$PYTHON" -I -S "$WATCHER" "$JOB" </dev/null >/dev/null 2>&1 &'
#: For a job that needs it only for samples: it starts later, so that very short jobs cost next to nothing.
_SAMPLE_LATER = '{ sleep 2; exec "$PYTHON" -I -S "$WATCHER" "$JOB" samples; } </dev/null >/dev/null 2>&1 &'
#: The time that the daemon may take to kill a container after the grace period.
STOP_SECONDS = 120.0
#: Seconds until a step that failed is tried again.
RETRY_SECONDS = 1.0
#: Seconds between two attempts to make a network.
NETWORK_SECONDS = 1.0
#: How long a daemon that went away is waited for. After that, the next command that asks for the job starts a
#: watcher.
GIVE_UP_SECONDS = 3600.0


# ---- starting and waking a job's watcher


def ensure_watcher(engine: Engine, app_id: str) -> None:
    """Wake a job's watcher, or start one if it has none.

    Raises:
        BackendError: it cannot be started.
    """
    if wake_watcher(app_id):
        return
    try:
        _spawn(engine, app_id, _DETACH)
    except OSError as error:
        raise BackendError(f"cannot start the watcher of {app_id}: {error}") from error


def sample_later(engine: Engine, app_id: str) -> None:
    """Start the watcher of a job that needs it for samples alone; the job does not depend on it."""
    with contextlib.suppress(OSError):
        _spawn(engine, app_id, _SAMPLE_LATER)


def _spawn(engine: Engine, app_id: str, script: str) -> None:
    own = {"PYTHON": sys.executable, "WATCHER": os.path.abspath(__file__), "JOB": app_id}
    environ = {**os.environ, **engine.environ(), **own}
    os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", script], environ, setsid=True), 0)


def wake_watcher(app_id: str) -> bool:
    """Wake a job's watcher, even if it is stopped (SIGSTOP); returns False if the job has none."""
    connection = connect_to_watcher(app_id)
    if connection is None:
        return False
    with connection:
        if _is_ending(app_id, connection):
            return False
        pid = pid_of_watcher(app_id, connection)
        try:
            if pid:
                os.kill(pid, SIGCONT)
        except OSError:  # it has just ended
            pass
        return True


def _is_ending(app_id: str, connection: socket.socket) -> bool:
    """Tell whether the watcher at the other end is about to end: killed, its files not yet closed."""
    facts = system.process_facts(pid_of_watcher(app_id, connection))
    return facts is None or facts.status == "ending"


# ---- the watcher's program


def main(app_id: str, purpose: str = "") -> None:
    """Watch a job to its end, unless another process does.

    Args:
        app_id: id of the job.
        purpose: "samples" if the job needs nothing else; then a daemon that went away is not waited for.
    """
    listener = _become_watcher(app_id)
    if listener is None:
        wake_watcher(app_id)
        return
    patience = 0.0 if purpose == "samples" else GIVE_UP_SECONDS
    engine = Engine.from_env()
    with JobEvents(engine, app_id) as events:
        threading.Thread(target=_serve, args=(listener, events), daemon=True).start()
        watch(engine, app_id, events, patience)
    forget_door(app_id)
    os._exit(0)  # without waiting for threads


def _become_watcher(app_id: str) -> socket.socket | None:
    """Return the socket of a job's only watcher, or None if another process has it."""
    while True:
        listener = open_door(app_id)
        if listener is not None or not _has_vanished(app_id):
            return listener
        time.sleep(DOOR_SECONDS)


def _has_vanished(app_id: str) -> bool:
    """Tell whether a job's watcher was about to end, and has ended now: its socket is closed last."""
    connection = connect_to_watcher(app_id)
    if connection is None:
        return True
    with connection:
        if not _is_ending(app_id, connection):
            return False
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(ENDING_MS))


def _serve(listener: socket.socket, events: JobEvents) -> None:
    """Wake up at every connection. Clients may stay connected, to see when this process ends."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for handle, _ in poll.poll():
            if handle in connections:  # clients never send anything, so it has left
                poll.unregister(handle)
                connections.pop(handle).close()
                continue
            connection, _ = listener.accept()
            if not is_own(connection):
                connection.close()
                continue
            connections[connection.fileno()] = connection
            poll.register(connection, select.POLLIN)
            events.wake()


def watch(engine: Engine, app_id: str, events: JobEvents, patience: float = GIVE_UP_SECONDS) -> None:
    """Take the steps that a job needs, until it needs no more."""
    watched_submitter = False
    sampler: ContainerSampler | None = None
    last_seen = math.inf  # what counts is how long the daemon has been away
    while time.monotonic() - last_seen <= patience:
        seen = events.count()
        timeout = None
        try:
            job = inventory.load_job(engine, app_id)
            last_seen = math.inf
            judgement = None if job is None else judge(job)
            if job is None or judgement is None or judgement.is_over:
                inventory.remove_networks(engine, app_id)
                outbox.send_if_waiting(inventory.results_dir(app_id))
                return
            done = [_do(engine, job, step) for step in judgement.steps]
            if done and all(done):
                continue
            looks = [NETWORK_SECONDS] if done else []
            if judgement.deadline is not None:
                looks.append(max(0.0, judgement.deadline - time.time()))
            if job.hang_timeout is not None:
                looks.append(_check_for_hangs(engine, job))
            if job.was_submitted_here and any(each.state == "running" for each in job.containers):
                if sampler is None:
                    sampler = ContainerSampler(engine, app_id)
                looks.append(sampler.look(job))
            timeout = min(looks, default=None)
            if not watched_submitter:
                watched_submitter = True
                _watch_submitter(job, events)
        except EngineUnavailableError:
            # the events thread keeps trying to reach the daemon, and wakes this thread after each attempt
            last_seen = min(last_seen, time.monotonic())
        except EngineError:
            timeout = RETRY_SECONDS
        events.wait(seen, timeout)


def _do(engine: Engine, job: Job, step: Step) -> bool:
    """Do a step; returns False if it has to wait."""
    if step.kind == MARK:
        inventory.make_marker(engine, job.app_id, step.name, step.facts)
    elif step.kind == STOP:
        for_all(lambda container: _stop(engine, container, job.grace), step.containers)
    elif step.kind == DECIDE:
        _decide(engine, job, step.containers[0])
    elif step.kind == LAUNCH and not _has_network(engine, job):
        return False
    else:
        first, *others = step.containers
        _start(engine, job, first)
        for_all(lambda container: _start(engine, job, container), others)
    return True


def _decide(engine: Engine, job: Job, container: Container) -> None:
    """Find the class of a failure, and record what becomes of it."""
    status = next(
        replica
        for role in judge(job).roles
        for replica in role.replicas
        if (role.role, replica.id) == (container.role, container.replica)
    )
    inventory.make_marker(engine, job.app_id, *decide(engine, job, container, status.reason))


def _check_for_hangs(engine: Engine, job: Job) -> float:
    """Look at the containers that run; returns the seconds until the next look."""
    assert job.hang_timeout is not None
    container_hangs.check(engine, job)
    return job.hang_timeout / container_hangs.CHECKS


def _has_network(engine: Engine, job: Job) -> bool:
    """Make the network of a job that waits for it; returns False if there are no addresses for it yet."""
    if inventory.networks_with(engine, labels.APP_ID, job.app_id):
        return True
    try:
        inventory.make_network(engine, job.app_id, len(job.containers))
    except NoSubnetLeftError:
        return False
    return True


def _stop(engine: Engine, container: Container, grace: float) -> None:
    """Have the daemon stop a container: SIGTERM, SIGKILL after the grace period, and no restart."""
    seconds = math.ceil(grace)
    path = f"/containers/{container.id}/stop"
    try:
        engine.request("POST", path, params={"t": seconds}, timeout=seconds + STOP_SECONDS)
    except EngineError as error:
        if error.status not in (304, 404, 409):
            raise


def _start(engine: Engine, job: Job, container: Container) -> None:
    """Start a container that is waiting or has ended; if it cannot be started, the job has failed."""
    try:
        if job.rules:
            _give_memory(engine, job, container)
        engine.request("POST", f"/containers/{container.id}/start", timeout=STOP_SECONDS)
    except EngineError as error:
        detail = f"{container.role}/{container.replica}: {error.message}"[:500]
        facts = {"reason": reasons.NOT_STARTED, "detail": detail, "at": time.time_ns()}
        inventory.make_marker(engine, job.app_id, inventory.STOPPED, facts)


def _give_memory(engine: Engine, job: Job, container: Container) -> None:
    """Raise a container's limit of memory, if a retry is to have more."""
    if wanted := memory_for(job, container):
        size = {"Memory": wanted << 20, "MemorySwap": wanted << 20}
        engine.request("POST", f"/containers/{container.id}/update", json=size)


def _watch_submitter(job: Job, events: JobEvents) -> None:
    """Wake up when the process that submits the job ends: if it is killed, the watcher has to clean up."""
    process = Process.parse(job.labels.get(labels.SUBMITTER, ""))
    if process is None or not job.was_submitted_here or not process.is_alive():
        return

    def wait() -> None:
        wait_for_end(process)
        events.wake()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
