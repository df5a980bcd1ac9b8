"""Code and results with a kubeconfig alone: no registry, no bucket, no claim. Pods are real containers."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import shunter
from shunter.cli import main
from shunter.errors import BackendError, ConfigError, ResultError
from shunter.progress import Silent
from shunter.runner import Runner, get_runner
from shunter.runner.fetched_results import _part_path, chosen_files, fetch
from shunter.schedulers.kubernetes_scheduler import code_objects
from shunter.schedulers.kubernetes_scheduler.rules import pod_templates
from shunter.specs import AppDef, AppState, Role
from shunter.specs.overlays import JOIN
from shunter.specs.serialize import from_json
from tests.backends import need
from tests.kubernetes.stub import Stub, container_cluster, failure

pytestmark = pytest.mark.filterwarnings("ignore:role .* a pod keeps no files")

#: Prints the digest of the workspace's file, and what the file system says of it.
SCRIPT = """
import hashlib, os
data = open("data.bin", "rb").read()
mode = oct(os.stat("run.sh").st_mode & 0o777)
print(hashlib.sha256(data).hexdigest(), mode, os.readlink("link"), os.getcwd())
"""
#: Leaves a model of random bytes, and a small file.
RESULTS = """
import os
with open(os.environ["SM_MODEL_DIR"] + "/weights", "wb") as file:
    file.write(os.urandom({size}))
with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/x.csv", "w") as file:
    file.write("1,2")
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    need("lightkube")
    with container_cluster(tmp_path / "kubeconfig") as stub:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield stub


@pytest.fixture
def runner() -> Iterator[Runner]:
    with get_runner("test") as made:
        yield made


def submit(runner: Runner, image: str, *words: str, **cfg: Any) -> str:
    line = ["--script", "train.py", "--image", image, *words]
    return runner.run_component(
        "train.script", line, "kubernetes", {"logged_results": 1, **cfg}, workspace="."
    )


def code_secrets(stub: Stub) -> list[dict[str, Any]]:
    return [each for each in stub.all("secrets") if "-code-" in each["metadata"]["name"]]


def large_project(folder: Path) -> bytes:
    """Write a project that takes three Secrets; returns the content of its file."""
    data = os.urandom(2 * code_objects.PART_BYTES + 100)
    (folder / "data.bin").write_bytes(data)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("data.bin")
    (folder / "train.py").write_text(SCRIPT)
    return data


@pytest.mark.slow
def test_a_large_workspace_arrives_in_each_pod_as_it_was(cluster, project, runner, image):
    data = large_project(project)
    handle = submit(runner, image)
    assert runner.wait(handle).state == AppState.SUCCEEDED, list(runner.log_lines(handle, "train"))
    lines = list(runner.log_lines(handle, "train"))
    digest = hashlib.sha256(data).hexdigest()
    assert lines == [f"{digest} 0o755 data.bin {code_objects.CODE_FOLDER}\n"]
    secrets = code_secrets(cluster)
    assert len(secrets) == 3
    owners = {owner["kind"] for each in secrets for owner in each["metadata"]["ownerReferences"]}
    assert owners == {"Job"}
    runner.delete(handle)
    assert not cluster.all("secrets")


@pytest.mark.slow
def test_a_pod_that_replaces_an_evicted_one_has_the_code_too(cluster, project, runner, image):
    large_project(project)
    (project / "train.py").write_text("import time; print(open('run.sh').read(), flush=True); time.sleep(60)")
    handle = submit(runner, image)

    def running() -> list[str]:
        pods = [pod for pod in cluster.all("pods") if pod["status"]["phase"] == "Running"]
        return [name for pod in pods if cluster.logs[name := pod["metadata"]["name"], 0].lines]

    (first,) = cluster.wait_for(running)
    cluster.evict(first)
    (second,) = cluster.wait_for(lambda: [name for name in running() if name != first])
    assert cluster.logs[second, 0].lines[0][1] == b"#!/bin/sh\n"
    runner.cancel(handle)
    assert runner.wait(handle).state == AppState.CANCELLED


