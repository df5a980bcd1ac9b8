"""`import shunter.compat.torchx`: from now on `import torchx` finds shunter, unless TorchX is installed.

The modules are also served below this name: `shunter.compat.torchx.specs` is ours whatever `torchx` is.
"""

from __future__ import annotations

from typing import Any

from shunter import torchx_alias

__path__: list[str] = []  # its modules are found by the finder

torchx_alias.install()


def __getattr__(name: str) -> Any:
    return torchx_alias.look_up(__name__, name)


def __dir__() -> list[str]:
    return torchx_alias.names_in(__name__)
