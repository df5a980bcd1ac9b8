"""What a supervisor is to do: the programs of a job, and what becomes of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass
class ContainerPlan:
    """The container that a replica is, and that its command starts: its name and its limit of memory.

    ``memory_mb`` is 0 without a limit; ``gpus`` names those that it gets, as CUDA_VISIBLE_DEVICES does, None
    means all.
    """

    name: str
    memory_mb: int = 0
    gpus: str | None = ""


@dataclass
class ReplicaPlan:
    """One process. ``env`` holds only what differs from the environment that the job is started in."""

    program: str
    argv: list[str]
    env: dict[str, str]
    log_dir: str
    #: Its own working directory, which is made when it starts; "" for the job's.
    cwd: str = ""
    container: ContainerPlan | None = None
    #: Whether stdout and stderr go to one file, in the order in which they are written.
    one_log: bool = False


@dataclass
class RolePlan:
    """The processes of one role, and what to do when they fail."""

    name: str
    max_retries: int
    retry_policy: str
    replicas: list[ReplicaPlan]


@dataclass(kw_only=True)
class ProcessPlan:
    """The plan of a job.

    Attributes:
        app_id: its id.
        job_dir: its directory.
        roles: what runs.
        timeout: seconds that an attempt may take; None for no limit.
        grace_period: seconds between SIGTERM and SIGKILL.
        fail_fast: whether a failure of one replica stops the others.
        cwd: its working directory.
        env: variables of all replicas.
        chain: the maximum number of attempts, if a time limit ends each but the last.
        retry: rules for retries by class of failure, as `RetryRule`'s fields.
        hang_timeout: seconds without activity after which a replica hangs; None not to check.
        on_hang: what becomes of a job that hangs, see `supervision`.
        after: the jobs that have to end first: ``app_id``, ``job_dir``, and whether ``any_end`` will do.
        array: whether each replica starts alone.
        max_running: how many replicas of an array run at a time; None for all.
        slots: ``folder`` of the queue, ``cpus`` and ``gpus`` that there are, ``needs`` of a replica by role
            (a negative number of GPUs leaves its variable alone), and the directory of the job ``within``
            which this one was submitted; None without a queue.
        own_directories: of a sweep, the ``template`` of the points' directories, the directory whose
            neighbours they see (``beside``), and the ``names`` in which their paths end. See `own_directory`.
        lease: ``place`` of the lease to take before the first start (a path, or the URLs of an object), and
            the ``handle`` to put in; None without.
        network: the containers' network that is to be removed when the job has ended; "" without one.
    """

    app_id: str
    job_dir: str
    roles: list[RolePlan]
    timeout: float | None
    grace_period: float
    fail_fast: bool
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    chain: int = 1
    retry: dict[str, dict[str, int]] = field(default_factory=dict)
    hang_timeout: float | None = None
    on_hang: str = "report"
    after: list[dict[str, Any]] = field(default_factory=list)
    array: bool = False
    max_running: int | None = None
    slots: dict[str, Any] | None = None
    own_directories: dict[str, Any] | None = None
    network: str = ""
    lease: dict[str, str] | None = None

    def layout(self) -> list[tuple[str, int, str]]:
        """Return role, index and log directory of every replica, in order."""
        return [
            (role.name, index, replica.log_dir)
            for role in self.roles
            for index, replica in enumerate(role.replicas)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild what `to_json` returned."""
        roles = [
            RolePlan(**{**role, "replicas": [_replica(replica) for replica in role["replicas"]]})
            for role in data["roles"]
        ]
        return cls(**{**data, "roles": roles})


def _replica(data: dict[str, Any]) -> ReplicaPlan:
    container = data.get("container")
    return ReplicaPlan(**{**data, "container": None if container is None else ContainerPlan(**container)})
