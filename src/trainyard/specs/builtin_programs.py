"""Programs of builtin components: how a role starts one in an image with trainyard, the toolkit, or torchx.

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
_START = """\
import importlib, sys
sys.path.append("/opt/trainyard/toolkit.pyz")
for name in ("trainyard._toolkit.apps.{name}", "trainyard_toolkit.apps.{name}", "{torchx}"):
    try:
        program = importlib.import_module(name)
    except ImportError:
        continue
    sys.exit(getattr(program, "run", program.main)(sys.argv[1:]))
sys.exit("error: this Python ("
    + sys.executable + ") has none of trainyard, trainyard-toolkit and torchx: pip install trainyard-toolkit")
"""


def program_arguments(name: str, *args: str) -> list[str]:
    """Return the arguments with which ``python`` runs a program of `PROGRAMS`."""
    return ["-c", _START.format(name=name, torchx=PROGRAMS[name]), *args]


def toolkit_arguments(name: str, args: list[str]) -> list[str]:
    """Return what the toolkit is started with for the same, from what `program_arguments` returned."""
    return ["app", name, *args[2:]]
