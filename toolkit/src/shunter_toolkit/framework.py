"""Runs a framework's own entry function in a child: ``SAGEMAKER_TRAINING_MODULE=package.module:function``."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping

from . import aliases, resources
from .child_process import Command
from .errors import ConfigError, ExecuteUserScriptError

_NAME = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def command(name: str, env: Mapping[str, str], cwd: str) -> Command:
    """The command that imports the module and calls the function.

    Raises:
        ConfigError: ``name`` does not read ``package.module:function``.
    """
    if not _NAME.match(name):
        raise ConfigError(f"Cannot use SAGEMAKER_TRAINING_MODULE={name!r}: write package.module:function.")
    module, _, function = name.partition(":")
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    load = f"import sys; sys.path.append({home!r}); from shunter_toolkit.framework import call"
    # The framework starts the script itself and passes signals on to it.
    return Command([resources.script_python(), "-c", f"{load}; call({module!r}, {function!r})"], env, cwd)


def call(module: str, function: str) -> None:
    """Import the module, call the function, and exit with the status of its script. Does not return."""
    if aliases.switched_on(os.environ):
        aliases.install()  # a zipapp's Python has no .pth file to do it
    try:
        result = getattr(importlib.import_module(module), function)()
    except ExecuteUserScriptError as error:
        sys.exit(error.exit_code)  # the script's own traceback is on stderr already
    sys.exit(result if isinstance(result, int) else 0)
