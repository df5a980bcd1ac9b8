"""A real Grid Engine for tests: qmaster and two execution hosts, in namespaces.

``ctl`` runs qmaster and is where users log in; ``n1`` and ``n2`` have 8 slots and 2 gpus each. The parallel
environments are ``smp`` (one host), ``mpi`` (hosts filled up) and ``spread`` (one slot on each host). Queues
do not run jobs again by themselves (``rerun FALSE``): jobs ask for that with ``-r y``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster_hosts import PATIENCE, Cluster, adopt, entering, keep, shared_root, started, wait_until

PROGRAMS = Path("/usr/lib/gridengine")
#: Programs that users call; each is put on the PATH, and runs on ``ctl``.
OF_USERS = ("qsub", "qstat", "qdel", "qacct", "qconf", "qhost", "qalter", "qmod", "qhold", "qrls", "qrsh")
MASTER, NODES = "ctl", ("n1", "n2")
_ADDRESSES = {MASTER: 10, "n1": 11, "n2": 12}

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


class GridEngine(Cluster):
    """A running Grid Engine. Use as a context manager."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, _ADDRESSES)

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

    def run(self, *command: str) -> str:
        """Run a command on the master's host and return what it prints."""
        done = subprocess.run(
            [*entering((self.root / "run" / f"{MASTER}.pid").read_text()), *command],
            stdin=subprocess.DEVNULL,
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
        self._start_daemon("qmaster", MASTER, "sge_qmaster")

        def answers() -> bool:
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                self.qconf("-sm")
                return True
            return False

        wait_until(answers, "qmaster answers", self.logs)

    def stop_master(self) -> None:
        """Kill qmaster; jobs go on running."""
        self.end_daemon("qmaster", signal.SIGKILL)

    def start_node(self, name: str) -> None:
        """Start an execution host, or plug it in again."""
        self.add_host(name)
        self._start_daemon(name, name, "sge_execd")

    def wait_for_nodes(self, *names: str) -> None:
        """Wait until these execution hosts report."""

        def reporting() -> bool:
            rows = [line.split() for line in self.run(str(PROGRAMS / "qhost")).splitlines()]
            return set(names) <= {row[0] for row in rows if len(row) > 6 and row[6] != "-"}

        wait_until(reporting, f"{', '.join(names)} report", self.logs)

    def qconf(self, *words: str) -> str:
        """Change or show the configuration."""
        return self.run(str(PROGRAMS / "qconf"), *words)

    # ---- starting

    def start(self) -> None:
        """Start qmaster and the execution hosts, and make queues and parallel environments."""
        self.add_host(MASTER)
        self._make_root()
        self._make_programs()
        self.start_master()
        self._configure()
        for name in NODES:
            self.start_node(name)
        self.wait_for_nodes(*NODES)

    def _start_daemon(self, daemon: str, host: str, program: str) -> None:
        self.daemons[daemon] = self.hosts[host].start(
            str(PROGRAMS / program),
            environment={**os.environ, **self.environment, "SGE_ND": "1"},  # it stays in the foreground
            log=self.root / "log" / f"{daemon}.out",
        )

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
        enter = " ".join(entering(self.hosts[MASTER].pid))
        for name in OF_USERS:
            path = directory / name
            path.write_text(
                f'#!/bin/sh\nexec {enter} sh -c \'cd "$0" && exec "$@"\' "$PWD" {PROGRAMS / name} "$@"\n'
            )
            path.chmod(0o755)

    def _configure(self) -> None:
        for host in NODES:
            self.qconf("-ah", host)
        for host in _ADDRESSES:
            self.qconf("-as", host)
        self.qconf("-Mc", self._file("complexes", self.qconf("-sc") + _COMPLEXES))
        for host in NODES:
            self.qconf("-Ae", self._file(host, _HOST.format(name=host)))
        self.qconf("-Ahgrp", self._file("nodes", "group_name @nodes\nhostlist n1 n2\n"))
        for name, rule in _PARALLEL_ENVIRONMENTS.items():
            self.qconf("-Ap", self._file(name, _PARALLEL.format(name=name, rule=rule)))
        limits = "".join(f"{kind}_{limit} INFINITY\n" for limit in _LIMITS for kind in "sh")
        self.qconf("-Aq", self._file("all.q", _QUEUE.format(name="all.q") + limits))
        scheduling = {
            "schedule_interval": "0:0:1",
            "flush_submit_sec": "1",
            "flush_finish_sec": "1",
            "schedd_job_info": "true",
        }
        text = _replaced(self.qconf("-ssconf"), scheduling)
        self.qconf("-Msconf", self._file("scheduling", text))

    def _file(self, name: str, text: str) -> str:
        path = self.root / f"{name}.conf"
        path.write_text(text)
        return str(path)


def _replaced(text: str, values: Mapping[str, str]) -> str:
    """Return lines of ``key value`` with these values."""
    lines = []
    for line in text.splitlines():
        key = line.split(None, 1)[0] if line.strip() else ""
        lines.append(f"{key} {values[key]}" if key in values else line)
    return "\n".join(lines) + "\n"


def private_cluster() -> contextlib.AbstractContextManager[GridEngine]:
    """Start a Grid Engine that a test may break."""
    return started(GridEngine, "ty-sge-")


def shared_cluster(factory: pytest.TempPathFactory) -> GridEngine:
    """Return the Grid Engine that all workers of this test run share."""
    return adopt(GridEngine(Path()), shared_root(factory, "tests.grid_engine"))


if __name__ == "__main__":
    keep(private_cluster)
