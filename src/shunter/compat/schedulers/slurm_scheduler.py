"""The class of ``torchx.schedulers.slurm_scheduler``, and states of Slurm."""

from __future__ import annotations

from shunter.compat.schedulers.derivable import DerivableScheduler
from shunter.compat.specs.status import torchx_state
from shunter.schedulers.slurm_scheduler.reasons import FLAG_STATE, STATE_OF
from shunter.specs.status import AppState
from shunter.workspace.dir_workspace import DirWorkspaceMixin

SLURM_STATES: dict[str, AppState] = {
    word: torchx_state(state)
    for word, state in {**FLAG_STATE, **STATE_OF, "REVOKED": AppState.FAILED}.items()
}


class SlurmScheduler(DirWorkspaceMixin, DerivableScheduler):
    """Runs jobs on a Slurm cluster."""

    ours = "shunter.schedulers.slurm_scheduler:SlurmScheduler"
