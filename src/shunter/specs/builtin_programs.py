"""Programs of builtin components: how a role starts one in an image with the toolkit, shunter, or torchx.

A scheduler that brings the toolkit to processes starts the toolkit's own (`runner.preparation`). What the
programs do is in the toolkit's ``apps``.
"""

from __future__ import annotations

#: The toolkit's module -> TorchX's.
PROGRAMS = {
    "copying": "torchx.apps.utils.copy_main",
    "booth": "torchx.apps.utils.booth_main",
    "monitoring": "torchx.apps.utils.process_monitor",
    "registering": "torchx.apps.serve.serve",
}
#: Runs the first module whose package is there. The toolkit comes first, as it may stand in for the others.
_START = (
    "import sys, runpy; from importlib.util import find_spec; sys.path += ['/opt/shunter/toolkit.pyz']; "
    "names = 'shunter_toolkit{app}', 'shunter._toolkit{app}', '{torchx}'; "
    "found = next((name for name in names if find_spec(name.split('.')[0])), None) or sys.exit("
    "'error: ' + sys.executable + ' has none of shunter-toolkit, shunter and torchx'); "
    "runpy.run_module(found, None, '__main__', True)"
)


def program_arguments(name: str, *args: str) -> list[str]:
    """Return the arguments with which ``python`` runs a program of `PROGRAMS`."""
    return ["-c", _START.format(app=f".apps.{name}", torchx=PROGRAMS[name]), *args]


def toolkit_arguments(name: str, args: list[str]) -> list[str]:
    """Return the toolkit's arguments for the same program, from the result of `program_arguments`."""
    return ["app", name, *args[2:]]
