"""The life of jobs on a cluster, with the permissions that the documentation names and no others.

`make test-kubernetes` runs this on the cluster that KUBECONFIG names, in a namespace that it makes, which is
deleted at the end; `kubectl` and the permission to make namespaces and Roles are needed. Without a cluster,
what the stub can show runs there, so that the suite stays in step.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shunter.diagnosis.waiting import explain_waiting
from shunter.errors import BackendError
from shunter.schedulers.api import LogQuery
from shunter.schedulers.ids import random_id
from shunter.schedulers.kubernetes_scheduler.doctor import NEEDED, WANTED
from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler, create_scheduler
from shunter.specs import AppDef, AppState, Resource, Role, parse_mounts
from tests.backends import need
from tests.cluster_hosts import wait_until
from tests.kubernetes.stub import Stub

# Read once, since tests run with an environment of their own.
IS_REAL = bool(os.environ.get("SHUNTER_TEST_CLUSTER"))
KUBECONFIG = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
IMAGE = os.environ.get("SHUNTER_TEST_IMAGE", "busybox:1.36")
DOCUMENT = Path(__file__).parents[2] / "docs/schedulers/kubernetes.md"

pytestmark = pytest.mark.timeout(600)
real_only = pytest.mark.skipif(not IS_REAL, reason="needs a cluster (make test-kubernetes)")


class Place(NamedTuple):
    """Where the jobs of these tests run."""

    scheduler: KubernetesScheduler
    namespace: str

    def submit(self, script: str, resource: Resource | None = None, **fields: Any) -> str:
        resource = resource or Resource(cpu=0, gpu=0, memMB=64)
        role = Role("main", IMAGE, entrypoint="sh", args=["-c", script], resource=resource, **fields)
        return self.scheduler.submit(AppDef("suite", [role]), {"namespace": self.namespace})

    def ended(self, app_id: str) -> Any:
        return self.scheduler.wait(app_id, 300)

    def read(self, app_id: str, k: int = 0, **query: Any) -> list[str]:
        blocks = self.scheduler.log_blocks(app_id, [("main", k)], LogQuery(**query))
        return b"".join(block.data for block in blocks).decode().splitlines()

    def waiting(self, app_id: str, kind: str) -> str:
        """Wait until a job waits for this; returns the cluster's words."""
        seen: list[Any] = []

        def is_kind() -> bool:
            response = self.scheduler.describe(app_id)
            assert response is not None
            seen[:] = [explain_waiting(response.to_status())]
            return bool(seen[0].kind == kind)

        wait_until(is_kind, f"it waits for {kind}", lambda: f", but {seen}", patience=120)
        return str(seen[0].reason)


