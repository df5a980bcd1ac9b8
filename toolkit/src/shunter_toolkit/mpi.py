"""Starts a script under Open MPI: the first host runs mpirun, the others an sshd that only this job can use.

Hosts that are processes of one machine need no sshd: mpirun starts all ranks there, and each host gives its
own ranks their environment. Other hosts find each other through :mod:`shunter_toolkit.rendezvous`, and
exchange keys, ports and addresses there. So an image needs OpenSSH and Open MPI, but neither keys nor a
configuration; and as addresses are used, host names need not be what ``gethostname`` says. The other hosts
are notified at once when mpirun ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import all_hosts, child_process, efa, kernel, mpi_rank, rendezvous, resources, script_command, ssh
from . import script_launch as launching
from .child_process import Outcome, Supervisor
from .errors import ClientError, ClusterError

if TYPE_CHECKING:
    from .script_launch import Launch

TOTAL_PARAMETER = "sagemaker_mpi_num_processes"
OPTIONS_PARAMETER = {
    launching.MPI: "sagemaker_mpi_custom_mpi_options",
    launching.SMDDP: "sagemaker_distributed_dataparallel_custom_mpi_options",
}
SMDDP_SERVER_PORT = "7592"
# Open MPI 4 spells the runtime's parameters --mca; 5 moved the runtime to PRRTE and them to --prtemca.
_RUNTIME_V4 = {
    "oob_tcp_if_include": "{interface}",
    "plm_rsh_no_tree_spawn": "1",
    "orte_abort_on_non_zero_status": "1",
}
_RUNTIME_V5 = {"oob_tcp_if_include": "{interface}", "plm_ssh_no_tree_spawn": "1"}
_TRANSPORT = {"pml": "ob1", "btl": "^openib", "btl_vader_single_copy_mechanism": "none"}
_SOCKET = "ranks"
_SESSION_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
#: What a host runs whose ranks mpirun starts on the same machine.
_WAIT = ["sleep", "2147483647"]


def run(launch: Launch, kind: str = launching.MPI) -> Outcome:
    """Run the script under mpirun; on a host that is not the first, serve that host's mpirun.

    Args:
        launch: the script.
        kind: ``mpi``, or ``smddp`` for SageMaker's data parallel library.

    Raises:
        ClientError: no Open MPI here.
        ClusterError: the hosts did not come together, or another host failed.
    """
    major = version()
    keys = ssh.Keys()
    try:
        if launch.environment.is_master:
            return _lead(launch, keys, major, kind)
        return _serve(launch, keys)
    finally:
        keys.remove()


def version() -> int:
    """The major version of the Open MPI on PATH.

    Raises:
        ClientError: there is no mpirun, or it belongs to another MPI.
    """
    try:
        text = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        raise ClientError(
            "Cannot run under MPI: there is no mpirun on PATH. Install Open MPI in the image."
        ) from None
    words = text.replace("(", " ").split()
    if "Open" not in words or "MPI)" not in words:
        first = (text.splitlines() or ["nothing"])[0]
        raise ClientError(
            f"Cannot run under MPI: mpirun says {first!r}. The toolkit drives Open MPI 4 and 5."
        )
    return int(words[words.index("MPI)") + 1].split(".")[0])


def command(
    launch: Launch,
    major: int,
    hosts: list[str],
    ssh_config: str | None,
    hostfile: str,
    kind: str = launching.MPI,
) -> list[str]:
    """The mpirun command line.

    Args:
        launch: the script.
        major: the version of Open MPI.
        hosts: the addresses of the hosts, this one first.
        ssh_config: how to reach the others; None on one host.
        hostfile: the file that lists the addresses with their slots.
        kind: ``mpi`` or ``smddp``.
    """
    asked = launch.environment.additional_framework_parameters
    count = launching.processes_per_host(launch.environment, launching.MPI)
    total = int(asked.get(TOTAL_PARAMETER) or count * len(launch.environment.distribution_hosts))
    parameter = OPTIONS_PARAMETER[kind]
    custom, exports = _custom_options(parameter, str(asked.get(parameter) or ""))
    line = ["mpirun", "--hostfile", hostfile, "-np", str(total), "--allow-run-as-root", "--tag-output"]
    if kind == launching.SMDDP:
        line += ["--oversubscribe"]
    else:
        line += ["--bind-to", "none", "--map-by", "slot"]
    line += _parameters(launch, major, ssh_config)
    if kind == launching.SMDDP:
        agent = "plm_rsh_num_concurrent" if major < 5 else "plm_ssh_num_concurrent"
        line += ["--mca" if major < 5 else "--prtemca", agent, str(len(hosts))]
    exports = {**_default_exports(launch, kind, hosts), **exports}
    exports[mpi_rank.EXPORTS_VARIABLE] = ",".join(exports)
    for name, value in exports.items():
        line += ["-x", f"{name}={value}"]
    home = os.path.dirname(os.path.dirname(os.path.abspath(mpi_rank.__file__)))
    return [*line, *custom, *_wrapper(launch, kind), *mpi_rank.command(home, _script(launch))]


def _wrapper(launch: Launch, kind: str) -> list[str]:
    """The vendor's program that starts each rank, if the image has it."""
    environment = launch.environment
    if kind == launching.SMDDP:
        return ["smddprun"] if environment.is_smddprun_installed else []
    if _model_parallel(launch):
        return ["smddpmprun", "-i", environment.current_instance_type, "--allow-bypass"]
    return []


