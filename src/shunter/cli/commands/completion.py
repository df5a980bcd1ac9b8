"""Print the completion script of a shell.

bash   eval "$(shunter completion bash)"         in ~/.bashrc
zsh    eval "$(shunter completion zsh)"          in ~/.zshrc, after compinit
fish   shunter completion fish | source          in ~/.config/fish/config.fish
"""

from __future__ import annotations

from argparse import Namespace

from shunter.cli.console import out
from shunter.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(args: Namespace) -> None:
    from argcomplete.shell_integration import shellcode

    out(shellcode(["shunter"], shell=args.shell).strip("\n"))
