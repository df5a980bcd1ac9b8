"""A real Slurm for tests: a controller and four nodes, each a host with its own network, processes and name.

The tests and the Slurm commands run on this machine, which is linked to its network.

`shared_cluster` is one Slurm for all workers of a test run. Tests that break something start their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_hosts import (
    PATH,
    PATIENCE,
    Cluster,
    adopt,
    die_with_parent,
    keep,
    shared_root,
    started,
    wait_until,
)

CONTROLLER = "ctl"
NODES = ("n1", "n2", "n3", "n4")
_ADDRESSES = {CONTROLLER: 10, **{name: 10 + int(name[1:]) for name in NODES}}

_CONF = """\
ClusterName=t
SlurmctldHost=ctl({net}.10)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire={credential_seconds}
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
MaxArraySize={max_array_size}
SchedulerParameters=sched_interval=5,batch_sched_delay=0,sched_min_interval=0,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={node_seconds}
SlurmctldTimeout=10
KillWait=10
MinJobAge={min_job_age}
MessageTimeout={message_timeout}
GresTypes=gpu
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
NodeName=DEFAULT Boards=1 SocketsPerBoard=1 ThreadsPerCore=1
NodeName=n[1-2] NodeAddr={net}.[11-12] CPUs=8 CoresPerSocket=8 RealMemory=16000 Gres=gpu:h100:4 Feature=gpu
NodeName=n[3-4] NodeAddr={net}.[13-14] CPUs=4 CoresPerSocket=4 RealMemory=8000 Feature=cpu
PartitionName=gpu Nodes=n[1-2] DefaultTime=60 MaxTime=1-00:00:00 State=UP
PartitionName=cpu Nodes=n[1-4] Default=YES DefaultTime=30 MaxTime=2:00:00 State=UP
PartitionName=forever Nodes=n[1-4] MaxTime=INFINITE State=UP
PartitionName=closed Nodes=n[3-4] MaxTime=60 State=DOWN
"""
_WITH_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={net}.10
AccountingStoragePass={root}/munge/socket
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
"""
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
DbdHost=ctl
DbdAddr={net}.10
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct_db
LogFile={root}/log/slurmdbd.log
PidFile={root}/run/slurmdbd.pid
"""


class SlurmCluster(Cluster):
    """A running Slurm. Use as a context manager.

    Args:
        root: an empty directory for it, readable by the nodes (they see this machine's files).
        accounting: whether it has an accounting database.
        max_array_size: Slurm's ``MaxArraySize``.
        min_job_age: seconds that the controller remembers ended jobs.
        message_timeout: seconds that commands wait for the controller.
        credential_seconds: how long the permission to start a job holds. A busy machine needs long, but
            jobs wait as long to be restarted when a node fails.
        node_seconds: how long a node may be silent before it counts as lost, and its jobs with it. A busy
            machine needs long; a test that loses a node says so with `declare_down`.
        more: more lines of slurm.conf.
    """

    def __init__(
        self,
        root: Path,
        *,
        accounting: bool = False,
        max_array_size: int = 1001,
        min_job_age: int = 300,
        message_timeout: int = 10,
        credential_seconds: int = 60,
        node_seconds: int = PATIENCE,
        nodes: tuple[str, ...] = NODES,
        more: str = "",
    ) -> None:
        super().__init__(root, _ADDRESSES)
        self._more = more
        self.accounting = accounting
        self.nodes = nodes
        self._sizes = {
            "max_array_size": max_array_size,
            "min_job_age": min_job_age,
            "message_timeout": message_timeout,
            "credential_seconds": credential_seconds,
            "node_seconds": node_seconds,
        }

    @property
    def environment(self) -> dict[str, str]:
        """What the Slurm commands need to find it."""
        return {"SLURM_CONF": str(self.root / "slurm.conf")}

    # ---- what tests do with it

    def run(self, *command: str, check: bool = True, **options: Any) -> str:
        """Run a command of Slurm on this machine, and return its output."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            **options,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}{self.logs()}"
        output: str = done.stdout
        return output

    def declare_down(self, name: str) -> None:
        """Have the controller find at once that a node is down; by itself it takes its time."""
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def start_node(self, name: str) -> None:
        """Start a node, or plug it in again."""
        self.add_host(name)
        self._start_daemon(name, name, "slurmd", "-D")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._start_daemon("slurmctld", CONTROLLER, "slurmctld", "-D")

    def stop_controller(self) -> None:
        """End slurmctld, which saves its state; the nodes and their jobs go on."""
        self.end_daemon("slurmctld")

    def wait_for_nodes(self, state: str = "idle", nodes: tuple[str, ...] = ()) -> None:
        """Wait until these nodes, or all, are in a state."""
        wanted = set(nodes or self.nodes)

        def there() -> bool:
            lines = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).split("\n")
            return wanted <= {line.split(" ")[0] for line in lines if line.endswith(f" {state}")}

        wait_until(there, f"{', '.join(sorted(wanted))} {state}", self.logs)

    # ---- parts

    def start(self) -> None:
        """Start munge, the database if it has one, the controller and the nodes."""
        for name in ("state", "spool", "log", "run", "dev", "munge", "db"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        for name in self.nodes:
            (self.root / "spool" / name).mkdir()
        self._write_files()
        munge = self.root / "munge"
        command = ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key"]
        command += [f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"]
        with (self.root / "log" / "munged.out").open("wb") as log:
            self.daemons["munged"] = subprocess.Popen(
                command,
                env={"PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        wait_until((munge / "socket").exists, "munged is up", self.logs)
        self.add_host(CONTROLLER)
        if self.accounting:
            self._start_database()
        self.start_controller()
        wait_until(lambda: _listens(self.net + ".10", 6817), "slurmctld is up", self.logs)
        for name in self.nodes:
            self.start_node(name)
        self.wait_for_nodes()

    def _write_files(self) -> None:
        root, net = self.root, self.net
        values = {"root": str(root), "net": net, **self._sizes}
        conf = _CONF + (
            _WITH_ACCOUNTING if self.accounting else "AccountingStorageType=accounting_storage/none\n"
        )
        (root / "slurm.conf").write_text(conf.format(**values) + self._more)
        devices = root / "dev"
        for index in range(4):
            os.mknod(devices / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        (root / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu Type=h100 File={devices}/gpu[0-3]\n")
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        dbd = root / "slurmdbd.conf"
        dbd.write_text(_SLURMDBD.format(**values))
        dbd.chmod(0o600)
        with (root / "hosts").open("a") as hosts:
            hosts.write(f"{net}.1 {socket.gethostname()}\n")
        key = root / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def _start_daemon(self, daemon: str, host: str, *command: str, **more: str) -> None:
        environment = {**os.environ, "PATH": PATH, **self.environment, **more}
        log = self.root / "log" / f"{daemon}.out"
        self.daemons[daemon] = self.hosts[host].start(*command, environment=environment, log=log)

    def _start_database(self) -> None:
        directory = self.root / "db"
        sock = directory / "sock"
        log = self.root / "log" / "mariadb.out"
        with log.open("ab") as output:
            subprocess.run(
                [
                    *("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={directory}/data"),
                    *("--auth-root-authentication-method=socket", "--skip-test-db"),
                ],
                env={"PATH": PATH},
                stdout=output,
                stderr=output,
                check=True,
            )
        self._start_daemon(
            *("mariadbd", CONTROLLER),
            *("mariadbd", "--no-defaults", "--user=root", f"--datadir={directory}/data", f"--socket={sock}"),
            *("--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"),
        )
        client = ["mariadb", "--no-defaults", "--user=root", f"--socket={sock}"]
        statements = (
            "create database slurm_acct_db; create user slurm@localhost identified by 'x'; "
            "grant all on slurm_acct_db.* to slurm@localhost"
        )

        def made() -> bool:
            done = subprocess.run(
                [*client, "-e", statements], env={"PATH": PATH}, capture_output=True, check=False
            )
            return done.returncode == 0

        wait_until(made, "the database is up", self.logs)
        self._start_daemon("slurmdbd", CONTROLLER, "slurmdbd", "-D", MYSQL_UNIX_PORT=str(sock))
        wait_until(lambda: _listens(self.net + ".10", 6819), "slurmdbd is up", self.logs)
        self.run("sacctmgr", "-i", "add", "cluster", "t", check=False)


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def private_cluster(**options: Any) -> contextlib.AbstractContextManager[SlurmCluster]:
    """Start a Slurm that a test may break."""
    return started(lambda root: SlurmCluster(root, **options), "ty-slurm-")


def shared_cluster(factory: pytest.TempPathFactory, *, accounting: bool = False) -> SlurmCluster:
    """Return the Slurm that all workers of this test run share, with a database or without one."""
    words = ["accounting"] if accounting else []
    root = shared_root(factory, "tests.slurm_cluster", *words)
    return adopt(SlurmCluster(Path(), accounting=accounting), root)


if __name__ == "__main__":
    keep(lambda *words: private_cluster(accounting="accounting" in words))