def _model_parallel(launch: Launch) -> bool:
    asked = launch.env.get("SM_HP_MP_PARAMETERS", "") not in ("", "{}")
    return asked and launch.environment.is_smddpmprun_installed


def _parameters(launch: Launch, major: int, ssh_config: str | None) -> list[str]:
    interface = launch.environment.network_interface_name
    known = kernel.has_interface(interface)
    flag, runtime = ("--mca", _RUNTIME_V4) if major < 5 else ("--prtemca", _RUNTIME_V5)
    line: list[str] = []
    for name, value in runtime.items():
        if known or "{interface}" not in value:
            line += [flag, name, value.format(interface=interface)]
    if ssh_config is not None:
        line += [flag, "plm_rsh_agent" if major < 5 else "plm_ssh_agent", f"ssh -F {ssh_config}"]
    if known:
        line += ["--mca", "btl_tcp_if_include", interface]
    for name, value in _TRANSPORT.items():
        line += ["--mca", name, value]
    return line


def _default_exports(launch: Launch, kind: str, hosts: list[str]) -> dict[str, str]:
    """Variables that every rank gets, with their values: settings of the cluster, the same on all hosts."""
    environment = launch.environment
    interface = environment.network_interface_name
    exports: dict[str, str] = {}
    if kernel.has_interface(interface):
        exports["NCCL_SOCKET_IFNAME"] = launch.env.get("NCCL_SOCKET_IFNAME", interface)
    if kind == launching.SMDDP:
        one = len(hosts) == 1
        exports["SMDATAPARALLEL_USE_SINGLENODE" if one else "SMDATAPARALLEL_USE_HOMOGENEOUS"] = "1"
        exports.update(FI_PROVIDER="efa", RDMAV_FORK_SAFE="1")
        if not one:
            exports["SMDATAPARALLEL_SERVER_ADDR"] = hosts[0]
            exports["SMDATAPARALLEL_SERVER_PORT"] = SMDDP_SERVER_PORT
            exports["SAGEMAKER_INSTANCE_TYPE"] = environment.current_instance_type
    elif _model_parallel(launch):
        exports.update(NCCL_PROTO="simple", NCCL_ALGO="ring")
    exports.update(efa.variables(environment.current_instance_type, launch.env))
    return exports