def test_code_that_was_changed_does_not_run(cluster, project, runner, image):
    (project / "train.py").write_text("print('ran')")
    put = cluster.put

    def tampering(plural: str, item: dict[str, Any], kind: str = "ADDED") -> dict[str, Any]:
        if plural == "secrets" and kind == "ADDED":
            data = base64.b64decode(item["data"]["part"])
            item["data"]["part"] = base64.b64encode(data[:-4]).decode()
        return put(plural, item, kind)

    cluster.put = tampering
    handle = submit(runner, image)
    status = runner.wait(handle)
    assert status.state == AppState.FAILED
    assert "is not the one that was submitted" in (shunter.Job(handle).why().headline or "")
    assert not any("ran" in line for line in runner.log_lines(handle, "train"))


def test_what_is_too_large_is_refused_before_anything_is_sent(cluster, project, runner):
    (project / "train.py").write_text("")
    (project / "data.bin").write_bytes(os.urandom(code_objects.MOST_BYTES))
    with pytest.raises(ConfigError, match="more than 20 MB") as error:
        submit(runner, "image:1")
    assert "image_repo" in error.value.hint
    (project / "data.bin").unlink()
    (project / "Dockerfile.shunter").write_text("ARG IMAGE\nFROM $IMAGE\n")
    with pytest.raises(ConfigError, match=r"Dockerfile\.shunter.* has to be pushed"):
        submit(runner, "image:1")
    assert cluster.requests == []


def test_without_need_nothing_travels(cluster, project, runner):
    (project / "data.bin").write_bytes(os.urandom(100))
    info = runner.dryrun_component("utils.echo", ["--image", "image:1"], "kubernetes", {})
    assert info.request.code is None
    assert "initContainers" not in info.request.resource["spec"]["template"]["spec"]


def dryrun(runner: Runner, **cfg: Any) -> Any:
    words = ["--script", "train.py", "--image", "image:1", "--name", "n" * 80, "--num-replicas", "12"]
    return runner.dryrun_component("train.script", words, "kubernetes", cfg, workspace=".")


def test_the_request_shows_no_code_and_names_fit(project, runner):
    (project / "train.py").write_text("PASSWORD = 'Tr0ub4dor&3'")
    info = dryrun(runner)
    shown = str(info.request)
    assert base64.b64encode(info.request.code.packed).decode() not in shown
    assert "<redacted>" in shown
    assert len(f"{info.request.name}-11") <= 63
    pod = info.request.resource["spec"]["template"]["spec"]
    secrets = [each["metadata"]["name"] for each in info.request.code_secrets()]
    (parts,) = [each["projected"] for each in pod["volumes"] if "projected" in each]
    assert [source["secret"]["name"] for source in parts["sources"]] == secrets
    assert all(len(each["name"]) <= 63 for each in [*pod["initContainers"], *pod["volumes"]])
    assert info.shipment.plan()["objects"] == 1


@pytest.mark.parametrize("kind", ["job", "jobset", "volcano"])
def test_the_objects_follow_the_published_schemas(project, runner, kind):
    need("kubernetes_validate")
    import kubernetes_validate

    (project / "train.py").write_text("")
    job = dryrun(runner, kind=kind).request
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": template["spec"]}
        for item in job.manifests
        for _, template in pod_templates(item)
    ]
    for manifest in [*pods, *job.code_secrets()]:
        kubernetes_validate.validate(manifest, "1.34", strict=True)
    names = [each["name"] for each in pods[0]["spec"]["initContainers"]]
    assert names == ["shunter-code", *(f"shunter-results-{number}" for number in range(5))]


