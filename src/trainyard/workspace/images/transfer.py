"""Images between a Docker daemon and registries, with credentials, progress and errors that help."""

from __future__ import annotations

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

_REFUSALS = ("denied", "unauthorized", "authentication required", "no basic auth credentials", "forbidden")
_UNREACHABLE = ("connection refused", "no such host", "timeout", "i/o timeout", "network is unreachable")


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
    """Say what the daemon answered, and what to do; a registry's refusal to name an image is ambiguous."""
    if is_out_of_space(error):
        return out_of_space(attempt, error)
    text = str(error)
    lower = text.lower()
    hint = "Is its name right?"
    if any(word in lower for word in _REFUSALS):
        hint = (
            f"Log in to the registry (docker login {reference.registry}), if the name {reference} is right."
        )
    elif any(word in lower for word in _UNREACHABLE):
        hint = f"Is {reference.registry} right, and can the Docker daemon reach it?"
    elif "manifest unknown" in lower or "not found" in lower:
        hint = "There is no image of this name and tag. Is it right?"
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
