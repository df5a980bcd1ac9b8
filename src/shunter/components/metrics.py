"""Components that show metrics while a job runs."""

from __future__ import annotations

from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.resources import Resource
from shunter.specs.training import PROGRAM_KEY, program_arguments


def tensorboard(
    logdir: str,
    image: str = NO_IMAGE,
    timeout: float = 60 * 60,
    port: int = 6006,
    start_on_file: str = "",
    exit_on_file: str = "",
) -> AppDef:
    """Serve TensorBoard for a directory of logs, for a time or until a file appears.

    The image (or the Python on the PATH) must have tensorboard installed, and the image also shunter,
    shunter-toolkit or torchx.

    Args:
        logdir: directory (or URL) of the logs
        image: image to run in
        timeout: seconds after which it ends
        port: port to serve at
        start_on_file: wait until this file exists
        exit_on_file: end when this file exists
    """
    args = ["--timeout", str(timeout)]
    if start_on_file:
        args += ["--start_on_file", start_on_file]
    if exit_on_file:
        args += ["--exit_on_file", exit_on_file]
    args += ["--", "tensorboard", "--bind_all", "--port", str(port), "--logdir", logdir]
    role = Role(
        "tensorboard",
        image,
        entrypoint="python",
        args=program_arguments("monitoring", *args),
        metadata={PROGRAM_KEY: "monitoring"},
        port_map={"http": port},
        resource=Resource(cpu=1, gpu=0, memMB=2048),
    )
    return AppDef(name="tensorboard", roles=[role])
