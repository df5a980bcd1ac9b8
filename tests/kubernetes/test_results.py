"""Results of pods, which keep no files: small ones come back with the log."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from shunter.errors import ConfigError
from shunter.runner import get_runner
from shunter.schedulers.api import LogQuery
from shunter.specs import AppState, Role
from shunter.workspace.toolkit_files import toolkit_archive
from tests.kubernetes.jobs import app, role
from tests.result_jobs import SCRIPT, check_results

pytestmark = pytest.mark.usefixtures("scheduler")


def training(tmp_path: Path, script: str, output: dict[str, object]) -> Role:
    (tmp_path / "toolkit.pyz").write_bytes(toolkit_archive())
    (tmp_path / "t.py").write_text(script)
    document = {"version": 1, "name": "job", "program": "t.py", "code": str(tmp_path), "host_count": 1}
    return role(
        name="train",
        entrypoint=sys.executable,
        args=["-S", str(tmp_path / "toolkit.pyz"), "train"],
        env={
            "SHUNTER_JOB": json.dumps({**document, "output": output}),
            "SAGEMAKER_BASE_DIR": str(tmp_path / "ml"),
        },
    )


def test_small_results_come_with_the_log_which_does_not_show_them(tmp_path: Path) -> None:
    script = SCRIPT + 'print("one")\nprint("two", end="")\n'
    with get_runner("test") as runner:
        handle = runner.run(app(training(tmp_path, script, {"log": True})), "kubernetes")
        runner.wait(handle)
        check_results(runner, handle)
        assert list(runner.log_lines(handle, "train")) == ["one\n", "two\n"]
        for last, shown in ((1, b"two\n"), (None, b"one\ntwo\n")):
            blocks = list(runner.log_blocks(handle, [("train", 0)], LogQuery(last=last)))
            assert b"".join(block.data for block in blocks) == shown


def test_results_that_do_not_fit_are_named(tmp_path: Path) -> None:
    script = 'import os; open(os.environ["SM_MODEL_DIR"] + "/large", "wb").write(os.urandom(3 << 20))'
    with get_runner("test") as runner:
        handle = runner.run(app(training(tmp_path, script, {"log": True})), "kubernetes")
        status = runner.wait(handle)
        assert status is not None
        assert status.state == AppState.SUCCEEDED
        place = runner.results(handle, "train", 0)
        assert [file.path for file in place.files()] == ["output/success"]
        assert place.left_out == ["model is too large for the log, and is lost"]
        assert any("--output" in line for line in runner.log_lines(handle, "train"))


def test_results_come_from_an_output_that_this_machine_sees(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with get_runner("test") as runner:
        handle = runner.run(app(training(tmp_path, SCRIPT, {"uri": str(out)})), "kubernetes")
        runner.wait(handle)
        check_results(runner, handle)
        os.rename(out, tmp_path / "gone")
        with pytest.raises(ConfigError, match="this machine does not see"):
            runner.results(handle, "train", 0)


@pytest.mark.parametrize(
    ("words", "is_logged"),
    [
        ([], True),
        (["--output", "s3://bucket/x"], False),
        (["--mounts", "type=volume,src=claim,dst=/opt/ml/model"], False),
    ],
)
def test_the_toolkit_is_asked_for_them_where_nothing_else_keeps_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    is_logged: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text("")
    with get_runner("test") as runner:
        line = ["--script", "t.py", "--image", "image:1", *words]
        info = runner.dryrun_component("train.script", line, "kubernetes", {"image_repo": "ghcr.io/me/jobs"})
    document = json.loads(info.app.roles[0].env["SHUNTER_JOB"])
    assert document.get("output", {}).get("log", False) is is_logged
