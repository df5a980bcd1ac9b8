"""The base of subcommands that plugins add to TorchX's command line (``torchx.cli.cmd_base``)."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod


class SubCommand(ABC):
    """A subcommand of a plugin, offered in the group of entry points ``torchx.cli.cmds``."""

    @abstractmethod
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> None:
        """Run the command."""
