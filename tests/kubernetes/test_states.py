"""States and reasons, from objects as the cluster's controllers write them.

The objects are written after the documented forms (the Job controller, JobSet v1alpha2, Kueue v1beta2 and its
visibility API, Volcano v1alpha1), not recorded.
"""

from __future__ import annotations

from typing import Any

import pytest

from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler
from shunter.schedulers.kubernetes_scheduler.states import job_reason, pod_reason
from shunter.specs import AppState, Resource, RetryPolicy
from shunter.specs.status import NONE
from tests.kubernetes.jobs import app, role
from tests.kubernetes.stub import Stub

Scheduler = KubernetesScheduler


def true(kind: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def job(**fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "a", "annotations": fields.pop("notes", {})},
        "spec": fields.pop("spec", {}),
        "status": fields,
    }


CANCELLED = {"shunter/cancelled": "cancelled by me with shunter"}


@pytest.mark.parametrize(
    ("item", "state", "text"),
    [
        (job(), AppState.PENDING, "its pods have not been created yet"),
        (job(active=2, ready=0), AppState.PENDING, "its pods are starting"),
        (job(active=2, ready=1), AppState.RUNNING, ""),
        (job(conditions=[true("SuccessCriteriaMet")], active=1), AppState.PENDING, "its pods are starting"),
        (job(conditions=[true("Complete")]), AppState.SUCCEEDED, ""),
        (job(conditions=[true("Suspended")]), AppState.SUSPENDED, "suspended"),
        (job(conditions=[true("Suspended")], active=1), AppState.PENDING, "its pods are starting"),
        (
            job(
                conditions=[
                    true("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
                ]
            ),
            AppState.FAILED,
            "stopped at its time limit: Job was active longer than specified deadline",
        ),
        (job(conditions=[true("Failed", "BackoffLimitExceeded")]), AppState.FAILED, "a replica failed"),
        (job(conditions=[true("Failed", "NewReason", "words")]), AppState.FAILED, "NewReason: words"),
        (job(conditions=[true("Failed", "DeadlineExceeded")], notes=CANCELLED), AppState.CANCELLED, "by me"),
        (job(active=1, notes=CANCELLED), AppState.RUNNING, "being stopped"),
        (job(spec={"suspend": True}, notes=CANCELLED), AppState.CANCELLED, "by me"),
        (job(conditions=[true("Unheard", "of")], ready=1, newField={"x": 1}), AppState.RUNNING, ""),
    ],
)
def test_jobs(item: dict[str, Any], state: AppState, text: str) -> None:
    reason = job_reason(item)
    assert (reason.state, text in reason.text) == (state, True), reason


def jobset(notes: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    metadata = {"name": "a", "annotations": notes or {}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "status": status,
    }


@pytest.mark.parametrize(
    ("item", "state"),
    [
        (jobset(), AppState.PENDING),
        (jobset(replicatedJobsStatus=[{"name": "a", "active": 1, "ready": 1}]), AppState.RUNNING),
        (jobset(conditions=[true("Completed")], terminalState="Completed"), AppState.SUCCEEDED),
        (jobset(conditions=[true("Failed", "FailedJobs", "jobset failed")]), AppState.FAILED),
        (jobset(conditions=[true("Suspended")]), AppState.SUSPENDED),
        (jobset(CANCELLED, conditions=[true("Suspended")]), AppState.CANCELLED),
        (jobset(CANCELLED, replicatedJobsStatus=[{"active": 1}]), AppState.RUNNING),
    ],
)
def test_jobsets(item: dict[str, Any], state: AppState) -> None:
    assert job_reason(item).state is state


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("", AppState.PENDING),
        ("Pending", AppState.PENDING),
        ("Running", AppState.RUNNING),
        ("Aborted", AppState.CANCELLED),
        ("Completed", AppState.SUCCEEDED),
        ("Failed", AppState.FAILED),
        ("Hibernating", AppState.RUNNING),
    ],
)
def test_volcano(phase: str, state: AppState) -> None:
    item = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "status": {"state": {"phase": phase}}}
    reason = job_reason(item)
    assert reason.state is state
    if phase == "Hibernating":
        assert reason.text == "Hibernating", "an unknown phase is open, and shown by its name"


# ---- pods


