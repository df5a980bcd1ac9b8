"""Running a command in a container of a pod that runs: ``kubectl exec``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shunter.errors import ConfigError
from shunter.schedulers.joined_terminal import SHELL, run_joined
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer


def run_in_pod(
    server: ApiServer, namespace: str, pod: str, container: str, command: Sequence[str], *, tty: bool
) -> int:
    """Run a command on this process's terminal or streams; returns its exit code.

    kubectl itself says what is wrong if the command cannot be started.

    Args:
        server: the API server.
        namespace: the pod's namespace.
        pod: a pod that runs.
        container: its container.
        command: program and arguments; empty for a shell.
        tty: whether the command gets a terminal.

    Raises:
        ConfigError: there is no kubectl.
    """
    words = ["kubectl"]
    if server.kubeconfig:
        words.append(f"--kubeconfig={os.path.expanduser(server.kubeconfig)}")
    if server.connection.context:  # a pod's own account has none
        words.append(f"--context={server.connection.context}")
    words += ["exec", pod, f"--namespace={namespace}", f"--container={container}", "--stdin"]
    words += [*(["--tty"] if tty else []), "--", *(command or SHELL)]
    try:
        return run_joined(words)
    except FileNotFoundError:
        raise ConfigError(
            "entering a pod needs kubectl, which is not installed",
            hint="https://kubernetes.io/docs/tasks/tools/ says how to install it.",
        ) from None
