"""Images of a daemon: looking, pulling, pushing, loading, naming, removing."""

from __future__ import annotations

from trainyard.docker.engine import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import IO, Any

    from trainyard.docker.engine import Engine

    #: Receives the objects of the daemon's progress stream: ``status``, ``id``, ``progressDetail``.
    Report = Callable[[dict[str, Any]], None]

AUTH_HEADER = "X-Registry-Auth"
DEFAULT_TAG = "latest"


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


def pull(
    engine: Engine,
    ref: str,
    auth: str | None = None,
    progress: Report | None = None,
    platform: str | None = None,
) -> None:
    """Have the daemon pull an image.

    Args:
        engine: the daemon.
        ref: name with a tag or a digest.
        auth: text of the header ``X-Registry-Auth``, where the registry wants to know who pulls.
        progress: told how it goes.
        platform: ``linux/amd64`` and the like; the daemon's own by default.

    Raises:
        EngineError: it cannot; the message is the daemon's.
    """
    name, tag = split_reference(ref)
    params = {"fromImage": name, "tag": tag, "platform": platform}
    headers = {AUTH_HEADER: auth} if auth else None
    with engine.stream("POST", "/images/create", params=params, headers=headers) as answer:
        _follow(answer.json_lines(), progress)


def push(engine: Engine, ref: str, auth: str | None = None, progress: Report | None = None) -> str:
    """Have the daemon push an image; returns the digest that the registry has it under ("" if not told).

    Raises:
        EngineError: it cannot; the message is the daemon's.
    """
    name, tag = split_reference(ref)
    digest = ""
    # The daemon wants the header even where nobody need say who they are.
    headers = {AUTH_HEADER: auth or "e30="}
    with engine.stream("POST", f"/images/{name}/push", params={"tag": tag}, headers=headers) as answer:
        for item in answer.json_lines():
            digest = (item.get("aux") or {}).get("Digest", digest)
            if progress is not None:
                progress(item)
    return digest


def tag(engine: Engine, ref: str, new: str) -> None:
    """Give an image another name."""
    name, new_tag = split_reference(new)
    engine.request("POST", f"/images/{ref}/tag", params={"repo": name, "tag": new_tag})


def load(
    engine: Engine, stream: bytes | IO[bytes] | Iterable[bytes], progress: Report | None = None
) -> list[str]:
    """Load images from an archive as ``docker save`` writes it; returns the names or ids that it held."""
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
    """Remove an image, or one of its names; returns False if there is none, or a container needs it."""
    try:
        engine.request("DELETE", f"/images/{ref}", params={"force": force})
    except EngineError as error:
        if error.status in (404, 409):
            return False
        raise
    return True


def _follow(items: Iterable[dict[str, Any]], progress: Report | None) -> None:
    for item in items:
        if progress is not None:
            progress(item)
