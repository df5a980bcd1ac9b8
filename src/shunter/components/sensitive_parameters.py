"""Which parameters of components a project's configuration may not set until the user has trusted it.

They are known by their names, so that nothing of a component has to be imported to tell, and so that the
same holds for the parameters of plug-ins' components.
"""

from __future__ import annotations

from shunter.specs.conversion import snake_case
from shunter.specs.options import ACCESS, ADDRESS, FILES_OUTSIDE, PLACE_OUTSIDE, PROGRAM

#: By parameter, or COMPONENT.PARAMETER, what it names.
SENSITIVE_PARAMETERS = {
    "c": PROGRAM,
    "channel": FILES_OUTSIDE,
    "checkpoints": PLACE_OUTSIDE,
    "config_dir": FILES_OUTSIDE,
    "dst": PLACE_OUTSIDE,
    "entrypoint": PROGRAM,
    "file": PLACE_OUTSIDE,
    "logdir": FILES_OUTSIDE,
    "management_api": ADDRESS,
    "model_path": FILES_OUTSIDE,
    "mounts": ACCESS,
    "mpi_options": PROGRAM,
    "output": PLACE_OUTSIDE,
    "script": FILES_OUTSIDE,
    "src": FILES_OUTSIDE,
    "tracker_base": PLACE_OUTSIDE,
    "utils.binary.args": PROGRAM,
    "utils.sh.args": PROGRAM,
}


def what_it_names(component: str, key: str) -> str:
    """Return what a parameter names, by its name as configurations write it; "" if nothing needs trust."""
    name = snake_case(key.lstrip("*")).replace("-", "_").lower()
    # "torchx.components.utils.sh" and "shunter.components.utils:sh" are the same component
    short = ".".join(component.replace(":", ".").split(".")[-2:])
    return SENSITIVE_PARAMETERS.get(f"{short}.{name}") or SENSITIVE_PARAMETERS.get(name, "")
