"""Kubernetes: Jobs, JobSets and Volcano jobs. Making images: see `shunter.workspace.images`."""

from shunter.schedulers.kubernetes_scheduler.options import KubernetesOpts
from shunter.schedulers.kubernetes_scheduler.request import KubernetesJob
from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler, create_scheduler

__all__ = ["KubernetesJob", "KubernetesOpts", "KubernetesScheduler", "create_scheduler"]
