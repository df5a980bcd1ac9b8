"""What this container may use: CPUs within its quota, GPUs, Neuron cores, memory limit events."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from . import kernel

_CGROUP = f"{kernel.SYS}/fs/cgroup"
#: Cgroups of version 1 have a limit of about this size if they have none.
_NO_LIMIT = 1 << 60


def script_python() -> str:
    """The Python that runs scripts: this one, unless ``SHUNTER_PYTHON`` names a Python 3 on ``PATH``."""
    asked = os.environ.get("SHUNTER_PYTHON")
    found = shutil.which(asked) if asked else None
    if found is None or os.path.basename(os.path.realpath(found)).startswith("python2"):
        return sys.executable
    return found


def has_module(name: str) -> bool:
    """Whether the Python that runs scripts has a package."""
    python = script_python()
    if python == sys.executable:
        load_site_packages()
        return importlib.util.find_spec(name) is not None
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", look], stderr=subprocess.DEVNULL).returncode == 0


def is_without_site() -> bool:
    """Whether we were started without ``site``, to start sooner, and have not loaded it since."""
    return bool(sys.flags.no_site) and "site" not in sys.modules


def load_site_packages() -> None:
    """Make installed packages importable."""
    if is_without_site():
        import site

        site.main()


def num_cpus(root: str = _CGROUP) -> int:
    """CPUs that this process may use: its affinity, cut by the cgroup's quota (rounded up, at least 1)."""
    count = kernel.usable_cpus()
    quota = _cpu_quota(root)
    return count if quota is None else max(1, min(count, -int(-quota // 1)))


def _cpu_quota(root: str) -> float | None:
    """The CPU quota in cores: the smallest from this cgroup up to the root that is visible."""
    quotas = [q for q in map(_quota_v2, _folders(root, "")) if q is not None]
    quotas += [q for c in ("cpu", "cpu,cpuacct") for q in map(_quota_v1, _folders(root, c)) if q is not None]
    return min(quotas) if quotas else None


def _quota_v2(folder: str) -> float | None:
    words = _read(os.path.join(folder, "cpu.max")).split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: str) -> float | None:
    quota = _read(os.path.join(folder, "cpu.cfs_quota_us")).strip()
    period = _read(os.path.join(folder, "cpu.cfs_period_us")).strip()
    if not quota or not period or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def _folders(root: str, controller: str) -> list[str]:
    """The cgroup's folder and its parents, for v2 (controller "") or one v1 controller."""
    own = ""
    for line in _read(f"{kernel.PROC}/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names == controller or (controller and controller in names.split(",")):
            own = path.strip("/")
    base = os.path.join(root, controller)
    folders = [base]
    for part in own.split("/") if own else []:
        if part == "..":
            break
        folders.append(os.path.join(folders[-1], part))
    return folders


def oom_kills(root: str = _CGROUP) -> int:
    """How many processes of this cgroup the kernel has killed for memory so far; 0 if that cannot be read."""
    candidates = [os.path.join(folder, "memory.events") for folder in reversed(_folders(root, ""))]
    candidates += [
        os.path.join(folder, "memory.oom_control") for folder in reversed(_folders(root, "memory"))
    ]
    for path in candidates:
        if os.path.exists(path):
            return _field(path, "oom_kill")
    return 0


def limited_memory(root: str = _CGROUP) -> int:
    """Bytes that the nearest cgroup with a limit uses, without cached files; 0 if there is no limit."""
    kinds = (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for controller, limit, current, cached in kinds:
        for folder in reversed(_folders(root, controller)):
            most = _read(os.path.join(folder, limit)).strip()
            if most.isdigit() and int(most) < _NO_LIMIT:
                used = _read(os.path.join(folder, current)).strip()
                cache = _field(os.path.join(folder, "memory.stat"), cached)
                return max(0, int(used) - cache) if used.isdigit() else 0
    return 0


def _field(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1])
    return 0


def num_gpus(run: Callable[[list[str]], str | None] | None = None) -> int:
    """The number of NVIDIA GPUs of this container: of their device files.

    Without any, ``nvidia-smi --list-gpus`` is asked, which may take seconds; 0 if it is missing or fails.
    """
    count = len(_gpu_devices()) if run is None else 0
    if count:
        return count
    listing = (run or _output)(["nvidia-smi", "--list-gpus"])
    return sum(line.startswith("GPU ") for line in (listing or "").splitlines())


def _gpu_devices() -> list[str]:
    try:
        return [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    except OSError:
        return []


def num_neurons(instance_type: str = "", run: Callable[[list[str]], str | None] | None = None) -> int:
    """The number of AWS Neuron cores: the sum of ``nc_count`` in ``neuron-ls -j``; 64 on trn2.48xlarge.

    0 if the program is missing or fails.
    """
    if instance_type.endswith("trn2.48xlarge"):
        return 64
    listing = (run or _output)(["neuron-ls", "-j"])
    if not listing:
        return 0
    try:
        return sum(int(device.get("nc_count", 0)) for device in json.loads(listing))
    except (ValueError, AttributeError, TypeError):
        return 0


def _output(command: list[str]) -> str | None:
    """What a program prints; None if it fails or is not installed, which starts no process."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
