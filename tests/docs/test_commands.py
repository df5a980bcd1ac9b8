"""Every command that a document shows is run, and prints what the document says."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.runner import get_runner
from tests import grid_engine, ray_cluster, slurm_cluster
from tests.aws.fake import FakeAws
from tests.backends import lacks
from tests.docs.blocks import COMMAND, FILE, Step, read_steps
from tests.docs.compare import Ids, differences
from tests.docs.documents import EXEMPT, GIVEN, name_of, with_commands
from tests.docs.recording import COLOUR
from tests.docs.terminal import Terminal
from tests.schedulers.lsf.conftest import stand_in
from tests.toolkit.image import docker, make_image

DOCUMENTS = [path for path in with_commands() if read_steps(path)]
PATIENCE = 90
USER = "/home/you"
NEED_DOCKER = ("local_docker", "sagemaker_local")
OURS = ("local_cwd", *NEED_DOCKER)
#: What has to be there for commands that hold one of these words.
FIXTURES = {
    NEED_DOCKER: "python_image",
    ("-s aws_batch",): "batch",
    ("-s kubernetes",): "kubernetes",
    ("-s lsf",): "lsf",
    ("-s sge",): "sge",
    ("-s slurm", 'cluster="slurm"'): "slurm",
    ("-s ray",): "ray",
}
IMAGE = "python:3.12"


class Session:
    """A reader, following a document from its beginning.

    Args:
        document: what is read.
        user: the reader's home directory; the project is a directory in it.
        state: where shunter keeps things.
        in_colour: whether the terminal has colours.

    Attributes:
        printed: the lines of the last command, in colour.
    """

    def __init__(self, document: Path, user: Path, state: Path, *, in_colour: bool = False) -> None:
        self._name = name_of(document)
        self._project = user / "project"
        self._project.mkdir()
        for name, text in GIVEN.get(self._name, {}).items():
            (self._project / name).write_text(text)
        self._scripts = user.parent / "scripts"
        for usual, kind in ((".local/state", "state"), (".config", "config")):
            (user / usual).mkdir(parents=True)
            (user / usual / "shunter").symlink_to(state / kind)
        self._names = {
            str(state / "state"): f"{USER}/.local/state/shunter",
            str(state / "config"): f"{USER}/.config/shunter",
            str(user): USER,
        }
        self._ids = Ids()
        self.printed: list[str] = []
        environ = _environ(self._scripts)
        if in_colour:
            del environ["NO_COLOR"]
        self._terminal = Terminal(self._project, environ)

    def follow(self, step: Step, then: Step | None) -> list[str]:
        """Take a step; returns what went otherwise than the document says."""
        if step.kind == FILE:
            (self._project / step.name).write_text(step.text)
            return []
        if step.kind == COMMAND:
            status, lines = self._terminal.run(self._ids.translate(step.text).replace(USER, self._user))
        else:
            script = self._scripts / f"line_{step.line}.py"
            script.write_text(step.text)
            status, lines = self._terminal.run(f"python - <{shlex.quote(str(script))}")
        self.printed = [self._readable(line) for line in lines]
        lines = [COLOUR.sub("", line) for line in self.printed]
        problems = differences(step.shown, lines, self._ids) if step.shown else []
        if status != 0 and not _shows_status(then):
            problems += [f"exit status {status}", *lines]
        return problems and [f"{self._name}:{step.line}: {step.text.splitlines()[0]}", *problems]

    def close(self) -> None:
        """End the shell, and all jobs that still run."""
        self._terminal.close()
        with get_runner() as runner:
            rows = [row for row in runner.history.rows() if row.scheduler in OURS]
            for row in rows:
                runner.cancel(row.handle)
                runner.wait(row.handle, timeout=PATIENCE)
            for row in rows:
                if row.scheduler in NEED_DOCKER:
                    runner.delete(row.handle)
            for image in {image for row in rows for image in (row.images or {}).values()}:
                docker("rmi", "--force", image, check=False)

    @property
    def _user(self) -> str:
        return str(self._project.parent)

    def _readable(self, line: str) -> str:
        for path, name in self._names.items():
            line = line.replace(path, name)
        return line


def _lacks(step: Step) -> bool:
    """Tell whether a step has to be left out, since it needs a backend that is not there."""
    if any(name in step.text for name in ("aws_batch", "sagemaker")) and lacks("botocore"):
        return True
    if "slurm" in step.text:
        return lacks("slurm")
    if any(name in step.text for name in ("packed", "six")):
        return lacks("packages")
    if "dist.ddp" in step.text or "import torch" in step.text:
        return lacks("torch")
    if "-s sge" in step.text or "sge://" in step.text:
        return lacks("sge")
    if any(name in step.text for name in ("-s ray", "ray://")):
        return lacks("ray")
    if any(name in step.text for name in ("-s kubernetes", "kubernetes://")):
        return lacks("lightkube")
    return any(name in step.text for name in NEED_DOCKER) and lacks("docker")


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AWS Batch, with the queue that documents name."""
    with FakeAws() as fake:
        fake.batch.add_queue("gpus")
        for name, value in fake.environ().items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def sge(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Grid Engine of this test run."""
    if not lacks("sge"):
        for name, value in grid_engine.shared_cluster(tmp_path_factory).environment.items():
            monkeypatch.setenv(name, value)


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for LSF."""
    for name, value in stand_in(tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def ray(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray cluster, at the address that is set."""
    if not lacks("ray"):
        cluster = ray_cluster.shared_cluster(tmp_path_factory)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm with the partitions that documents name."""
    if not lacks("slurm"):
        cluster = slurm_cluster.shared_cluster(tmp_path_factory)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])


@pytest.fixture(scope="session")
def python_image() -> Iterator[None]:
    """The image that documents name, made here unless this machine has it."""
    if docker("image", "inspect", IMAGE, check=False).returncode == 0:
        yield
        return
    make_image(IMAGE)
    yield
    docker("rmi", "--force", IMAGE)


def _shows_status(step: Step | None) -> bool:
    """Tell whether a command that may fail is followed by one that shows how."""
    return step is not None and step.kind == COMMAND and step.text == "echo $?" and bool(step.shown)


def _environ(scripts: Path) -> dict[str, str]:
    """Return an environment in which ``shunter`` and ``python`` are those that run this test."""
    scripts.mkdir()
    program = scripts / "shunter"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom shunter.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    path = [str(scripts), os.path.dirname(sys.executable), os.environ["PATH"]]
    left_out = ("VIRTUAL_ENV", "CONDA_PREFIX", "COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE", "LOGLEVEL")
    kept = {k: v for k, v in os.environ.items() if k not in left_out and not k.startswith("PYTEST_")}
    return {**kept, "PATH": os.pathsep.join(path), "NO_COLOR": "1", "TERM": "xterm"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_its_commands_do_what_it_says(
    document: Path, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    steps = [step for step in read_steps(document) if not _lacks(step)]
    for words, fixture in FIXTURES.items():
        if any(word in step.text for word in words for step in steps):
            request.getfixturevalue(fixture)
    session = Session(document, tmp_path / "user", home)
    problems: list[str] = []
    try:
        for step, then in zip(steps, [*steps[1:], None], strict=True):
            if not (step.kind == COMMAND and step.text.startswith(EXEMPT)):
                problems += session.follow(step, then)
    finally:
        session.close()
    assert not problems, "\n".join(problems)


def test_the_readme_is_among_them() -> None:
    assert "README.md" in map(name_of, DOCUMENTS)
