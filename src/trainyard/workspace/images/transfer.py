"""Images between a Docker daemon and registries, with credentials, progress and errors that help."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from trainyard.docker.credentials import credentials_for, engine_auth_header
from trainyard.docker.engine import Engine, EngineError
from trainyard.docker.image_reference import Reference
from trainyard.docker.image_store import inspect_image, pull, push
from trainyard.errors import BackendError
from trainyard.workspace.images.patch_in_daemon import is_out_of_space, out_of_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainyard.progress import Progress

_LOG_IN = (
    "Log in with `docker login {registry}`, and check the name {name}: registries give this answer also for "
    "images that do not exist."
)
_NOT_REACHED = (
    "The daemon cannot reach the registry {registry}; check its name. `docker images` shows the images on "
    "this machine."
)
#: What to do, by what is found in the daemon's answer; the first that is found counts.
_HINTS = (
    (r"toomanyrequests|rate limit", "The registry limits pulls: `docker login {registry}`, or wait."),
    (r"denied|unauthorized|authentication required|no basic auth|forbidden", _LOG_IN),
    (r"no matching manifest", "The image is not built for this platform; set the option platform."),
    (r"manifest.*unknown|not found", "Check the name. `docker images` shows the images on this machine."),
    (
        r"server gave HTTP response",
        "The registry speaks plain HTTP: add it to insecure-registries in /etc/docker/daemon.json.",
    ),
    (r"no such host|timeout|connection refused|dial tcp|network is unreachable", _NOT_REACHED),
)


def pull_image(engine: Engine, name: str, progress: Progress, platform: str | None = None) -> dict[str, Any]:
    """Have the daemon pull an image, for a platform or its own; returns what it knows of it then.

    Raises:
        BackendError: it cannot be pulled; says what to do about it.
    """
    reference = Reference.parse(name)
    progress.step(f"pulling {name}")
    auth = engine_auth_header(credentials_for(reference.registry))
    try:
        pull(engine, name, auth, _Layers(f"pulling {name}", progress).report, platform)
    except EngineError as error:
        raise _refused(
            f"the image {name} is not on this machine and cannot be pulled", reference, error
        ) from error
    found = inspect_image(engine, name)
    if found is None:
        raise BackendError(f"the image {name} was pulled, but the daemon does not have it", hint="Try again.")
    return found


def push_image(engine: Engine, name: str, progress: Progress) -> str:
    """Have the daemon push an image that is called ``name``; returns the digest of its manifest.

    Raises:
        BackendError: it cannot be pushed; says what to do about it.
    """
    reference = Reference.parse(name)
    progress.step(f"pushing {name}")
    auth = engine_auth_header(credentials_for(reference.registry))
    try:
        digest = push(engine, name, auth, _Layers(f"pushing {name}", progress).report)
    except EngineError as error:
        raise _refused(f"cannot push {name}", reference, error) from error
    if not digest:
        raise BackendError(
            f"{name} was pushed, but the daemon does not tell its digest, so that it cannot be used exactly",
            hint="Update the Docker daemon.",
        )
    return digest


def _refused(attempt: str, reference: Reference, error: EngineError) -> BackendError:
    """Return an error that says what the daemon answered, and what to do."""
    if is_out_of_space(error):
        return out_of_space(attempt, error)
    text = str(error)
    hint = next((hint for words, hint in _HINTS if re.search(words, text, re.IGNORECASE)), "Check the name.")
    hint = hint.format(registry=reference.registry, name=reference)
    return BackendError(f"{attempt}: {text}", hint=hint)


class _Layers:
    """Adds up the progress of the layers of an image."""

    def __init__(self, label: str, progress: Progress) -> None:
        self._label = label
        self._progress = progress
        self._layers: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    @property
    def report(self) -> Callable[[dict[str, Any]], None]:
        """What takes the daemon's messages."""
        return self._add

    def _add(self, item: dict[str, Any]) -> None:
        detail = item.get("progressDetail") or {}
        if item.get("status") not in ("Downloading", "Pushing") or not detail.get("total"):
            return
        with self._lock:
            self._layers[item.get("id", "")] = (min(detail["current"], detail["total"]), detail["total"])
            done, total = (sum(numbers) for numbers in zip(*self._layers.values(), strict=True))
        self._progress.advance(self._label, done, total)
