"""Our schedulers in an installed TorchX 0.7.0, which finds them by the entry points of our wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from shunter import plugins
from shunter.compat import offered
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factories
from tests.aws.conftest import aws as aws
from tests.aws.fake import FakeAws
from tests.backends import torchx_python

ROOT = Path(__file__).parents[2]
#: What the extra `aws` brings, of this environment.
SDK = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six", "argcomplete")


class TorchX:
    """The command of an installed TorchX, beside which our wheel is installed."""

    def __init__(self, site: Path, directory: Path) -> None:
        self.python = torchx_python()
        self.directory = directory
        self.environ = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self._run("torchx.cli.main", *words, code=code)

    def shunter(self, *words: str) -> str:
        return self._run("shunter", *words).stdout

    def _run(self, module: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.python, "-m", module, *words],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture
def torchx(tmp_path: Path) -> TorchX:
    torchx_python()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=50)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in SDK:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin)
        path = path.parent if path.name == "__init__.py" else path
        (site / path.name).symlink_to(path)
    directory = tmp_path / "project"
    directory.mkdir()
    return TorchX(site, directory)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_torchx_gets_aws_batch_and_sagemaker_back(aws: FakeAws, torchx: TorchX) -> None:
    options = torchx("runopts", "aws_batch").stdout
    assert "queue=QUEUE (str)\n            job queue, by name or ARN" in options
    batch = ("run", "-s", "aws_batch", "-cfg", "queue=queue,tags=team:x", "--workspace", "")
    echo = ("utils.echo", "--image", "alpine", "--msg", "hi")
    shown = torchx(*batch, "--dryrun", *echo).stdout
    assert '"jobQueue": "queue"' in shown
    assert '"team": "x"' in shown
    assert aws.count("SubmitJob") == 0
    handle = torchx(*batch, "--wait", *echo).stdout.strip()
    assert handle.startswith("aws_batch://torchx/")
    assert "SUCCEEDED" in torchx("status", handle).stdout
    assert "hi" in torchx("log", handle).stdout
    assert handle in torchx("list", "-s", "aws_batch").stdout
    assert "alpine" in torchx("describe", handle).stdout
    torchx("cancel", handle)
    # and shunter knows the job
    assert json.loads(torchx.shunter("list", "--json"))[0]["handle"] == handle
    sagemaker = torchx(
        *("run", "-s", "aws_sagemaker", "--dryrun", "--workspace", ""),
        *("-cfg", "role=arn:aws:iam::123456789012:role/x,instance_type=ml.m5.large"),
        *echo,
    ).stdout
    assert '"TrainingJobName"' in sagemaker


@pytest.mark.slow
def test_torchx_keeps_its_own_schedulers_and_its_default(torchx: TorchX) -> None:
    ran = torchx("run", "-s", "local_cwd", "utils.echo", "--msg", "hi")
    assert ran.stdout.startswith("local_cwd://torchx/echo-")
    code = (
        "import torchx.schedulers as s; f = s.get_scheduler_factories();"
        "print(s.get_default_scheduler_name(), *f);"
        "print(*(type(f[name]('x')).__module__ for name in ('local_cwd', 'slurm', 'lsf')))"
    )
    found = subprocess.run(
        [torchx.python, "-c", code],
        env=torchx.environ,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    ).stdout.splitlines()
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert found[0].split() == ["local_docker", *points["torchx.schedulers"]]
    assert found[1].split() == [
        "torchx.schedulers.local_scheduler",
        "torchx.schedulers.slurm_scheduler",
        "shunter.compat.offered",
    ]


def test_what_is_offered_is_not_taken_for_plugins_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "shunter-0.dist-info"
    info.mkdir(parents=True)
    names = [*offered.KEPT, *offered.OURS]
    lines = [f"{name} = shunter.compat.offered:{name}" for name in names]
    (info / "entry_points.txt").write_text("\n".join(["[torchx.schedulers]", *lines]))
    monkeypatch.syspath_prepend(info.parent)
    plugins._entry_points_of_group.cache_clear()
    try:
        assert {point.name for point in plugins.entry_points("schedulers")} >= set(names)
        assert list(get_scheduler_factories()) == list(DEFAULT_SCHEDULER_MODULES)
    finally:
        plugins._entry_points_of_group.cache_clear()


def test_everything_of_ours_is_offered() -> None:
    assert set(DEFAULT_SCHEDULER_MODULES) <= {*offered.KEPT, *offered.OURS}
    for name in (*offered.KEPT, *offered.OURS):
        assert callable(getattr(offered, name))
    with pytest.raises(AttributeError):
        offered.nothing  # noqa: B018
