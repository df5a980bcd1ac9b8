"""Write a header into a script that says what its job needs: GPUs, memory, time, an image, a scheduler.

shunter init train.py             add the header; nothing else of the file changes
shunter init train.py --dry-run   only print it

The header is a comment (PEP 723), with examples to be uncommented. The command line overrides what it says.
"""

from __future__ import annotations

import ast
import glob
import json
import os
import shlex
import shutil
import sys
from argparse import Namespace
from importlib.metadata import packages_distributions

from shunter.cli.console import note, out
from shunter.cli.parser import Parser
from shunter.errors import ConfigError, UsageError, did_you_mean
from shunter.paths import read_regular_file
from shunter.specs.job_words import job_word
from shunter.specs.script_header import read_header, with_header

_EXAMPLES = """\
[tool.shunter]
# scheduler = "local_cwd"            # where it runs; a table such as the one below has its options
# gpu = 1                            # of each node
# cpu = 4
# mem = "16G"
# time = "1h"                        # the time limit
# nodes = 1
# image = "python:3.12"              # where jobs are containers
# env = { OMP_NUM_THREADS = "4" }
# retries = 0                        # restarts after a failure
# metric = ["loss"]                  # to be read from the output
# channel = { training = "./data" }  # input data, which the script finds in SM_CHANNEL_TRAINING
# checkpoints = "./checkpoints"
#
# [tool.shunter.slurm]
# partition = "gpu"
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("script", metavar="SCRIPT", help="the script, such as train.py")
    parser.add_flag("--dry-run", "--dryrun", help="print the header, and change nothing")


def parse(parser: Parser, words: list[str]) -> Namespace:
    """Parse the arguments.

    Raises:
        UsageError: they do not parse; for an option of a job, the hint says where that stands.
    """
    try:
        return parser.parse_arguments(words)
    except UsageError as error:
        at = next((k for k, word in enumerate(words) if job_word(word.partition("=")[0].lstrip("-"))), None)
        if at is not None and words[at].startswith("--"):
            end = at + 1 + ("=" not in words[at])
            option, rest = words[at:end], words[:at] + words[end:]
            error.hint = (
                "The header has a line for it, to be uncommented. For one run: "
                + shlex.join(["shunter", "run", *option, *rest])
                + f"\nWithout it: {shlex.join([*parser.prog.split(), *rest])}"
            )
        raise


def run(args: Namespace) -> None:
    text = _read(args.script)
    if read_header(text, args.script) is not None:
        raise ConfigError(
            f"{args.script} has a header already",
            hint="Add [tool.shunter] to it by hand: each of its lines begins with '# '.",
        )
    lines = [*_dependencies(text, args.script), *_EXAMPLES.splitlines()]
    if args.dry_run:
        out(with_header("", lines).rstrip("\n"))
        return
    _replace(args.script, with_header(text, lines))
    note("added a header, with examples as comments; remove the second # of those that you need:")
    out(args.script)


def _read(script: str) -> str:
    if not os.path.isfile(script):
        folder = os.path.dirname(script)
        paths = glob.glob(os.path.join(glob.escape(folder), "*.*"))
        scripts = [shlex.quote(path) for path in paths if path.endswith((".py", ".sh"))]
        raise ConfigError(
            f"there is no script {script}",
            hint=did_you_mean(script, scripts) or "Name a script, such as train.py.",
        )
    if not script.endswith((".py", ".sh")):
        raise ConfigError(f"{script} is neither a Python nor a shell script (.py, .sh)")
    try:
        return read_regular_file(script).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{script} is not UTF-8 text (byte {error.start})", hint="Save it as UTF-8."
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read the script {script}: {error.strerror}") from None


def _replace(script: str, text: str) -> None:
    """Write a script at once, so that no crash leaves a part of it; its mode stays."""
    path = os.path.realpath(script)
    partial = f"{path}.{os.getpid()}.tmp"
    try:
        with open(partial, "xb") as file:
            file.write(text.encode("utf-8"))
        shutil.copymode(path, partial)
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"cannot write {script}: {error.strerror}") from None


def _dependencies(text: str, script: str) -> list[str]:
    """Return lines with the packages that a script imports, as far as it is certain which they are.

    That is, where exactly one installed distribution has the module. They are a comment: to declare packages
    is to ask for an environment that has no others.
    """
    if not script.endswith(".py"):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    beside = os.path.dirname(os.path.abspath(script))
    known = packages_distributions()
    names = sorted(
        known[module][0]
        for module in modules - sys.stdlib_module_names
        if len(set(known.get(module, ()))) == 1
        and not os.path.exists(os.path.join(beside, module))
        and not os.path.exists(os.path.join(beside, f"{module}.py"))
    )
    return [f"# dependencies = {json.dumps(names)}", ""] if names else []