def _custom_options(parameter: str, text: str) -> tuple[list[str], dict[str, str]]:
    """The job's own options, and the variables among them (``-x NAME=value``, ``--NCCL_DEBUG value``)."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ClientError(f"Cannot use {parameter}={text!r}: {error}.") from None
    options: list[str] = []
    exports: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-x" and words:
            name, given, value = words.pop(0).partition("=")
            exports[name] = value if given else os.environ.get(name, "")
        elif word == "--NCCL_DEBUG" and words:
            exports["NCCL_DEBUG"] = words.pop(0)
        else:
            options.append(word)
    return options, exports


def _script(launch: Launch) -> list[str]:
    """The script's command line; under mpi4py if it is installed, so that an exception ends all ranks."""
    line = launch.script()
    kind = script_command.kind_of(launch.code_dir, launch.name)
    if kind == script_command.COMMAND or not resources.has_module("mpi4py"):
        return line
    return [line[0], "-m", "mpi4py", *line[1:]]


def _lead(launch: Launch, keys: ssh.Keys, major: int, kind: str) -> Outcome:
    """The first host: wait for the others, run mpirun, tell them how it ended."""
    hosts = launch.environment.distribution_hosts
    if len(hosts) == 1:
        launch.prepare()
        line = _line_for_one_machine(launch, keys, major, kind)
        return _RankHost(launch, _task(launch, keys, line), keys).run()
    share_machine = _share_machine(hosts)
    with contextlib.closing(rendezvous.Chief(hosts)) as chief:
        chief.gather({} if share_machine else {"key": keys.make_key("id")})
        with all_hosts.telling(lambda end: chief.send({"verdict": end, "host": hosts[0]})):
            launch.prepare()
            chief.await_ready()
        sockets = []
        if share_machine:
            line = _line_for_one_machine(launch, keys, major, kind)
            sockets = [str(chief.hellos[host]["socket"]) for host in hosts[1:]]
        else:
            line = _line_over_ssh(launch, keys, major, kind, chief)
        part = _RankHost(launch, _task(launch, keys, line, sockets), keys)
        _release_together(part, chief)
        return all_hosts.lead(launch, part, chief, wait_for_others=False)


def _line_over_ssh(
    launch: Launch, keys: ssh.Keys, major: int, kind: str, chief: rendezvous.Chief
) -> list[str]:
    """The mpirun command line that starts ranks on this host and, over ssh, on the others.

    Raises:
        ClusterError: two hosts have one address.
    """
    hosts = launch.environment.distribution_hosts
    count = launching.processes_per_host(launch.environment, launching.MPI)
    addresses = {host: chief.lines[host].addresses()[1] for host in hosts[1:]}
    reach = {
        addresses[h]: (int(chief.hellos[h]["port"]), str(chief.hellos[h]["host_key"])) for h in hosts[1:]
    }
    own = chief.lines[hosts[1]].addresses()[0]
    _check_addresses(hosts, {hosts[0]: own, **addresses})
    if own.startswith("127."):  # containers on one machine's network: mpirun knows itself by this name only
        own = "localhost"
    everyone = [own, *(addresses[host] for host in hosts[1:])]
    hostfile = keys.write("hostfile", "".join(f"{address} slots={count}\n" for address in everyone))
    return command(launch, major, everyone, ssh.client_config(keys, reach), hostfile, kind)


def _share_machine(hosts: Sequence[str]) -> bool:
    """Whether hosts are processes of one machine: then they are called by loopback addresses."""
    return all(host.startswith("127.") for host in hosts)


def _line_for_one_machine(launch: Launch, keys: ssh.Keys, major: int, kind: str) -> list[str]:
    """The mpirun command line that starts the ranks of all hosts on this machine."""
    count = launching.processes_per_host(launch.environment, launching.MPI)
    slots = count * len(launch.environment.distribution_hosts)
    hostfile = keys.write("hostfile", f"localhost slots={slots}\n")
    return command(launch, major, ["localhost"], None, hostfile, kind)


