"""Submitting exactly once, cancelling, deleting, listing; and trouble on the command line."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.cli import main
from shunter.errors import EXIT_NO_SUCH_JOB, ConfigError, UnknownAppException
from shunter.runner import get_runner
from shunter.schedulers.api import Check, attempt
from shunter.schedulers.kubernetes_scheduler.api_server import KubernetesError
from shunter.schedulers.kubernetes_scheduler.jobs import NAMES_PER_CALL
from shunter.schedulers.kubernetes_scheduler.names import seconds
from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler, create_scheduler
from shunter.specs import AppDef, AppState, Resource, RetryPolicy, Role
from shunter.why.explanation import explain
from shunter.workspace.toolkit_files import toolkit_archive
from tests.forked_command import run_shunter
from tests.kubernetes.jobs import app, problems_of, role
from tests.kubernetes.stub import Stub, failure
from tests.receiver import receiving

Scheduler = KubernetesScheduler


def shell(script: str, **fields: Any) -> AppDef:
    return app(role(entrypoint="sh", args=["-c", script], **fields))


def name_of(app_id: str) -> str:
    return app_id.partition(":")[2]


# ---- submitting


def test_without_the_right_to_patch_a_warning_is_given(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    refusal = (403, failure(403, "Forbidden", "cannot patch services"), {})
    stub.faults = lambda method, path, params: refusal if method == "PATCH" else None
    with pytest.warns(RuntimeWarning, match="is not removed together with its job"):
        scheduler.submit(app(role(num_replicas=2)), {})


def test_replicas_see_what_they_are(stub: Stub, scheduler: Scheduler) -> None:
    """The variables, the index in arguments, secrets, and texts that the kubelet would expand."""
    script = 'echo "$TORCHX_REPLICA_IDX $TORCHX_RANK0_HOST ${TORCHX_JOB_ID##*/} $HF_TOKEN $SHARD $1 $2"'
    job = app(
        role(
            entrypoint="sh",
            args=["-c", script.replace("$", "$$"), "sh", "${replica_id}", "$(HOME)"],
            env={"HF_TOKEN": "hf_abcdefghijklmnop", "SHARD": "shard-${replica_id}"},
            num_replicas=2,
        )
    )
    app_id = scheduler.submit(job, {})
    response = scheduler.wait(app_id, 30)
    assert response is not None
    assert response.state is AppState.SUCCEEDED
    name = name_of(app_id)
    lines = ["".join(scheduler.log_iter(app_id, "trainer", k)).split() for k in (0, 1)]
    assert lines[0] == ["0", "localhost", app_id, "hf_abcdefghijklmnop", "shard-0", "0", "$(HOME)"]
    assert lines[1] == ["1", f"{name}-0.{name}", app_id, "hf_abcdefghijklmnop", "shard-1", "1", "$(HOME)"]


def test_the_job_owns_what_was_made_for_it(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    job = app(role(num_replicas=2, env={"HF_TOKEN": "hf_abcdefghijklmnop"}), role("reader"))
    name = name_of(scheduler.submit(job, {}))
    uids = {each["metadata"]["uid"] for each in stub.all("jobs")}
    assert len(uids) == 2
    for plural in ("secrets", "services"):
        [item] = stub.all(plural)
        assert {owner["uid"] for owner in item["metadata"]["ownerReferences"]} == uids
        assert {owner["kind"] for owner in item["metadata"]["ownerReferences"]} == {"Job"}
    for role_name in ("trainer", "reader"):
        stub.remove("jobs", f"{name}-{role_name}")
    assert stub.all("secrets") == stub.all("services") == []


@pytest.mark.parametrize("plural", ["services", "jobs"])
def test_an_answer_that_is_lost_makes_no_second_job(stub: Stub, scheduler: Scheduler, plural: str) -> None:
    stub.runs_pods = False
    faults = ["lose answer"]
    stub.faults = lambda method, path, params: (
        faults.pop() if method == "POST" and path.endswith(plural) and faults else None
    )
    scheduler.submit(app(role(num_replicas=2)), {})
    assert faults == []
    assert len(stub.all("jobs")) == len(stub.all("services")) == 1


def test_a_job_of_this_name_that_is_not_ours_is_left_alone(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    info = scheduler.submit_dryrun(app(), {})
    scheduler.schedule(info)
    with pytest.raises(KubernetesError, match="already exists"):
        scheduler.schedule(info)
    assert len(stub.all("jobs")) == 1


def test_nothing_is_left_of_a_refused_job(stub: Stub, scheduler: Scheduler) -> None:
    refusal = (403, failure(403, "Forbidden", 'admission webhook "policy" denied the request: no'), {})
    stub.faults = lambda method, path, params: (
        refusal if method == "POST" and path.endswith("/jobs") else None
    )
    with pytest.raises(KubernetesError, match='admission webhook "policy" denied the request: no'):
        scheduler.submit(app(role(num_replicas=2, env={"HF_TOKEN": "hf_abcdefghijklmnop"})), {})
    assert stub.objects == {}


def test_the_server_checks_the_job_before_code_is_pushed(stub: Stub, scheduler: Scheduler) -> None:
    info = scheduler.submit_dryrun(app(role(num_replicas=2)), {})
    scheduler._check_before_shipping(info)
    assert stub.objects == {}
    tried = [
        each.split()[1].partition("?")[0].rpartition("/")[2] for each in stub.requests if "dryRun=All" in each
    ]
    assert tried == ["services", "jobs", "pods"]
    assert all("fieldValidation=Strict" in each for each in stub.requests if "dryRun=All" in each)
    stub.validate = lambda manifest: 'unknown field "spec.new"' if manifest["kind"] == "Job" else ""
    with pytest.raises(KubernetesError, match=r'unknown field "spec\.new"'):
        scheduler._check_before_shipping(info)
    unchecked = scheduler.submit_dryrun(app(), {"validate_spec": False})
    scheduler._check_before_shipping(unchecked)


_USED_UP = "exceeded quota: q, requested: limits.cpu=2, used: limits.cpu=3, limited: limits.cpu=4"
_NEVER = "exceeded quota: q, requested: cpu=2,pods=1, used: cpu=0,pods=0, limited: cpu=1,pods=9"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "results"),
    [
        (f'pods "a-x" is forbidden: {_NEVER}', [("the job", False)]),
        (f'pods "a-x" is forbidden: {_USED_UP}', [("the job", True), ("its pods", None)]),
        (
            'pods "a-x" is forbidden: violates PodSecurity "restricted:latest": privileged',
            [("the job", False)],
        ),
        ('pods "a-x" is forbidden: no PriorityClass with name high was found', [("the job", False)]),
        ('pods "a-x" is forbidden: error looking up service account default/x', [("the job", False)]),
        (
            'pods is forbidden: User "me" cannot create resource "pods" in API group ""',
            [("the job", True), ("its pods", None)],
        ),
        ("", [("the job", True)]),
    ],
)
def test_a_plan_says_what_the_admission_of_pods_refuses(
    stub: Stub, scheduler: Scheduler, message: str, results: list[tuple[str, bool | None]]
) -> None:
    refusal = (403, failure(403, "Forbidden", message), {})
    stub.faults = lambda method, path, params: (
        refusal if message and method == "POST" and path.endswith("/pods") else None
    )
    info = scheduler.submit_dryrun(app(role(num_replicas=2)), {})
    checks = [check for check in scheduler.doctor({}, info) if check.name in ("the job", "its pods")]
    assert [(check.name, check.ok) for check in checks] == results
    assert message in checks[-1].text
    assert stub.objects == {}


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("spec.template.spec.nodeSelektor", "Did you mean nodeSelector?"),
        ("spec.template.spec.schedulingGroup", "the cluster is older than this field"),
    ],
)
def test_a_typo_is_not_an_old_cluster(stub: Stub, scheduler: Scheduler, field: str, hint: str) -> None:
    stub.validate = lambda manifest: f'unknown field "{field}"' if manifest["kind"] == "Job" else ""
    with pytest.raises(KubernetesError) as caught:
        scheduler.schedule(scheduler.submit_dryrun(app(), {}))
    assert hint in caught.value.hint


def test_warnings_of_the_server_are_shown(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    stub.warnings = ['would violate PodSecurity "restricted:latest": privileged']
    with pytest.warns(RuntimeWarning, match='warns: would violate PodSecurity "restricted:latest": priv'):
        scheduler.submit(app(), {})


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"kind": "jobset"}, "has no JobSet"),
        ({"queue": "default"}, "has no Volcano"),
        ({"gang": True}, "PodGroups"),
        ({"local_queue": "gpus"}, "has no Kueue"),
    ],
)
def test_what_the_cluster_lacks_is_said_before_anything_is_made(
    stub: Stub, scheduler: Scheduler, cfg: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        scheduler.submit(app(role(num_replicas=2)), cfg)
    assert stub.objects == {}


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [(["v1", "v1alpha2"], "v1alpha2"), (["v1", "v1beta1", "v1alpha3"], "v1beta1")],
)
def test_pod_groups_have_the_version_that_is_served(
    stub: Stub, scheduler: Scheduler, versions: list[str], chosen: str
) -> None:
    """1.36 has v1alpha2, 1.37 v1beta1 and v1alpha3; v1 holds only PriorityClasses."""
    stub.runs_pods = False
    stub.groups["scheduling.k8s.io"] = versions
    stub.extra["/apis/scheduling.k8s.io/v1"] = {"resources": [{"name": "priorityclasses"}]}
    stub.extra[f"/apis/scheduling.k8s.io/{chosen}"] = {"resources": [{"name": "podgroups"}]}
    name = name_of(scheduler.submit(app(role(num_replicas=2)), {"gang": True}))
    [group] = stub.all("podgroups")
    assert group["apiVersion"] == f"scheduling.k8s.io/{chosen}"
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    [job] = stub.all("jobs")
    assert job["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": name}


@pytest.mark.parametrize("there", [True, False])
def test_kind_auto_is_a_jobset_where_there_is_jobset(stub: Stub, scheduler: Scheduler, there: bool) -> None:
    stub.runs_pods = False
    if there:
        stub.groups["jobset.x-k8s.io"] = ["v1alpha2"]
    app_id = scheduler.submit(app(role(num_replicas=2), role("reader")), {"kind": "auto"})
    assert len(stub.all("jobsets")) == int(there)
    assert len(stub.all("jobs")) == (0 if there else 2)
    assert scheduler.exists(app_id)
    with closing(create_scheduler("other")) as stranger:
        assert stranger.exists(app_id), "without a history it is found by its label"


# ---- ending


def test_cancelling(stub: Stub, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(shell("echo up; exec sleep 100"), {})
    stub.wait_for(lambda: stub.get("jobs", name_of(app_id))["status"].get("ready"))
    scheduler.cancel(app_id)
    response = scheduler.wait(app_id, 30)
    assert response is not None
    assert response.state is AppState.CANCELLED
    assert "with shunter" in response.msg
    before = len(stub.requests)
    scheduler.cancel(app_id)
    assert not any(each.startswith("PATCH") for each in stub.requests[before:]), "it has ended"
    scheduler.cancel("default:nothing-here")


def test_a_queued_job_is_taken_out_of_its_queue(stub: Stub, scheduler: Scheduler) -> None:
    stub.groups["kueue.x-k8s.io"] = ["v1beta2"]
    app_id = scheduler.submit(app(), {"local_queue": "gpus"})
    job = stub.get("jobs", name_of(app_id))
    labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
    stub.put("workloads", {"metadata": {"name": "w", "labels": labels}, "spec": {"active": True}})
    stub.patch = _without_deadline(stub)  # type: ignore[method-assign]
    scheduler.cancel(app_id)
    assert stub.get("workloads", "w")["spec"]["active"] is False
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.CANCELLED


def _without_deadline(stub: Stub) -> Any:
    """A suspended Job's deadline does not count."""
    from tests.kubernetes.stub import merge

    def patch(plural: str, namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        item = stub.get(plural, name, namespace)
        merge(item, change)
        return stub.put(plural, item, "MODIFIED")

    return patch


def test_a_jobset_is_suspended_and_a_volcano_job_aborted(stub: Stub, scheduler: Scheduler) -> None:
    stub.groups |= {
        "jobset.x-k8s.io": ["v1alpha2"],
        "batch.volcano.sh": ["v1alpha1"],
        "bus.volcano.sh": ["v1alpha1"],
    }
    jobset = scheduler.submit(app(role(num_replicas=2, max_retries=1)), {"kind": "jobset"})
    volcano = scheduler.submit(app(), {"queue": "default"})
    assert scheduler.cancel_many([jobset, volcano]) == {jobset: None, volcano: None}
    assert stub.get("jobsets", name_of(jobset))["spec"]["suspend"] is True
    [command] = stub.all("commands")
    assert command["action"] == "AbortJob"
    assert problems_of(command, "volcano_command") == []
    assert command["target"]["name"] == name_of(volcano)
    stub.change("vcjobs", name_of(volcano), state={"phase": "Aborted"})
    stub.change("jobsets", name_of(jobset), conditions=[{"type": "Suspended", "status": "True"}])
    found = scheduler.describe_many([jobset, volcano])
    assert {app_id: each and each.state for app_id, each in found.items()} == {
        jobset: AppState.CANCELLED,
        volcano: AppState.CANCELLED,
    }


def test_the_history_has_the_times_of_the_cluster(stub: Stub, scheduler: Scheduler) -> None:
    """Several jobs are described without their pods, which know when a job began to run."""
    began, ended, over = "2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z", "2026-01-02T03:05:06Z"
    stub.runs_pods = False
    with get_runner("test") as runner:
        handles = [runner.run(app(), "kubernetes") for _ in range(2)]
        jobs = [name_of(handle.rpartition("/")[2]) for handle in handles]
        pod = next(each for each in stub.all("pods") if jobs[0] in each["metadata"]["name"])
        container = {"name": pod["spec"]["containers"][0]["name"]}
        container["state"] = {"terminated": {"exitCode": 0, "startedAt": began, "finishedAt": ended}}
        stub.change("pods", pod["metadata"]["name"], phase="Succeeded", containerStatuses=[container])
        complete = {"type": "Complete", "status": "True", "lastTransitionTime": over}
        stub.change("jobs", jobs[0], conditions=[complete], completionTime=over)
        runner.cancel(handles[1])
        failed = {"type": "Failed", "status": "True", "lastTransitionTime": over}
        stub.change("jobs", jobs[1], conditions=[failed])
        cancelled, done = runner.jobs()
    assert (done.state, cancelled.state) == (AppState.SUCCEEDED, AppState.CANCELLED)
    assert (done.started_at, done.ended_at) == (seconds(began), seconds(over))
    assert (cancelled.started_at, cancelled.ended_at) == (None, seconds(over))


@pytest.mark.slow
def test_many_jobs_take_few_calls(stub: Stub, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NAMES_PER_CALL == 100
    monkeypatch.setattr("shunter.schedulers.kubernetes_scheduler.jobs.NAMES_PER_CALL", 10)
    stub.runs_pods = False
    app_ids = [scheduler.submit(app(), {}) for _ in range(13)]
    before = len(stub.requests)
    found = scheduler.describe_many(app_ids)
    assert all(each is not None and each.state is AppState.PENDING for each in found.values())
    assert len(stub.requests) - before == 2, "ten names a call"
    for app_id in app_ids[:12]:
        stub.change("jobs", name_of(app_id), conditions=[{"type": "Complete", "status": "True"}])
    before = len(stub.requests)
    errors = [attempt(scheduler.delete, app_id) for app_id in app_ids]
    assert len(stub.all("jobs")) == 1
    assert sum(isinstance(error, ConfigError) for error in errors) == 1


def contexts(path: Path, current: str, **servers: str) -> None:
    """Write a kubeconfig with a context for each API server."""
    user = {"name": "me", "user": {"token": "t"}}
    clusters = [{"name": name, "cluster": {"server": url}} for name, url in servers.items()]
    listed = [{"name": name, "context": {"cluster": name, "user": "me"}} for name in servers]
    content = {"apiVersion": "v1", "kind": "Config", "current-context": current, "clusters": clusters}
    path.write_text(json.dumps({**content, "users": [user], "contexts": listed}))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the kubeconfig that is used; each test writes it."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return tmp_path / "kubeconfig"


def test_a_cluster_that_is_gone_leaves_the_jobs_of_others_alone(
    stub: Stub, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.runs_pods = False
    with Stub() as other, get_runner() as runner:
        other.runs_pods = False
        contexts(path, "here", here=stub.url, there=other.url)
        healthy = runner.run(shell("true"), "kubernetes")
        lost = runner.run(shell("true"), "kubernetes", {"context": "there"})
        assert len(other.all("jobs")) == 1
    contexts(path, "here", here=stub.url)
    with get_runner() as runner:
        states = {job.handle: job.state for job in runner.jobs()}
        assert states == {healthy: AppState.PENDING, lost: AppState.UNREACHABLE}
        errors = runner.cancel_many([lost, healthy])
        assert errors[healthy] is None
        assert "no context 'there'" in str(errors[lost])
    assert main(["delete", lost]) != 0
    assert main(["delete", "--forget", f"*{lost[-6:]}"]) == 0
    said = capsys.readouterr()
    assert lost in said.out
    assert "without --yes" in said.err
    assert main(["delete", "--forget", lost]) == 0
    assert "forgot" in capsys.readouterr().err
    with get_runner() as runner:
        assert [job.handle for job in runner.jobs()] == [healthy]


def test_the_context_of_a_job_is_that_of_its_submission(
    stub: Stub, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.runs_pods = False
    with Stub() as other:
        contexts(path, "first", first=stub.url, second=other.url)
        with get_runner() as runner:
            handle = runner.run(shell("sleep 9"), "kubernetes")
        contexts(path, "second", first=stub.url, second=other.url)  # kubectl config use-context second
        with get_runner() as runner:
            status = runner.status(handle)
            assert status is not None
            assert status.state is AppState.PENDING
            assert runner.cancel_many([handle]) == {handle: None}
        [job] = stub.all("jobs")
        assert job["spec"]["activeDeadlineSeconds"] == 1
        contexts(path, "first", first=other.url)  # the name is another cluster's now
        with get_runner() as runner:
            status = runner.status(handle)
            assert status is not None
            assert "is now of the cluster" in status.msg
    assert main(["cancel", handle]) != 0
    assert "asked" not in capsys.readouterr().err


def test_a_job_that_its_cluster_has_forgotten_is_not_asked_to_stop(
    stub: Stub, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.runs_pods = False
    stub.kubeconfig(path)
    with get_runner() as runner:
        handle = runner.run(shell("sleep 9"), "kubernetes")
        status = runner.status(handle)
        assert status is not None
        assert status.state is AppState.PENDING
    stub.remove("jobs", handle.rpartition(":")[2])
    assert main(["cancel", handle]) == EXIT_NO_SUCH_JOB
    assert "asked" not in capsys.readouterr().err


def test_points_of_a_sweep(stub: Stub, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stub.runs_pods = False
    stub.kubeconfig(path)
    words = ["sweep", "-s", "kubernetes", "--workspace", "", "utils.sh", "--image", "alpine:3"]
    words += ["--", "sh", "-c", 'echo "$0"', "lr=0.1,0.2"]
    assert main(words) == 0
    handle = capsys.readouterr().out.split()[0]
    assert main(["points", handle]) == 0
    assert "0.2" in capsys.readouterr().out


def test_deleting_takes_everything(stub: Stub, scheduler: Scheduler) -> None:
    job = app(role(entrypoint="true", args=[], num_replicas=2, env={"HF_TOKEN": "hf_abcdefghijklmnop"}))
    app_id = scheduler.submit(job, {})
    scheduler.wait(app_id, 30)
    scheduler.delete(app_id)
    assert [key for key in stub.objects if key[0] != "events"] == []
    assert scheduler.describe(app_id) is None
    with pytest.raises(UnknownAppException):
        list(scheduler.log_iter(app_id, "trainer"))


def test_what_a_job_left_behind(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    kept = scheduler.submit(app(role(num_replicas=2)), {})
    labels = {"shunter/job": "lost-x"}
    old = {"name": "lost-x", "labels": labels, "creationTimestamp": "2020-01-01T00:00:00Z"}
    stub.put("services", {"metadata": old})
    [leftover] = scheduler.leftovers({}, 60)
    assert (leftover.name, leftover.app_id) == ("service lost-x", "default:lost-x")
    scheduler.remove_leftovers({}, [leftover])
    assert [each["metadata"]["name"] for each in stub.all("services")] == [name_of(kept)]


def test_lists(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    stub.groups["jobset.x-k8s.io"] = ["v1alpha2"]
    here = scheduler.submit(app(role(num_replicas=2), role("reader")), {})
    there = scheduler.submit(app(), {"namespace": "team", "kind": "jobset"})
    stub.put("jobs", {"apiVersion": "batch/v1", "metadata": {"name": "somebody-elses"}, "spec": {}})
    assert [row.app_id for row in scheduler.list({})] == [here]
    assert {row.app_id for row in scheduler.list({"namespace": "*"})} == {here, there}
    assert [row.app_id for row in scheduler.list({"namespace": "team"})] == [there]
    assert scheduler.list({"states": {AppState.FAILED}}) == []
    assert scheduler.list({"since": 4e9}) == []


# ---- waiting


def test_waiting_is_watching(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    app_id = scheduler.submit(app(), {})

    def end() -> None:
        stub.wait_for(lambda: any("watch=true" in each for each in stub.requests))
        stub.change("jobs", name_of(app_id), conditions=[{"type": "Complete", "status": "True"}])

    thread = threading.Thread(target=end)
    thread.start()
    response = scheduler.wait(app_id, 30)
    thread.join()
    assert response is not None
    assert response.state is AppState.SUCCEEDED


def test_where_watching_is_not_allowed_the_job_is_asked_for(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    app_id = scheduler.submit(app(), {})
    stub.faults = lambda method, path, params: (
        (403, failure(403, "Forbidden", "cannot watch"), {}) if params.get("watch") else None
    )
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    threading.Timer(0.5, lambda: stub.change("jobs", name_of(app_id), **done)).start()
    response = scheduler.wait(app_id, 30)
    assert response is not None
    assert response.state is AppState.SUCCEEDED


def test_a_job_that_vanishes_while_it_is_waited_for_has_not_ended(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    app_id = scheduler.submit(app(), {})

    def vanish() -> None:
        stub.wait_for(lambda: any("watch=true" in each for each in stub.requests))
        stub.remove("jobs", name_of(app_id))

    thread = threading.Thread(target=vanish)
    thread.start()
    assert scheduler.wait(app_id, 30) is None
    thread.join()


# ---- doctor, and the command line


def test_doctor(stub: Stub, scheduler: Scheduler) -> None:
    stub.objects["namespaces", "default", "default"] = {"metadata": {"name": "default"}}
    stub.extra["/api/v1/namespaces/default"] = {"metadata": {"name": "default"}}
    stub.groups["kueue.x-k8s.io"] = ["v1beta2"]
    checks = {check.name: check for check in scheduler.doctor({"local_queue": "gpus"})}
    assert checks["API server"].ok
    assert "v1.37.0-stub" in checks["API server"].text
    assert checks["permissions"].ok
    assert checks["namespace"].ok
    assert checks["local_queue"].ok is False
    assert "Kueue (v1beta2)" in checks["queues"].text


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True])
def test_a_job_is_compared_with_the_nodes(stub: Stub, scheduler: Scheduler, grows: bool) -> None:
    if grows:
        stub.groups["karpenter.sh"] = ["v1"]

    def node(name: str, gpus: str, **spec: Any) -> dict[str, Any]:
        size = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": gpus}
        info = {"operatingSystem": "linux", "architecture": "arm64"}
        return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": size, "nodeInfo": info}}

    def look(gpus: int, **cfg: Any) -> dict[str, Check]:
        image = "127.0.0.1:1/no/registry:1"
        role = Role("r", image, entrypoint="true", resource=Resource(cpu=2, gpu=gpus, memMB=1024))
        info = scheduler.submit_dryrun(AppDef("fits", [role]), cfg)
        return {check.name: check for check in scheduler.doctor({}, info)}

    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    stub.extra["/api/v1/nodes"] = {"items": [node("a", "4"), node("b", "8", taints=[taint])]}
    checks = look(4)
    assert (checks["nodes"].ok, checks["nodes"].text) == (True, "1 of 2 could hold a pod, if empty")
    assert checks["image 127.0.0.1:1/no/registry:1"].ok is None
    checks = look(8)
    assert checks["nodes"].ok is (None if grows else False)
    assert checks["nodes"].text == "none of 2 could hold a pod (a: it has 4 nvidia.com/gpu; b: taint team)"
    assert "(a: excluded; b: taint team)" in look(4, exclude=["a"])["nodes"].text


@pytest.mark.slow
def test_an_unreachable_cluster_is_no_failure(stub: Stub, tmp_path: Path) -> None:
    """Status is UNREACHABLE and ends with 4, a submission is an error, an expired login says so."""
    stub.runs_pods = False
    env = {"KUBECONFIG": stub.kubeconfig(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state")}
    words = ("run", "-s", "kubernetes", "utils.echo", "--image", "alpine:3")
    done = run_shunter(*words, **env)
    assert done.returncode == 0, done.stderr
    handle = done.stdout.strip()
    assert handle.startswith("kubernetes://")
    answers = (401, failure(401, "Unauthorized", "Unauthorized"), {})
    stub.faults = lambda *request: answers
    done = run_shunter("status", handle, **env)
    assert done.returncode == 4
    assert "refuses the credentials of the context stub (have they expired?)" in done.stdout
    stub.faults = lambda *request: "drop"
    done = run_shunter("status", "--json", handle, **env)
    assert (done.returncode, json.loads(done.stdout)["state"]) == (4, "UNREACHABLE")
    done = run_shunter(*words, **env)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "cannot be reached" in done.stderr
    stub.faults = lambda *request: None
    done = run_shunter("status", "--json", handle, **env)
    assert json.loads(done.stdout)["state"] == "PENDING"


def test_retries_of_single_replicas(stub: Stub, scheduler: Scheduler, tmp_path: Path) -> None:
    marker = tmp_path / "tried"
    script = f'[ "$TORCHX_REPLICA_IDX" = 0 ] || [ -e {marker} ] || {{ touch {marker}; exit 3; }}; echo done'
    job = shell(script.replace("$", "$$"), num_replicas=2, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    app_id = scheduler.submit(job, {})
    response = scheduler.wait(app_id, 30)
    assert response is not None
    assert response.state is AppState.SUCCEEDED
    assert [replica.restarts for replica in response.roles_statuses[0].replicas] == [0, 1]
    assert [(each.number, each.exit_code) for each in response.roles_statuses[0].replicas[1].earlier] == [
        (0, 3)
    ]
    marker.unlink()
    app_id = scheduler.submit(job, {"final_exit_codes": [3]})
    response = scheduler.wait(app_id, 30)
    assert response is not None
    assert response.state is AppState.FAILED


def test_retries_by_class(stub: Stub, scheduler: Scheduler, tmp_path: Path) -> None:
    """A pod that was killed for its memory starts again; then the program's own fault ends the job."""
    marker = tmp_path / "tried"
    job = shell(f"[ -e {marker} ] && exit 1; touch {marker}; exit 137")
    with pytest.warns(RuntimeWarning, match="kubernetes knows exception by the exit codes 1, 2, "):
        app_id = scheduler.submit(job, {"retry": {"oom": "3", "exception": "0"}})
    response = scheduler.wait(app_id, 30)
    assert response is not None
    assert response.state is AppState.FAILED
    (replica,) = response.roles_statuses[0].replicas
    assert replica.restarts == 1
    assert replica.reason.endswith("; not restarted: exception: it must not be retried")
    assert replica.reason in response.msg


@pytest.mark.slow
def test_the_pod_tells_of_the_last_end_and_of_a_hang(
    stub: Stub, scheduler: Scheduler, tmp_path: Path
) -> None:
    """The toolkit in the pod stops a script that hangs, and notifies after the last attempt alone."""
    (tmp_path / "toolkit.pyz").write_bytes(toolkit_archive())
    (tmp_path / "t.py").write_text(
        "import os, time\nif os.environ['SHUNTER_ATTEMPT'] == '0': 1 / 0\ntime.sleep(60)"
    )
    document = {"version": 1, "name": "job", "program": "t.py", "code": str(tmp_path), "host_count": 1}
    train = role(
        entrypoint=sys.executable,
        args=["-S", str(tmp_path / "toolkit.pyz"), "train"],
        env={"SHUNTER_JOB": json.dumps(document), "SAGEMAKER_BASE_DIR": str(tmp_path / "ml")},
        max_retries=1,
    )
    with receiving() as receiver:
        asked = {"notify": [receiver.url], "notify_secret": "hush-hush-1", "hang_timeout": 1.0}
        with pytest.warns(RuntimeWarning, match="notify: kubernetes lets the job's first container send it"):
            app_id = scheduler.submit(app(train), {**asked, "on_hang": "stop"})
        response = scheduler.wait(app_id, 50)
        [(headers, body)] = receiver.received
    assert response is not None
    assert response.state is AppState.FAILED
    (replica,) = response.roles_statuses[0].replicas
    assert "stopped because it hung: no output for 1 s" in replica.reason
    assert replica.restarts == 1
    message = json.loads(body)
    assert (message["handle"], message["state"], message["restarts"]) == (
        f"kubernetes://test/{app_id}",
        "FAILED",
        1,
    )
    assert (message["cause"]["name"], message["cause"]["replica"]) == ("hung", "trainer/0")
    assert headers["webhook-signature"].startswith("v1,")
    shown = json.dumps(stub.all("jobs")) + json.dumps(stub.all("pods"))
    assert receiver.url not in shown
    assert "hush-hush-1" not in shown
    assert "end of the stacks" in "".join(scheduler.log_iter(app_id, "trainer", 0))


def test_why_tells_how_to_avoid_a_node_with_a_broken_gpu(stub: Stub, scheduler: Scheduler) -> None:
    script = "raise RuntimeError('CUDA error: uncorrectable ECC error encountered')"
    train = role(entrypoint=sys.executable, args=["-c", script])
    with get_runner("s") as runner:
        handle = runner.run(app(train), "kubernetes", {"exclude": ["node-9"]})
        status = runner.wait(handle)
        assert status is not None
        explanation = explain(runner, handle, status)
        assert explanation.failure is not None
        assert explanation.failure.cause.name == "bad_gpu"
        command = explanation.try_command
        assert command == f"shunter rerun {handle.rpartition('/')[2]} -cfg exclude=node-9,node-1"
        again = runner.rerun(handle, cfg={"exclude": ["node-9", "node-1"]})
        runner.wait(again)
    pod = stub.all("pods")[-1]
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    excluded = [each["values"] for each in required["nodeSelectorTerms"][0]["matchFields"]]
    assert excluded == [["node-9"], ["node-1"]]
