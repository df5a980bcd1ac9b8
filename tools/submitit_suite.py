"""Run submitit's own tests with `shunter.compat.submitit` under its name, and count them by result.

    submitit_suite.py FOLDER [PYTEST_OPTION ...]

FOLDER is the unpacked source distribution of submitit 1.5.4; only its tests are taken. Names that submitit
has and shunter does not are served as placeholders, so that modules of tests can be imported: a test that
uses one fails. The last line counts the tests that test neither internals nor texts nor an imitated Slurm.
Exits with 1 if a test fails for a reason that is not known here.
"""

from __future__ import annotations

import collections
import functools
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

PACKAGES = ("auto", "core", "local", "slurm")
#: Modules that only submitit itself imports.
INTERNAL_MODULES = ("core.plugins", "core.submission")
NAMES, PRIVATE, SLURM = "internal names", "private attributes", "answers of an imitated Slurm"
TEXTS, PLACE = "texts", "files of submitit itself"
NOT_USED = (NAMES, PRIVATE, SLURM, TEXTS, PLACE)
DIFFERENCE = "differences that the documentation names"
SECONDS = "limits of one to three seconds, which a busy machine exceeds"
#: Tests that fail for a reason that the failure does not show, by a part of their id.
KNOWN = {
    "test_async": NAMES,
    "test_fake_job": NAMES,
    "test_monitor_jobs": NAMES,
    "test_slurm_invalid_parse": NAMES,
    "test_slurm.py::test_name": NAMES,
    "test_executor_argument": PRIVATE,
    "test_max_pickle_size_gb_in_auto": PRIVATE,
    "test_local.py::test_requeuing": TEXTS,
    "test_documentation": PLACE,
    "test_job_use_snapshot_modules": PLACE,
    "test_as_completed": SECONDS,
    "test_command_function_deadlock": SECONDS,
    "test_custom_checkpoint": SECONDS,
    "test_setup": DIFFERENCE,  # local_setup
}


class AbsentError(AssertionError):
    """A test used a name that only submitit has."""


class Absent(type):
    """A name of submitit that is not served: it can be imported and derived from, not used."""

    is_testing = False

    def __call__(cls, *_: Any, **__: Any) -> Any:
        """Fail in a test; else stand for what the call would return."""
        if Absent.is_testing:
            raise AbsentError(f"submitit's {cls.__qualname__} is not served")
        return cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent.__call__(cls)

    def __iter__(cls) -> Any:
        return iter(())


def serve(root: str) -> None:
    """Let `submitit` and its modules be ours, with the tests below `root` among them."""
    ours = importlib.import_module("shunter.compat.submitit")
    ours.install()
    ours.__path__.append(os.path.join(root, "submitit"))
    for path in INTERNAL_MODULES:
        module = sys.modules[f"submitit.{path}"] = types.ModuleType(f"submitit.{path}")
        parent, _, name = module.__name__.rpartition(".")
        setattr(sys.modules[parent], name, module)
    for name, module in list(sys.modules.items()):
        if name.startswith("submitit.") and name != "submitit.helpers":
            if name.removeprefix("submitit.") in PACKAGES:
                module.__path__ = [os.path.join(root, *name.split("."))]
            else:
                module.__getattr__ = functools.partial(_named, ours, name)  # type: ignore[method-assign]
    # what the tests' imitation of Slurm calls when it ends
    ours.SlurmJob.watcher = types.SimpleNamespace(clear=lambda: None)


def _named(ours: types.ModuleType, module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(ours, name, None) or Absent(name, (), {"__qualname__": f"{module}.{name}"})


# ---- as a plugin of pytest


class Count:
    """Counts the tests by result."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def pytest_runtest_setup(self, item: Any) -> None:
        """Fail from now on at names that are not served."""
        Absent.is_testing = True

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Note why a test failed."""
        if call.excinfo is not None and call.excinfo.typename not in ("Skipped", "XFailed"):
            if item.get_closest_marker("xfail"):
                return
            self.reasons[item.nodeid] = reason(item.nodeid, inspect.getsource(item.function), call.excinfo)

    def pytest_runtest_teardown(self, item: Any) -> None:
        """Let modules be imported again."""
        Absent.is_testing = False

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the counts."""
        count = collections.Counter(
            result
            for result in ("passed", "failed", "error", "skipped", "xfailed")
            for report in terminalreporter.getreports(result)
            if result != "passed" or report.when == "call"
        )
        why = collections.Counter(self.reasons[report.nodeid] for report in _failed(terminalreporter))
        print("\n\n" + ", ".join(f"{number} {result}" for result, number in count.items()))
        for text, number in why.most_common():
            print(f"{number:4} {text or 'NOT EXPLAINED'}")
        used = count["passed"] + sum(number for text, number in why.items() if text not in NOT_USED)
        print(f"{count['passed']} of {used} that test what programs use passed")

    def pytest_sessionfinish(self, session: Any) -> None:
        """Fail only if a failure is not explained."""
        session.exitstatus = int(not all(self.reasons.values()))


def _failed(reporter: Any) -> list[Any]:
    return [*reporter.getreports("failed"), *reporter.getreports("error")]


def reason(test: str, source: str, failure: Any) -> str:
    """Return why a test fails; "" if that is not known."""
    for part, why in KNOWN.items():
        if part in test:
            return why
    text = f"{failure.typename}: {failure.value}"
    if failure.typename == "AbsentError":
        return NAMES
    if re.search(r"has no attribute '_", text):
        return PRIVATE
    return SLURM if "mocked_slurm" in source else ""


def main() -> int:
    """Copy the tests, and run them."""
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "tests")
        for source in folder.rglob("*"):
            is_test = re.fullmatch(r"test_\w+\.py|conftest\.py|\w+\.(txt|md|toml)", source.name)
            if is_test or source.name in ("__init__.py", "helpers.py"):
                target = root / source.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target) if is_test else target.touch()
        start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        start += f"import submitit_suite; submitit_suite.serve({str(root)!r})\n"
        Path(name, "sitecustomize.py").write_text(start)
        git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "tests"]):
            subprocess.run([*git, *words], check=True)
        code = "import pytest, submitit_suite as s, sys; sys.exit(pytest.main(sys.argv[1:], [s.Count()]))"
        words = ["-q", "--tb=short", "--import-mode=importlib", *sys.argv[2:]]
        words += [f"-pno:{plugin}" for plugin in ("cacheprovider", "randomly", "timeout")]
        environment = {"PYTHONPATH": name, "SHUNTER_HOME": str(Path(name, "home"))}
        return subprocess.run(
            [sys.executable, "-c", code, *words, "submitit"], cwd=root, env={**os.environ, **environment}
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
