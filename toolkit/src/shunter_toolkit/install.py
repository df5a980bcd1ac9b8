"""Installs what the user's code needs; a failure here is reported as such, not as one of the script."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from . import child_process, log, resources, script_command, tracebacks
from .errors import InstallError, InstallModuleError, InstallRequirementsError, StoppedError
from .output_relay import Relay
from .script_command import REQUIREMENTS

_SHOWN_LINES = 12
_CROSS = "\u00d7 "  # precedes errors in older versions of uv
_TRACEBACK = "Traceback (most recent call last):"
_CAUSES = ("cause:", "Caused by:", "\u2570\u2500\u25b6")


def install(code_dir: str, name: str, env: Mapping[str, str]) -> None:
    """Install the ``requirements.txt`` of the code directory, if any, then the code if it is a package.

    Nothing is installed with ``SHUNTER_INSTALLER=none``. Uses uv if it is on PATH, otherwise pip; both read
    their usual variables and files for private indexes.

    Raises:
        InstallError: no installer, or it failed; the message carries its last lines.
    """
    if not script_command.installs():
        return
    if script_command.has_requirements(code_dir):
        install_requirements(code_dir, env)
    if script_command.kind_of(code_dir, name) == script_command.PYTHON_PACKAGE:
        install_package(code_dir, env)


def install_requirements(code_dir: str, env: Mapping[str, str]) -> None:
    """Install ``requirements.txt`` of a folder.

    Raises:
        InstallRequirementsError: no installer, or it failed.
    """
    what = f"the packages of {REQUIREMENTS}"
    _run(["-r", REQUIREMENTS], code_dir, env, what, InstallRequirementsError)


def install_package(code_dir: str, env: Mapping[str, str]) -> None:
    """Install the package that a folder is.

    Raises:
        InstallModuleError: no installer, or it failed.
    """
    _run(["."], code_dir, env, "the package in the code directory", InstallModuleError)


def installer(env: Mapping[str, str], what: str, error: type[InstallError] = InstallError) -> list[str]:
    """The start of the install command: ``uv pip`` for this interpreter, or ``python -m pip``.

    Args:
        env: the environment; ``SHUNTER_INSTALLER`` in it may ask for pip.
        what: what is to be installed, for the message.
        error: the class to raise.

    Raises:
        InstallError: this Python has neither.
    """
    if env.get("SHUNTER_INSTALLER") != "pip" and shutil.which("uv"):
        return ["uv", "pip"]
    python = resources.script_python()
    if not resources.has_module("pip"):
        message = (
            f"Cannot install {what}: {python} has no pip, and uv is not on PATH. "
            "Add one to the image, or install it when the image is built and leave it out of the code."
        )
        raise error([python, "-m", "pip"], message=message)
    return [python, "-m", "pip"]


def _run(
    arguments: list[str], code_dir: str, env: Mapping[str, str], what: str, error: type[InstallError]
) -> None:
    line = [*installer(env, what, error), "install"]
    by_uv = line[0] == "uv"
    if by_uv:
        python = resources.script_python()
        line += ["--python", python]
        if not os.path.exists(os.path.join(os.path.dirname(os.path.dirname(python)), "pyvenv.cfg")):
            line.append("--break-system-packages")
    log.info(f"Installing {what} with {'uv' if by_uv else 'pip'}")
    environment = {**env, **index_of_repository(env)}
    relays = {1: Relay(1), 2: Relay(2)}
    line += arguments
    outcome = child_process.supervise(child_process.Command(line, environment, code_dir), relays=relays)
    if outcome.stop_signal is not None:
        raise StoppedError(outcome.stop_signal)
    if outcome.status != 0:
        output = (relays[1].tail + relays[2].tail).decode("utf-8", "replace")
        message = f"Installing {what} failed (exit code {outcome.exit_code}): {reason(output)}"
        raise error(line, outcome.status, "\n".join(output.splitlines()[-_SHOWN_LINES:]), message=message)


def reason(output: str) -> str:
    """What went wrong: the exception in ``setup.py``, an error line with uv's cause, or the last line."""
    trace = _trace(output)
    if trace is not None:
        return trace.summary()
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for start in ("ERROR:", "error:", _CROSS):
        for line, after in zip(lines, [*lines[1:], ""]):
            if line.startswith(start) and "subprocess-exited" not in line:
                causes = [after[len(mark) :].strip() for mark in _CAUSES if after.startswith(mark)]
                return ": ".join([line.lstrip(_CROSS), *causes])
    return (lines or ["it printed nothing"])[-1]


def _trace(output: str) -> tracebacks.Trace | None:
    """The last traceback in the output: installers show that of a failing ``setup.py``, indented."""
    before, found, after = output.rpartition(_TRACEBACK)
    if not found:
        return None
    indent = len(before) - len(before.rstrip(" "))
    lines = [line[indent:] if not line[:indent].strip() else line for line in after.splitlines()]
    return tracebacks.find("\n".join([_TRACEBACK, *lines]))


def index_of_repository(env: Mapping[str, str]) -> dict[str, str]:
    """The index URL of the AWS CodeArtifact repository in ``CA_REPOSITORY_ARN``, with a fresh token.

    The installer gets it in its environment: an argument would be visible to every process, and be printed.
    """
    arn = env.get("CA_REPOSITORY_ARN", "")
    if not arn:
        return {}
    try:
        region, account, resource = arn.split(":", 5)[3:6]
        domain, repository = resource.split("/")[1:3]
    except ValueError:
        raise InstallError(
            arn,
            message=f"Cannot use CA_REPOSITORY_ARN={arn!r}: it must read "
            "arn:aws:codeartifact:REGION:ACCOUNT:repository/DOMAIN/REPOSITORY.",
        ) from None
    try:
        import boto3  # type: ignore[import-not-found, import-untyped, unused-ignore]

        client = boto3.client("codeartifact", region_name=region)
        token = client.get_authorization_token(domain=domain, domainOwner=account)["authorizationToken"]
        endpoint = client.get_repository_endpoint(
            domain=domain, domainOwner=account, repository=repository, format="pypi"
        )["repositoryEndpoint"]
    except Exception as error:
        message = f"Cannot get a token for {arn}: {error}. The job's role needs access to it."
        raise InstallError(arn, message=message) from None
    scheme, _, rest = endpoint.partition("://")
    url = f"{scheme}://aws:{token}@{rest.rstrip('/')}/simple/"
    return {"PIP_INDEX_URL": url, "UV_INDEX_URL": url}
