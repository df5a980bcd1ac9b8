"""Building images with the ``docker`` command, from a context that is written to a file first.

The command chooses the builder, BuildKit or Docker's older one, by its own rules.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from shunter.docker.command import DockerCommand, DockerRefused, refusal
from shunter.docker.credentials import login_environment
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.docker.image_reference import IMAGE_ID
from shunter.docker.images import inspect_image, is_out_of_space, out_of_space, tag
from shunter.errors import BackendError, ConfigError
from shunter.progress import Progress
from shunter.workspace.images.layer import LayerContent, work_folder, write_tar

#: Lines of a failing build that its error shows.
SHOWN_LINES = 25


def nameable(docker: DockerCommand, image: str) -> str:
    """Return a name for an image: BuildKit mistakes an id for the name of an image in a registry."""
    known = inspect_image(docker, image) if IMAGE_ID.fullmatch(image) else None
    if known is None:
        return image
    if known.get("RepoTags"):
        return str(known["RepoTags"][0])
    name = f"shunter/base:{image.removeprefix('sha256:')}"
    tag(docker, image, name)
    return name


def run_build(
    docker: DockerCommand,
    context: LayerContent,
    name: str,
    labels: Mapping[str, str],
    progress: Progress,
    *,
    is_quiet: bool = True,
    dockerfile: str = "Dockerfile",
    arguments: Mapping[str, str] | None = None,
    platform: str | None = None,
    registries: Iterable[str] = (),
) -> dict[str, Any]:
    """Build an image; returns what `inspect_image` says of it.

    Args:
        docker: the command for the daemon.
        context: what the build is given.
        name: what the image is called at the very end.
        labels: labels of the image.
        progress: receives how far it is.
        is_quiet: whether the output is shown only if the build fails.
        dockerfile: path of the Dockerfile in the context.
        arguments: values of ``ARG``.
        platform: what it is built for; the daemon's own by default.
        registries: hosts that bases may have to be pulled from.

    Raises:
        WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was made.
        BackendError: the build failed; shows the step and the end of its output.
    """
    # an image that is tagged is whole; a step that fails leaves no container
    words = ["build", "--tag", name, "--force-rm", "--file", dockerfile]
    words += ["--platform", platform] if platform else []
    for option, values in (("--build-arg", arguments or {}), ("--label", labels)):
        words += [word for key, value in values.items() for word in (option, f"{key}={value}")]
    end: collections.deque[str] = collections.deque(maxlen=SHOWN_LINES)
    with work_folder() as folder, login_environment(registries) as environ:
        path = os.path.join(folder, "context.tar")
        write_tar(context, path, progress)
        logged_in = DockerCommand({**docker.environ, **environ}, docker.program)
        try:
            # closed even if the progress stops us: the command ends before its files are removed
            with contextlib.closing(logged_in.lines(*words, "-", stdin=path)) as lines:
                for line in filter(str.strip, lines):
                    end.append(line.rstrip())
                    if not is_quiet:
                        progress.output(line.rstrip())
        except DockerRefused as error:
            raise _failed(dockerfile, error.message, list(end)) from error
    built = inspect_image(docker, name)
    if built is None:
        raise ConfigError(
            f"{dockerfile} was built, but the daemon at {docker.endpoint} does not have the image",
            hint="Does the `docker` command use another builder? See `docker buildx ls`.",
        )
    return built


def _failed(dockerfile: str, reason: str, lines: list[str]) -> BackendError:
    if any(map(is_out_of_space, lines)):
        return out_of_space("cannot build the image", lines[-1].strip())
    if lines and isinstance(error := refusal(lines[-1]), EngineUnavailableError):
        return error
    end = "\n".join(f"  {line}" for line in lines)
    return BackendError(
        f"building {dockerfile} failed: {reason}" + (f"\nThe end of its output:\n{end}" if end else ""),
        hint=f"Correct {dockerfile}, or provide what its failing step needs. A file that Git or an ignore"
        " file leaves out is sent if .shunterignore names it: !/PATH",
    )
