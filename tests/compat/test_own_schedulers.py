"""TorchX's own schedulers as classes: derived from and called, as products built on TorchX do."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import shunter.compat.torchx.schedulers.local_scheduler as local
from shunter.backoff import polling
from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.compat.runner.api import TorchxRunner
from shunter.compat.schedulers.slurm_scheduler import SlurmScheduler
from shunter.schedulers.local_scheduler import LocalScheduler
from shunter.schedulers.registry import as_scheduler
from shunter.schedulers.responses import DescribeAppResponse
from shunter.schedulers.torchx_scheduler import TorchXScheduler
from shunter.specs import AppDef, AppDryRunInfo, AppState, Role, is_terminal

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


def ended(scheduler: Any, app_id: str) -> Any:
    polls = polling(None)
    while True:
        response = scheduler.describe(app_id)
        assert response is not None
        if is_terminal(response.state):
            return response
        polls.pause()


@pytest.mark.parametrize("module", CLASSES)
def test_a_class_makes_our_scheduler_and_a_subclass_is_used_as_a_plugin_s(module: str) -> None:
    served = importlib.import_module(f"{SERVED}.{module}")
    cls = getattr(served, CLASSES[module])
    for made in (served.create_scheduler("session"), cls("session")):
        assert (type(made).__module__, type(made).__name__) == (
            f"shunter.schedulers.{module}.scheduler",
            CLASSES[module],
        )
        assert isinstance(made, cls)
        assert isinstance(made, PluginScheduler)
    assert not isinstance(LocalScheduler("x"), cls)
    derived = type("Derived", (cls,), {})("session")
    assert isinstance(derived, cls)
    assert isinstance(as_scheduler(derived, "name", "session"), TorchXScheduler)


def test_options_of_a_subclass_are_ours_and_those_of_the_workspace() -> None:
    derived = type("Mine", (SlurmScheduler,), {})
    assert {"partition", "job_dir"} <= set(dict(derived("session").run_opts()))


def test_a_subclass_is_asked_by_its_hooks() -> None:
    class Mine(SlurmScheduler):
        cancelled: list[str] = []

        def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Any]:
            return AppDryRunInfo([app.name], repr)

        def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
            return str(dryrun_info.request[0])

        def describe(self, app_id: str) -> Any:
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


def test_a_subclass_changes_the_request_that_ours_makes() -> None:
    class Late(Role):
        def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
            dryrun_info.request.cfg["comment"] += " changed"
            return dryrun_info

    class Mine(SlurmScheduler):
        def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Any]:
            info = super()._submit_dryrun(app, cfg)
            info.request.cfg = {"comment": "mine"}
            return info

    app = AppDef("job", [Late("r", "", entrypoint="true")])
    info = Mine("session").submit_dryrun(app, {"partition": "p"})
    assert info.request.cfg == {"comment": "mine changed"}  # once, and after the hook
    assert info.app is app


def test_a_local_scheduler_with_an_image_provider(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    program = tmp_path / "image" / "program"
    program.write_text(
        "#!/bin/sh\necho out $1 $WHO $(basename $PWD)\necho err >&2\n[ $1 = 0 ] || echo $PATH\n"
    )
    program.chmod(0o755)
    role = Role("r", str(tmp_path / "image"), entrypoint="program", args=["${replica_id}"], num_replicas=2)
    role.env["WHO"] = "${app_id}"
    scheduler = local.LocalScheduler("session", local.LocalDirectoryImageProvider, extra_paths=["/extra"])
    info = scheduler.submit_dryrun(AppDef("job", [role]), {"log_dir": str(tmp_path / "logs")})
    assert not (tmp_path / "logs").exists()
    params = info.request.role_params["r"]
    assert [param.args for param in params] == [["program", "0"], ["program", "1"]]
    app_id = scheduler.schedule(info)
    response = ended(scheduler, app_id)
    assert response.state is AppState.SUCCEEDED
    assert response.ui_url == f"file://{tmp_path}/logs/session/{app_id}"
    assert [(role.name, role.num_replicas) for role in response.roles] == [("r", 2)]
    assert [each.state for each in response.roles_statuses[0].replicas] == [AppState.SUCCEEDED] * 2
    lines = ["err\n", f"out 0 {app_id} image\n"]
    assert sorted(scheduler.log_iter(app_id, "r", 0)) == lines
    assert sorted(local.LogIterator(app_id, params[0].combined, scheduler)) == lines
    (line,) = scheduler.log_iter(app_id, "r", 1, regex="extra")
    assert line.startswith(f"/extra:{tmp_path}/image:")
    assert scheduler.describe("nothing") is None


def test_close_ends_the_jobs_of_a_local_scheduler(tmp_path: Path) -> None:
    scheduler = local.LocalScheduler("session", local.CWDImageProvider)
    app_id = scheduler.submit(job("sleep 600"), local.LocalOpts(log_dir=str(tmp_path)))
    assert not is_terminal(scheduler.describe(app_id).state)
    scheduler.close()
    assert scheduler.describe(app_id).state is AppState.CANCELLED
    scheduler.close()


def test_logs_of_a_local_scheduler_are_read_to_the_end_of_the_job() -> None:
    scheduler = local.LocalScheduler("session", local.CWDImageProvider)
    app_id = scheduler.submit(job("for i in 1 2 3; do echo $i; sleep 0.3; done"), {})
    assert list(scheduler.log_iter(app_id, "r")) == ["1\n", "2\n", "3\n"]
    scheduler.close()


def test_more_gpus_than_there_are_do_not_keep_a_local_job_from_running(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    app = job("true")
    app.roles[0].resource.gpu = 8
    scheduler = local.LocalScheduler("session", local.CWDImageProvider)
    app_id = scheduler.submit(app, {"auto_set_cuda_visible_devices": True})
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert "asks for 8 GPUs, and this machine has 0" in caplog.text


def test_create_scheduler_makes_the_supervised_one_unless_it_is_told_otherwise() -> None:
    assert type(local.create_scheduler("session", cache_size=3)) is LocalScheduler
    assert isinstance(LocalScheduler("x"), local.LocalScheduler)
    made = local.create_scheduler("session", image_provider_class=local.LocalDirectoryImageProvider)
    assert type(made) is local.LocalScheduler
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"greater than 0, not {size}"):
            local.create_scheduler("session", cache_size=size)


class _Fetching(local.LogIterator):  # type: ignore[misc, name-defined]
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
