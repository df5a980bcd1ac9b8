"""A real Grid Engine for tests: qmaster and two execution hosts in namespaces, one for each test run.

A keeper process starts it when the first test needs it and ends it with the run, however that ends. The hosts
have their own network, name and ``/etc/hosts``, and share the disk, as on a cluster; nothing of them has a
name outside, so that several runs do not meet.

``ctl`` runs qmaster and is where users log in; ``n1`` and ``n2`` have 8 slots and 2 gpus each. The parallel
environments are ``smp`` (one host), ``mpi`` (hosts filled up) and ``spread`` (one slot on each host).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

PROGRAMS = Path("/usr/lib/gridengine")
#: Programs that users call; each is put on the PATH, and runs on ``ctl``.
OF_USERS = ("qsub", "qstat", "qdel", "qacct", "qconf", "qhost", "qalter", "qmod", "qhold", "qrls", "qrsh")
ADDRESSES = {"ctl": "10.9.0.10", "n1": "10.9.0.11", "n2": "10.9.0.12"}
PATIENCE = 60

_BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn false
spooling_method classic
spooling_lib libspoolc
spooling_params {common};{spool}/qmaster
binary_path {programs}
qmaster_spool_dir {spool}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
_HOST = """\
hostname {name}
load_scaling NONE
complex_values gpu=2,mem=4G
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""
_COMPLEXES = "gpu gpu INT <= YES YES 0 0\nmem mem MEMORY <= YES YES 10M 0\n"
_PARALLEL = """\
pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule {rule}
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
_PARALLEL_ENVIRONMENTS = {"smp": "$pe_slots", "mpi": "$fill_up", "spread": "1"}
_QUEUE = """\
qname {name}
hostlist @nodes
seq_no 0
load_thresholds NONE
suspend_thresholds NONE
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH INTERACTIVE
ckpt_list NONE
pe_list smp mpi spread
rerun FALSE
slots 8
tmpdir /tmp
shell /bin/sh
prolog NONE
epilog NONE
shell_start_mode unix_behavior
starter_method NONE
suspend_method NONE
resume_method NONE
terminate_method NONE
notify 00:00:02
owner_list NONE
user_lists NONE
xuser_lists NONE
subordinate_list NONE
complex_values NONE
projects NONE
xprojects NONE
calendar NONE
initial_state default
"""
_LIMITS = ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")


class GridEngine:
    """A running Grid Engine.

    Args:
        root: its directory; ``env`` in it holds what programs need to find it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which `qsub` and the others find it."""
        return {
            "PATH": f"{self.root / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "SGE_ROOT": str(self.root / "sge"),
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
        }

    def on(self, host: str, *command: str) -> list[str]:
        """Return the command that runs a command on a host."""
        pid = (self.root / f"{host}.pid").read_text()
        return ["nsenter", "-t", pid, "-n", "-u", "-m", *command]

    def run(self, *command: str, host: str = "ctl", stdin: str = "") -> str:
        """Run a command on a host and return what it prints."""
        done = subprocess.run(
            self.on(host, *command),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.environment},
            timeout=PATIENCE,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start_master(self) -> None:
        """Start qmaster, and wait until it answers."""
        self.run(str(PROGRAMS / "sge_qmaster"))
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                self.run(str(PROGRAMS / "qconf"), "-sm")
                return
            if time.monotonic() > deadline:
                raise RuntimeError("qmaster does not answer")
            time.sleep(0.05)

    def stop_master(self) -> None:
        """Kill qmaster; jobs go on running."""
        pid = int((self.root / "spool/qmaster/qmaster.pid").read_text())
        handle = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([handle], [], [], PATIENCE)
        os.close(handle)

    # ---- starting, by the keeper

    def start(self) -> None:
        """Start the hosts and the daemons, and make queues and parallel environments."""
        self._make_hosts()
        self._make_root()
        self._make_programs()
        self.start_master()
        self._configure()
        for host in ("n1", "n2"):
            self.run(str(PROGRAMS / "sge_execd"), host=host)
        deadline = time.monotonic() + PATIENCE
        while self.run(str(PROGRAMS / "qhost")).count("lx-amd64") < 2:
            if time.monotonic() > deadline:
                raise RuntimeError("the execution hosts do not report")
            time.sleep(0.1)

    def _make_hosts(self) -> None:
        names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        (self.root / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for name in ADDRESSES:
            script = 'mount --bind "$0" /etc/hosts; hostname "$1"; echo; exec sleep infinity'
            command = ["unshare", "-n", "-u", "-m", "sh", "-c", script, str(self.root / "hosts"), name]
            holder = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            assert holder.stdout is not None
            holder.stdout.readline()
            (self.root / f"{name}.pid").write_text(str(holder.pid))
        self.run("ip", "link", "add", "hub", "type", "bridge")
        for name in ("n1", "n2"):
            far = (self.root / f"{name}.pid").read_text()
            self.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", far)
            self.run("ip", "link", "set", name, "master", "hub", "up")
        for name, address in ADDRESSES.items():
            device = "hub" if name == "ctl" else "eth0"
            self.run("ip", "addr", "add", f"{address}/24", "dev", device, host=name)
            for each in ("lo", device):
                self.run("ip", "link", "set", each, "up", host=name)

    def _make_root(self) -> None:
        sge, spool = self.root / "sge", self.root / "spool"
        common = sge / "default/common"
        for directory in (common, spool / "qmaster/job_scripts", spool / "execd"):
            directory.mkdir(parents=True)
        for name in ("bin", "lib", "utilbin"):
            (sge / name).mkdir()
            (sge / name / "lx-amd64").symlink_to(PROGRAMS)
        (sge / "util").symlink_to("/usr/share/gridengine/util")
        (common / "bootstrap").write_text(_BOOTSTRAP.format(common=common, spool=spool, programs=PROGRAMS))
        (common / "act_qmaster").write_text("ctl\n")
        self.run(str(PROGRAMS / "spoolinit"), "classic", "libspoolc", f"{common};{spool}/qmaster", "init")
        changes = {
            "execd_spool_dir": f"{spool}/execd",
            "min_uid": "0",
            "min_gid": "0",
            "max_unheard": "00:00:20",
            "load_report_time": "00:00:05",
            "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false "
            "sharelog=00:00:00",
        }
        text = _replaced(Path("/usr/share/gridengine/default-configuration").read_text(), changes)
        configuration = self._file("configuration", text)
        defaults = str(PROGRAMS / "spooldefaults")
        self.run(defaults, "configuration", configuration)
        self.run(defaults, "complexes", "/usr/share/gridengine/util/resources/centry")
        self.run(defaults, "usersets", "/usr/share/gridengine/util/resources/usersets")
        self.run(defaults, "managers", "root")

    def _make_programs(self) -> None:
        directory = self.root / "bin"
        directory.mkdir()
        pid = (self.root / "ctl.pid").read_text()
        for name in OF_USERS:
            path = directory / name
            path.write_text(
                f'#!/bin/sh\nexec nsenter -t {pid} -n -u -m sh -c \'cd "$0" && exec "$@"\' "$PWD" '
                f'{PROGRAMS / name} "$@"\n'
            )
            path.chmod(0o755)

    def _configure(self) -> None:
        qconf = str(PROGRAMS / "qconf")
        for host in ("n1", "n2"):
            self.run(qconf, "-ah", host)
        for host in ADDRESSES:
            self.run(qconf, "-as", host)
        self.run(qconf, "-Mc", self._file("complexes", self.run(qconf, "-sc") + _COMPLEXES))
        for host in ("n1", "n2"):
            self.run(qconf, "-Ae", self._file(host, _HOST.format(name=host)))
        self.run(qconf, "-Ahgrp", self._file("nodes", "group_name @nodes\nhostlist n1 n2\n"))
        for name, rule in _PARALLEL_ENVIRONMENTS.items():
            self.run(qconf, "-Ap", self._file(name, _PARALLEL.format(name=name, rule=rule)))
        limits = "".join(f"{kind}_{limit} INFINITY\n" for limit in _LIMITS for kind in "sh")
        self.run(qconf, "-Aq", self._file("all.q", _QUEUE.format(name="all.q") + limits))
        scheduling = {
            "schedule_interval": "0:0:1",
            "flush_submit_sec": "1",
            "flush_finish_sec": "1",
            "schedd_job_info": "true",
        }
        text = _replaced(self.run(qconf, "-ssconf"), scheduling)
        self.run(qconf, "-Msconf", self._file("scheduling", text))

    def _file(self, name: str, text: str) -> str:
        path = self.root / f"{name}.conf"
        path.write_text(text)
        return str(path)

    def stop(self) -> None:
        """Kill everything that runs on the hosts, and remove the directory."""
        networks = set()
        for host in ADDRESSES:
            with contextlib.suppress(OSError):
                networks.add(os.readlink(f"/proc/{(self.root / f'{host}.pid').read_text()}/ns/net"))
        networks.discard(os.readlink("/proc/self/ns/net"))
        while found := [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _in(pid, networks)
        ]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.root, ignore_errors=True)


def _in(pid: int, networks: set[str]) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") in networks
    except OSError:
        return False


def _replaced(text: str, values: Mapping[str, str]) -> str:
    """Return lines of ``key value`` with these values."""
    lines = []
    for line in text.splitlines():
        key = line.split(None, 1)[0] if line.strip() else ""
        lines.append(f"{key} {values[key]}" if key in values else line)
    return "\n".join(lines) + "\n"


# ---- one for each test run


def shared() -> GridEngine:
    """Return the Grid Engine of this test run; start it if it is the first time."""
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    root = Path(tempfile.gettempdir()) / f"trainyard-sge-{run}"
    with _locked(f"{root}.lock"):
        if not (root / "ready").exists():
            log = Path(f"{root}.log")
            with log.open("wb") as output:
                keeper = subprocess.Popen(
                    [sys.executable, "-m", "tests.grid_engine", str(root), str(run)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    cwd=Path(__file__).parents[1],
                )
            while not (root / "ready").exists():
                if keeper.poll() is not None:
                    raise RuntimeError(f"Grid Engine could not be started:\n{log.read_text()}")
                time.sleep(0.05)
            keeper.returncode = 0  # It outlives this process; nobody here waits for it.
    return GridEngine(root)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def keep(root: Path, run: int) -> None:
    """Start Grid Engine, and stop it when the process ``run`` ends."""
    # What daemons leave behind is ours to reap.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    handle = os.pidfd_open(run)
    root.mkdir()
    engine = GridEngine(root)
    try:
        engine.start()
        (root / "ready").touch()
        select.select([handle], [], [])
    finally:
        engine.stop()
        for suffix in (".lock", ".log"):
            with contextlib.suppress(OSError):
                os.unlink(f"{root}{suffix}")


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
