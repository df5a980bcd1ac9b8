"""The class of ``torchx.schedulers.slurm_scheduler``, and states of Slurm."""

from __future__ import annotations

from shunter.compat.schedulers.derivable import DerivableScheduler
from shunter.compat.specs.status import torchx_state
from shunter.schedulers.slurm_scheduler.reasons import FLAG_STATE, STATE_OF, state_of
from shunter.specs.status import AppState

SLURM_STATES: dict[str, AppState] = {
    word: torchx_state(state) for word, state in {**FLAG_STATE, **STATE_OF, "REVOKED": AppState.FAILED}.items()
}


class SlurmScheduler(DerivableScheduler):
    """Runs jobs on a Slurm cluster."""

    ours = "shunter.schedulers.slurm_scheduler:SlurmScheduler"


def appstate_from_slurm_state(slurm_state: str) -> AppState:
    """Return the state that a word of Slurm stands for; UNKNOWN if it is not known."""
    return SLURM_STATES.get(slurm_state) or torchx_state(state_of(slurm_state)[0])
