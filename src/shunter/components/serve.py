"""Components that deploy a model to a server."""

from __future__ import annotations

from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.resources import Resource
from shunter.specs.training import PROGRAM_KEY, program_arguments

MODEL_PORT = 8222


def torchserve(
    model_path: str,
    management_api: str,
    image: str = NO_IMAGE,
    params: dict[str, str] | None = None,
    dryrun: bool = False,
) -> AppDef:
    """Register a model with a running TorchServe.

    The image must have shunter, shunter-toolkit or torchx installed; processes need nothing.

    Args:
        model_path: the model archive, as a path or URL that fsspec knows
        management_api: URL of TorchServe's management API, such as http://localhost:8081
        image: image to run in
        params: parameters of the registration, such as model_name=digits,initial_workers=2
        dryrun: show the request and send nothing
    """
    args = ["--model_path", model_path, "--management_api", management_api]
    for key, value in (params or {}).items():
        args += [f"--{key}", value]
    if dryrun:
        args.append("--dryrun")
    role = Role(
        "worker",
        image,
        entrypoint="python",
        args=program_arguments("registering", *args),
        metadata={PROGRAM_KEY: "registering"},
        port_map={"model-download": MODEL_PORT},
        resource=Resource(cpu=1, gpu=0, memMB=1024),
    )
    return AppDef(name="torchx-torchserve", roles=[role])
