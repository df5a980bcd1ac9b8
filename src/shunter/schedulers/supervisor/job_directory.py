r"""The directory of a job, which contains all that is known about it.

Every job of a supervisor has one, with these files among others::

    APP_ID/               of `local_cwd` in STATE/jobs
        job.json          what was asked for; written once, before anything starts
        state.json        its state; replaced whole at every change
        state.reserve     space for its last state, should the disk be full then
        supervisor.log    what the supervisor itself printed
        lock              held while a reader ends a job that no process runs
        cancel.json       a request to end the job
        notify.*          notifications of its end (`outbox`)
        python/           what Python processes import at startup, if hangs are detected
        ml/ROLE-K/        what stands for /opt/ml in replica K, with its results; in a sweep also ``code``,
                          the working directory of the point
        usage             what the replicas have used over time (`supervisor.usage_file`)
        index/ROLE/K      order and times of replica K's output (`log_index`)
        logs/ROLE/K/      stdout.log, stderr.log, error.json (elsewhere with the option log_dir)
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Self

from shunter.paths import jobs_dir, state_error
from shunter.schedulers.supervisor import reasons
from shunter.schedulers.supervisor.documents import (
    read_json,
    reserve,
    write_json,
    write_json_last,
)
from shunter.schedulers.supervisor.reasons import STATE_LOST, describe, state_of
from shunter.specs.status import AppState, is_terminal
from shunter.system.identity import machine


class JobDirectory:
    """Paths and documents of one job. The directory need not exist.

    Its state is the supervisor's: see `supervisor`.
    """

    #: The document of what was asked for. One that lacks any of these keys is damaged.
    REQUEST = "job.json"
    REQUEST_KEYS = frozenset({"created_at", "submitter", "submitted_from", "app", "layout"})
    STATE_KEYS = frozenset({"host", "boot_id", "state", "roles"})
    #: Whether jobs of this kind may have working directories of their own beside their directories.
    HAS_VIEWS = True

    def __init__(self, path: str) -> None:
        self.path = path

    @staticmethod
    def root() -> str:
        """Return the directory of all jobs of this kind."""
        return jobs_dir()

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the directory of the job with this name, which need not exist."""
        return cls(os.path.join(cls.root(), name))

    @classmethod
    def find(cls, name: str) -> Self | None:
        """Return the directory of an existing job."""
        if not name or "/" in name or name.startswith("."):
            return None
        job = cls.of(name)
        return job if job.exists() else None

    @classmethod
    def directories(cls) -> Iterator[Self]:
        """Yield all directories of jobs by name, also those in which a submission was interrupted."""
        try:
            names = sorted(os.listdir(cls.root()))
        except FileNotFoundError:
            return
        except OSError as error:
            raise state_error("read the state directory", cls.root(), error) from error
        for name in names:
            if not name.startswith("."):
                yield cls.of(name)

    @classmethod
    def all(cls) -> Iterator[Self]:
        """Yield all jobs, in the order of their names."""
        return (job for job in cls.directories() if job.exists())

    @property
    def name(self) -> str:
        """The job's name or id, which is the directory's."""
        return os.path.basename(self.path)

    def file(self, *parts: str) -> str:
        """Return the path of something in it."""
        return os.path.join(self.path, *parts)

    def exists(self) -> bool:
        """Tell whether there is a job in it."""
        return os.path.exists(self.file(self.REQUEST))

    # ---- documents

    def read_request(self) -> dict[str, Any] | None:
        """Return the submission's document; None if the job does not exist or the document is damaged."""
        document = read_json(self.file(self.REQUEST))
        if document is None or not document.keys() >= self.REQUEST_KEYS:
            return None
        if not isinstance(document["app"], dict) or "name" not in document["app"]:
            return None
        place, layout = document["submitted_from"], document["layout"]
        if not isinstance(place, dict) or not place.keys() >= {"host", "boot_id"}:
            return None
        kinds = [list(map(type, item)) for item in layout if isinstance(item, list)]
        return document if kinds == [[str, int, str]] * len(layout) else None

    def read_state(self) -> dict[str, Any] | None:
        """Return its state; None if none has been written, or it is damaged."""
        state = read_json(self.file("state.json"))
        is_whole = state is not None and state.keys() >= self.STATE_KEYS and _is_sound(state)
        return state if is_whole else None

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the state, whole or not at all."""
        write_json(self.file("state.json"), state)

    def reserve_final_state(self, size: int) -> None:
        """Reserve space, so that the end of the job can be written even when the disk is full."""
        reserve(self.file("state.reserve"), size)

    def write_final_state(self, state: dict[str, Any]) -> None:
        """Replace the state of a job that has ended, in the reserved space if the disk is full."""
        write_json_last(
            self.file("state.json"), state, self.file("state.reserve"), is_final=self.is_over(state)
        )

    def ask(self, what: str, details: dict[str, Any]) -> None:
        """Leave a request, such as ``stop``, where the supervisor finds it.

        Raises:
            StateStoreError: it cannot be written.
        """
        try:
            write_json(self.file(f"{what}.json"), details)
        except OSError as error:
            raise state_error("write", self.file(f"{what}.json"), error) from error

    def asked(self, what: str) -> dict[str, Any] | None:
        """Return a request that `ask` has left; None if there is none."""
        return read_json(self.file(f"{what}.json"))

    # ---- where things are

    def live_places(self, state: dict[str, Any]) -> dict[str, dict[str, str]]:
        """Return where the ports of replicas that run are found from outside, by ``ROLE/K`` and name."""
        return {}

    def index_path(self, role: str, replica: int) -> str:
        """Return the path of a replica's log index."""
        return self.file("index", role, str(replica))

    def usage_path(self) -> str:
        """Return the path of the samples of what its replicas use."""
        return self.file("usage")

    def base_dir(self, role: str, replica: object) -> str:
        """Return the path of what stands for ``/opt/ml`` in a replica that runs under the toolkit."""
        return self.file("ml", f"{role}-{replica}")

    def own_directory(self, role: str, replica: object) -> str:
        """Return the working directory of a point of a sweep, "" if it has none of its own."""
        own = (self.read_request() or {}).get("own_directories")
        return self.point_directory(role, replica, own["names"]) if own else ""

    def point_directory(self, role: str, replica: object, names: Iterable[str]) -> str:
        """Return the working directory of a point, whose path ends with these names."""
        return os.path.join(self.base_dir(role, replica), "code", *names)

    def python_dir(self) -> str:
        """Return the folder of the module by which Python writes stacks when the job hangs."""
        return self.file("python")

    def recorded_role(self, name: str) -> dict[str, Any]:
        """Return a role of the job as JSON values; empty if it is not known."""
        roles = ((self.read_request() or {}).get("app") or {}).get("roles", [])
        return next((role for role in roles if role.get("name") == name), {})

    def layout(self) -> list[tuple[str, int, str]]:
        """Return role, index and log directory of every replica, in order."""
        document = self.read_request() or {}
        return [(role, index, log_dir) for role, index, log_dir in document.get("layout", ())]

    def log_dirs(self) -> dict[tuple[str, int], str]:
        """Return the log directory of every replica by role and index, in order."""
        return {(role, index): log_dir for role, index, log_dir in self.layout()}

    def log_root(self, layout: list[tuple[str, int, str]]) -> str:
        """Return the directory below which the logs of this layout lie."""
        return os.path.dirname(os.path.dirname(layout[0][2])) if layout else self.file("logs")

    def logs(self) -> str:
        """Return the directory below which its logs are."""
        return self.log_root(self.layout())

    # ---- its state

    def last_written(self) -> float:
        """Return when the job last changed its state or wrote to a log, in seconds since the epoch."""
        files = [self.file(self.REQUEST), self.file("state.json")]
        files += [os.path.join(folder, name) for folder, _, names in os.walk(self.logs()) for name in names]
        return max((os.stat(path).st_mtime for path in files if os.path.isfile(path)), default=0.0)

    def is_over(self, state: dict[str, Any]) -> bool:
        """Tell whether nothing more will be known of it: it has ended, or its state is damaged."""
        return is_terminal(AppState[state["state"]]) or state["state"] == AppState.UNKNOWN.name

    def ended(self, state: dict[str, Any], reason: str, now: float) -> dict[str, Any]:
        """Return the state with the job and all its live replicas ended for this reason."""
        end = {"state": reasons.state_of(reason).name, "reason": reasons.describe(reason), "ended_at": now}
        roles = [
            {
                **role,
                "replicas": [
                    replica if is_terminal(AppState[replica["state"]]) else {**replica, **end}
                    for replica in role["replicas"]
                ],
            }
            for role in state.get("roles", [])
        ]
        return {**state, **end, "roles": roles, "reason": reason, "msg": reasons.describe(reason)}

    def first_state(self) -> dict[str, Any] | None:
        """Return the state of a job between its submission and the first one that its supervisor writes."""
        document = self.read_request()
        if document is None and not self.exists():
            return None
        base = {
            "app_id": self.name,
            "state": AppState.SUBMITTED.name,
            "num_restarts": 0,
            "msg": "",
            "started_at": None,
            "ended_at": None,
            "roles": [],
            **(machine() if document is None else document["submitted_from"]),
        }
        if document is not None and (
            base["host"] != machine()["host"] or not os.path.exists(self.file("state.json"))
        ):
            return base
        # It may have been written since it was looked for. A state is replaced whole, so one that cannot be
        # read was damaged from outside.
        lost = {**base, "state": state_of(STATE_LOST).name, "msg": describe(STATE_LOST)}
        return self.read_state() or lost

    def state_elsewhere(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a job whose end cannot be seen from this machine."""
        verb = "was submitted" if state["state"] == AppState.SUBMITTED.name else "runs"
        return {**state, "state": AppState.UNREACHABLE.name, "msg": f"it {verb} on {state['host']}"}

    # ---- what is not in it

    def clean_up(self, state: dict[str, Any]) -> None:
        """Remove what a job without a supervisor left behind besides processes; record that in its state.

        Raises:
            ShunterError: that cannot be done now, so the job may still run.
        """

    def remove_belongings(self) -> None:
        """Remove what a job that has ended has outside of its directory, besides logs.

        Raises:
            ShunterError: something cannot be removed.
        """


def _is_sound(state: dict[str, Any]) -> bool:
    """Tell whether a state is one that a supervisor writes: anybody may have edited the file."""
    try:
        states = [state["state"], *(each["state"] for role in state["roles"] for each in role["replicas"])]
        return all(name in AppState.__members__ for name in states) and all(
            isinstance(each["id"], int) for role in state["roles"] for each in role["replicas"]
        )
    except (KeyError, TypeError):
        return False


def log_exception() -> None:
    """Write the traceback of the present exception to this process's log, unless its disk is full."""
    try:
        traceback.print_exc()
        sys.stderr.flush()
    except OSError:
        pass
