"""Options of Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.kubernetes_scheduler.names import DEFAULT_NAMESPACE
from shunter.schedulers.supervision import HangOpts, NotifyOpts, RetryOpts
from shunter.specs.options import ACCESS, CREDENTIALS, DESTINATION, SECONDS, option
from shunter.workspace.docker_workspace import DockerWorkspaceOpts

AUTO, JOB, JOBSET, VOLCANO = "auto", "job", "jobset", "volcano"
KINDS = (AUTO, JOB, JOBSET, VOLCANO)
#: MiB of results that come back with logs at most.
MOST_LOGGED_RESULTS = 32

#: Options of TorchX's ``kubernetes_mcad``, each with what replaces it.
REPLACED = {
    "image_secret": "image_pull_secrets=NAME",
    "coscheduler_name": "gang=true (Kubernetes' own), local_queue=NAME (Kueue) or queue=NAME (Volcano)",
    "network": 'annotations={"k8s.v1.cni.cncf.io/networks": "NAME"}',
    "priority": "priority_class=NAME, or workload_priority=NAME for Kueue",
    "priority_class_name": "priority_class=NAME",
}


@dataclass
class KubernetesOpts(HangOpts, RetryOpts, NotifyOpts, DockerWorkspaceOpts):
    """How a job runs on Kubernetes."""

    queue: str | None = option("Volcano's queue; makes the job a Volcano job", default=None)
    namespace: str = option("namespace of the job", default=DEFAULT_NAMESPACE, needs_trust=DESTINATION)
    service_account: str | None = option("service account of the pods", default=None, needs_trust=CREDENTIALS)
    priority_class: str | None = option("PriorityClass of the pods", default=None)
    validate_spec: bool = option(
        "have the API server check the job, admission and quota included, before code is pushed", default=True
    )
    reserved_millicpu: int = option(
        "by how many thousandths of a CPU each pod's request is below its limit, so that it fits on a node "
        "alongside the system's pods; at most half of the limit",
        default=100,
    )
    reserved_memmb: int = option("the same for memory, in MiB", default=1024)
    efa_device_count: int | None = option(
        "EFA interfaces of each pod, instead of what its resource says", default=None
    )
    kind: str | None = option(
        "what the job becomes: job (a Job for each role), jobset, volcano, or auto (a JobSet for "
        "several roles "
        "if the cluster has JobSet); volcano if queue is given, jobset if several roles share a local_queue, "
        "job otherwise",
        default=None,
    )
    local_queue: str | None = option(
        "Kueue's LocalQueue, which HyperPod task governance uses too", default=None
    )
    workload_priority: str | None = option("Kueue's WorkloadPriorityClass", default=None)
    topology: str | None = option(
        "how close together Kueue places the pods of a role: required:LEVEL, preferred:LEVEL or "
        "unconstrained, where LEVEL is the label of nodes, such as topology.k8s.aws/network-node-layer-3",
        default=None,
    )
    gang: bool = option(
        "place all pods of a role at once with Kubernetes' own PodGroups; refused where the cluster has none",
        default=False,
    )
    context: str | None = option(
        "context of the kubeconfig; its current one by default", default=None, needs_trust=DESTINATION
    )
    kubeconfig: str | None = option(
        "the kubeconfig; by default $KUBECONFIG, ~/.kube/config, or the pod's own service account",
        default=None,
        needs_trust=CREDENTIALS,
    )
    image_pull_secrets: list[str] | None = option(
        "secrets for pulling the images", default=None, needs_trust=CREDENTIALS
    )
    node_selector: dict[str, str] | None = option("labels that the nodes must have", default=None)
    exclude: list[str] | None = option("nodes not to use, by their names", default=None)
    tolerations: list[str] | None = option(
        "taints that the pods tolerate, as kubectl writes them: KEY=VALUE:EFFECT, KEY:EFFECT, KEY or *",
        default=None,
    )
    gpu_resource: str = option(
        "the resource that stands for a GPU, such as amd.com/gpu or nvidia.com/mig-3g.20gb",
        default="nvidia.com/gpu",
    )
    shm_size: int | None = option("MiB of /dev/shm; as much as the memory allows by default", default=None)
    privileged: bool = option("run the containers as privileged ones", default=False, needs_trust=ACCESS)
    secrets: dict[str, str] | None = option(
        "environment variables from secrets of the namespace: NAME to SECRET/KEY; never a value",
        default=None,
        needs_trust=CREDENTIALS,
    )
    labels: dict[str, str] | None = option(
        "labels of all objects of the job, in addition to ours", default=None
    )
    annotations: dict[str, str] | None = option(
        "annotations of the job and its pods", default=None, needs_trust=ACCESS
    )
    final_exit_codes: list[int] | None = option(
        "exit codes that are not retried, whatever max_retries says", default=None
    )
    max_running: int | None = option(
        "how many replicas run at a time; for replicas that restart one by one (retry policy replica)",
        default=None,
    )
    timeout: int | None = option(
        "stop the job after this many seconds, retries included", default=None, time_limit=SECONDS
    )
    logged_results: int = option(
        "MiB of results that come back where nothing else keeps them, at most 32; more than 1 takes a "
        "container beside the program's for each 7 MiB, which prints them at the end",
        default=MOST_LOGGED_RESULTS,
    )
    grace_period: int = option("seconds between SIGTERM and SIGKILL when a pod is stopped", default=30)
    ttl: int | None = option(
        "seconds that the cluster keeps the job with its pods and logs after its end; -1 for ever",
        default=7 * 24 * 3600,
    )
