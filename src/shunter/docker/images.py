"""The images that a Docker daemon has: inspecting, pulling, pushing, tagging, removing them."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from shunter.docker.command import DockerCommand, DockerRefused
from shunter.docker.credentials import login_environment
from shunter.docker.image_reference import Reference
from shunter.errors import BackendError
from shunter.progress import Progress, Silent

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
_LAYER = re.compile(r"(?P<id>[0-9a-f]{12}): (?P<state>[A-Z][a-z]+(?: [a-z]+)*)")
_COMPLETE = ("Already exists", "Pull complete", "Pushed", "Layer already exists", "Mounted from")
_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")


def inspect_image(docker: DockerCommand, ref: str) -> dict[str, Any] | None:
    """Return what the daemon knows of an image; None if it does not have it."""
    images = docker.inspect("image", ref)
    return images[0] if images else None


def tag(docker: DockerCommand, ref: str, new: str) -> None:
    """Give an image another name."""
    docker.run("tag", ref, new)


def remove(docker: DockerCommand, ref: str) -> bool:
    """Remove an image with all of its names; returns False if it does not exist, or something uses it."""
    try:
        docker.run("image", "rm", "--force", ref)
    except DockerRefused as error:
        if error.is_absent or re.search("being used|in use|is using|dependent child", error.message):
            return False
        raise
    return True


def pull_image(
    docker: DockerCommand, name: str, progress: Progress, platform: str | None = None
) -> dict[str, Any]:
    """Have the daemon pull an image, for a platform or its own; returns what it knows of it then.

    Raises:
        BackendError: it cannot be pulled; says what to do about it.
    """
    words = ["--platform", platform] if platform else []
    attempt = f"the image {name} is not on this machine and cannot be pulled"
    _transfer(docker, attempt, name, ["pull", *words], progress)
    image = inspect_image(docker, name)
    if image is None:
        raise BackendError(f"the image {name} was pulled, but the daemon does not have it", hint="Try again.")
    return image


def ensure_image(docker: DockerCommand, image: str, platform: str | None = None) -> dict[str, Any]:
    """Pull an image if the daemon does not have it; returns what the daemon knows of it.

    Raises:
        BackendError: it cannot be pulled.
        EngineUnavailableError: no daemon answers.
    """
    known = inspect_image(docker, image)
    if known is not None:
        return known
    if image.startswith("sha256:"):
        raise BackendError(
            f"the daemon has no image {image}",
            hint="Images named by their id cannot be pulled. Submit the job again.",
        )
    return pull_image(docker, image, Silent(), platform)


def push_image(docker: DockerCommand, name: str, progress: Progress) -> str:
    """Have the daemon push an image that is called ``name``; returns the digest of its manifest.

    Raises:
        BackendError: it cannot be pushed; says what to do about it.
    """
    output = _transfer(docker, f"cannot push {name}", name, ["push"], progress)
    digest = _DIGEST.search(output)
    if digest is None:
        raise BackendError(
            f"{name} was pushed, but the daemon did not report its digest, so that it cannot be used exactly",
            hint="Update Docker.",
        )
    return digest[1]


def _transfer(docker: DockerCommand, attempt: str, name: str, words: list[str], progress: Progress) -> str:
    """Pull or push, with the credentials that are configured for the image's registry; returns the output."""
    reference = Reference.parse(name)
    label = f"{words[0]}ing {name}"
    progress.step(label)
    output, complete, layers = "", set[str](), set[str]()
    try:
        with login_environment([reference.registry]) as environ:
            logged_in = DockerCommand({**docker.environ, **environ}, docker.program)
            # closed even if the progress stops us: the command ends before its login is removed
            with contextlib.closing(logged_in.lines(*words, name)) as lines:
                for line in lines:
                    output += line
                    layer = _LAYER.match(line)
                    if layer is None:
                        continue
                    layers.add(layer["id"])
                    if layer["state"] in _COMPLETE and layer["id"] not in complete:
                        complete.add(layer["id"])
                        progress.step(f"{label}: {len(complete)} of {len(layers)} layers")
    except DockerRefused as error:
        if is_out_of_space(error.message):
            raise out_of_space(attempt, error.message) from error
        hints = (hint for pattern, hint in _HINTS if re.search(pattern, error.message, re.IGNORECASE))
        hint = next(hints, "Check the name.").format(registry=reference.registry, name=reference)
        raise BackendError(f"{attempt}: {error.message}", hint=hint) from error
    return output


def is_out_of_space(message: str) -> bool:
    """Tell whether a daemon's message is about a full disk."""
    return "no space left on device" in message.lower()


def out_of_space(attempt: str, message: str) -> BackendError:
    """Say that the daemon's disk is full, and what to do."""
    return BackendError(
        f"{attempt}: the disk of the Docker daemon is full ({message})",
        hint="Free some: `docker system df` shows what uses it, `shunter gc` and `docker image prune` "
        "remove what is not used. Nothing incomplete is left or used.",
    )
