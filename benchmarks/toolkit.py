"""The toolkit beside sagemaker-training, as ratios on this machine.

Usage: ``python benchmarks/toolkit.py [--oracle DIR]``, where DIR is an environment in which sagemaker-
    training is installed (its ``bin/train`` and ``bin/python`` are run). Without it the toolkit's own
    figures are shown. The toolkit is measured as it is installed beside the Python that runs this; each
    pair is measured in turn, round by round, so that a busy machine slows both alike; the least of the
    rounds is shown too, which other work disturbs least. A bare ``python train.py`` is the yardstick. Byte
    code is compiled first, as pip does, whatever PYTHONDONTWRITEBYTECODE says in the shell.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 15
LINES = 1_000_000
TIME = "/usr/bin/time"
RESOURCE = {"current_host": "localhost", "hosts": ["localhost"], "network_interface_name": "lo"}
# What AWS's framework images do: run the script in capture mode.
CAPTURE = (
    "import os, sys\n"
    "from sagemaker_training import environment, entry_point\n"
    "env = environment.Environment()\n"
    "entry_point.run(env.module_dir, 'train.py', [], capture_error=True)\n"
)
WRITER = (
    f"import sys\nlines = ['x' * 92 + str(i) + '\\n' for i in range(10)]\n"
    f"for i in range({LINES}): sys.stdout.write(lines[i % 10])\n"
)


class Case:
    """A command and what has been measured of it."""

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.command = command
        self.env = {name: value for name, value in env.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.seconds: list[float] = []
        self.megabytes: list[float] = []

    def run(self) -> None:
        started = time.perf_counter()
        with (
            open(os.devnull, "wb") as null,
            subprocess.Popen(self.command, env=self.env, stdout=null, stderr=null) as p,
        ):
            _, status, usage = os.wait4(p.pid, 0)
            p.returncode = os.waitstatus_to_exitcode(status)
        self.seconds.append(time.perf_counter() - started)
        self.megabytes.append(usage.ru_maxrss / 1024)
        assert p.returncode == 0, f"{self.name} ended with {p.returncode}"

    def weigh(self) -> None:
        """Measure its memory by GNU time where that is installed.

        What the kernel reports here is never less than what this process itself needs.
        """
        if os.access(TIME, os.X_OK):
            line = [TIME, "-f", "%M", *self.command]
            done = subprocess.run(line, env=self.env, capture_output=True, check=True)
            self.megabytes = [int(done.stderr.split()[-1]) / 1024]

    @property
    def wall(self) -> float:
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    @property
    def memory(self) -> float:
        return statistics.median(self.megabytes)


def make_tree(base: Path, script: str) -> None:
    (base / "code").mkdir(parents=True)
    (base / "input/config").mkdir(parents=True)
    (base / "code/train.py").write_text(script)
    for name, value in {
        "hyperparameters": {
            "sagemaker_program": "train.py",
            "epochs": "1",
            "sagemaker_region": '"us-east-1"',
        },
        "inputdataconfig": {},
        "resourceconfig": RESOURCE,
    }.items():
        (base / f"input/config/{name}.json").write_text(json.dumps(value))


def compile_toolkit() -> None:
    """Compile the toolkit's byte code, as an installation does."""
    import shunter_toolkit

    compileall.compile_dir(Path(shunter_toolkit.__file__).parent, quiet=2)


def measure(cases: list[Case], rounds: int) -> None:
    for case in cases:
        case.run()  # once unmeasured: bytecode and page cache
        case.seconds.clear()
        case.megabytes.clear()
    for _ in range(rounds):
        for case in cases:
            case.run()
    for case in cases:
        case.weigh()


def overhead(folder: Path, oracle: Path | None) -> None:
    """A script that does nothing."""
    make_tree(folder, "pass")
    env = {**os.environ, "SAGEMAKER_BASE_DIR": str(folder)}
    cases = [
        Case("python -c pass", [sys.executable, "-c", "pass"], env),
        Case("python train.py", [sys.executable, str(folder / "code/train.py")], env),
        Case("shunter_toolkit train", [sys.executable, "-m", "shunter_toolkit", "train"], env),
        Case("shunter run ./train.py", as_a_local_job(folder), local_env(folder)),
    ]
    if oracle:
        cases.append(Case("sagemaker-training train", [str(oracle / "bin/train")], env))
    measure(cases, ROUNDS)
    print(f"\nA script that does nothing (median and least of {ROUNDS}):")
    for case in cases:
        wall, least = case.wall * 1000, case.least * 1000
        print(f"  {case.name:28} {wall:7.1f} ms  {least:7.1f} ms  {case.memory:6.1f} MB")
    if oracle:
        wall, memory = cases[-1].wall / cases[2].wall, cases[-1].memory / cases[2].memory
        print(f"  ratio: {wall:.1f} x wall, {memory:.1f} x memory")


def as_a_local_job(folder: Path) -> list[str]:
    """How `local_cwd` starts the toolkit for a script: what that takes more than the script is its cost."""
    from shunter.workspace.toolkit_files import local_command, put_toolkit

    os.environ["SHUNTER_HOME"] = str(folder / "home")
    put_toolkit()
    return [sys.executable, *local_command()[1:], "train"]


def local_env(folder: Path) -> dict[str, str]:
    document = {"version": 1, "name": "job", "program": "train.py", "code": str(folder / "code")}
    base = str(folder / "base")
    return {**os.environ, "SAGEMAKER_BASE_DIR": base, "SHUNTER_JOB": json.dumps(document)}


def capture(folder: Path, oracle: Path | None) -> None:
    """A million lines of 94 bytes with capture on."""
    make_tree(folder, WRITER)
    env = {**os.environ, "SAGEMAKER_BASE_DIR": str(folder)}
    metrics = json.dumps([{"Name": "loss", "Regex": "loss: ([0-9.]+)"}])
    ours = {**env, "SHUNTER_METRICS": metrics}
    cases = [
        Case("python train.py", [sys.executable, str(folder / "code/train.py")], env),
        Case("shunter_toolkit, captured", [sys.executable, "-m", "shunter_toolkit", "train"], ours),
    ]
    if oracle:
        cases.append(Case("sagemaker-training, captured", [str(oracle / "bin/python"), "-c", CAPTURE], env))
    measure(cases, 3)
    print(f"\n{LINES:,} lines with capture on (median of 3):")
    for case in cases:
        print(f"  {case.name:28} {case.wall:6.2f} s  {LINES / case.wall / 1000:8.0f} k lines/s")
    if oracle:
        print(f"  ratio: {cases[2].wall / cases[1].wall:.1f} x")


def size(oracle: Path | None) -> None:
    """What is installed."""
    import shunter_toolkit

    ours = _tree_size(Path(shunter_toolkit.__file__).parent)
    print(f"\nInstalled size: shunter_toolkit {ours / 1e6:.2f} MB", end="")
    if oracle:
        site = next((oracle / "lib").glob("python3*/site-packages"))
        tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
        theirs = sum(_tree_size(path) for path in site.iterdir() if not path.name.startswith(tools))
        print(f", sagemaker-training {theirs / 1e6:.0f} MB: {theirs / ours:.0f} x", end="")
    print()


def _tree_size(top: Path) -> int:
    if top.is_file():
        return top.stat().st_size
    return sum(
        path.stat().st_size for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--oracle", type=Path, help="an environment with sagemaker-training")
    oracle: Path | None = parser.parse_args().oracle
    compile_toolkit()
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        overhead(Path(folder) / "overhead/ml", oracle)
        capture(Path(folder) / "capture/ml", oracle)
    size(oracle)


if __name__ == "__main__":
    main()
