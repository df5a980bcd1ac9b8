from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shunter import system
from tests import backends
from tests.aws_services import running_moto
from tests.toolkit.image import temporary_image

# A busy machine is slow, which is no defect.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("all"), max_examples=30)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("fast" if config.option.markexpr == "not slow" else "all")
    # Whoever is started in the background by a shell without job control inherits that these are ignored,
    # and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_report_header() -> str:
    return backends.summary()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped in a few lines, before the list of failures, which pytest writes last."""
    skipped = terminalreporter.stats.get("skipped", [])
    lines = backends.skips(report.longrepr[2] for report in skipped)
    if skipped:
        terminalreporter.section(f"{len(skipped)} skipped")
        width = terminalreporter._tw.fullwidth
        terminalreporter.write_line("\n".join(line[:width] for line in lines))


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of a moto server that the tests of a process share."""
    with running_moto() as url:
        yield url


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """A Docker image with a Python, which the tests of a process share."""
    with temporary_image() as made:
        yield made


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory, a home directory and an environment of the test's own."""
    for name in list(os.environ):
        if name.startswith(("SHUNTER_", "TORCHX")) and name != system.SWITCH:
            monkeypatch.delenv(name)
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    directory = tmp_path / "shunter-home"
    monkeypatch.setenv("SHUNTER_HOME", str(directory))
    return directory