@pytest.mark.parametrize("refused", ["secrets", "jobs"])
def test_a_refused_submission_leaves_nothing(cluster, project, runner, refused):
    large_project(project)
    message = f'{refused} is forbidden: User "me" cannot create resource "{refused}" in API group ""'
    answer = 403, failure(403, "Forbidden", message), {}
    cluster.faults = lambda method, path, params: (
        answer if method == "POST" and path.endswith(refused) else None
    )
    for check in (True, False):
        with pytest.raises(BackendError, match=f'cannot create resource "{refused}"') as error:
            submit(runner, "image:1", validate_spec=check)
        assert "Role" in error.value.hint
        assert not cluster.all("secrets")


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_what_a_killed_client_left_is_collected_and_never_runs(cluster, project, runner, monkeypatch, end):
    large_project(project)
    scheduler = runner.scheduler("kubernetes")
    line = ["--script", "train.py", "--image", "image:1"]
    info = runner.dryrun_component("train.script", line, "kubernetes", {}, workspace=".")
    server = scheduler._server("", "")
    create = server.create

    def ending(path: str, manifest: dict[str, Any], **kwargs: Any) -> Any:
        if manifest["kind"] == "Job":
            raise end
        return create(path, manifest, **kwargs)

    monkeypatch.setattr(server, "create", ending)
    with pytest.raises(end):
        scheduler.schedule(info)
    assert not cluster.all("pods")
    leftovers = scheduler.leftovers({}, older_than=0)
    assert len(leftovers) == (3 if end is SystemExit else 0)  # as after SIGKILL; Ctrl-C cleans up
    scheduler.remove_leftovers({}, leftovers)
    assert not cluster.all("secrets")


@pytest.mark.slow
def test_code_of_a_job_that_has_ended_is_collected_and_a_rerun_brings_it_again(
    cluster, project, runner, image
):
    (project / "train.py").write_text("print('first')")
    handle = submit(runner, image)
    scheduler = runner.scheduler("kubernetes")
    cluster.wait_for(lambda: cluster.all("pods"))
    assert scheduler.leftovers({}, older_than=0) == []
    runner.wait(handle)
    scheduler.remove_leftovers({}, scheduler.leftovers({}, older_than=0))
    assert not cluster.all("secrets")
    (project / "train.py").write_text("print('second')")
    again = runner.rerun(handle)
    runner.wait(again)
    assert list(runner.log_lines(again, "train")) == ["first\n"]


# ---- results


@pytest.fixture
def large_results(cluster: Stub, project: Path, runner: Runner, image: str) -> str:
    """A job that has ended, with 25 MB of results."""
    (project / "train.py").write_text(RESULTS.format(size=25_000_000))
    handle = submit(runner, image, logged_results=32)
    assert runner.wait(handle).state == AppState.SUCCEEDED
    return handle


@pytest.mark.slow
def test_results_of_25_mb_come_back_and_fetching_goes_on_where_it_was(
    large_results, cluster, runner, tmp_path
):
    lines = list(runner.log_lines(large_results, "train"))
    assert lines == []
    pods = cluster.all("pods")
    logs = {name: log for (pod, name), log in cluster.logs.items() if pod == pods[0]["metadata"]["name"]}
    written = [sum(len(line) for _, line in log.lines) for name, log in logs.items() if name]
    assert max(written) < 10 << 20 < sum(written)
    sources = runner.result_sources(large_results, None)
    chosen = chosen_files(sources, ["model/weights"])
    target = tmp_path / "here"
    assert fetch(chosen, str(target), Silent()).problems == []
    weights = (target / "model/weights").read_bytes()
    assert len(weights) == 25_000_000
    # a fetch that was killed has left a part; the next one goes on behind it
    (target / "model/weights").rename(_part_path(str(target / "model/weights"), chosen[0].file))
    os.truncate(_part_path(str(target / "model/weights"), chosen[0].file), 24_000_000)
    assert main(["fetch", large_results, "model/*", "--to", str(target)]) == 0
    assert (target / "model/weights").read_bytes() == weights