def documented_role() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    block = re.search(r"```yaml\n(apiVersion: rbac.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert block is not None
    return dict(yaml.safe_load(block[1]))


def kubectl(*args: str, document: Any = None) -> str:
    given = None if document is None else json.dumps(document)
    line = ["kubectl", f"--kubeconfig={KUBECONFIG}", *args]
    done = subprocess.run(line, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Make a namespace, and a user who has the documented Role there; returns kubeconfig and namespace."""
    namespace = f"shunter-test-{random_id()}"
    kubectl("create", "namespace", namespace)
    try:
        kubectl("create", "serviceaccount", "tester", f"--namespace={namespace}")
        kubectl("apply", f"--namespace={namespace}", "--filename=-", document=documented_role())
        account = f"--serviceaccount={namespace}:tester"
        kubectl("create", "rolebinding", "tester", "--role=shunter", account, f"--namespace={namespace}")
        token = kubectl("create", "token", "tester", f"--namespace={namespace}", "--duration=2h").strip()
        config = json.loads(kubectl("config", "view", "--minify", "--flatten", "--raw", "--output=json"))
        config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
        path = tmp_path_factory.mktemp("cluster") / "kubeconfig"
        path.write_text(json.dumps(config))
        yield str(path), namespace
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    need("lightkube")
    if IS_REAL:
        path, namespace = request.getfixturevalue("user")
    else:
        stub: Stub = request.getfixturevalue("stub")
        request.getfixturevalue("kubectl")
        path, namespace = stub.kubeconfig(tmp_path / "kubeconfig"), "default"
        stub.extra["/api/v1/namespaces/default"] = {"metadata": {"name": "default"}}
    monkeypatch.setenv("KUBECONFIG", path)
    with closing(create_scheduler("suite")) as scheduler:
        yield Place(scheduler, namespace)


def test_the_documented_role_has_what_doctor_asks_for() -> None:
    rules = documented_role()["rules"]
    for group, resource, verbs in (*NEEDED, *WANTED):
        granted = {
            verb
            for rule in rules
            if group in rule["apiGroups"] and resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert set(verbs) <= granted, resource


def test_the_documented_role_suffices(place: Place) -> None:
    role = Role("main", IMAGE, entrypoint="true", resource=Resource(cpu=0, gpu=0, memMB=64))
    info = place.scheduler.submit_dryrun(AppDef("suite", [role]), {"namespace": place.namespace})
    checks = place.scheduler.doctor({"namespace": place.namespace}, info)
    found = {check.name: check.ok for check in checks}
    assert (found["permissions"], found["the job"]) == (True, True)


def test_success_failure_and_logs(place: Place) -> None:
    good = place.submit("echo I am $$TORCHX_REPLICA_IDX", num_replicas=2)
    bad = place.submit("echo before; echo the reason >&2; exit 3")
    assert place.ended(good).state is AppState.SUCCEEDED
    assert [place.read(good, k) for k in (0, 1)] == [["I am 0"], ["I am 1"]]
    response = place.ended(bad)
    assert response.state is AppState.FAILED
    [replica] = response.roles_statuses[0].replicas
    assert replica.exit_code == 3
    assert "exit code 3: the reason" in replica.reason
    assert sorted(place.read(bad)) == ["before", "the reason"]
    for app_id in (good, bad):
        place.scheduler.delete(app_id)
        wait_until(lambda app_id=app_id: not place.scheduler.exists(app_id), "it is gone", patience=60)


def test_entering_and_cancelling(place: Place) -> None:
    app_id = place.submit("echo up; exec sleep 600")
    wait_until(lambda: place.scheduler.describe(app_id).state is AppState.RUNNING, "it runs", patience=120)
    assert place.scheduler.execute(app_id, "main", 0, ["sh", "-c", "exit 7"], tty=False) == 7
    place.scheduler.cancel(app_id)
    assert place.ended(app_id).state is AppState.CANCELLED


@real_only
def test_a_hundred_thousand_lines_are_followed(place: Place) -> None:
    app_id = place.submit("seq 100000")
    assert place.read(app_id, should_tail=True) == [str(number) for number in range(1, 100_001)]


@real_only
def test_an_init_container_that_fails(place: Place) -> None:
    init = {"name": "fetch", "image": IMAGE, "command": ["sh", "-c", "echo no bucket; exit 7"]}
    app_id = place.submit("true", metadata={"kubernetes": {"spec": {"initContainers": [init]}}})
    response = place.ended(app_id)
    [replica] = response.roles_statuses[0].replicas
    assert (replica.exit_code, "its init container fetch failed" in replica.reason) == (7, True)
    assert place.read(app_id) == ["no bucket"]


@real_only
@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"mounts": ["type=volume", "src=nobody-has-this", "dst=/data"]}, "refused", "nobody-has-this"),
        ({"mounts": ["type=bind", "src=/nobody/has/this", "dst=/data"]}, "refused", "/nobody/has/this"),
        ({"resource": Resource(cpu=100_000, gpu=0, memMB=64)}, "impossible", "Insufficient cpu"),
        ({"image": "registry.invalid/nothing:1"}, "image", ""),
    ],
)
def test_what_a_job_waits_for(place: Place, fields: dict[str, Any], kind: str, words: str) -> None:
    if "mounts" in fields:
        fields = {"mounts": parse_mounts(fields["mounts"])}
    given = {"image": IMAGE, "resource": Resource(cpu=0, gpu=0, memMB=64), **fields}
    role = Role("main", entrypoint="true", **given)
    app_id = place.scheduler.submit(AppDef("suite", [role]), {"namespace": place.namespace})
    assert words in place.waiting(app_id, kind)
    place.scheduler.cancel(app_id)


@real_only
def test_a_quota_that_no_pod_fits(place: Place) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}}
    quota["spec"] = {"hard": {"limits.memory": "32Mi"}}
    in_place = f"--namespace={place.namespace}"
    kubectl("apply", in_place, "--filename=-", document=quota)
    role = Role("main", IMAGE, entrypoint="true", resource=Resource(cpu=0, gpu=0, memMB=64))
    info = place.scheduler.submit_dryrun(AppDef("suite", [role]), {"namespace": place.namespace})

    def is_refused() -> bool:  # the controller needs a moment to count what is used
        try:
            place.scheduler._check_before_shipping(info)
        except BackendError as error:
            return "exceeded quota" in error.message
        return False

    try:
        wait_until(is_refused, "the quota is in force", patience=60)
    finally:
        kubectl("delete", "resourcequota", "small", in_place)
