"""What plugins of TorchX's command line use: the base of subcommands, colours, actions of argparse."""

from __future__ import annotations

import abc
import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from shunter.compat.torchx_config import get_configs

_TERMINAL = sys.stdout.isatty() and sys.stderr.isatty()
GREEN = "\033[32m" if _TERMINAL else ""
ORANGE = "\033[38:2:238:76:44m" if _TERMINAL else ""
BLUE = "\033[34m" if _TERMINAL else ""
GRAY = "\033[2m" if _TERMINAL else ""
ENDC = "\033[0m" if _TERMINAL else ""
YELLOW_BOLD = "\033[1;33m"
RESET = "\033[0m"

HANDLE_HEADER = "APP HANDLE"
STATUS_HEADER = "APP STATUS"
NAME_HEADER = "APP NAME"
MISSING_COMPONENT_ERROR_MSG = "no component is named on the command line or in .torchxconfig"
LOCAL_SCHEDULER_WARNING_MSG = "the scheduler `local` is another name for local_cwd: use that one"


class SubCommand(abc.ABC):
    """A subcommand of a plugin, offered in the group ``torchx.cli.cmds``."""

    @abc.abstractmethod
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    @abc.abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """Run the command."""


class ArgOnceAction(argparse.Action):
    """Stores an argument that may be given once only."""

    called_args: ClassVar[set[str]] = set()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value."""
        if self._given:
            parser.error(f"{option_string} is given twice")
        self._given = True
        setattr(namespace, self.dest, values)


class torchxconfig(argparse.Action):
    """Stores an argument whose default may be in the section ``[cli:<subcmd>]`` of ``.torchxconfig``."""

    called_args: ClassVar[set[str]] = set()

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

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value."""
        setattr(namespace, self.dest, values)


class torchxconfig_run(torchxconfig):
    """`torchxconfig` for ``torchx run``."""

    def __init__(
        self,
        dest: str,
        option_strings: Sequence[str],
        required: bool = False,
        default: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__("run", dest, option_strings, required, default, **kwargs)


class torchxconfig_list(torchxconfig):
    """`torchxconfig` for ``torchx list``."""

    def __init__(
        self,
        dest: str,
        option_strings: Sequence[str],
        required: bool = False,
        default: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__("list", dest, option_strings, required, default, **kwargs)


@dataclass
class TorchXRunArgs:
    """The arguments of ``torchx run``, from the command line or the JSON document of ``--stdin``."""

    component_name: str
    scheduler: str
    scheduler_args: dict[str, Any]
    scheduler_cfg: Mapping[str, Any] = field(default_factory=dict)
    dryrun: bool = False
    wait: bool = False
    log: bool = False
    workspace: str = ""
    parent_run_id: str | None = None
    tee_logs: bool = False
    component_args: dict[str, Any] = field(default_factory=dict)
    component_args_str: list[str] = field(default_factory=list)


def torchx_run_args_from_json(json_data: dict[str, Any]) -> TorchXRunArgs:
    """Read the document of ``--stdin``. Its workspace is the current directory unless it names one.

    Raises:
        ValueError: a key is missing or unknown.
    """
    known = {item.name for item in fields(TorchXRunArgs)}
    missing = [name for name in ("component_name", "scheduler", "scheduler_args") if name not in json_data]
    unknown = sorted(json_data.keys() - known)
    if missing or unknown:
        parts = [f"{name} is missing" for name in missing] + [f"there is no key {name!r}" for name in unknown]
        raise ValueError(f"the document of a run: {', '.join(parts)}")
    return TorchXRunArgs(**{"workspace": os.getcwd(), **json_data})


def torchx_run_args_from_argparse(
    args: argparse.Namespace, component_name: str, component_args: list[str], scheduler_cfg: Mapping[str, Any]
) -> TorchXRunArgs:
    """Take over the arguments of a command line."""
    taken = ("dryrun", "wait", "log", "workspace", "parent_run_id", "tee_logs")
    return TorchXRunArgs(
        component_name=component_name,
        scheduler=args.scheduler,
        scheduler_args={},
        scheduler_cfg=scheduler_cfg,
        component_args_str=component_args,
        **{name: getattr(args, name) for name in taken if hasattr(args, name)},
    )


def parse_list_arg(arg: str) -> list[str] | None:
    """Split ``a,b``; None for the empty text."""
    return arg.split(",") if arg else None
