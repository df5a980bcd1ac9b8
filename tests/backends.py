"""Which real backends this machine has. A test that needs one asks here.

Where a backend is absent its tests are skipped with the reason, unless SHUNTER_REQUIRE_BACKENDS (names
separated by commas, or ``all``) says that it must be there: then they fail.
"""

from __future__ import annotations

import collections
import functools
import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable

import pytest

# Read once, since tests run with an environment of their own.
REQUIRED = frozenset(filter(None, os.environ.get("SHUNTER_REQUIRE_BACKENDS", "").split(",")))


def _program(*names: str) -> Callable[[], str]:
    def probe() -> str:
        search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
        missing = [name for name in names if shutil.which(name, path=search) is None]
        return f"{', '.join(missing)} not installed" if missing else ""

    return probe


def _module(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"the package {name} is not installed"


def _docker() -> str:
    problem = _program("docker")()
    if problem:
        return problem
    answer = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    return "" if answer.returncode == 0 else "no Docker daemon answers"


def _registry() -> str:
    return _program("docker-registry")() or _module("bcrypt")()


def _environment(variable: str, name: str) -> str:
    """Return the folder of a virtual environment: what a variable names, or the one that `make` makes."""
    return os.path.abspath(os.environ.get(variable, f".venv-{name}"))


def _program_of(folder: str, program: str) -> Callable[[], str]:
    path = os.path.join(folder, "bin", program)
    return lambda: "" if os.path.exists(path) else f"not made (make {os.path.basename(folder)})"


SAGEMAKER_SDK = _environment("SHUNTER_SAGEMAKER_SDK", "sagemaker-sdk")
AWSCLI = _environment("SHUNTER_AWSCLI", "awscli")
TORCHX = _environment("SHUNTER_TORCHX_VENV", "torchx")
HYDRA = _environment("SHUNTER_HYDRA", "hydra")


def sagemaker_sdk() -> str:
    """Return the Python that has the SageMaker SDK; skips without one."""
    need("sagemaker_sdk")
    return os.path.join(SAGEMAKER_SDK, "bin", "python")


def awscli() -> str:
    """Return the AWS CLI; skips without one."""
    need("awscli")
    return os.path.join(AWSCLI, "bin", "aws")


def torchx_python() -> str:
    """Return the Python that has TorchX 0.7.0; skips without one."""
    need("torchx")
    return os.path.join(TORCHX, "bin", "python")


def hydra_python() -> str:
    """Return the Python that has Hydra; skips without one."""
    need("hydra")
    return os.path.join(HYDRA, "bin", "python")


NEMO = _environment("SHUNTER_NEMO", "nemo")


def nemo_python() -> str:
    """Return the Python that has NeMo-Run and TorchX; skips without one."""
    need("nemo_run")
    return os.path.join(NEMO, "bin", "python")


PRODUCTS = _environment("SHUNTER_PRODUCTS", "products")


def products_python() -> str:
    """Return the Python that has Monarch, torchft and Ax; skips without one."""
    need("torchx_products")
    return os.path.join(PRODUCTS, "bin", "python")


FRAMEWORKS = _environment("SHUNTER_FRAMEWORKS", "frameworks")


def frameworks() -> str:
    """Return the folder that AWS's framework toolkits are installed in; skips without them."""
    need("frameworks")
    return _framework_folders()[0]


def _frameworks() -> str:
    name = os.path.basename(FRAMEWORKS)
    return "" if _framework_folders() else f"not made (make {name})"


def _framework_folders() -> list[str]:
    packages = glob.glob(os.path.join(FRAMEWORKS, "lib/python3*/site-packages/sagemaker_pytorch_container"))
    return [os.path.dirname(package) for package in packages]


#: `aws logs tail` is in version 2 only, which no package index has; distributions do.
AWSCLI2 = os.environ.get("SHUNTER_AWSCLI2", "/usr/bin/aws")


def awscli2() -> str:
    """Return the AWS CLI of version 2; skips without one."""
    need("awscli2")
    return AWSCLI2


def _awscli2() -> str:
    if not os.path.exists(AWSCLI2):
        return f"{AWSCLI2} is not there"
    done = subprocess.run([AWSCLI2, "--version"], capture_output=True, text=True, check=False)
    return "" if done.stdout.startswith("aws-cli/2") else f"{AWSCLI2} is not of version 2"


RAY, RAY_OLDEST = _environment("SHUNTER_RAY", "ray"), _environment("SHUNTER_OLDEST_RAY", "ray-oldest")


def ray(*, oldest: bool = False) -> str:
    """Return the command of the newest Ray, or of the oldest that is supported; skips without one."""
    need("ray_oldest" if oldest else "ray")
    return os.path.join(RAY_OLDEST if oldest else RAY, "bin", "ray")


def _ray(folder: str) -> str:
    return _program_of(folder, "ray")() or PROBES["netns"]() or _program("unshare", "nsenter")()


def _slurm() -> str:
    problem = _program("slurmctld", "slurmd", "sbatch", "srun", "munged", "ip", "nsenter")()
    return problem or _only_root()


def _slurm_accounting() -> str:
    return _slurm() or _program("slurmdbd", "mariadbd")()


def _sge() -> str:
    if not os.path.exists("/usr/lib/gridengine/sge_qmaster"):
        return "gridengine-master, gridengine-exec and gridengine-client are not installed"
    return _program("nsenter", "ip")() or _only_root()


def _namespaces() -> str:
    problem = _program("unshare")()
    if problem:
        return problem
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    answer = subprocess.run(["unshare", *own, "--mount", "true"], capture_output=True, text=True, check=False)
    return "" if answer.returncode == 0 else f"no mount namespaces here ({answer.stderr.strip()})"


def _only_root() -> str:
    return "" if os.geteuid() == 0 else "only root can start one"


#: What is wrong with each backend; "" when it is there.
PROBES: dict[str, Callable[[], str]] = {
    "awscli": _program_of(AWSCLI, "aws"),
    "awscli2": _awscli2,
    "botocore": _module("botocore"),
    "busybox": _program("busybox"),
    "chromium": lambda: _program("chromium")() or _module("playwright")(),
    "docker": _docker,
    "fish": _program("fish"),
    "frameworks": _frameworks,
    "kubernetes_validate": _module("kubernetes_validate"),
    "lightkube": _module("lightkube"),
    "moto": _module("moto"),
    "mpi": _program("mpirun", "sshd", "ip"),
    "namespaces": _namespaces,
    "netns": lambda: _program("ip")() or ("" if os.geteuid() == 0 else "only root can make them"),
    "podman": lambda: _program("podman", "runc", "catatonit")() or _only_root(),
    "ps": _program("ps"),
    "ray": lambda: _ray(RAY),
    "ray_oldest": lambda: _ray(RAY_OLDEST),
    "registry": _registry,
    "sagemaker_sdk": _program_of(SAGEMAKER_SDK, "python"),
    "sge": _sge,
    "serve": _module("gunicorn"),
    "slurm": _slurm,
    "sshd": lambda: _program("sshd", "ssh", "ssh-keygen")() or _only_root(),
    "slurm_accounting": _slurm_accounting,
    "torch": _module("torch"),
    "torchx": _program_of(TORCHX, "python"),
    "hydra": _program_of(HYDRA, "python"),
    "nemo_run": _program_of(NEMO, "python"),
    "torchx_products": _program_of(PRODUCTS, "python"),
    "xfs": lambda: _program("mkfs.xfs")() or ("" if os.geteuid() == 0 else "only root can mount it"),
    "zsh": _program("zsh"),
}


def _packages() -> str:
    uv = os.path.join(os.path.dirname(sys.executable), "uv")
    with tempfile.TemporaryDirectory() as folder:
        command = [uv, "pip", "install", "--quiet", "--target", folder, "--no-deps", "six"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"uv cannot install six: {done.stderr[-200:]}"


#: Those that take too long to be asked for at the start of every test run.
SLOW_PROBES: dict[str, Callable[[], str]] = {"packages": _packages}


@functools.cache
def problem_with(name: str) -> str:
    """Return why a backend cannot be used; "" if it can."""
    return (SLOW_PROBES.get(name) or PROBES[name])()


def lacks(name: str) -> bool:
    """Tell whether a test has to do without this backend; fail the test where it is required."""
    problem = problem_with(name)
    if problem and REQUIRED & {name, "all"}:
        pytest.fail(f"{name} is required here, but {problem}")
    return bool(problem)


def need(name: str) -> None:
    """Skip the calling test without this backend, or fail it where the backend is required."""
    backend(name, not problem_with(name), problem_with(name))


def backend(name: str, available: bool, reason: str) -> None:
    """Skip or fail the calling test unless the backend is available."""
    if available:
        return
    if REQUIRED & {name, "all"}:
        pytest.fail(f"{name} is required here, but {reason}")
    pytest.skip(f"no {name}: {reason}")


def summary() -> str:
    """Return the names of the backends that are there and of those that are not."""
    there = [name for name in PROBES if not problem_with(name)]
    absent = [name for name in PROBES if problem_with(name)]
    return f"backends: {', '.join(there) or 'none'}\nabsent: {', '.join(absent) or 'none'}"


def skips(reasons: Iterable[str]) -> list[str]:
    """Return lines that say how many tests were skipped for which reason, and which backends are absent."""
    absent = [name for name in PROBES if problem_with(name)]
    of_backend: collections.Counter[str] = collections.Counter()
    others: collections.Counter[str] = collections.Counter()
    for reason in reasons:
        text = " ".join(reason.removeprefix("Skipped: ").split())
        name = text.removeprefix("no ").partition(":")[0]
        if name in absent:
            of_backend[name] += 1
        else:
            others[text] += 1
    lines = ["absent backends, and the tests skipped for each:"] if absent else []
    lines += [f"{of_backend[name]:5} {name}: {problem_with(name)}" for name in absent]
    lines += ["skipped for other reasons:"] if others else []
    return lines + [f"{number:5} {text}" for text, number in others.most_common()]
