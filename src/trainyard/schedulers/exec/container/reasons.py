"""Why a replica or a job ended, and what the daemon refuses: from evidence to states, words and advice.

The state and the message follow from the reason; the advice from the words of the daemon's answer.
"""

from __future__ import annotations

import re

from trainyard.docker.engine import EngineError
from trainyard.errors import BackendError
from trainyard.specs.status import AppState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.schedulers.exec.container.submission import ReplicaRequest

SUCCEEDED = "succeeded"
FAILED = "failed"
SIGNAL = "signal"
NOT_EXECUTED = "not_executed"
OUT_OF_MEMORY = "out_of_memory"
NOT_STARTED = "not_started"
DEAD = "dead"
REMOVED = "removed"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
PEER_FAILED = "peer_failed"
INTERRUPTED = "interrupted"

#: The state that each reason stands for, and its words.
_TABLE: dict[str, tuple[AppState, str]] = {
    SUCCEEDED: (AppState.SUCCEEDED, ""),
    FAILED: (AppState.FAILED, "exit code {code}"),
    SIGNAL: (AppState.FAILED, "exit code {code}, as after {signal}"),
    NOT_EXECUTED: (AppState.FAILED, "exit code {code}, as when a program {detail}"),
    OUT_OF_MEMORY: (AppState.FAILED, "out of memory: it used more than its limit"),
    NOT_STARTED: (AppState.FAILED, "could not be started: {detail}"),
    DEAD: (AppState.FAILED, "the daemon could not remove its container"),
    REMOVED: (AppState.FAILED, "its container was removed, so how it ended is not known"),
    CANCELLED: (AppState.CANCELLED, "cancelled{detail}"),
    TIMEOUT: (AppState.FAILED, "stopped at its time limit of {detail} s"),
    PEER_FAILED: (AppState.CANCELLED, "stopped because {detail} failed"),
    INTERRUPTED: (AppState.FAILED, "its submission was interrupted"),
}
#: What ``docker-init`` and shells end with when they cannot run a program.
EXEC_FAILURES = {126: "cannot be executed", 127: "is not in the image"}
#: Exit codes that are 128 plus the number of a signal that usually ends a program.
_SIGNALS = {
    129: "SIGHUP",
    130: "SIGINT",
    131: "SIGQUIT",
    132: "SIGILL",
    133: "SIGTRAP",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    137: "SIGKILL",
    138: "SIGUSR1",
    139: "SIGSEGV",
    140: "SIGUSR2",
    141: "SIGPIPE",
    142: "SIGALRM",
    143: "SIGTERM",
    152: "SIGXCPU",
    153: "SIGXFSZ",
}


def state_of(reason: str) -> AppState:
    """Return the state that a reason stands for."""
    return _TABLE[reason][0]


def describe(reason: str, *, code: int = 0, detail: str = "") -> str:
    """Return a reason in words."""
    return _TABLE[reason][1].format(code=code, signal=_SIGNALS.get(code, ""), detail=detail)


def reason_of_exit(code: int, *, oom: bool, error: str) -> str:
    """Return the reason that an ended container's evidence stands for.

    Args:
        code: its exit code; 128 + N after signal N.
        oom: whether the kernel killed something in it because memory ran out.
        error: what the daemon could not do.
    """
    if error:
        return NOT_STARTED
    if code == 0:
        return SUCCEEDED
    if oom:
        return OUT_OF_MEMORY
    if code in EXEC_FAILURES:
        return NOT_EXECUTED
    return SIGNAL if code in _SIGNALS else FAILED


# ---- what the daemon refuses

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
            "TRAINYARD_DOCKER_SUBNETS to other ranges, such as 10.200.0.0/16."
        ),
    ),
    (
        r"executable file not found|no such file or directory.*unknown|not found in \$PATH",
        "The image has no such program. Check the image; the program must be in the image's PATH.",
    ),
    (r"permission denied", "The image's program is not executable (chmod +x), or the mount is not readable."),
    (r"network .* not found|No such network", "`docker network ls` shows the networks."),
    (r"error gathering device information", "The Docker daemon's machine has no such device."),
    (r"no space left on device", "Free space on the disk of the daemon: `docker system df`, `trainyard gc`."),
    (
        r"platform|exec format error",
        "The image is for another platform; set the option platform.",
    ),
]


def refused(error: EngineError, what: str, replica: ReplicaRequest | None = None) -> BackendError:
    """Return an error saying what the daemon refused, why, and what to do about it.

    Args:
        error: the daemon's answer.
        what: what was attempted: "start".
        replica: the replica that it was attempted for.
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
