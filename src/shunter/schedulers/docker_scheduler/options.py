"""Options of `local_docker`."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.supervision import HangOpts, NotifyOpts, RetryOpts, StopOpts
from shunter.specs.options import ACCESS, CREDENTIALS, SECONDS, option
from shunter.workspace.docker_workspace import DockerWorkspaceOpts


@dataclass
class DaemonOpts(DockerWorkspaceOpts):
    """What the daemon is asked for."""

    copy_env: list[str] | None = option(
        "patterns of names of environment variables that all replicas get from here: HF_*,WANDB_*",
        default=None,
        needs_trust=CREDENTIALS,
    )
    env: dict[str, str] | None = option(
        "environment variables of all replicas; they override copy_env, and a role's own variables "
        "override both",
        default=None,
    )
    privileged: bool = option(
        "run the containers with all capabilities and devices", default=False, needs_trust=ACCESS
    )
    network: str | None = option(
        "network that the containers join: an existing one's name, host, or none; by default replicas of one "
        "job have their own network",
        default=None,
        needs_trust=ACCESS,
    )
    publish: dict[str, str] | None = option(
        "ports of this machine at which a job's ports are found: NAME=[IP:]PORT, where NAME is one of the "
        "role's port_map or the number in the container; the ports of a port_map are always published, by "
        "default at free ports of 127.0.0.1",
        default=None,
        needs_trust=ACCESS,
    )
    platform: str | None = option(
        "platform of the images, such as linux/arm64; the daemon's own by default", default=None
    )
    timeout: float | None = option("stop the job after this many seconds", default=None, time_limit=SECONDS)


@dataclass
class DockerOpts(HangOpts, RetryOpts, NotifyOpts, StopOpts, DaemonOpts):
    """How a job runs in containers of this machine's daemon; TorchX's options come first."""
