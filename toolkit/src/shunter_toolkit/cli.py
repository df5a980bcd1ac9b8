"""The command line: ``train``, ``serve`` and a few helpers.

Parsed by hand: argparse costs more than all the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = """\
usage: python -m shunter_toolkit COMMAND

commands:
  train [--job DOCUMENT] [-- ARG ...]   run the training job that /opt/ml (or SAGEMAKER_BASE_DIR) describes
                                        --job: path or text of a job document (default: $SHUNTER_JOB)
                                        -- ARG ...: give the script exactly these arguments
  serve                                 answer /ping and /invocations with the user's model
  app NAME [ARG ...]                    run a program of builtin components: booth, copying, monitoring,
                                        registering
  call [OPTIONS]                        call a function, and leave its result in the job's results
  dev --idle SECONDS                    keep an interactive job until it has not been used for so long
  notify FILE|- STATE [REASON]          tell the URLs and commands of an outbox (a file, or $SHUNTER_NOTIFY)
                                        that a job has ended
  watch [OPTIONS] SECONDS PID           watch a program: after so long without a sign of life its stacks go to
                                        its log. Options: --log FILE (its output), --results DIR, --mark FILE,
                                        --on-hang stop, --reason FILE, --grace SECONDS
  follow-up FOLDER [LINK CODE]          what follows on the end of a cluster's job: notifications, retries
  environment build|unused|remove STORE ...   build a Python environment from a description on stdin, list
                                        those that no job has used for SECONDS, remove those of these names
  env                                   print the SM_* variables of the job, secrets masked
  version                               print the version
"""

APPS = ("booth", "copying", "monitoring", "registering")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 for a wrong command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words else "help"
    if command == "train":
        return _train(words)
    if command == "serve" and not words:
        from .serving import server

        return server.serve()
    if command == "app" and words and words[0] in APPS:
        from importlib import import_module

        code: int = import_module(f".apps.{words[0]}", __package__).run(words[1:])
        return code
    if command == "call":
        from . import function_call

        return function_call.main(words)
    if command == "dev" and len(words) == 2 and words[0] == "--idle":
        from . import dev

        return dev.main(words)
    if command == "notify" and 2 <= len(words) <= 3:
        from . import notification

        return notification.main(words)
    if command == "watch" and len(words) > 3:
        from . import hung_program

        return hung_program.main(words)
    if command == "follow-up" and words:
        from . import follow_up

        return follow_up.main(words)
    if command == "environment" and len(words) > 1 and words[0] in ("build", "unused", "remove"):
        from . import environment_store

        return environment_store.main(words)
    if command == "env" and not words:
        return _env()
    if command in ("version", "--version"):
        from . import __version__

        print(__version__)
        return 0
    if command in ("help", "--help", "-h"):
        print(USAGE, end="")
        return 0
    return _usage_error(" ".join([command, *words]))


def _usage_error(what: str) -> int:
    print(f"shunter-toolkit: cannot run {what!r}\n{USAGE}", end="", file=sys.stderr)
    return 2


def _train(words: list[str]) -> int:
    from . import train

    arguments = None
    if "--" in words:
        split = words.index("--")
        words, arguments = words[:split], words[split + 1 :]
    if words and words[0].startswith("--job="):
        words[:1] = ["--job", words[0][len("--job=") :]]
    job = words[1] if len(words) == 2 and words[0] == "--job" else None
    if words and job is None:
        return _usage_error(" ".join(["train", *words]))
    return train.train(arguments, job)


def _env() -> int:
    from .environment import Environment
    from .errors import ToolkitError
    from .masking import Masker

    try:
        environment = Environment()
    except ToolkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    masker = Masker(environment.hyperparameters)
    for name, value in sorted(environment.to_env_vars().items()):
        print(f"{name}={masker.variable(name, value)}")
    return 0


def train() -> int:
    """The console script ``train``."""
    return main(["train", *sys.argv[1:]])


def serve() -> int:
    """The console script ``serve``."""
    return main(["serve", *sys.argv[1:]])
