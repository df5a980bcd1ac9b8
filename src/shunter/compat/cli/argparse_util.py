"""Actions of argparse for subcommands of plugins (``torchx.cli.argparse_util``)."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any

from shunter.compat.runner.config import get_configs


class ArgOnceAction(argparse.Action):
    """Stores an argument that may be given once only."""

    _is_given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value."""
        if self._is_given:
            parser.error(f"{option_string} is given twice")
        self._is_given = True
        setattr(namespace, self.dest, values)


class torchxconfig(argparse._StoreAction):
    """Stores an argument whose default may be in the section ``[cli:<subcmd>]`` of ``.torchxconfig``."""

    def __init__(
        self,
        subcmd: str,
        dest: str,
        option_strings: Sequence[str],
        required: bool = False,
        default: Any = None,
        **kwargs: Any,
    ) -> None:
        configured = get_configs("cli", subcmd)
        if dest in configured:
            default, required = configured[dest], False
        super().__init__(option_strings, dest, required=required, default=default, **kwargs)


#: `torchxconfig` for ``torchx run`` and ``torchx list``.
torchxconfig_run = functools.partial(torchxconfig, "run")
torchxconfig_list = functools.partial(torchxconfig, "list")