@pytest.mark.slow
def test_two_fetches_at_once_both_have_everything(large_results, runner, tmp_path):
    def bring() -> None:
        with get_runner("test") as own:
            outcomes.append(own.fetch(large_results, str(tmp_path / "here")).problems)

    outcomes: list[list[Any]] = []
    threads = [threading.Thread(target=bring) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [[], []]
    assert (tmp_path / "here/model/weights").stat().st_size == 25_000_000


@pytest.mark.slow
def test_a_pod_that_is_killed_while_it_sends_results_has_none(cluster, project, runner, image):
    (project / "train.py").write_text(RESULTS.format(size=2_000_000))
    logged = []

    def lose(self: Any, name: str, process: Any) -> None:  # its log ends in the middle
        with process.stdout as lines:
            for number, line in enumerate(lines):
                if name.startswith("shunter-results") and number == 50:
                    threading.Thread(target=self.stop, args=(name, "KILL")).start()
                    logged.append(name)
                if name not in logged:
                    self._logged(name, line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.kubernetes.pod_containers.PodContainers._read", lose)
        handle = submit(runner, image, logged_results=7)
        assert runner.wait(handle).state == AppState.SUCCEEDED
    assert logged == ["shunter-results-0"]
    with pytest.raises(ConfigError, match="none that are complete") as error:
        runner.results(handle, "train", 0).files()
    assert "--output" in error.value.hint


# ---- functions


@pytest.mark.slow
def test_a_function_whose_pod_is_killed_says_why_and_one_that_is_cancelled_ends(cluster, project, image):
    def wait() -> None:
        import time

        print("begun", flush=True)
        time.sleep(100)

    wait.__module__ = "__main__"

    def begun(job: str) -> list[str]:
        pods = [pod["metadata"]["name"] for pod in cluster.all("pods")]
        return [name for name in pods if name.startswith(job) and cluster.logs[name, 0].lines]

    with shunter.Executor("kubernetes", image=image, logged_results=1) as executor:
        killed, cancelled = executor.submit(wait), executor.submit(wait)
        name = killed.job.id.partition(":")[2]
        (pod,) = cluster.wait_for(lambda: begun(name))
        cluster.containers[pod].stop(name_of_main(cluster, pod), "KILL")
        error = killed.exception(60)
        assert isinstance(error, shunter.JobFailedError)
        assert "137" in str(error) or "SIGKILL" in str(error)
        assert killed.job.why().headline in str(error)
        cluster.wait_for(lambda: begun(cancelled.job.id.partition(":")[2]))
        assert cancelled.cancel()
        assert cancelled.job.wait(60).state == AppState.CANCELLED
        with pytest.raises(CancelledError):
            cancelled.result(60)


def name_of_main(stub: Stub, pod: str) -> str:
    return str(stub.get("pods", pod)["spec"]["containers"][0]["name"])


@pytest.mark.slow
def test_a_function_returns_what_is_large_and_says_what_is_too_large(cluster, project, image):
    def make(size: int) -> bytes:
        import os

        return os.urandom(size)

    make.__module__ = "__main__"
    with shunter.Executor("kubernetes", image=image) as executor:
        assert len(executor.submit(make, 30_000_000).result(100)) == 30_000_000
    with shunter.Executor("kubernetes", image=image, logged_results=1) as executor:
        future = executor.submit(make, 2_000_000)
    with pytest.raises(ResultError, match="too large") as error:
        future.result(100)
    assert "--output" in error.value.hint


@pytest.mark.slow
def test_an_image_of_another_user_runs_and_two_roles_share_the_code(cluster, project, runner, image):
    (project / "train.py").write_text(
        "import os; open('here', 'w'); print(os.getuid(), sorted(os.listdir('.')))"
    )
    words = ["--script", "train.py", "--image", image]
    app = runner.dryrun_component("train.script", words, "kubernetes", {}, workspace=".").definition
    first = from_json(AppDef, app).roles[0]
    container = {"name": "train", "securityContext": {"runAsUser": 1234}}
    first.metadata["kubernetes"] = {"spec": {JOIN("containers", on="name"): [container]}}
    other = Role("other", image=image, entrypoint="cat", args=["train.py"])
    cfg = {"logged_results": 1}
    handle = runner.run(AppDef("two", [first, other]), "kubernetes", cfg, workspace=".")
    assert runner.wait(handle).state == AppState.SUCCEEDED, list(runner.log_lines(handle, "train"))
    assert list(runner.log_lines(handle, "train")) == ["1234 ['here', 'train.py']\n"]
    assert "getuid" in "".join(runner.log_lines(handle, "other"))
    assert runner.results(handle, "train", 0).files()
