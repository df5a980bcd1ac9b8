"""Hosts that are containers."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from trainyard import system
from trainyard.backoff import Backoff
from trainyard.docker.engine import Engine, EngineError, EngineUnavailableError
from trainyard.schedulers.aws.sagemaker_local.hosts.cluster import Cluster, remove_container
from trainyard.schedulers.aws.sagemaker_local.hosts.host import (
    Exit,
    PlatformFailure,
    StartFailure,
)
from trainyard.schedulers.aws.sagemaker_local.hosts.layout import (
    BASE,
    Host,
    Shown,
    Tree,
    checkpoint_path,
    command_of,
)
from trainyard.schedulers.aws.sagemaker_local.logs import LineWriter
from trainyard.system.processes import signal_name

#: Of a program that SIGKILL or SIGTERM has ended, and how long after it its container's removal would begin,
#: or its daemon be gone.
KILLED, TERMINATED = 137, 143
REMOVAL_SECONDS = 1.0
CREDENTIALS = "/run/trainyard/credentials"
_FRAME_HEAD = 8


class ContainerHost:
    """A host that is a container.

    Args:
        plan: which host.
        tree: its files.
        cluster: its network.
        environ: the variables of its program.
        log_path: of its log, without the ending.
        shown: channels that are shown from where they lie.
        credentials: file with credentials, in memory; "" without any.
    """

    def __init__(
        self,
        plan: Host,
        tree: Tree,
        cluster: Cluster,
        environ: dict[str, str],
        log_path: str,
        shown: dict[str, Shown],
        credentials: str,
    ) -> None:
        self.plan = plan
        self._tree = tree
        self._cluster = cluster
        self._engine = cluster.engine
        self._environ = environ
        self._log_path = log_path
        self._shown = shown
        self._credentials = credentials
        self._id = ""
        self._is_started = False
        self._is_told = False
        self._hears_term = True
        self._copied = 0
        self._container_pid = 0
        self._pid = 0
        self._is_killed = False
        self._writer: LineWriter | None = None
        self._reader: threading.Thread | None = None

    # ---- starting

    def start(self) -> None:
        """Create and start the container.

        Raises:
            StartFailure: the daemon refuses it: no such program in the image, for instance.
            PlatformFailure: no daemon answers.
        """
        try:
            self._create_and_start()
        except EngineError as error:
            raise StartFailure(f"cannot start the container: {error.message}") from error
        except EngineUnavailableError as error:
            raise PlatformFailure(error.message) from error
        self._is_started = True
        self._pid = self._container_pid = self._container_process()
        self._writer = LineWriter(self._log_path)
        self._reader = threading.Thread(
            target=self._read_log, args=(self._writer,), name=f"log-{self.plan.name}", daemon=True
        )
        self._reader.start()

    def _create_and_start(self) -> None:
        try:
            self._id = self._engine.request("POST", "/containers/create", json=self._definition())["Id"]
            self._engine.request("POST", f"/containers/{self._id}/start")
        except EngineError as error:
            if self._cluster.has_init and "docker-init" in error.message:
                self._cluster.has_init = False  # the daemon names its init, and does not have it
            elif not self._cluster.renew_network(error):
                raise
            self.remove()
            self._create_and_start()

    def _definition(self) -> dict[str, Any]:
        cluster, request = self._cluster, self._cluster.request
        entrypoint, arguments = command_of(request)
        environ = {**cluster.endpoint_variables(dict(os.environ)), **self._environ}
        if self._credentials:
            environ.setdefault("AWS_SHARED_CREDENTIALS_FILE", CREDENTIALS)
        address = cluster.addresses.get(self.plan.name)
        definition: dict[str, Any] = {
            "Image": request["AlgorithmSpecification"]["TrainingImage"],
            "Cmd": arguments,
            "Env": [f"{name}={value}" for name, value in environ.items()],
            "Hostname": self.plan.name,
            "Labels": cluster.labels,
            "HostConfig": {
                "Mounts": self._mounts(),
                "NetworkMode": cluster.network,
                "ExtraHosts": [
                    f"{name}:{address}"
                    for name, address in cluster.addresses.items()
                    if name != self.plan.name
                ],
                "ShmSize": cluster.shared_memory,
                "Init": cluster.has_init,
                # Whole, whatever the daemon's own limits are.
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1000g", "compress": "false"}},
            },
            "NetworkingConfig": {
                "EndpointsConfig": {
                    cluster.network: {
                        "Aliases": [self.plan.name] if address else [],
                        "IPAMConfig": {"IPv4Address": address} if address else None,
                    }
                }
            },
        }
        if entrypoint is not None:
            definition["Entrypoint"] = entrypoint
        if cluster.has_gpus and self.plan.instance_type.startswith(("ml.g", "ml.p")):
            definition["HostConfig"]["DeviceRequests"] = [{"Count": -1, "Capabilities": [["gpu"]]}]
        return definition

    def _mounts(self) -> list[dict[str, Any]]:
        tree = self._tree
        checkpoints = checkpoint_path(self._cluster.request)
        pairs = [(tree.part(name), f"{BASE}/{name}", False) for name in ("input", "model", "output")]
        pairs.append((tree.config, f"{BASE}/input/config", False))
        if checkpoints:
            pairs.append((tree.part("checkpoints"), checkpoints, False))
        for name, source in self._shown.items():
            pairs.append((source.path, f"{BASE}/input/data/{name}", source.is_fixed))
        if self._credentials:
            pairs.append((self._credentials, CREDENTIALS, True))
        return [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": is_fixed}
            for source, target, is_fixed in pairs
        ]

    # ---- its end

    def wait(self) -> Exit:
        """Wait for its end and the end of its log.

        Raises:
            PlatformFailure: the daemon stays away, or the container was removed by somebody else.
        """
        state = self._wait_state()
        if self._reader is not None and self._writer is not None:
            self._writer.give_up_after(0 if self._is_told or self._is_killed else self._cluster.patience)
            self._reader.join()
        code = int(state["ExitCode"])
        if state.get("OOMKilled"):
            return Exit(code, "the kernel ended a process of it for want of memory", was_killed=True)
        if state.get("Error"):
            return Exit(code, str(state["Error"]))
        signum = code - 128 if code > 128 and code - 128 in set(signal.Signals) else 0
        # One who handles SIGTERM and says so with 143 has written what it wanted to write.
        was_killed = bool(signum) and not (signum == signal.SIGTERM and self._hears_term)
        reason = f"ended by {signal_name(signum)}" if signum else ""
        if self._writer is not None and self._writer.lost:
            lost = f"{self._writer.lost} bytes of its log are lost, since the disk was full"
            reason = f"{reason}; {lost}" if reason else lost
        return Exit(code, reason, was_killed)

    def _wait_state(self) -> dict[str, Any]:
        backoff = self._outage()
        while True:
            try:
                # The connection stays silent for as long as the container runs.
                with self._engine.stream("POST", f"/containers/{self._id}/wait") as answer:
                    answer.read()
                state = self._engine.request("GET", f"/containers/{self._id}/json")["State"]
                if not state["Running"]:
                    if not state.get("OOMKilled"):
                        self._see_who_ended_it(state["ExitCode"])
                    return dict(state)
            except EngineError as error:
                if error.status == 404:
                    raise PlatformFailure(f"the container of {self.plan.name} was removed") from error
                raise PlatformFailure(error.message) from error
            except EngineUnavailableError as error:
                if not backoff.pause():
                    raise PlatformFailure(error.message) from error
            else:
                backoff.reset()

    def _outage(self) -> Backoff:
        """Return the delays while the daemon cannot be reached."""
        return Backoff(0.2, jitter=0, limit=self._cluster.patience)

    def _see_who_ended_it(self, code: int) -> None:
        """Find out whether something else than the program is to blame for a signal that nobody here sent.

        Who removes a container kills it first, and a daemon that is stopped ends all of its containers.

        Raises:
            EngineError: 404, it is gone.
            PlatformFailure: the daemon goes away.
        """
        if self._is_told or self._is_killed or code not in (KILLED, TERMINATED):
            return
        deadline = time.monotonic() + REMOVAL_SECONDS
        while time.monotonic() < deadline:
            try:
                self._ask_anew()
                state = self._engine.request("GET", f"/containers/{self._id}/json")["State"]
            except EngineUnavailableError as error:
                raise PlatformFailure(
                    f"the container of {self.plan.name} was ended with its daemon: {error.message}"
                ) from error
            if state.get("Status") in ("removing", "dead") or state.get("Dead"):
                raise EngineError(404, "it is being removed")
            time.sleep(0.1)

    @staticmethod
    def _ask_anew() -> None:
        """See whether the daemon still takes connections: it answers on old ones while it is being stopped.

        Raises:
            EngineUnavailableError: it does not.
        """
        engine = Engine.from_env()
        try:
            engine.api_version  # noqa: B018 - asks for it
        finally:
            engine.close()

    def terminate(self) -> None:
        """Send SIGTERM. A first process that has no handler for it and no init before it is ended."""
        if not self._is_started:
            return
        self._is_told = True
        self._hears_term = self._has_handler()
        self._signal("SIGTERM")
        if not self._cluster.has_init and not self._hears_term:
            self._is_killed = True
            self._signal("SIGKILL")  # the kernel drops SIGTERM for a first process without a handler

    def _container_process(self) -> int:
        """Return the number of the container's first process on this machine; 0 where it cannot be seen."""
        if not (system.SEES_CONTAINER_PROCESSES and self._engine.is_local):
            return 0
        try:
            return int(self._engine.request("GET", f"/containers/{self._id}/json")["State"]["Pid"])
        except (EngineError, EngineUnavailableError):
            return 0

    def _program(self) -> int:
        """Return the number of the program's process; that of the init before it, while it has not begun."""
        if self._pid == self._container_pid and self._cluster.has_init:
            self._pid = _first_child(self._container_pid) or self._container_pid
        return self._pid

    def is_alive(self) -> bool:
        """Tell whether its program runs; True where that cannot be seen."""
        return not self._container_pid or system.process_facts(self._program()) is not None

    def _has_handler(self) -> bool:
        """Tell whether the program has a handler for SIGTERM; True where that cannot be seen."""
        program = self._program()
        if self._cluster.has_init and program == self._container_pid:
            return True  # it is the init that was asked
        return system.handles_sigterm(program)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._is_started:
            self._is_killed = True
            self._signal("SIGKILL")

    def _signal(self, name: str) -> None:
        try:
            self._engine.request("POST", f"/containers/{self._id}/kill", params={"signal": name})
        except (EngineError, EngineUnavailableError):  # it has ended, or the daemon is away: `wait` tells
            pass

    def remove(self) -> None:
        """Remove the container."""
        if self._id:
            remove_container(self._engine, self._id)
            self._id = ""

    # ---- its log

    def _read_log(self, writer: LineWriter) -> None:
        """Copy the log while it grows, and then its end, which the daemon may keep from a follower."""
        try:
            self._copy_log(writer, follow=True)
            self._copy_log(writer, follow=False)
        finally:
            writer.close()

    def _copy_log(self, writer: LineWriter, *, follow: bool) -> None:
        """Copy what has not been copied yet; begins anew after a broken connection."""
        backoff = self._outage()
        while True:
            try:
                self._copy_once(writer, follow=follow)
            except EngineError:
                return
            except EngineUnavailableError:
                if not backoff.pause():
                    return
            else:
                return

    def _copy_once(self, writer: LineWriter, *, follow: bool) -> None:
        params = {"follow": follow, "stdout": True, "stderr": True}
        held, skip = b"", self._copied
        with self._engine.stream("GET", f"/containers/{self._id}/logs", params=params) as answer:
            while data := answer.read1():
                held += data
                frames, held = _frames(held)
                for stream, content in frames:
                    if skip >= len(content):
                        skip -= len(content)
                        continue
                    writer.write(stream, content[skip:])
                    self._copied += len(content) - skip
                    skip = 0


def _first_child(pid: int) -> int:
    """Return the first child of a process, or 0."""
    return next((facts.pid for facts in system.children_of(pid)), 0)


def _frames(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Split what came into frames; returns them, and what is left of one that has not come whole."""
    found, place = [], 0
    while len(data) - place >= _FRAME_HEAD:
        end = place + _FRAME_HEAD + int.from_bytes(data[place + 4 : place + _FRAME_HEAD], "big")
        if end > len(data):
            break
        found.append((data[place], data[place + _FRAME_HEAD : end]))
        place = end
    return found, data[place:]