def pod(phase: str | None = "Pending", state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "resources": {"limits": {"memory": "512Mi"}}}]}
    statuses = [{"name": "main", "restartCount": 0, "state": state}] if state else []
    return {
        "metadata": {"name": "p"},
        "spec": spec,
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def warning(reason: str, message: str) -> dict[str, Any]:
    return {"type": "Warning", "reason": reason, "message": message}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available",
}


@pytest.mark.parametrize(
    ("item", "events", "state", "text"),
    [
        (pod("Succeeded"), [], AppState.SUCCEEDED, ""),
        (pod("Running", {"running": {}}), [], AppState.RUNNING, ""),
        (
            pod("Running", waiting("CrashLoopBackOff", "back-off 10s")),
            [],
            AppState.RUNNING,
            "CrashLoopBackOff",
        ),
        (pod("Unknown"), [], AppState.UNKNOWN, "its node does not report"),
        (pod(None), [], AppState.PENDING, "waiting for a node"),
        (pod(conditions=[UNSCHEDULABLE]), [], AppState.PENDING, "no node for it: 0/3 nodes are available"),
        (
            pod(state=waiting("ImagePullBackOff", "Back-off pulling image")),
            [
                warning("Failed", "Failed to pull image x: not found"),
                warning("Failed", "Error: ImagePullBackOff"),
            ],
            AppState.PENDING,
            "its image cannot be pulled: ImagePullBackOff: Failed to pull image x: not found",
        ),
        (
            pod(state=waiting("CreateContainerConfigError", 'secret "x" not found')),
            [],
            AppState.PENDING,
            'cannot be started: CreateContainerConfigError: secret "x" not found',
        ),
        (pod(state=waiting("ContainerCreating")), [], AppState.PENDING, "ContainerCreating"),
        (
            pod(state=waiting("ContainerCreating")),
            [
                warning("FailedScheduling", "0/1 nodes are available"),
                warning("FailedMount", 'MountVolume.SetUp failed for volume "v": secret "x" not found'),
                warning(
                    "FailedMount", "Unable to attach or mount volumes: timed out waiting for the condition"
                ),
            ],
            AppState.PENDING,
            'FailedMount: MountVolume.SetUp failed for volume "v": secret "x" not found',
        ),
        (
            pod(
                "Failed",
                ended(137),
                reason="Evicted",
                conditions=[true("DisruptionTarget", "TerminationByKubelet", "low on resource: inodes")],
            ),
            [],
            AppState.FAILED,
            "evicted: TerminationByKubelet: low on resource: inodes",
        ),
        (
            pod("Failed", ended(3, message="a\nValueError: no\n")),
            [],
            AppState.FAILED,
            "exit code 3: ValueError: no",
        ),
        (
            pod("Failed", ended(1, message='{"message": "no GPU"}')),
            [],
            AppState.FAILED,
            "exit code 1: no GPU",
        ),
        (pod("Failed", ended(137, "OOMKilled")), [], AppState.FAILED, "out of memory (limit 512Mi)"),
        (
            pod("Failed", ended(128, "StartError", "exec: x: not found")),
            [],
            AppState.FAILED,
            "could not be started",
        ),
        (pod("Failed", reason="DeadlineExceeded"), [], AppState.FAILED, "stopped at its time limit"),
        (
            pod(
                "Failed",
                ended(143),
                conditions=[true("DisruptionTarget", "PreemptionByScheduler", "preempting")],
            ),
            [],
            AppState.FAILED,
            "taken away: PreemptionByScheduler: preempting",
        ),
        (pod("Failed"), [], AppState.FAILED, "failed before its container ran"),
        (
            pod("Running", conditions=[{"type": "Ready", "status": "False"}, true("ContainersReady", "")]),
            [],
            AppState.RUNNING,
            "does not report",
        ),
        (
            pod(
                "Running",
                conditions=[true("DisruptionTarget", "DeletionByTaintManager", "Taint manager: deleting")],
            ),
            [],
            AppState.RUNNING,
            "being taken away: DeletionByTaintManager: Taint manager: deleting",
        ),
    ],
)
def test_pods(item: dict[str, Any], events: list[dict[str, Any]], state: AppState, text: str) -> None:
    reason = pod_reason(item, events)
    assert reason.state is state
    assert text in reason.text


def test_the_job_lags_behind_its_pods(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(), {})
    [pod_] = quiet.all("pods")
    status = {"name": "trainer", "state": {"running": {"startedAt": "2026-11-22T18:44:57Z"}}}
    quiet.change("pods", pod_["metadata"]["name"], phase="Running", containerStatuses=[status])
    response = scheduler.describe(app_id)
    assert response is not None
    assert (response.state, response.msg) == (AppState.RUNNING, NONE)


