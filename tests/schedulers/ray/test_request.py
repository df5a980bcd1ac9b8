"""What is sent to Ray, and what is refused before."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError, WorkspaceError
from shunter.schedulers.ray_scheduler import ray_package
from shunter.schedulers.ray_scheduler.options import RayOpts
from shunter.schedulers.ray_scheduler.request import RayRequest, bundle_of, make_request
from shunter.schedulers.ray_scheduler.scheduler import RayScheduler
from shunter.schedulers.ray_scheduler.states import RayJob
from shunter.specs import AppDef, AppState, BindMount, Resource, RetryPolicy, Role
from tests.schedulers.ray.stub import StubDashboard, stub_dashboard

GOLDEN = Path(__file__).parent / "golden"
ADDRESS = "http://head:8265"


def app(**fields: Any) -> AppDef:
    values = {"entrypoint": "python", "args": ["train.py", "${replica_id}"], "env": {"A": "${app_id}"}}
    return AppDef("job", [Role("worker", **{"image": "", **values, **fields})])


def request(job: AppDef, **options: Any) -> RayRequest:
    return make_request(job, RayOpts(**options), "job-1", ADDRESS, "gcs://_ray_pkg_0.zip")


GOLDEN_REQUESTS = {
    "plain": (app(), {}),
    "distributed": (
        AppDef(
            "ddp",
            [
                Role("head", "", entrypoint="a", resource=Resource(2, 0, 512), max_retries=1),
                Role(
                    "worker",
                    "",
                    entrypoint="b",
                    num_replicas=3,
                    min_replicas=2,
                    resource=Resource(4, 8, 1024, devices={"efa": 1}),
                    max_retries=2,
                    retry_policy=RetryPolicy.ROLE,
                    env={"API_KEY": "hunter2-hunter2"},
                ),
            ],
            {"team": "research"},
        ),
        {
            "placement": "STRICT_SPREAD",
            "label_selector": {"ray.io/accelerator-type": "H100"},
            "entrypoint_num_cpus": 0.5,
            "entrypoint_resources": {"head": "1"},
            "entrypoint_label_selector": {"zone": "a"},
            "timeout": 3600.0,
            "grace_period": 40.0,
            "job_dir": "/shared/jobs",
            "runtime_env": '{"env_vars": {"NCCL_DEBUG": "INFO"}}',
            "python": "/opt/env/bin/python",
        },
    ),
}


@pytest.mark.parametrize("name", GOLDEN_REQUESTS)
def test_the_request_is_as_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    job, options = GOLDEN_REQUESTS[name]
    shown = request(job, **options).shown()
    assert shown == json.loads((GOLDEN / f"{name}.json").read_text())


def test_secrets_are_in_the_plan_alone_and_are_not_shown():
    job, options = GOLDEN_REQUESTS["distributed"]
    made = request(job, **options)
    assert "hunter2" in json.dumps(made.plan)
    assert "hunter2" not in json.dumps(made.submission)
    assert "hunter2" not in str(made)


@pytest.mark.parametrize(
    ("resource", "bundle"),
    [
        (Resource(-1, -1, -1), {"CPU": 1}),
        (Resource(0, 0, 0), {"CPU": 0.001}),
        (Resource(0, 2, 1024), {"GPU": 2, "memory": 1 << 30}),
        (Resource(4, 0, 0, devices={"TPU": 4}), {"CPU": 4, "TPU": 4}),
    ],
)
def test_resources_become_a_bundle(resource: Resource, bundle: dict[str, float]) -> None:
    assert bundle_of(Role("r", "", resource=resource)) == bundle


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster_config_file": "c.yaml"}, "no longer read"),
        ({"cluster_name": "c"}, "no longer read"),
        ({"placement": "EVERYWHERE"}, "placement"),
        ({"timeout": 0.0}, "more than 0"),
        ({"grace_period": -1.0}, "at least 0"),
        ({"placement_timeout": float("nan")}, "placement_timeout"),
        ({"job_dir": "relative"}, "absolute"),
        ({"runtime_env": "{"}, "not JSON"),
        ({"runtime_env": "[]"}, "cannot read"),
        ({"runtime_env": '{"working_dir": "."}'}, "working_dir"),
        ({"runtime_env": "/none.json"}, "cannot read /none.json"),
        ({"requirements": "/none.txt"}, "cannot read /none.txt"),
        ({"entrypoint_resources": {"a": "many"}}, "not a number"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        request(app(), **options)


def test_requirements_are_read_here(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("# ours\nnumpy==2.0  # pinned\n\nscipy\n")
    assert request(app(), requirements=str(path)).submission["runtime_env"]["pip"] == ["numpy==2.0", "scipy"]
    path.write_text("-r other.txt\n")
    with pytest.raises(ConfigError, match=r"-r other\.txt"):
        request(app(), requirements=str(path))
    path.write_text("numpy\n")
    with pytest.raises(ConfigError, match="both say"):
        request(app(), requirements=str(path), runtime_env='{"conda": "x"}')


# ---- with the scheduler


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDashboard]:
    with stub_dashboard() as stub:
        monkeypatch.setenv("RAY_ADDRESS", stub.address)
        yield stub


@pytest.fixture
def scheduler() -> Iterator[RayScheduler]:
    scheduler = RayScheduler("s")
    yield scheduler
    scheduler.close()


def test_what_has_no_effect_is_reported(scheduler: RayScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    job = app(image="image:1", metadata={"train": {"version": 1}})
    warnings = scheduler.submit_dryrun(job, {}).warnings
    assert [text.partition(":")[0] for text in warnings] == ["role 'worker'"] * 2
    assert "ignores the image image:1" in warnings[0]
    assert "--output" in warnings[1]
    assert len(scheduler.submit_dryrun(job, {"job_dir": "/shared"}).warnings) == 1


def test_mounts_and_names_that_ray_cannot_have_are_refused(scheduler: RayScheduler) -> None:
    with pytest.raises(ConfigError, match="mounts of type bind"):
        scheduler.submit_dryrun(app(mounts=[BindMount("/a", "/b")]), {})
    with pytest.raises(ConfigError, match="two words"):
        scheduler.submit_dryrun(AppDef("j", [Role("two words", "", entrypoint="x")]), {})


def test_the_package_has_the_code_as_it_is(
    tmp_path: Path, stub: StubDashboard, scheduler: RayScheduler
) -> None:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "config").write_text("x")
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "link").symlink_to("run.sh")
    stub.answer("GET", "/api/packages/", (404, ""))
    bodies: list[bytes] = []
    stub.routes["PUT", "/api/packages/"] = lambda path, body: (bodies.append(body), (200, ""))[1]
    info = scheduler.submit_dryrun(app(), {}, str(project))
    plan = info.shipment.plan()
    assert (plan["files"], plan["size"]) == (1, 10)
    scheduler.ship(info)
    path = tmp_path / "package.zip"
    path.write_bytes(bodies[0])
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        assert names == {"ray_driver.py", "replica_actor.py", "replica_process.py", "toolkit.pyz", "code.tar"}
        with archive.open("code.tar") as file, tarfile.open(fileobj=file) as code:
            members = {member.name: member for member in code}
    assert members.keys() == {"run.sh", "link"}
    assert members["run.sh"].mode & 0o777 == 0o755
    assert members["link"].linkname == "run.sh"
    again = scheduler.submit_dryrun(app(), {}, str(project))
    assert again.request.submission["runtime_env"]["working_dir"] == plan["package"]


def test_code_that_is_too_large_is_reported_before_it_is_sent(
    tmp_path: Path, stub: StubDashboard, scheduler: RayScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_package, "LARGEST", 1000)
    stub.answer("GET", "/api/packages/", (404, ""))
    (tmp_path / "a.py").write_text("x")
    info = scheduler.submit_dryrun(app(), {}, str(tmp_path))
    with pytest.raises(WorkspaceError, match="too large for Ray"):
        scheduler.ship(info)
    assert not any(method == "PUT" for method, _ in stub.requests)


# ---- recorded answers


@pytest.mark.parametrize("version", ["2.60", "2.9", "future"])
def test_recorded_jobs_are_read(version: str, stub: StubDashboard, scheduler: RayScheduler) -> None:
    """``2.60`` was recorded; ``2.9`` and ``future`` are written after the documented schema."""
    recorded = json.loads((GOLDEN / f"jobs-{version}.json").read_text())
    stub.answer("GET", "/api/jobs/", (200, recorded["answer"]))
    rows = {row.app_id: row.state.name for row in scheduler.list({"all": True})}
    assert rows == recorded["states"]
    found = scheduler.describe_many([*rows, "none"])
    assert {name: response.state.name for name, response in found.items() if response} == recorded["states"]
    assert found["none"] is None


def test_replicas_that_the_driver_could_not_close_end_with_the_job():
    job = {"status": "FAILED", "end_time": 5000, "error_type": "JOB_SUPERVISOR_ACTOR_DIED"}
    document = {"phase": "running", "roles": [{"role": "w", "replicas": [{"id": 0, "state": "RUNNING"}]}]}
    (replica,) = RayJob("job-1", job, document).roles()[0].replicas
    assert (replica.state, replica.ended_at) == (AppState.FAILED, 5.0)
    assert RayJob("job-1", {"status": "RUNNING"}, {"phase": "placing"}).state is AppState.PENDING