def _check_addresses(hosts: Sequence[str], addresses: Mapping[str, str]) -> None:
    """Refuse hosts with one address: mpirun would start all their ranks on one of them.

    Raises:
        ClusterError: there are such hosts.
    """
    seen: dict[str, str] = {}
    for host in hosts:
        other = seen.setdefault(addresses[host], host)
        if other != host:
            raise ClusterError(
                f"MPI cannot tell {host} from {other}: both have the address {addresses[host]}. Run the job "
                "where its hosts are containers, or with one host and more processes on it."
            )


def _release_together(part: _RankHost, chief: rendezvous.Chief) -> None:
    """Let MPI see that stopped ranks have ended, once they have ended on all hosts."""
    own: list[bool] = []

    def ended() -> None:
        own.append(True)
        check()

    def check() -> None:
        if not part.is_stopping or (own and chief.idle >= chief.lines.keys() - chief.ended.keys()):
            for host in chief.idle:
                chief.lines[host].send({"release": True})
            chief.idle.clear()
            part.release()

    part.all_ended = ended
    part.heard = check


def _task(
    launch: Launch, keys: ssh.Keys, line: list[str], others: Sequence[str] = ()
) -> child_process.Command:
    """mpirun; its ranks are of this host, and of those whose sockets are the others."""
    env = {**launch.env, mpi_rank.SOCKETS_VARIABLE: os.pathsep.join([keys.path(_SOCKET), *others])}
    script_command.refuse_nul(line, env)
    return child_process.Command(line, env, launch.code_dir)


class _RankHost(Supervisor):
    """A host with ranks: gives them their environment, and signals them, not the program that started them.

    mpirun would kill ranks one second after it is asked to end, and all of them once a signal has ended one.
    So mpirun is not signalled while ranks save their state, and sees that they have ended only when all of
    them have ended, on all hosts. The same applies to the sshd on the other hosts.
    """

    def __init__(self, launch: Launch, command: child_process.Command, keys: ssh.Keys) -> None:
        super().__init__(command, launch.policy, launch.relays(), launch.owns_process)
        self._server = mpi_rank.Server(
            keys.path(_SOCKET), {**launch.env, mpi_rank.DIRECTORY_VARIABLE: launch.code_dir}
        )
        self._ranks: list[mpi_rank.Rank] = []
        self._whole_groups = script_command.kind_of(launch.code_dir, launch.name) == script_command.COMMAND
        self.all_ended: Callable[[], None] = self.release
        self.watch(self._server.fileno(), self._serve)

    def _serve(self) -> None:
        for found in self._server.serve():
            self._ranks.append(found)
            self.watch(found.fileno(), functools.partial(self._receive, found))

    def _receive(self, speaker: mpi_rank.Rank) -> None:
        known = speaker.pid
        speaker.receive()
        if speaker.pid and not known and self.is_stopping:
            self._send(speaker, signal.SIGTERM)  # it had not started yet when the others got the signal
        if speaker.has_ended:
            self.unwatch(speaker.fileno())
            if not self.is_stopping:
                self._ranks.remove(speaker)
                speaker.release()
            elif all(found.has_ended for found in self._ranks):
                self.all_ended()

    def release(self) -> None:
        """Let MPI see which ranks have ended."""
        for found in [found for found in self._ranks if found.has_ended]:
            self._ranks.remove(found)
            found.release()

    def _send(self, hearer: mpi_rank.Rank, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            # MPI gives each rank a process group; a shell would not pass the signal on
            if self._whole_groups and os.getpgid(hearer.pid) == hearer.keeper:
                os.killpg(hearer.keeper, number)  # its keeper ignores all of these but SIGKILL
            else:
                os.kill(hearer.pid, number)

    def _signal(self, number: int, whole_group: bool = False) -> None:
        if number == signal.SIGKILL or not self._ranks:
            super()._signal(number, whole_group)
        for found in self._ranks:
            if found.pid and not found.has_ended:
                self._send(found, number)
            if number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found.keeper, number)

    def close(self) -> None:
        """Close the sockets and the relays."""
        super().close()
        self._server.close()
        for found in self._ranks:
            found.release()


