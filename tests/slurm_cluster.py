"""A real Slurm for tests: a controller and four nodes, each a host with its own network, processes and name.

A host is a process in namespaces (network, PID, UTS, mount), so killing that process is pulling the plug: the
kernel ends everything on the host with it. The hosts hang on a bridge in a separate namespace, which one
link joins to this machine, where the tests and the Slurm commands run. Everything ends with the process that
started it, however that ends, and the network ends with its namespaces: nothing is left to clean up.

`shared_cluster` is one Slurm for all workers of a test run. Tests that break something start their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTROLLER = "ctl"
NODES = ("n1", "n2", "n3", "n4")
#: Seconds that a part may take to come up on a busy machine.
PATIENCE = 60
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

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
SlurmdTimeout=6
SlurmctldTimeout=10
KillWait=2
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


class Host:
    """A process in its own namespaces. Its first process there is a shell that waits for its end."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        ready = root / "run" / f"{name}.ready"
        ready.unlink(missing_ok=True)
        script = (
            f"hostname {name}; mount --bind {root}/hosts /etc/hosts; ip link set lo up; "
            f"echo > {ready}; exec sleep infinity"
        )
        command = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (root / "log" / f"{name}.host").open("ab") as log:
            self._outer = subprocess.Popen(
                [*command, "sh", "-c", script],
                env={**os.environ, "PATH": _PATH},
                stdin=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        wait_until(ready.exists, f"{name} is up")
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        self.pid = int(children[0])  # of the host's first process, as this machine sees it

    def start(
        self, *command: str, environment: dict[str, str] | None = None, log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program on the host."""
        with log.open("ab") as output:
            return subprocess.Popen(
                ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", *command],
                env={**os.environ, "PATH": _PATH, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def network(self, *command: str) -> None:
        """Run ``ip`` in the host's network."""
        subprocess.run(
            ["nsenter", "-t", str(self.pid), "-n", "ip", *command],
            env={"PATH": _PATH},
            stderr=subprocess.DEVNULL,
            check=True,
        )

    def kill(self) -> None:
        """Pull the plug."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._outer.wait()


class SlurmCluster:
    """A running Slurm. Use as a context manager.

    Args:
        root: an empty directory for it, readable by the nodes (they see this machine's files).
        accounting: whether it has an accounting database.
        max_array_size: Slurm's ``MaxArraySize``.
        min_job_age: seconds that the controller remembers ended jobs.
        message_timeout: seconds that commands wait for the controller.
        credential_seconds: how long the permission to start a job holds. A busy machine needs long, but
            jobs wait as long to be started again when a node fails.
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
        nodes: tuple[str, ...] = NODES,
    ) -> None:
        self.root = root
        self.accounting = accounting
        self.net = ""
        self.nodes = nodes
        self._hosts: dict[str, Host] = {}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._sizes = {
            "max_array_size": max_array_size,
            "min_job_age": min_job_age,
            "message_timeout": message_timeout,
            "credential_seconds": credential_seconds,
        }

    @property
    def environment(self) -> dict[str, str]:
        """What the Slurm commands need to find it."""
        return {"SLURM_CONF": str(self.root / "slurm.conf")}

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything."""
        for host in self._hosts.values():
            host.kill()
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._hosts.clear()
        self._daemons.clear()

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
        return done.stdout

    def kill_node(self, name: str) -> None:
        """Pull a node's plug."""
        self._hosts.pop(name).kill()
        self._daemons.pop(name).wait()

    def declare_down(self, name: str) -> None:
        """Have the controller find at once that a node is down; by itself it takes its time."""
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def start_node(self, name: str) -> None:
        """Start a node, or plug it in again."""
        host = self._add_host(name, 10 + int(name[1:]))
        log = self.root / "log" / f"{name}.out"
        self._daemons[name] = host.start("slurmd", "-D", environment=self.environment, log=log)

    def cut_link(self, name: str) -> None:
        """Unplug a node's network."""
        self._hosts[name].network("link", "set", "eth0", "down")

    def mend_link(self, name: str) -> None:
        """Plug a node's network in again."""
        self._hosts[name].network("link", "set", "eth0", "up")

    def start_controller(self) -> None:
        """Start slurmctld."""
        log = self.root / "log" / "slurmctld.out"
        self._daemons["slurmctld"] = self._hosts[CONTROLLER].start(
            "slurmctld", "-D", environment=self.environment, log=log
        )

    def stop_controller(self) -> None:
        """End slurmctld, which saves its state; the nodes and their jobs go on."""
        (slurmctld,) = _children(self._daemons["slurmctld"].pid)
        os.kill(slurmctld, signal.SIGTERM)
        self._daemons.pop("slurmctld").wait(PATIENCE)

    def wait_for_nodes(self, state: str = "idle", nodes: tuple[str, ...] = ()) -> None:
        """Wait until these nodes, or all, are in a state."""
        wanted = set(nodes or self.nodes)

        def there() -> bool:
            lines = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).split("\n")
            return wanted <= {line.split(" ")[0] for line in lines if line.endswith(f" {state}")}

        wait_until(there, f"{', '.join(sorted(wanted))} {state}", self.logs)

    def logs(self) -> str:
        """Return the ends of the daemons' logs, for messages."""
        return "".join(
            f"\n--- {path.name}\n" + path.read_text(errors="replace")[-2000:]
            for path in sorted((self.root / "log").iterdir())
        )

    # ---- parts

    def _start(self) -> None:
        for name in ("state", "spool", "log", "run", "dev", "munge", "db"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        for name in self.nodes:
            (self.root / "spool" / name).mkdir()
        switch = self._hosts["switch"] = _make_switch(self.root)
        self.net = _join_switch(switch)
        self._write_files()
        munge = self.root / "munge"
        command = ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key"]
        command += [f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"]
        with (self.root / "log" / "munged.out").open("wb") as log:
            self._daemons["munged"] = subprocess.Popen(
                command,
                env={"PATH": _PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        wait_until((munge / "socket").exists, "munged is up", self.logs)
        controller = self._add_host(CONTROLLER, 10)
        if self.accounting:
            self._start_database(controller)
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
        (root / "slurm.conf").write_text(conf.format(**values))
        devices = root / "dev"
        for index in range(4):
            os.mknod(devices / f"gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        (root / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu Type=h100 File={devices}/gpu[0-3]\n")
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        dbd = root / "slurmdbd.conf"
        dbd.write_text(_SLURMDBD.format(**values))
        dbd.chmod(0o600)
        names = {"localhost": "127.0.0.1", socket.gethostname(): f"{net}.1", CONTROLLER: f"{net}.10"}
        names |= {name: f"{net}.{10 + int(name[1:])}" for name in NODES}
        (root / "hosts").write_text("".join(f"{address} {name}\n" for name, address in names.items()))
        key = root / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def _add_host(self, name: str, last: int) -> Host:
        host = self._hosts[name] = Host(name, self.root)
        switch = self._hosts["switch"]
        with contextlib.suppress(subprocess.CalledProcessError):  # what a node that was killed has left
            switch.network("link", "delete", f"to-{name}")
        switch.network(
            "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)
        )
        switch.network("link", "set", f"to-{name}", "master", "bridge0", "up")
        host.network("addr", "add", f"{self.net}.{last}/24", "dev", "eth0")
        host.network("link", "set", "eth0", "up")
        return host

    def _start_database(self, controller: Host) -> None:
        directory = self.root / "db"
        sock = directory / "sock"
        log = self.root / "log" / "mariadb.out"
        with log.open("ab") as output:
            subprocess.run(
                [
                    *("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={directory}/data"),
                    *("--auth-root-authentication-method=socket", "--skip-test-db"),
                ],
                env={"PATH": _PATH},
                stdout=output,
                stderr=output,
                check=True,
            )
        self._daemons["mariadbd"] = controller.start(
            *("mariadbd", "--no-defaults", "--user=root", f"--datadir={directory}/data", f"--socket={sock}"),
            *("--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"),
            log=log,
        )
        client = ["mariadb", "--no-defaults", "--user=root", f"--socket={sock}"]
        statements = (
            "create database slurm_acct_db; create user slurm@localhost identified by 'x'; "
            "grant all on slurm_acct_db.* to slurm@localhost"
        )

        def made() -> bool:
            done = subprocess.run(
                [*client, "-e", statements], env={"PATH": _PATH}, capture_output=True, check=False
            )
            return done.returncode == 0

        wait_until(made, "the database is up", self.logs)
        environment = {**self.environment, "MYSQL_UNIX_PORT": str(sock)}
        log = self.root / "log" / "slurmdbd.out"
        self._daemons["slurmdbd"] = controller.start("slurmdbd", "-D", environment=environment, log=log)
        wait_until(lambda: _listens(self.net + ".10", 6819), "slurmdbd is up", self.logs)
        self.run("sacctmgr", "-i", "add", "cluster", "t", check=False)


def _make_switch(root: Path) -> Host:
    (root / "hosts").write_text("127.0.0.1 localhost\n")
    switch = Host("switch", root)
    switch.network("link", "add", "name", "bridge0", "type", "bridge")
    switch.network("link", "set", "bridge0", "up")
    return switch


def _join_switch(switch: Host) -> str:
    """Link this machine to the switch by an address that is free here; returns the network's first part."""
    with open(os.path.join(tempfile.gettempdir(), "trainyard-tests-networks.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = subprocess.run(
            ["ip", "-j", "-4", "route", "show", "table", "all"],
            env={"PATH": _PATH},
            capture_output=True,
            check=True,
        )
        taken = [
            ipaddress.ip_network(route["dst"]) for route in json.loads(answer.stdout) if "/" in route["dst"]
        ]
        while True:
            net = f"10.{random.randrange(64, 255)}.{random.randrange(256)}"
            if not any(ipaddress.ip_network(f"{net}.0/24").overlaps(other) for other in taken):
                break
        name = f"ty{switch.pid:x}"
        ip = ["ip", "link", "add", name, "type", "veth", "peer", "name", "to-us", "netns", str(switch.pid)]
        subprocess.run(ip, env={"PATH": _PATH}, check=True)
        subprocess.run(["ip", "addr", "add", f"{net}.1/24", "dev", name], env={"PATH": _PATH}, check=True)
        subprocess.run(["ip", "link", "set", name, "up"], env={"PATH": _PATH}, check=True)
    switch.network("link", "set", "to-us", "master", "bridge0", "up")
    return net


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def wait_until(condition: Any, what: str, detail: Any = lambda: "") -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}{detail()}"
        time.sleep(0.02)


# ---- one for all workers of a test run


def shared_cluster(tmp_path_factory: Any, *, accounting: bool = False) -> SlurmCluster:
    """Return the Slurm that all workers of this test run share; the first that asks starts it.

    Args:
        tmp_path_factory: pytest's; it knows the directory of the run.
        accounting: whether it has a database; there is one of each kind.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / (
        "slurm-accounting" if accounting else "slurm"
    )
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "ready").exists():
            run = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid()
            command = [sys.executable, "-m", "tests.slurm_cluster", str(root), str(run), str(int(accounting))]
            with (root / "keeper.out").open("wb") as log:
                keeper = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            wait_until(
                lambda: (root / "ready").exists() or keeper.poll() is not None,
                "the shared Slurm is up",
                lambda: (root / "keeper.out").read_text(),
            )
            assert keeper.poll() is None, (root / "keeper.out").read_text()
            _keepers.append(keeper)
    cluster = SlurmCluster(root, accounting=accounting)
    cluster.net = (root / "ready").read_text()
    return cluster


#: Kept, so that nobody warns of processes that were not waited for.
_keepers: list[subprocess.Popen[bytes]] = []


def _keep(root: Path, run: int, *, accounting: bool) -> None:
    """Run a cluster until the process ``run`` ends."""
    with contextlib.suppress(ProcessLookupError):
        end = os.pidfd_open(run)
        with SlurmCluster(root, accounting=accounting) as cluster:
            (root / "ready.new").write_text(cluster.net)
            (root / "ready.new").rename(root / "ready")
            import select

            select.select([end], [], [])
    shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def private_cluster(**options: Any) -> Iterator[SlurmCluster]:
    """Start a Slurm that a test may break."""
    root = Path(tempfile.mkdtemp(prefix="trainyard-slurm-", dir="/tmp"))
    try:
        with SlurmCluster(root, **options) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]), accounting=sys.argv[3] == "1")
