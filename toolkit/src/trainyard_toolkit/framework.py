"""Runs a framework's own entry function in a child: ``SAGEMAKER_TRAINING_MODULE=package.module:function``."""

from __future__ import annotations

import re
import sys

from trainyard_toolkit.errors import ConfigError
from trainyard_toolkit.process import Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def command(name: str, env: Mapping[str, str], cwd: str) -> Command:
    """The command that imports the module and calls the function.

    Raises:
        ConfigError: ``name`` does not read ``package.module:function``.
    """
    if not _NAME.match(name):
        raise ConfigError(f"Cannot use SAGEMAKER_TRAINING_MODULE={name!r}: write package.module:function.")
    module, _, function = name.partition(":")
    code = f"import sys, {module}; sys.exit({module}.{function}())"
    # The framework starts the script itself and passes signals on to it.
    return Command([sys.executable, "-c", code], env, cwd)