def test_what_is_kept_of_the_roles(quiet: Stub, scheduler: Scheduler) -> None:
    """The server writes quantities in its own way, and the kubelet's escapes are undone."""
    given = role(
        args=["-c", "i=$((i+1)) $$ ${replica_id}"],
        env={"COST": "5$(USD)"},
        num_replicas=2,
        resource=Resource(3, 2, 6144),
    )
    app_id = scheduler.submit(app(given), {"gpu_resource": "amd.com/gpu"})
    limits = quiet.all("jobs")[0]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "3", "memory": "6Gi", "amd.com/gpu": "2"}
    response = scheduler.describe(app_id)
    assert response is not None
    [kept] = response.roles
    assert (kept.resource.cpu, kept.resource.gpu, kept.resource.memMB) == (3, 2, 6144)
    assert kept.args == ["-c", "i=$((i+1)) $ ${replica_id}"]  # $$ was replaced when the macros were
    assert kept.env["COST"] == "5$(USD)"


# ---- whole jobs


@pytest.fixture
def quiet(stub: Stub) -> Stub:
    stub.runs_pods = False
    return stub


def event(stub: Stub, name: str, reason: str, message: str) -> None:
    stub.put(
        "events",
        {
            "metadata": {"name": f"{name}.{len(stub.history)}"},
            "involvedObject": {"name": name},
            **warning(reason, message),
        },
    )


def test_why_a_job_has_no_pods(quiet: Stub, scheduler: Scheduler) -> None:
    message = 'Error creating: pods "a-0-" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8'
    app_id = scheduler.submit(app(), {})
    name = app_id.partition(":")[2]
    for pod_ in quiet.all("pods"):
        quiet.remove("pods", pod_["metadata"]["name"])
    event(quiet, name, "FailedCreate", message)
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.PENDING
    assert response.msg == f"FailedCreate: {message}"


def test_why_a_pod_waits(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(role(num_replicas=2)), {})
    for each in quiet.all("pods"):
        quiet.change("pods", each["metadata"]["name"], phase="Pending", conditions=[UNSCHEDULABLE])
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.msg == "no node for it: 0/3 nodes are available"
    assert [replica.state for replica in response.roles_statuses[0].replicas] == [AppState.PENDING] * 2
    assert sum("/events" in each for each in quiet.requests) == 1, "once for all that wait for the same"


def test_why_a_jobset_has_no_pods(quiet: Stub, scheduler: Scheduler) -> None:
    quiet.groups["jobset.x-k8s.io"] = ["v1alpha2"]
    app_id = scheduler.submit(app(role(num_replicas=2), role("reader")), {"kind": "jobset"})
    event(quiet, f"{app_id.partition(':')[2]}-reader-0", "FailedCreate", "exceeded quota: gpus")
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.msg == "FailedCreate: exceeded quota: gpus"


def test_the_replica_that_is_in_trouble_says_why_the_job_waits(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(role(num_replicas=2)), {})
    first, second = quiet.all("pods")
    quiet.change("pods", first["metadata"]["name"], phase="Pending", containerStatuses=[])
    quiet.change("pods", second["metadata"]["name"], phase="Pending", conditions=[UNSCHEDULABLE])
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.msg == "no node for it: 0/3 nodes are available"


