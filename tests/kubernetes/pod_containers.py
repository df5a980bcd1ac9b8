"""The containers of the stub's pods in Docker: real images, volumes, init containers and sidecars.

What is real: images, working directories, users, commands, variables, files of Secrets, ``emptyDir``,
exit codes, SIGTERM and SIGKILL, the message in ``/dev/termination-log``. What is not: networks, limits,
rotation of logs.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from tests.toolkit.image import DOCKER, docker

GRACE = 10


class PodContainers:
    """The containers of one pod.

    Args:
        pod: the pod.
        secret: returns a Secret of its namespace.
        variables: returns the variables of a container.
        expand: expands a word with variables, as the kubelet does.
        logged: called with a container's name and each of its lines.
    """

    #: Docker's network of the containers.
    network = "none"

    def __init__(
        self,
        pod: dict[str, Any],
        secret: Callable[[str], dict[str, Any]],
        variables: Callable[[dict[str, Any]], dict[str, str]],
        expand: Callable[[str, dict[str, str]], str],
        logged: Callable[[str, bytes], None],
    ) -> None:
        self.pod = pod
        self.name = pod["metadata"]["name"]
        self.folder = tempfile.mkdtemp(prefix="shunter-pod-")
        self.message = os.path.join(self.folder, "termination-log")
        self._secret, self._variables, self._expand, self._logged = secret, variables, expand, logged
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._readers: dict[str, threading.Thread] = {}
        for volume in pod["spec"].get("volumes", ()):
            self._make(volume)

    def _make(self, volume: dict[str, Any]) -> None:
        path = os.path.join(self.folder, volume["name"])
        os.mkdir(path)
        os.chmod(path, 0o777)
        for source in volume.get("projected", {}).get("sources", ()):
            data = self._secret(source["secret"]["name"])["data"]
            for item in source["secret"]["items"]:
                with open(os.path.join(path, item["path"]), "wb") as file:
                    file.write(base64.b64decode(data[item["key"]]))

    def run_init(self) -> tuple[str, int]:
        """Run the init containers, start the sidecars; returns name and exit code of the one that failed."""
        for container in self.pod["spec"].get("initContainers", ()):
            self.start(container)
            if container.get("restartPolicy") != "Always" and (code := self.wait(container["name"])):
                return container["name"], code
        return "", 0

    def start(self, container: dict[str, Any]) -> None:
        """Start a container, and read what it writes."""
        variables = self._variables(container)
        command = [
            self._expand(word, variables) for word in (*container["command"], *container.get("args", ()))
        ]
        name = f"{self.name}-{container['name']}"
        words = [DOCKER, "run", "--rm", f"--network={self.network}", f"--name={name}"]
        for mount in container.get("volumeMounts", ()):
            source = os.path.join(self.folder, mount["name"])
            words.append(f"--volume={source}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}")
        if path := container.get("terminationMessagePath"):
            with open(self.message, "wb"):
                os.chmod(self.message, 0o666)
            words.append(f"--volume={self.message}:{path}")
        if user := container.get("securityContext", {}).get("runAsUser"):
            words.append(f"--user={user}")
        words += [f"--workdir={container['workingDir']}"] if container.get("workingDir") else []
        words += [f"--env={name}" for name in variables]
        process = subprocess.Popen(
            [*words, f"--entrypoint={command[0]}", container["image"], *command[1:]],
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        name = container["name"]
        self._started[name] = process
        self._readers[name] = threading.Thread(target=self._read, args=(name, process), daemon=True)
        self._readers[name].start()

    def _read(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._logged(name, line)

    def wait(self, name: str) -> int:
        """Wait for the end of a container; returns its exit code."""
        code = self._started[name].wait()
        self._readers[name].join()
        return code

    def stop(self, name: str, signal: str = "TERM") -> None:
        """Send a signal to a container; does nothing if it has ended."""
        docker("kill", f"--signal={signal}", f"{self.name}-{name}", check=False)

    def stop_sidecars(self) -> None:
        """Stop the sidecars as the kubelet does when the program has ended: the last one first."""
        for container in reversed(self.pod["spec"].get("initContainers", ())):
            name = container["name"]
            if container.get("restartPolicy") == "Always" and name in self._started:
                docker("stop", f"--time={GRACE}", f"{self.name}-{name}", check=False)
                self.wait(name)

    def remove(self) -> None:
        """Remove what is left of the pod."""
        for name, process in self._started.items():
            if process.poll() is None:
                docker("rm", "--force", f"{self.name}-{name}", check=False)
                self.wait(name)
        # files of the containers belong to root
        shutil.rmtree(self.folder, ignore_errors=True)