def _serve(launch: Launch, keys: ssh.Keys) -> Outcome:
    """Any other host: run sshd for mpirun and serve the ranks; end when the first host says so."""
    environment = launch.environment
    hosts = environment.distribution_hosts
    if _share_machine(hosts):
        return _serve_here(launch, keys)
    host_key = keys.make_key("host")
    port = _free_port()
    session = {n: launch.env[n] for n in _SESSION_VARIABLES if n in launch.env}
    sshd = ssh.server_command(keys, port, {**session, mpi_rank.SOCKETS_VARIABLE: keys.path(_SOCKET)})
    keys.write("authorized_keys", "")
    address = rendezvous.address_of(hosts[0], hosts)
    line, greeting = rendezvous.join(environment.current_host, address, {"port": port, "host_key": host_key})
    with contextlib.closing(line):
        keys.write("authorized_keys", f"restrict {greeting['key']}\n")
        with all_hosts.telling(line.send):
            launch.prepare()
        all_hosts.accept_early(launch, line)
        part = _RankHost(launch, child_process.Command(sshd, _minimal(launch.env)), keys)
        return _until_told(launch, part, line, lambda: _await_listening(port))


def _serve_here(launch: Launch, keys: ssh.Keys) -> Outcome:
    """Any other host on the first one's machine: serve the ranks that mpirun starts there."""
    environment = launch.environment
    hosts = environment.distribution_hosts
    line, _ = rendezvous.join(environment.current_host, hosts[0], {"socket": keys.path(_SOCKET)})
    with contextlib.closing(line):
        with all_hosts.telling(line.send):
            launch.prepare()
        all_hosts.accept_early(launch, line)
        part = _RankHost(launch, child_process.Command(_WAIT, _minimal(launch.env)), keys)
        return _until_told(launch, part, line)


def _until_told(
    launch: Launch, part: _RankHost, line: rendezvous.Line, await_ready: Callable[[], None] = lambda: None
) -> Outcome:
    """Serve ranks until the first host says how the job ended."""
    verdict: list[dict[str, Any]] = []
    also = part.policy.on_start

    def started(pid: int) -> None:
        if also is not None:
            also(pid)
        await_ready()
        line.send({"ready": True})

    def heard() -> None:
        messages = line.receive()
        verdict.extend(message for message in messages if "verdict" in message)
        if line.lost or verdict:
            part.unwatch(line.fileno())
            part.release()
            os.kill(part.pid, signal.SIGTERM)
        elif any("release" in message for message in messages):
            part.release()
        elif messages:
            part.stop()

    part.policy.on_start = started
    part.all_ended = lambda: line.send({"idle": True})
    part.watch(line.fileno(), heard)
    outcome = part.run()
    outcome.status = 0 if verdict else outcome.status or 1
    if outcome.stop_signal is not None:
        return outcome
    return all_hosts.accept(launch, outcome, verdict)


def _await_listening(port: int) -> None:
    """Wait until the sshd accepts connections."""
    import time

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"SSH-2.0-shunter\r\n")  # sshd complains about clients that send nothing
        except OSError:
            time.sleep(0.01)
        else:
            return


def _minimal(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that sshd itself needs; it does not get those of the job."""
    return {name: env[name] for name in (*_SESSION_VARIABLES, "HOME", "LANG") if name in env}


def _free_port() -> int:
    """Return a port below those that the kernel hands out: no other program gets it before sshd does."""
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise ClusterError(
        "sshd cannot be started: 100 ports between 20000 and 32000 were tried, and none is free."
    )