def test_what_the_job_knows_is_not_replaced_by_less(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(role(num_replicas=2)), {})
    first, second = quiet.all("pods")
    end = {"exitCode": 143, "finishedAt": "2026-11-22T18:44:58Z"}
    status = {"name": "trainer", "state": {"terminated": end}}
    quiet.change("pods", first["metadata"]["name"], phase="Failed", containerStatuses=[status])
    failed = true("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    quiet.change("jobs", app_id.partition(":")[2], conditions=[failed])
    response = scheduler.describe(app_id)
    assert response is not None
    assert "stopped at its time limit" in response.msg
    assert "exit code 143" in response.msg
    words = "Container trainer for pod p failed with exit code 42 matching FailJob rule at index 1"
    for each in (first, second):
        quiet.remove("pods", each["metadata"]["name"])
    quiet.change("jobs", app_id.partition(":")[2], conditions=[true("Failed", "X", words)], failedIndexes="0")
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.msg == f"X: {words}"


def test_events_that_may_not_be_read_are_no_error(quiet: Stub, scheduler: Scheduler) -> None:
    from tests.kubernetes.stub import failure

    app_id = scheduler.submit(app(), {})
    quiet.faults = lambda method, path, params: (
        (403, failure(403, "Forbidden", "no events"), {}) if path.endswith("/events") else None
    )
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.PENDING


def kueue(stub: Stub, versions: list[str]) -> None:
    stub.groups |= {"kueue.x-k8s.io": versions, "visibility.kueue.x-k8s.io": ["v1beta2"]}


@pytest.mark.parametrize("versions", [["v1beta2", "v1beta1"], ["v1beta1"]])
def test_a_suspended_job_says_what_it_waits_for(
    quiet: Stub, scheduler: Scheduler, versions: list[str]
) -> None:
    kueue(quiet, versions)
    app_id = scheduler.submit(app(), {"local_queue": "gpus"})
    job_ = quiet.get("jobs", app_id.partition(":")[2])
    labels = {"kueue.x-k8s.io/job-uid": job_["metadata"]["uid"]}
    condition = {
        "type": "QuotaReserved",
        "status": "False",
        "message": "couldn't assign flavors: insufficient quota",
    }
    workload = {"metadata": {"name": "job-a-1", "labels": labels}, "status": {"conditions": [condition]}}
    quiet.put("workloads", workload)
    path = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/default/localqueues/gpus/pendingworkloads"
    pending = [
        {"metadata": {"name": "job-other"}, "positionInLocalQueue": 0, "positionInClusterQueue": 4},
        {"metadata": {"name": "job-a-1"}, "positionInLocalQueue": 1, "positionInClusterQueue": 6},
    ]
    quiet.extra[path] = {"items": pending}
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.SUSPENDED
    assert response.msg == (
        "waiting in the queue gpus; position 2 of 2 (in the whole ClusterQueue 7); "
        "couldn't assign flavors: insufficient quota"
    )
    assert response.roles_statuses[0].replicas[0].state is AppState.SUSPENDED
    [row] = scheduler.list({"states": {AppState.SUSPENDED}})
    assert row.app_id == app_id


def test_a_failure_of_one_role_while_others_run(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(role(), role("reader")), {})
    name = app_id.partition(":")[2]
    quiet.change("jobs", f"{name}-trainer", conditions=[true("Failed", "BackoffLimitExceeded")])
    quiet.change("jobs", f"{name}-reader", active=1, ready=1)
    response = scheduler.describe(app_id)
    assert response is not None
    assert (response.state, response.msg) == (
        AppState.RUNNING,
        "trainer: a replica failed (the other roles go on)",
    )
    quiet.change("jobs", f"{name}-reader", conditions=[true("Complete")])
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.FAILED


def test_a_job_one_of_whose_objects_is_gone_has_not_succeeded(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(role(), role("reader")), {})
    name = app_id.partition(":")[2]
    quiet.change("jobs", f"{name}-trainer", conditions=[true("Complete")])
    quiet.remove("jobs", f"{name}-reader")
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.UNKNOWN
    assert "1 of its 2 Jobs are gone" in response.msg
    quiet.remove("jobs", f"{name}-trainer")
    assert scheduler.describe(app_id) is None


def test_what_a_job_knows_of_pods_that_are_gone(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(role(num_replicas=3, retry_policy=RetryPolicy.REPLICA)), {})
    for each in quiet.all("pods"):
        quiet.remove("pods", each["metadata"]["name"])
    quiet.change("jobs", app_id.partition(":")[2], completedIndexes="0", failedIndexes="2", active=1, ready=1)
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.RUNNING
    assert [each.state for each in response.roles_statuses[0].replicas] == [
        AppState.SUCCEEDED,
        AppState.PENDING,
        AppState.FAILED,
    ]


def test_the_report_of_the_toolkit_is_kept_by_the_pod(quiet: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(app(), {})
    [pod_] = quiet.all("pods")
    report = '{"message": "loss is nan", "class": "user", "exit_code": 1}'
    status = {"name": "trainer", "state": {"terminated": {"exitCode": 1, "message": report}}}
    quiet.change("pods", pod_["metadata"]["name"], phase="Failed", containerStatuses=[status])
    quiet.change("jobs", app_id.partition(":")[2], conditions=[true("Failed", "BackoffLimitExceeded")])
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.msg == "trainer/0: exit code 1: loss is nan"
    assert response.structured_error_msg == report
