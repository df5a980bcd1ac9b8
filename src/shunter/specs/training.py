"""What a role's metadata say of the toolkit: its training specification, or its builtin program.

The specification, ``metadata["train"]``, is the part of a job document that a role has; ``docs/contract.md``
has the keys. Results of a job lie below one directory or URI, whatever the scheduler.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shunter.errors import ConfigError

METADATA_KEY = "train"
#: Names in the metadata the points of a sweep, see `specs.sweep_points`.
SWEEP_KEY = "sweep"
#: Names in the metadata the call of a function that a role makes, see `new_call`.
CALL_KEY = "function_call"
#: Names in the metadata the program of a builtin, one of `PROGRAMS`.
PROGRAM_KEY = "program"
#: Metadata key; False runs a role's script without the toolkit, even where the toolkit is the default.
TOOLKIT_KEY = "toolkit"
#: The variable that carries the job document.
DOCUMENT = "SHUNTER_JOB"
#: Seconds between a stop and SIGKILL, if the scheduler leaves more than the toolkit would by itself.
GRACE = "SHUNTER_GRACE_SECONDS"
_DEFAULT_GRACE = 100.0
#: The same for torchrun and its workers, in whole seconds; a torch that does not know it kills them after 30.
TORCHRUN_GRACE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_TORCHRUN_DEFAULT_GRACE = 30.0
#: The directories of the base directory that hold results.
RESULTS = ("model", "output", "checkpoints")
_SUFFIXES = (".py", ".sh")
#: Programs of builtin components: the toolkit's module (in its ``apps``) -> TorchX's.
PROGRAMS = {
    "copying": "torchx.apps.utils.copy_main",
    "booth": "torchx.apps.utils.booth_main",
    "monitoring": "torchx.apps.utils.process_monitor",
    "registering": "torchx.apps.serve.serve",
}
#: Runs the first module whose package is there. The toolkit comes first, as it may stand in for the others.
_START_PROGRAM = (
    "import sys, runpy; from importlib.util import find_spec; sys.path += ['/opt/shunter/toolkit.pyz']; "
    "names = 'shunter_toolkit{app}', 'shunter._toolkit{app}', '{torchx}'; "
    "found = next((name for name in names if find_spec(name.split('.')[0])), None) or sys.exit("
    "'error: ' + sys.executable + ' has none of shunter-toolkit, shunter and torchx'); "
    "runpy.run_module(found, None, '__main__', True)"
)


def specification(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training specification of a role, or of its metadata as JSON values; empty without one."""
    value = metadata.get(METADATA_KEY)
    return dict(value) if isinstance(value, dict) else {}


def new_call(count: int) -> dict[str, Any]:
    """Return the metadata of a role that calls functions.

    ``nonce`` is what the key of the job's results is made of, ``count`` how many calls the job makes. Where
    the calls are pickled there are also ``digest``, which names their file, and ``libraries``, folders of
    packages that reading it needs, by name.
    """
    return {"nonce": secrets.token_hex(16), "count": count}


def output_of(specification: Mapping[str, Any], app_id: str) -> str:
    """Return where a job's results are sent to; "" if nowhere. Each point of a sweep has its own place."""
    uri = (specification.get("output") or {}).get("uri") or ""
    place = f"{app_id}-*" if str(specification.get("name", "")).endswith("-${replica_id}") else app_id
    return f"{uri.rstrip('/')}/{place}/output" if uri else ""


def output_in(environment: Mapping[str, str]) -> str:
    """Return where the results go of a job whose document is in this environment; "" if nowhere."""
    try:
        document = json.loads(environment.get(DOCUMENT) or "{}")
        return output_of(document, str(document.get("name", "")))
    except (ValueError, AttributeError):
        return ""


def checkpoints_in(environment: Mapping[str, str]) -> str:
    """Return where the checkpoints go of a job whose document is in this environment; "" if nowhere."""
    try:
        document = json.loads(environment.get(DOCUMENT) or "{}")
        return str((document.get("checkpoints") or {}).get("uri") or "")
    except (ValueError, AttributeError):
        return ""


def lost_results(specification: Mapping[str, Any], mounted: Iterable[str]) -> str:
    """Return where in its container a script leaves results that are lost with the container; "" if nowhere.

    ``mounted`` are the paths of the container that outlive it.
    """
    output: str = (specification.get("output") or {}).get("uri") or "/opt/ml/model"
    is_kept = any(f"{output}/".startswith(f"{path.rstrip('/')}/") for path in mounted)
    return output if specification and output.startswith("/") and not is_kept else ""


def local_path(uri: str) -> str:
    """Return the path of this machine that a URI names; "" if it names none."""
    path = uri.removeprefix("file://")
    return path if path.startswith("/") else ""


def channel_uri(channel: Any) -> str:
    """Return where a channel's data come from."""
    uri: str = channel if isinstance(channel, str) else channel.get("uri", "")
    return uri


def check_channels(metadata: Mapping[str, Any]) -> None:
    """Check that every local path that a role's channels name exists.

    Raises:
        ConfigError: a path does not exist.
    """
    for name, channel in (specification(metadata).get("channels") or {}).items():
        path = local_path(channel_uri(channel))
        if path and not os.path.exists(path):
            raise ConfigError(
                f"channel {name!r}: {path} does not exist", hint=f"Name existing data: --channel {name}=PATH"
            )


def script_of(args: Sequence[str], metadata: Mapping[str, Any]) -> str:
    """Return the script of a role of `train.script`; "" for other roles, and if it is not a file name."""
    script = str(specification(metadata).get("program", ""))
    if not script and metadata.get(TOOLKIT_KEY) is False:
        script = next((word for word in args if word.endswith(_SUFFIXES)), "")
    return script if script.endswith(_SUFFIXES) and "$" not in script else ""


def grace_variables(env: Mapping[str, str], grace: float) -> dict[str, str]:
    """Return the variables that let the toolkit and torchrun wait as long as their scheduler does."""
    variables = {}
    if DOCUMENT in env and GRACE not in env and grace > _DEFAULT_GRACE:
        variables[GRACE] = f"{grace:g}"
    if TORCHRUN_GRACE not in env and grace > _TORCHRUN_DEFAULT_GRACE:
        variables[TORCHRUN_GRACE] = f"{grace:.0f}"
    return variables


# ---- programs of builtin components


def program_arguments(name: str, *args: str) -> list[str]:
    """Return the arguments with which ``python`` runs a program of `PROGRAMS` in an image.

    The image has the toolkit, shunter or torchx. A scheduler that brings the toolkit to processes starts the
    toolkit's own (`toolkit_arguments`).
    """
    return ["-c", _START_PROGRAM.format(app=f".apps.{name}", torchx=PROGRAMS[name]), *args]


def toolkit_arguments(name: str, args: list[str]) -> list[str]:
    """Return the toolkit's arguments for the same program, from the result of `program_arguments`."""
    return ["app", name, *args[2:]]
