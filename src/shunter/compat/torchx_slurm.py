"""TorchX's names for Slurm (``torchx.schedulers.slurm_scheduler``)."""

from __future__ import annotations

import logging
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shunter.compat.torchx_specs import known_state
from shunter.schedulers.slurm_scheduler.observe import version_of
from shunter.schedulers.slurm_scheduler.reasons import FLAG_STATE, STATE_OF, state_of
from shunter.specs.app import Role
from shunter.specs.status import AppState
from shunter.specs.substitution import macros

log = logging.getLogger(__name__)
SLURM_JOB_DIRS = ".torchxslurmjobdirs"
SLURM_STATES: dict[str, AppState] = {
    word: known_state(state) for word, state in {**FLAG_STATE, **STATE_OF, "REVOKED": AppState.FAILED}.items()
}
SBATCH_JOB_OPTIONS = {"comment", "mail-user", "mail-type", "account"}
SBATCH_GROUP_OPTIONS = {"partition", "time", "constraint", "qos"}
#: The version that TorchX assumes if Slurm cannot be asked.
ASSUMED_VERSION = (24, 5)
#: From this version on a request names the gpus of a node; before, those of a task.
GPUS_PER_NODE_SINCE = (24, 11)


@dataclass
class SlurmReplicaRequest:
    """One replica as a group of a heterogeneous job."""

    name: str
    entrypoint: str
    args: list[str] = field(default_factory=list)
    srun_opts: dict[str, str] = field(default_factory=dict)
    sbatch_opts: dict[str, str | None] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_role(
        cls, name: str, role: Role, cfg: Mapping[str, Any], nomem: bool = False
    ) -> SlurmReplicaRequest:
        """Make the request for a role.

        Args:
            name: name of the replica.
            role: the role, its macros substituted.
            cfg: options of Slurm; those of `SBATCH_GROUP_OPTIONS` count.
            nomem: leave the memory out, for clusters that do not manage it.
        """
        options: dict[str, str | None] = {"requeue": None}
        options |= {
            key: str(value) for key, value in cfg.items() if key in SBATCH_GROUP_OPTIONS and value is not None
        }
        resource = role.resource
        options["ntasks-per-node"] = "1"
        if resource.cpu > 0:
            options["cpus-per-task"] = str(resource.cpu)
        if not nomem and resource.memMB > 0:
            options["mem"] = str(resource.memMB)
        if resource.gpu > 0:
            if version() >= GPUS_PER_NODE_SINCE:
                options["gpus-per-node"] = str(resource.gpu)
            else:
                options |= {"gpus-per-task": str(resource.gpu), "ntasks": "1"}
        log = f"slurm-{macros.app_id}-{name}"
        srun = {"output": f"{log}.out", "error": f"{log}.err", "wait": "60", "kill-on-bad-exit": "1"}
        return cls(name, role.entrypoint, list(role.args), srun, options, dict(role.env))

    def materialize(self) -> tuple[list[str], list[str]]:
        """Return the options of its ``#SBATCH`` group, and the words of its part of ``srun``."""
        group = [f"--job-name={self.name}"]
        group += [
            f"--{key}" if value is None else f"--{key}={value}" for key, value in self.sbatch_opts.items()
        ]
        step = [f"--{key}={value}" for key, value in self.srun_opts.items()]
        if self.env:
            step.append("--export=ALL," + ",".join(f"{key}={value}" for key, value in self.env.items()))
        return group, [_shell_word(word) for word in (*step, self.entrypoint, *self.args)]


def _shell_word(text: str) -> str:
    """Quote a word of a script, which has the job's id in a variable."""
    return '"$SLURM_JOB_ID"'.join(shlex.quote(part) for part in text.split(macros.app_id))


@dataclass
class SlurmBatchRequest:
    """A script for sbatch, of the requests of its replicas."""

    cmd: list[str]
    replicas: dict[str, SlurmReplicaRequest]
    job_dir: str | None = None
    max_retries: int = 0

    def materialize(self) -> str:
        """Return the script. A job that fails is queued again, up to ``max_retries`` times."""
        groups, steps = [], []
        for replica in self.replicas.values():
            group, step = replica.materialize()
            groups.append(f"#SBATCH {' '.join(group)}")
            steps.append(" ".join(step))
        return _SCRIPT.format(
            command=shlex.join(self.cmd),
            groups="\n#SBATCH hetjob\n".join(groups),
            retries=self.max_retries,
            steps=" :\\\n     ".join(steps),
        )

    def __repr__(self) -> str:
        return f"{shlex.join(self.cmd)}\n\n{self.materialize()}"


_SCRIPT = """\
#!/bin/bash
# {command}
{groups}

set -evx
export PYTHONUNBUFFERED=1
export SLURM_UNBUFFEREDIO=1
export TORCHX_MAX_RETRIES={retries}

code=0
srun {steps} || code=$?
if [ "$code" -ne 0 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt "$TORCHX_MAX_RETRIES" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def appstate_from_slurm_state(slurm_state: str) -> AppState:
    """Return the state that a word of Slurm stands for; UNKNOWN if it is not known."""
    return SLURM_STATES.get(slurm_state) or state_of(slurm_state)[0]


def get_appstate_from_job(job: Mapping[str, Any]) -> AppState:
    """Return the state of a job in Slurm's JSON, which older versions write as a word, newer as a list."""
    words = job.get("job_state") or (job.get("state") or {}).get("current") or "UNKNOWN"
    return state_of(list(words) if isinstance(words, (list, tuple)) else str(words))[0]


def version() -> tuple[int, int]:
    """Return the major and minor version of Slurm here; `ASSUMED_VERSION` if it cannot be asked."""
    try:
        said = subprocess.check_output(["sinfo", "--version"], text=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return ASSUMED_VERSION
    return version_of(said)
