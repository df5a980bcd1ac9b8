"""The images that a Docker daemon has: inspecting, pulling, pushing, loading, tagging, removing them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import IO, Any

from shunter.docker.credentials import credentials_for, engine_auth_header
from shunter.docker.daemon_errors import EngineError
from shunter.docker.engine import Engine
from shunter.docker.image_reference import Reference
from shunter.errors import BackendError
from shunter.progress import Progress, Silent

#: Receives the objects of the daemon's progress stream: ``status``, ``id``, ``progressDetail``.
Report = Callable[[dict[str, Any]], None]

AUTH_HEADER = "X-Registry-Auth"
DEFAULT_TAG = "latest"
_LOG_IN = (
    "Log in with `docker login {registry}`, and check the name {name}: registries give this answer also for "
    "images that do not exist."
)
_NOT_REACHED = (
    "The daemon cannot reach the registry {registry}; check its name. `docker images` shows the images on "
    "this machine."
)
#: Advice by pattern in the daemon's answer; the first pattern that matches counts.
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


def inspect_image(engine: Engine, ref: str) -> dict[str, Any] | None:
    """Return what the daemon knows of an image; None if it does not have it."""
    try:
        found: dict[str, Any] = engine.request("GET", f"/images/{ref}/json")
    except EngineError as error:
        if error.status == 404:
            return None
        raise
    return found


def split_reference(ref: str) -> tuple[str, str]:
    """Split a reference into its name and its tag or digest; the tag is ``latest`` by default."""
    name, at, digest = ref.partition("@")
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return head + slash + last, digest if at else tag or DEFAULT_TAG


def pull(engine: Engine, ref: str, progress: Report | None = None, platform: str | None = None) -> None:
    """Have the daemon pull an image, with the credentials that are configured for its registry.

    Args:
        engine: the daemon.
        ref: name with a tag or a digest.
        progress: receives what the daemon reports.
        platform: ``linux/amd64`` and the like; the daemon's own by default.

    Raises:
        EngineError: it cannot; the message is the daemon's.
        CredentialsError: the credentials cannot be read.
    """
    name, tag = split_reference(ref)
    params = {"fromImage": name, "tag": tag, "platform": platform}
    headers = {AUTH_HEADER: _auth(ref)}
    with engine.stream("POST", "/images/create", params=params, headers=headers) as answer:
        for item in answer.json_lines():
            if progress is not None:
                progress(item)


def push(engine: Engine, ref: str, progress: Report | None = None) -> str:
    """Have the daemon push an image; returns the digest that the registry has it under, "" if not reported.

    Raises:
        EngineError: it cannot; the message is the daemon's.
        CredentialsError: the credentials cannot be read.
    """
    name, tag = split_reference(ref)
    digest = ""
    # the daemon requires the header even without credentials
    headers = {AUTH_HEADER: _auth(ref)}
    with engine.stream("POST", f"/images/{name}/push", params={"tag": tag}, headers=headers) as answer:
        for item in answer.json_lines():
            digest = (item.get("aux") or {}).get("Digest", digest)
            if progress is not None:
                progress(item)
    return digest


def registry_platforms(engine: Engine, ref: str) -> list[str]:
    """Return the platforms of an image in a registry, such as ``linux/amd64``; the daemon asks the registry.

    Raises:
        EngineError: the registry cannot be reached, refuses, or does not have it, in the daemon's words.
        CredentialsError: the credentials cannot be read.
    """
    headers = {AUTH_HEADER: _auth(ref)}
    found = engine.request("GET", f"/distribution/{ref}/json", headers=headers)
    platforms = found.get("Platforms") or []
    names = ("os", "architecture", "variant")
    return ["/".join(str(item[name]) for name in names if item.get(name)) for item in platforms]


def _auth(ref: str) -> str:
    return engine_auth_header(credentials_for(Reference.parse(ref).registry))


def tag(engine: Engine, ref: str, new: str) -> None:
    """Give an image another name."""
    name, new_tag = split_reference(new)
    engine.request("POST", f"/images/{ref}/tag", params={"repo": name, "tag": new_tag})


def load(
    engine: Engine, stream: bytes | IO[bytes] | Iterable[bytes], progress: Report | None = None
) -> list[str]:
    """Load images from an archive as ``docker save`` writes it; returns the names or ids in it."""
    loaded = []
    headers = {"Content-Type": "application/x-tar"}
    with engine.stream(
        "POST", "/images/load", params={"quiet": False}, data=stream, headers=headers
    ) as answer:
        for item in answer.json_lines():
            text = item.get("stream", "")
            if text.startswith("Loaded image"):  # "Loaded image: NAME", "Loaded image ID: sha256:..."
                loaded.append(text.partition(": ")[2].strip())
            if progress is not None:
                progress(item)
    return loaded


def remove(engine: Engine, ref: str, *, force: bool = False) -> bool:
    """Remove an image, or one of its names; returns False if it does not exist, or a container uses it."""
    try:
        engine.request("DELETE", f"/images/{ref}", params={"force": force})
    except EngineError as error:
        if error.status in (404, 409):
            return False
        raise
    return True


# ---- with progress, and errors that say what to do


def pull_image(engine: Engine, name: str, progress: Progress, platform: str | None = None) -> dict[str, Any]:
    """Have the daemon pull an image, for a platform or its own; returns what it knows of it then.

    Raises:
        BackendError: it cannot be pulled; says what to do about it.
    """
    reference = Reference.parse(name)
    progress.step(f"pulling {name}")
    try:
        pull(engine, name, _sum_of_layers(f"pulling {name}", progress), platform)
    except EngineError as error:
        attempt = f"the image {name} is not on this machine and cannot be pulled"
        raise _not_transferred(attempt, reference, error) from error
    found = inspect_image(engine, name)
    if found is None:
        raise BackendError(f"the image {name} was pulled, but the daemon does not have it", hint="Try again.")
    return found


def ensure_image(engine: Engine, image: str, platform: str | None = None) -> dict[str, Any]:
    """Pull an image if the daemon does not have it; returns what the daemon knows of it.

    Raises:
        BackendError: it cannot be pulled.
        EngineUnavailableError: no daemon answers.
    """
    found = inspect_image(engine, image)
    if found is not None:
        return found
    if image.startswith("sha256:"):
        raise BackendError(
            f"the daemon has no image {image}",
            hint="Images named by their id cannot be pulled. Submit the job again.",
        )
    return pull_image(engine, image, Silent(), platform)


def push_image(engine: Engine, name: str, progress: Progress) -> str:
    """Have the daemon push an image that is called ``name``; returns the digest of its manifest.

    Raises:
        BackendError: it cannot be pushed; says what to do about it.
    """
    reference = Reference.parse(name)
    progress.step(f"pushing {name}")
    try:
        digest = push(engine, name, _sum_of_layers(f"pushing {name}", progress))
    except EngineError as error:
        raise _not_transferred(f"cannot push {name}", reference, error) from error
    if not digest:
        raise BackendError(
            f"{name} was pushed, but the daemon did not report its digest, so that it cannot be used exactly",
            hint="Update the Docker daemon.",
        )
    return digest


def _not_transferred(attempt: str, reference: Reference, error: EngineError) -> BackendError:
    """Say what the daemon answered, and what to do."""
    if is_out_of_space(error):
        return out_of_space(attempt, error)
    text = str(error)
    hint = next((hint for words, hint in _HINTS if re.search(words, text, re.IGNORECASE)), "Check the name.")
    return BackendError(f"{attempt}: {text}", hint=hint.format(registry=reference.registry, name=reference))


def _sum_of_layers(label: str, progress: Progress) -> Report:
    """Return a function that adds up the progress of an image's layers."""
    layers: dict[str, tuple[int, int]] = {}
    lock = threading.Lock()

    def report(item: dict[str, Any]) -> None:
        detail = item.get("progressDetail") or {}
        if item.get("status") not in ("Downloading", "Pushing") or not detail.get("total"):
            return
        with lock:
            layers[item.get("id", "")] = (min(detail["current"], detail["total"]), detail["total"])
            done, total = (sum(numbers) for numbers in zip(*layers.values(), strict=True))
        progress.advance(label, done, total)

    return report


def is_out_of_space(error: Exception) -> bool:
    """Tell whether a daemon's message is about a full disk."""
    return "no space left on device" in str(error).lower()


def out_of_space(attempt: str, error: Exception) -> BackendError:
    """Say that the daemon's disk is full, and what to do."""
    return BackendError(
        f"the Docker daemon could not {attempt}: its disk is full ({error})",
        hint="Free some: `docker system df` shows what uses it, `shunter gc` and `docker image prune` "
        "remove what is not used. Nothing incomplete is left or used.",
    )
