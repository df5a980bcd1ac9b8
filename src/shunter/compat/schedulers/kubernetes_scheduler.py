"""The class of ``torchx.schedulers.kubernetes_scheduler``."""

from __future__ import annotations

from shunter.compat.schedulers.derivable import DerivableScheduler


class KubernetesScheduler(DerivableScheduler):
    """Runs jobs on a Kubernetes cluster."""

    ours = "shunter.schedulers.kubernetes_scheduler:KubernetesScheduler"
