"""What the daemon refuses, and what to do about it: its words are mapped to advice here."""

from __future__ import annotations

import re

from trainyard.docker.engine import EngineError
from trainyard.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.schedulers.exec.container.submission import ReplicaRequest

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
        "The path must exist on the machine of the Docker daemon. Make it, or correct the mount's src.",
    ),
    (
        r"port is already allocated|address already in use",
        "Another program has that port. Publish another one, or end it: `docker ps` shows containers' ports.",
    ),
    (
        r"unable to apply caps|operation not permitted",
        "This machine does not let Docker give all capabilities away. Run without the option privileged.",
    ),
    (
        r"Range of CPUs is from",
        "Ask for no more cpus than the machine has (the role's resource.cpu), or leave it open with -1.",
    ),
    (
        r"docker-init",
        "The daemon lacks docker-init, which comes with Docker: install the package tini-static.",
    ),
    (
        r"Pool overlaps|conflicts with network",
        (
            "The daemon's machine uses all the addresses that were tried. TRAINYARD_DOCKER_SUBNETS names "
            "other ranges: 10.200.0.0/16, say."
        ),
    ),
    (
        r"executable file not found|no such file or directory.*unknown|not found in \$PATH",
        "The image holds no such program. Is it the right image? The program must be in PATH of the image.",
    ),
    (r"permission denied", "The image's program is not executable (chmod +x), or the mount is not readable."),
    (r"network .* not found|No such network", "`docker network ls` shows the networks that there are."),
    (r"error gathering device information", "There is no such device on the machine of the Docker daemon."),
    (r"no space left on device", "Free space on the disk of the daemon: `docker system df`, `trainyard gc`."),
    (
        r"platform|exec format error",
        "The image is of another platform; the option platform names the wanted one.",
    ),
]
_PULL_ADVICE: list[tuple[str, str]] = [
    (
        r"unauthorized|authentication required|denied|no basic auth|forbidden",
        (
            "Log in with `docker login REGISTRY`, and check the name: registries say this of images that "
            "do not exist, too."
        ),
    ),
    (
        r"manifest.*unknown|not found|name unknown",
        "Is the name right? If the image is one of this machine, `docker images` shows its name and tag.",
    ),
    (
        r"no such host|timeout|connection refused|dial tcp|network is unreachable",
        "The registry cannot be reached. If the image is one of this machine, `docker images` lists it.",
    ),
    (
        r"server gave HTTP response",
        "The registry speaks http: name it in insecure-registries of /etc/docker/daemon.json.",
    ),
    (
        r"no matching manifest",
        "The image is not made for this platform; the option platform names another one.",
    ),
    (r"no space left", "Free space on the disk of the daemon: `docker system df`, `trainyard gc`."),
    (r"toomanyrequests|rate limit", "The registry limits pulls: log in with `docker login`, or wait."),
]


def refused(error: EngineError, what: str, replica: ReplicaRequest | None = None) -> BackendError:
    """Say what the daemon would not do, why, and what to do about it.

    Args:
        error: the daemon's answer.
        what: what was attempted: "start".
        replica: the replica that it was attempted for.
    """
    place = f" {replica.role}/{replica.replica}" if replica is not None else ""
    return BackendError(f"cannot {what}{place}: {_tidy(error.message)}", hint=_advice(_ADVICE, error.message))


def not_pulled(image: str, error: EngineError) -> BackendError:
    """Say that an image is not there and cannot be fetched."""
    if image.startswith("sha256:"):
        return BackendError(
            f"the daemon has no image {image}",
            hint="Images named by their id cannot be fetched from anywhere. Submit the job anew.",
        )
    return BackendError(
        f"the daemon has no image {image!r}, and it cannot be pulled: {_tidy(error.message)}",
        hint=_advice(_PULL_ADVICE, error.message),
    )


def _tidy(message: str) -> str:
    """Return the daemon's words without the layers that they came through."""
    text = re.sub(
        r"^(?:OCI runtime create failed|failed to create shim(?: task)?|driver failed programming external "
        r"connectivity on endpoint \S+ \(\w+\)|invalid mount config for type \"\w+\"): ",
        "",
        message.strip(),
    )
    return text.removesuffix(": unknown")


def _advice(table: list[tuple[str, str]], message: str) -> str:
    return next((advice for pattern, advice in table if re.search(pattern, message, re.IGNORECASE)), "")
