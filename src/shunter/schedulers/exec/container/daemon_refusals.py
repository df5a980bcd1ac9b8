"""Errors for what the daemon refuses: its own message, and what to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shunter.docker.daemon_errors import EngineError
from shunter.errors import BackendError

if TYPE_CHECKING:
    from shunter.schedulers.exec.container.submission import ReplicaRequest

# Tried in this order; the first that is found in the daemon's message counts.
_ADVICE: list[tuple[str, str]] = [
    (
        r"could not select device driver",
        (
            "Docker cannot hand GPUs to containers here: install the NVIDIA Container Toolkit "
            "(`sudo nvidia-ctk runtime configure --runtime=docker`, then restart Docker), or ask for no GPU."
        ),
    ),
    (
        r"nvidia-container-cli",
        "The job asks for more GPUs than there are, or the driver does not work: nvidia-smi",
    ),
    (
        r"bind source path does not exist",
        "The path must exist on the Docker daemon's machine. Create it, or correct the mount's src.",
    ),
    (
        r"port is already allocated|address already in use",
        "Another program uses that port. Publish another one, or stop it: `docker ps` shows the ports.",
    ),
    (
        r"unable to apply caps|operation not permitted",
        "This machine does not let Docker grant all capabilities. Run without the option privileged.",
    ),
    (
        r"Range of CPUs is from",
        "Ask for no more CPUs than the machine has (the role's resource.cpu), or set no limit with -1.",
    ),
    (
        r"docker-init",
        "The daemon has no docker-init, which comes with Docker: install the package tini-static.",
    ),
    (
        r"Pool overlaps|conflicts with network",
        (
            "All addresses that were tried are in use on the daemon's machine. Set "
            "SHUNTER_DOCKER_SUBNETS to other ranges, such as 10.200.0.0/16."
        ),
    ),
    (
        r"executable file not found|no such file or directory.*unknown|not found in \$PATH",
        "The image has no such program. Check the image; the program must be in the image's PATH.",
    ),
    (r"permission denied", "The image's program is not executable (chmod +x), or the mount is not readable."),
    (r"network .* not found|No such network", "`docker network ls` shows the networks."),
    (r"error gathering device information", "The Docker daemon's machine has no such device."),
    (r"no space left on device", "Free space on the disk of the daemon: `docker system df`, `shunter gc`."),
    (
        r"platform|exec format error",
        "The image is for another platform; set the option platform.",
    ),
]


def refused(error: EngineError, what: str, replica: ReplicaRequest | None = None) -> BackendError:
    """Return an error saying what the daemon refused, why, and what to do about it.

    ``what`` is what was attempted, such as "start", for a replica if one is given.
    """
    place = f" {replica.role}/{replica.replica}" if replica is not None else ""
    return BackendError(f"cannot {what}{place}: {_tidy(error.message)}", hint=_advice(error.message))


def _tidy(message: str) -> str:
    """Return the daemon's message without the prefixes of the layers that it came through."""
    text = re.sub(
        r"^(?:OCI runtime create failed|failed to create shim(?: task)?|driver failed programming external "
        r"connectivity on endpoint \S+ \(\w+\)|invalid mount config for type \"\w+\"): ",
        "",
        message.strip(),
    )
    return text.removesuffix(": unknown")


def _advice(message: str) -> str:
    return next((advice for words, advice in _ADVICE if re.search(words, message, re.IGNORECASE)), "")
