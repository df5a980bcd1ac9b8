"""Python environments by fingerprint: each is built once, and used by every later job that needs the same.

::

    STORE/
        NAME.json     an environment that is complete: its folder and its source; touched at each use
        NAME-TOKEN/   its files; without NAME.json it is being built, or a killed build left it
        NAME.lease    who builds it now; touched every few seconds
        NAME.failed   why the last build failed

An environment holds absolute paths, so it is built where it stays, and published by the file NAME.json,
which is linked there in one step: nobody sees half an environment. The lease only avoids work. If two build
at the same time, because one was wrongly taken for dead, the first to publish wins, and the other one's
folder is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import kernel, log, resources
from .environment_build import Builder, put, python_in, source_path, version_of
from .environment_description import VARIABLE, Description
from .errors import ConfigError, InstallError
from .script_command import NO_INSTALLER

#: Where an image has the environments that were put into it, as ``DIGEST.json`` of their descriptions.
OF_IMAGE = "/opt/shunter/environments"
#: The variable that names the folder of environments where the job's scheduler does not.
STORE_VARIABLE = "SHUNTER_ENVIRONMENTS"
#: A builder on another host counts as dead after so long without a sign of life.
_SILENT_SECONDS = 90.0
_LONGEST_PAUSE = 2.0
#: What was used more recently is kept, whatever age is asked for: a job may be about to use it.
SPARED_SECONDS = 86400.0


def default_store() -> str:
    """Return the folder of environments of this machine or container, for this user."""
    given = os.environ.get(STORE_VARIABLE)
    if given:
        return os.path.abspath(given)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache) or not _can_write(cache):
        return os.path.join(tempfile.gettempdir(), f"shunter-{os.geteuid()}", "environments")
    return os.path.join(cache, "shunter", "environments")


def _can_write(folder: str) -> bool:
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK)


# ---- finding and using


def published(pointer: str) -> str:
    """Return the folder of a complete environment, whose Python is there; "" if there is none."""
    try:
        with open(pointer, encoding="utf-8") as file:
            folder = str(json.load(file)["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    folder = os.path.join(os.path.dirname(pointer), folder)
    return folder if os.access(python_in(folder), os.X_OK) else ""


def activate(text: str, code: str, variables: dict[str, str]) -> None:
    """Let scripts run in an environment, which is built unless it is there.

    Args:
        text: the environment's description, as JSON.
        code: the folder that the files of the description are in.
        variables: those of the script, changed in place.

    Raises:
        InstallError: it cannot be built.
        ConfigError: a file is missing, or not as it was when the job was submitted.
    """
    description = Description.parse(text)
    python = resources.script_python()
    pointer = description.pointer or os.path.join(OF_IMAGE, f"{description.digest}.json")
    if not description.pointer and not published(pointer):
        name = description.name(version_of(python))
        pointer = os.path.join(description.store or default_store(), f"{name}.json")
    folder = ensure(description, pointer, python, lambda name: _read_verified(description, code, name), code)
    _hold(pointer)
    program = python_in(folder)
    os.environ["SHUNTER_PYTHON"] = program
    os.environ["SHUNTER_INSTALLER"] = NO_INSTALLER  # the environment is complete
    binaries = os.path.dirname(program)
    variables["VIRTUAL_ENV"] = os.path.dirname(binaries)
    variables["PATH"] = f"{binaries}{os.pathsep}{variables.get('PATH', os.defpath)}"
    for name in (VARIABLE, "PYTHONHOME"):
        variables.pop(name, None)


def _read_verified(description: Description, code: str, name: str) -> bytes:
    path = os.path.join(code, name)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigError(
            f"Cannot build the environment of {description.source}: {path}: {error.strerror}. "
            "The file has to travel with the code: is it in the workspace, and not ignored?"
        ) from None
    if hashlib.sha256(content).hexdigest() != description.files[name]:
        raise ConfigError(
            f"Cannot build the environment of {description.source}: {path} has changed since the job was "
            "submitted. Submit it again."
        )
    return content


def _hold(pointer: str) -> None:
    """Note the use of an environment, and keep it from being removed as long as this process lives."""
    try:
        os.utime(pointer)
    except OSError:
        pass  # somebody else's, or read-only: it is their part to keep it
    try:
        descriptor = os.open(pointer, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pass  # not every shared storage has locks; its time of last use still counts


# ---- building


def ensure(
    description: Description, pointer: str, python: str, read: Callable[[str], bytes], cwd: str
) -> str:
    """Return the folder of an environment; build it unless it is there. Of many callers, one builds.

    Args:
        description: the environment.
        pointer: the path of its ``NAME.json``.
        python: the Python to build it for.
        read: returns the content of a file of the description.
        cwd: where the installer runs, and finds its configuration.

    Raises:
        InstallError: it cannot be built.
    """
    folder = published(pointer)
    if folder:
        return folder
    contents = {name: read(name) for name in description.files}
    os.makedirs(os.path.dirname(pointer), mode=0o700, exist_ok=True)
    lease = Lease(pointer)
    if not lease.acquire(description.source):
        return published(pointer)
    try:
        folder = published(pointer) or _build(description, pointer, python, contents, cwd, lease)
    except InstallError as error:
        _write(_beside(pointer, ".failed"), {"token": lease.token, "message": str(error)})
        raise
    finally:
        lease.release()
    return folder


def _build(
    description: Description,
    pointer: str,
    python: str,
    contents: Mapping[str, bytes],
    cwd: str,
    lease: Lease,
) -> str:
    if os.path.exists(pointer):  # its folder, or the Python that it was made from, is gone
        os.replace(pointer, _beside(pointer, ".broken"))
    folder = f"{pointer[: -len('.json')]}-{lease.token}"
    started = time.monotonic()
    try:
        os.mkdir(folder, 0o700)
        for name, content in contents.items():
            put(source_path(folder, name), content)
        Builder(description, folder, python, cwd, lease.touch).build()
        record = {
            "folder": os.path.basename(folder),
            "source": description.source,
            "size": _size(folder),
        }
        _publish(pointer, record)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    there = published(pointer)
    if there != folder:
        shutil.rmtree(folder, ignore_errors=True)  # another one was quicker
    log.info(f"Built the environment of {description.source} in {time.monotonic() - started:.1f} s")
    return there


# ---- the lease


class Lease:
    """The right to build one environment, which a process that has died loses.

    On the same host a dead holder is noticed at once. One on another host counts as dead if it has not
    touched the file for a while, by the clock of the one who waits.
    """

    def __init__(self, pointer: str) -> None:
        self.pointer = pointer
        self.path = _beside(pointer, ".lease")
        self.token = f"{os.getpid():x}{os.urandom(4).hex()}"

    def acquire(self, what: str) -> bool:
        """Wait until this process may build. False if another process has built it meanwhile.

        Raises:
            InstallError: another process has tried, and failed.
        """
        pause, silent_since, seen, announced = 0.05, time.monotonic(), None, ""
        while True:
            holder, touched = self._holder()
            if published(self.pointer):
                return False
            if announced and holder.get("token") != announced:
                self._raise_failure(announced)
            ours = {"token": self.token, "host": os.uname().nodename, **_identity()}
            if not holder and _create(self.path, ours):
                return True
            if holder and not announced:
                log.info(f"Waiting for {holder.get('host')}, which builds the environment of {what}")
            announced = str(holder.get("token", ""))
            if (holder, touched) != seen:
                seen, silent_since = (holder, touched), time.monotonic()
            if holder and (_is_dead(holder) or time.monotonic() - silent_since > _SILENT_SECONDS):
                self._break()
                continue
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def touch(self) -> None:
        """Show that this process is alive."""
        try:
            os.utime(self.path)
        except OSError:
            pass  # another one has taken us for dead; the first to publish wins

    def release(self) -> None:
        """Let others build, if they have to."""
        if self._holder()[0].get("token") == self.token:
            os.unlink(self.path)

    def _holder(self) -> tuple[dict[str, Any], float]:
        try:
            with open(self.path, encoding="utf-8") as file:  # opening asks an NFS server for the present time
                return dict(json.load(file)), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return {}, 0.0
        except (OSError, ValueError, TypeError):
            return {"host": "somebody"}, 0.0

    def _break(self) -> None:
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass

    def _raise_failure(self, token: str) -> None:
        try:
            with open(_beside(self.pointer, ".failed"), encoding="utf-8") as file:
                failure = json.load(file)
        except (OSError, ValueError):
            return
        if failure.get("token") == token:
            raise InstallError(["uv"], message=failure.get("message", "The environment could not be built."))


def _identity() -> dict[str, Any]:
    """What tells this process from all others, dead or alive, of this host."""
    pid = os.getpid()
    return {"machine": kernel.machine(), "pid": pid, "started": kernel.start_of(pid)}


def _is_dead(holder: Mapping[str, Any]) -> bool:
    """Tell whether the holder of a lease is known to be dead."""
    if holder.get("machine") != kernel.machine():
        return False
    pid, started = int(holder.get("pid", 0)), str(holder.get("started", ""))
    if started:
        return kernel.start_of(pid) != started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


# ---- files of the store


def _beside(pointer: str, ending: str) -> str:
    return pointer[: -len(".json")] + ending


def _write(path: str, value: Mapping[str, Any]) -> None:
    new = f"{path}.{os.getpid()}.new"
    with open(new, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(new, path)


def _create(path: str, value: Mapping[str, Any]) -> bool:
    """Write a file that must not exist, whole; tell whether it was written. A link is atomic on NFS too."""
    new = f"{path}.{os.uname().nodename}.{os.getpid()}.new"
    _write(new, value)
    try:
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(new)
    return True


def _publish(pointer: str, record: Mapping[str, Any]) -> None:
    if _create(pointer, record):
        try:
            os.unlink(_beside(pointer, ".failed"))
        except FileNotFoundError:
            pass


# ---- removing


def unused(store: str, older_than: float, now: float | None = None) -> list[dict[str, Any]]:
    """Return the environments that no job has used for ``older_than`` seconds, and what dead builds left.

    Each has ``name``, ``age`` (seconds), ``size`` (bytes) and ``source``. What was used within a day is left
    out, and what a running job holds.
    """
    now = time.time() if now is None else now
    least = max(older_than, SPARED_SECONDS)
    try:
        names = sorted(os.listdir(store))
    except OSError:
        return []
    found, folders = [], set()
    for name in names:
        path = os.path.join(store, name)
        if not name.endswith(".json"):
            continue
        age, record = now - _time(path), _record(path)
        folders.add(record.get("folder"))
        if age >= least and not _is_held(path):
            size = _size(os.path.join(store, str(record.get("folder", ""))))
            found.append({"name": name[:-5], "age": age, "size": size, "source": record.get("source", "")})
    for name in names:
        path = os.path.join(store, name)
        if name not in folders and os.path.isdir(path) and now - _time(path) >= least:
            item = {"name": name, "age": now - _time(path), "size": _size(path), "source": ""}
            found.append(item)
    return found


def remove(store: str, names: Sequence[str]) -> int:
    """Remove environments that `unused` returned; returns the number of bytes freed."""
    freed = 0
    for name in names:
        path = os.path.join(store, name)
        pointer = f"{path}.json"
        folder = path
        if os.path.exists(pointer):
            if _is_held(pointer):
                continue
            folder = os.path.join(store, str(_record(pointer).get("folder", name)))
            os.unlink(pointer)  # first, so that nobody finds half an environment
        freed += _size(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return freed


def _is_held(pointer: str) -> bool:
    try:
        descriptor = os.open(pointer, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # the storage has no locks
    finally:
        os.close(descriptor)
    return False


def _record(pointer: str) -> dict[str, Any]:
    try:
        with open(pointer, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError):
        return {}


def _time(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return time.time()


def _size(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                pass
    return total


# ---- the command


def main(words: Sequence[str]) -> int:
    """``environment build|unused|remove STORE [SECONDS|NAME ...]``: print the result as JSON.

    ``build`` reads ``{"environment": ..., "contents": {name: text}, "python": path, "uv": path}`` from stdin.
    """
    log.set_level(log.WARNING)  # the launcher reports what happens
    action, store, rest = words[0], os.path.abspath(os.path.expanduser(words[1])), words[2:]
    try:
        result: Any
        if action == "build":
            result = _build_from(json.load(sys.stdin), store)
        elif action == "unused":
            result = unused(store, float(rest[0]))
        else:
            result = remove(store, rest)
    except (InstallError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"Cannot use the environments in {store}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


def _build_from(document: Mapping[str, Any], store: str) -> dict[str, Any]:
    description = Description(**document["environment"])
    python = shutil.which(document.get("python") or "python") or sys.executable
    if document.get("uv"):
        path = [os.environ.get("PATH", os.defpath), os.path.dirname(document["uv"])]
        os.environ["PATH"] = os.pathsep.join(path)
    contents = {name: text.encode("utf-8", "surrogateescape") for name, text in document["contents"].items()}
    pointer = os.path.join(store, f"{description.name(version_of(python))}.json")
    was_there, started = bool(published(pointer)), time.monotonic()
    folder = ensure(description, pointer, python, contents.__getitem__, os.getcwd())
    os.utime(pointer)
    seconds = time.monotonic() - started
    return {"pointer": pointer, "python": python_in(folder), "built": not was_there, "seconds": seconds}
