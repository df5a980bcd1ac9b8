"""Calls of functions, on their way into the jobs that make them.

A role that calls a function has ``metadata["function_call"]`` (`specs.training.new_call`); the call, function
and arguments, is a file of the state directory. When the job is prepared, the call is put where the job will
find it: in a variable if it is small, else beside the code. The definition in the history has neither the
call nor the job's key, so it stays small and holds no secret, and a repetition gets both again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import sys
import time
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from shunter._toolkit import function_call
from shunter.errors import ConfigError
from shunter.paths import make_private_dir, read_regular_file, state_dir, state_error
from shunter.schedulers.capabilities import Capabilities
from shunter.specs.app import AppDef, Role
from shunter.specs.training import CALL_KEY
from shunter.specs.training import METADATA_KEY as TRAIN_KEY
from shunter.specs.workspace import Workspace
from shunter.workspace.toolkit_files import START, local_folder, put_toolkit

#: Where calls, packages and the toolkit are in a workspace that travels.
FOLDER = ".shunter"
LARGEST = 2 << 30
# Batch takes 30 KiB for all that a submission says; a variable of Linux 128 KiB.
_LARGEST_IN_REQUEST = 8 << 10
_LARGEST_VARIABLE = 96 << 10
_FILE = "calls.sealed"
_NAME = 32  # digits of the digest


def key_of(nonce: str) -> bytes:
    """Return the key of a job's calls and results, which is made of its nonce and this user's own secret.

    Raises:
        StateStoreError: the secret cannot be read or made.
    """
    path = os.path.join(state_dir(), "call.secret")
    try:
        secret = read_regular_file(path)
    except FileNotFoundError:
        secret = _make_secret(path)
    except OSError as error:
        raise state_error("read the secret of function calls in", path, error) from error
    return hmac.new(secret, nonce.encode(), hashlib.sha256).digest()


def _make_secret(path: str) -> bytes:
    """Make the secret, unless another process has made it meanwhile; return the one that is there."""
    make_private_dir(os.path.dirname(path))
    partial = f"{path}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(partial, path)
        except FileExistsError:
            pass
        finally:
            os.remove(partial)
        return read_regular_file(path)
    except OSError as error:
        raise state_error("keep the secret of function calls in", path, error) from error


def keep_call(data: bytes) -> str:
    """Keep the file of a call; returns its digest.

    Raises:
        ConfigError: it is larger than a call may be.
        StateStoreError: it cannot be written.
    """
    if len(data) > LARGEST:
        raise ConfigError(
            f"the arguments are {len(data) >> 20} MiB",
            hint="Write them to a file, and give the function its path or a channel.",
        )
    digest = hashlib.sha256(data).hexdigest()
    path = call_file(digest)
    if os.path.exists(path):
        return digest
    make_private_dir(os.path.dirname(path))
    partial = f"{path}.{os.getpid()}.new"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        raise state_error("keep a call in", path, error) from error
    return digest


def call_file(digest: str) -> str:
    """Return where a call is kept, of which `keep_call` returned this digest."""
    return os.path.join(state_dir(), "calls", digest[:_NAME], _FILE)


def unused_calls(needed: Collection[str], older_than: float) -> list[str]:
    """Return the directories of calls that no job needs and that are older than this, in seconds.

    Args:
        needed: digests of the calls of jobs that run or ended recently.
        older_than: so old are the others at least, since a job may be about to be submitted.
    """
    folder = os.path.join(state_dir(), "calls")
    kept = {digest[:_NAME] for digest in needed}
    try:
        with os.scandir(folder) as entries:
            return [
                entry.path
                for entry in entries
                if entry.name not in kept and time.time() - entry.stat().st_mtime > older_than
            ]
    except FileNotFoundError:
        return []


def call_of(role: Role) -> Mapping[str, Any]:
    """Return what a role's metadata say of its call; empty if it calls no function."""
    value = role.metadata.get(CALL_KEY)
    return value if isinstance(value, dict) else {}


def bring_calls(
    app: AppDef, workspace: Workspace, capabilities: Capabilities, *, has_code: bool
) -> Workspace:
    """Put the calls of a job's roles into its variables and its workspace.

    Args:
        app: the job, changed in place.
        workspace: the code that travels with it.
        capabilities: what its scheduler can do.
        has_code: whether the job's images hold the code, calls included, already.

    Returns:
        The workspace, with what the calls need.

    Raises:
        ConfigError: a call is gone, or too large to travel without a workspace.
        StateStoreError: the job's key cannot be made.
    """
    projects = dict(workspace.projects)
    for role in app.roles:
        call = call_of(role)
        if call:
            projects |= _bring_call(role, call, bool(workspace), capabilities)
    return workspace if has_code or workspace.frozen else replace(workspace, projects=projects)


def _bring_call(
    role: Role, call: Mapping[str, Any], has_workspace: bool, capabilities: Capabilities
) -> dict[str, str]:
    """Give a role its call; returns the directories that have to travel, and where they go."""
    role.env[function_call.KEY] = key_of(call["nonce"]).hex()
    projects: dict[str, str] = {}
    if capabilities.reads_training_specs:  # the image has another toolkit
        put_toolkit()
        projects[local_folder()] = f"{FOLDER}/toolkit"
        role.metadata[TRAIN_KEY]["program"] = f"{FOLDER}/toolkit/{START}"
    travels = capabilities.ships_by_default or has_workspace
    if travels:
        for name, folder in call.get("libraries", {}).items():
            projects[folder] = f"{FOLDER}/lib/{name}"
    else:  # a process of this machine, or of one that shares its files: the same Python as here
        role.env.setdefault("SHUNTER_PYTHON", sys.executable)
    if not call.get("digest"):
        return projects
    path = call_file(call["digest"])
    text = _as_variable(path, role, _longest_variable(capabilities))
    if text:
        role.env[function_call.PAYLOAD] = text
    elif travels:
        projects[os.path.dirname(path)] = f"{FOLDER}/call"
        role.env[function_call.FILE] = f"{FOLDER}/call/{_FILE}"
    else:
        role.env[function_call.FILE] = path
    return projects


def _longest_variable(capabilities: Capabilities) -> int:
    if capabilities.reads_training_specs:  # CreateTrainingJob takes 512 characters
        return 0
    return _LARGEST_IN_REQUEST if capabilities.ships_by_default else _LARGEST_VARIABLE


def _as_variable(path: str, role: Role, longest: int) -> str:
    """Return the file of a call as the value of a variable; "" if it is longer than this."""
    try:
        if os.path.getsize(path) > 16 * longest:  # it would take long to find out that it is too long
            return ""
        text = base64.b64encode(zlib.compress(read_regular_file(path, LARGEST))).decode()
    except OSError as error:
        raise ConfigError(
            f"the call of role {role.name!r} is no longer in {path}: {error.strerror}",
            hint="Submit the function again.",
        ) from None
    return text if len(text) <= longest else ""
