"""TorchX's own schedulers as classes: derived from, patched and called, as products built on TorchX do."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from shunter.backoff import polling
from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.compat.torchx_local import CWDImageProvider, LocalDirectoryImageProvider, LogIterator
from shunter.compat.torchx_local_scheduler import TorchxLocalScheduler, create_scheduler
from shunter.compat.torchx_own_schedulers import TorchxSlurmScheduler
from shunter.compat.torchx_runner import TorchxRunner
from shunter.schedulers.local_scheduler.scheduler import LocalScheduler
from shunter.schedulers.registry import as_scheduler
from shunter.schedulers.torchx_scheduler import TorchXScheduler
from shunter.specs import AppDef, AppDryRunInfo, AppState, Resource, Role, is_terminal

SERVED = "shunter.compat.torchx.schedulers"
CLASSES = {
    "docker_scheduler": "DockerScheduler",
    "slurm_scheduler": "SlurmScheduler",
    "kubernetes_scheduler": "KubernetesScheduler",
    "aws_batch_scheduler": "AWSBatchScheduler",
    "aws_sagemaker_scheduler": "AWSSageMakerScheduler",
    "lsf_scheduler": "LsfScheduler",
}


def job(script: str, *, replicas: int = 1) -> AppDef:
    role = Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=replicas)
    return AppDef("job", [role])


def ended(scheduler: PluginScheduler[Any], app_id: str) -> Any:
    polls = polling(None)
    while True:
        found = scheduler.describe(app_id)
        assert found is not None
        if is_terminal(found.state):
            return found
        polls.pause()


@pytest.mark.parametrize("module", CLASSES)
def test_the_runner_uses_our_scheduler_unless_the_class_is_changed(module: str) -> None:
    served = importlib.import_module(f"{SERVED}.{module}")
    cls = getattr(served, CLASSES[module])
    made = served.create_scheduler("session")
    assert isinstance(made, cls)
    ours = as_scheduler(made, "name", "session")
    assert type(ours).__name__ == CLASSES[module]
    assert type(ours).__module__.startswith("shunter.schedulers.")
    assert isinstance(ours, cls)  # so `isinstance` says what it says with TorchX
    assert isinstance(ours, PluginScheduler)
    assert not isinstance(LocalScheduler("x"), cls)
    with mock.patch.object(cls, "schedule", return_value="id"):
        assert isinstance(as_scheduler(made, "name", "session"), TorchXScheduler)
    derived = type("Derived", (cls,), {})
    assert isinstance(as_scheduler(derived("session"), "name", "session"), TorchXScheduler)


def test_options_are_ours_and_those_of_the_workspace() -> None:
    options = dict(TorchxSlurmScheduler("session").run_opts())
    assert {"partition", "job_dir"} <= set(options)


def test_a_patched_method_is_called_through_the_runner() -> None:
    module = importlib.import_module(f"{SERVED}.slurm_scheduler")
    role = Role("r", "", entrypoint="true")
    with (
        mock.patch.object(module.SlurmScheduler, "schedule", return_value="7") as scheduled,
        TorchxRunner("", {"slurm": module.create_scheduler}) as runner,
    ):
        assert runner.run(AppDef("job", [role]), "slurm", {}) == "slurm:///7"
    scheduled.assert_called_once()


def test_a_derived_scheduler_is_asked_by_its_hooks() -> None:
    class Mine(TorchxSlurmScheduler):
        cancelled: list[str] = []

        def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Any]:
            return AppDryRunInfo([app.name], repr)

        def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
            return str(dryrun_info.request[0])

        def describe(self, app_id: str) -> Any:
            from shunter.schedulers.responses import DescribeAppResponse

            return DescribeAppResponse(app_id=app_id, state=AppState.RUNNING)

        def _cancel_existing(self, app_id: str) -> None:
            self.cancelled.append(app_id)

        def log_iter(self, *given: Any, **more: Any) -> Any:
            return ["a line\n"]

    with TorchxRunner("s", {"mine": lambda session_name, **_: Mine(session_name)}) as runner:
        handle = runner.run(job("true"), "mine", {})
        assert handle == "mine://s/job"
        status = runner.status(handle)
        assert status is not None
        assert status.state is AppState.RUNNING
        assert list(runner.log_lines(handle, "r")) == ["a line\n"]
        runner.cancel(handle)
    assert Mine.cancelled == ["job"]


def test_a_local_scheduler_with_an_image_provider(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    program = tmp_path / "image" / "program"
    program.write_text(
        "#!/bin/sh\necho out $1 $WHO $(basename $PWD)\necho err >&2\n[ $1 = 0 ] || echo $PATH\n"
    )
    program.chmod(0o755)
    role = Role("r", str(tmp_path / "image"), entrypoint="program", args=["${replica_id}"], num_replicas=2)
    role.env["WHO"] = "${app_id}"
    scheduler = TorchxLocalScheduler("session", LocalDirectoryImageProvider, extra_paths=["/extra"])
    info = scheduler.submit_dryrun(AppDef("job", [role]), {"log_dir": str(tmp_path / "logs")})
    assert not (tmp_path / "logs").exists()
    app_id = scheduler.schedule(info)
    found = ended(scheduler, app_id)
    assert found.state is AppState.SUCCEEDED
    assert found.ui_url == f"file://{tmp_path}/logs/session/{app_id}"
    assert [each.state for each in found.roles_statuses[0].replicas] == [AppState.SUCCEEDED] * 2
    noted = json.loads((tmp_path / "logs" / "session" / app_id / "SUCCESS").read_text())
    assert (noted["app_id"], noted["final_state"]) == (app_id, "SUCCEEDED")
    assert [(each["replica_id"], each["exitcode"]) for each in noted["roles"]["r"]] == [(0, 0), (1, 0)]
    assert Path(noted["roles"]["r"][0]["stderr"]).read_text() == "err\n"
    lines = list(scheduler.log_iter(app_id, "r", 0, should_tail=True))
    assert sorted(lines) == ["err\n", f"out 0 {app_id} image\n"]
    (line,) = scheduler.log_iter(app_id, "r", 1, regex="extra")
    assert line.startswith("/extra:")
    assert scheduler.describe("nothing") is None
    with pytest.raises(RuntimeError, match="no log of replica 5"):
        scheduler.log_iter(app_id, "r", 5)
    scheduler.close()
    scheduler.close()


def test_one_failed_replica_ends_the_others_and_cancelling_ends_all() -> None:
    scheduler = TorchxLocalScheduler("session", CWDImageProvider)
    failing = scheduler.submit(job("[ ${replica_id} = 0 ] || exit 3; sleep 600", replicas=2), {})
    assert ended(scheduler, failing).state is AppState.FAILED
    running = scheduler.submit(job("sleep 600"), {})
    found = scheduler.describe(running)
    assert found is not None
    assert found.state is AppState.RUNNING
    folder = Path(found.ui_url.removeprefix("file://"))
    assert folder.is_dir()
    scheduler.cancel(running)
    assert ended(scheduler, running).state is AppState.CANCELLED
    assert json.loads((folder / "SUCCESS").read_text())["final_state"] == "CANCELLED"
    assert {row.app_id for row in scheduler.list()} == {failing, running}
    scheduler.close()
    assert not folder.exists()  # the temporary folder goes with the scheduler


def test_logs_of_child_processes_are_read_to_the_end_of_the_job() -> None:
    scheduler = TorchxLocalScheduler("session", CWDImageProvider)
    app_id = scheduler.submit(job("for i in 1 2 3; do echo $i; sleep 0.3; done"), {})
    assert list(scheduler.log_iter(app_id, "r")) == ["1\n", "2\n", "3\n"]
    scheduler.close()


def test_a_full_cache_refuses_jobs_and_forgets_ended_ones() -> None:
    scheduler = TorchxLocalScheduler("session", CWDImageProvider, cache_size=1)
    first = scheduler.submit(job("sleep 600"), {})
    with pytest.raises(IndexError, match="cache_size is 1, and 1 jobs run"):
        scheduler.submit(job("true"), {})
    scheduler.cancel(first)
    second = scheduler.submit(job("true"), {})
    assert scheduler.describe(first) is None
    assert ended(scheduler, second).state is AppState.SUCCEEDED
    scheduler.close()


def test_clients_that_a_scheduler_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = importlib.import_module(f"{SERVED}.aws_batch_scheduler")
    client, logs = mock.MagicMock(), mock.MagicMock()
    made = batch.create_scheduler("s", client=client, log_client=logs)
    assert (made._client, made._log_client) == (client, logs)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    sagemaker = importlib.import_module(f"{SERVED}.aws_sagemaker_scheduler").create_scheduler("s")
    assert sagemaker._client.meta.service_model.service_name == "sagemaker"
    assert sagemaker._client is sagemaker._client


def test_a_pod_asks_for_less_than_its_limits_and_for_the_interfaces_that_are_given() -> None:
    kubernetes = importlib.import_module(f"{SERVED}.kubernetes_scheduler")
    role = Role("r", "img", entrypoint="true", resource=Resource(cpu=2, gpu=0, memMB=3000))

    def asked(**given: int) -> tuple[Any, Any]:
        pod = kubernetes.role_to_pod("r", role, None, **given)
        resources = pod["spec"]["containers"][0]["resources"]
        return resources["requests"], resources["limits"].get("vpc.amazonaws.com/efa")

    assert asked() == ({"cpu": "1900m", "memory": "1976Mi"}, None)
    requests, interfaces = asked(reserved_millicpu=300, reserved_memmb=1000, efa_device_count=4)
    assert (requests["cpu"], requests["memory"], interfaces) == ("1700m", "2000Mi", "4")


def test_create_scheduler_makes_the_supervised_one_unless_it_is_told_otherwise() -> None:
    assert type(create_scheduler("session", cache_size=3)) is LocalScheduler
    assert isinstance(LocalScheduler("x"), TorchxLocalScheduler)
    made = create_scheduler("session", image_provider_class=LocalDirectoryImageProvider)
    assert type(made) is TorchxLocalScheduler
    with pytest.raises(ValueError, match="cache_size"):
        TorchxLocalScheduler("session", CWDImageProvider, 0)


class _Fetching(LogIterator):
    """An iterator as NeMo-Run derives it: its own constructor, and a file that is fetched at each look."""

    def __init__(self, path: Path, pieces: list[str], *, should_tail: bool) -> None:
        self._app_id, self._log_file, self._scheduler = "job", str(path), None
        self._log_fp = None
        self._app_finished = not should_tail
        self._pieces = pieces

    def _check_finished(self) -> None:
        with open(self._log_file, "a", encoding="utf-8") as file:
            file.write(self._pieces.pop(0))
        self._app_finished = not self._pieces


def test_log_iterators_may_be_derived(tmp_path: Path) -> None:
    log = _Fetching(tmp_path / "log", ["a\nb", "c\n", "d"], should_tail=True)
    assert list(log) == ["a\n", "bc\n", "d"]
    log = _Fetching(tmp_path / "log2", ["a\nb", "c\n"], should_tail=False)
    assert list(log) == ["a\n", "b"]


def test_a_workspace_without_files_is_left_out_as_torchx_does(tmp_path: Path) -> None:
    with TorchxRunner("s") as runner, pytest.warns(UserWarning, match="has no files"):
        info = runner.dryrun(job("true"), "local_cwd", {}, str(tmp_path))
    assert info.travels is None


def test_names_of_variables_with_a_value_in_them_are_taken_as_processes_take_them() -> None:
    app = job("true")
    app.roles[0].env = {"SANITIZER=1": "1", "A": "b=c"}
    with TorchxRunner("s") as runner, pytest.warns(UserWarning, match="'=', which begins .*SANITIZER=1"):
        info = runner.dryrun(app, "local_cwd", {})
    assert info.app is not None
    env = info.app.roles[0].env
    assert (env["SANITIZER"], env["A"]) == ("1=1", "b=c")
    assert app.roles[0].env == {"SANITIZER=1": "1", "A": "b=c"}


def test_what_monarch_does_with_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of `monarch.job.spmd` 0.7.0: serve, wait for replicas, their hosts, kill."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    local = importlib.import_module(f"{SERVED}.local_scheduler")
    specs = importlib.import_module("shunter.compat.torchx.specs")
    args = ["-c", "import time; time.sleep(600)"]
    role = specs.Role("trainer", image="", entrypoint=sys.executable, args=args)
    app = specs.AppDef(name="spmd", roles=[role])
    runner = TorchxRunner("", {"local_cwd": local.create_scheduler})
    info = runner.dryrun(app=app, scheduler="local_cwd", cfg={}, workspace=str(tmp_path))
    handle = runner.schedule(info)
    assert handle.startswith("local_cwd:///spmd-")
    polls = polling(None)
    while True:
        status = runner.status(handle)
        assert status is not None
        if status.state >= specs.AppState.RUNNING and status.roles and status.roles[0].replicas:
            break
        polls.pause()
    assert min(each.state for each in status.roles[0].replicas) == specs.AppState.RUNNING
    assert [each.hostname for each in sorted(status.roles[0].replicas, key=lambda r: r.id)] == ["localhost"]
    runner.cancel(handle)
    last = runner.wait(handle, wait_interval=1)
    assert last is not None
    assert last.state == specs.AppState.CANCELLED
    runner.close()
