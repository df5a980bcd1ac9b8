"""Building images with the ``docker`` command, from a context that is streamed to it.

The command chooses the builder, BuildKit or Docker's older one, by its own rules.
"""

from __future__ import annotations

import collections
import os
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from shunter.docker.command import DockerCommand, refusal
from shunter.docker.credentials import login_environment
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.docker.image_reference import IMAGE_ID
from shunter.docker.images import inspect_image, is_out_of_space, out_of_space, tag
from shunter.errors import BackendError, ConfigError
from shunter.progress import Progress

#: Lines of a failing build that its error shows.
SHOWN_LINES = 25
#: How long an interrupted build may take to end by itself.
ENDING_SECONDS = 10.0


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
    context: Iterable[bytes],
    name: str,
    labels: Mapping[str, str],
    *,
    output: BuildOutput,
    dockerfile: str = "Dockerfile",
    arguments: Mapping[str, str] | None = None,
    platform: str | None = None,
    registries: Iterable[str] = (),
) -> dict[str, Any]:
    """Build an image; returns what `inspect_image` says of it.

    Args:
        docker: the command for the daemon.
        context: a tar.
        name: what the image is called at the very end.
        labels: labels of the image.
        output: gets the output.
        dockerfile: path of the Dockerfile in the context.
        arguments: values of ``ARG``.
        platform: what it is built for; the daemon's own by default.
        registries: hosts that bases may have to be pulled from.

    Raises:
        BackendError: the build failed; shows the step and the end of its output.
    """
    with login_environment(registries) as environ:
        # an image that is tagged is whole; a step that fails leaves no container
        words = [docker.program, "build", "--tag", name, "--force-rm", "--file", dockerfile]
        words += ["--platform", platform] if platform else []
        for option, values in (("--build-arg", arguments or {}), ("--label", labels)):
            words += [word for key, value in values.items() for word in (option, f"{key}={value}")]
        code = _run_fed([*words, "-"], {**os.environ, **docker.environ, **environ}, context, output)
    if code:
        raise _failed(dockerfile, f"`docker build` ended with exit code {code}", output)
    built = inspect_image(docker, name)
    if built is None:
        raise ConfigError(
            f"{dockerfile} was built, but the daemon at {docker.endpoint} does not have the image",
            hint="Does the `docker` command use another builder? See `docker buildx ls`.",
        )
    return built


def _run_fed(
    words: Sequence[str], environ: Mapping[str, str], context: Iterable[bytes], output: BuildOutput
) -> int:
    """Run a command that reads the context; it ends when we do."""
    process = subprocess.Popen(
        words,
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches it through us, after the context is closed
    )
    assert process.stdin is not None
    assert process.stdout is not None
    reader = threading.Thread(target=_drain, args=(process.stdout, output), daemon=True)
    reader.start()
    try:
        try:
            for piece in context:
                process.stdin.write(piece)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, and says why
        return process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # it waits for more input, or for a daemon that does
            process.kill()
        raise
    finally:
        process.wait()
        reader.join()
        process.stdout.close()
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass


def _drain(stream: IO[bytes], output: BuildOutput) -> None:
    for line in stream:
        output.add(line.decode("utf-8", "replace"))


# ---- output


class BuildOutput:
    """The output of a build: passed on, unless it is quiet, and its end kept for the error."""

    def __init__(self, progress: Progress, quiet: bool = True) -> None:
        self._progress = progress
        self._quiet = quiet
        self.last_lines: collections.deque[str] = collections.deque(maxlen=SHOWN_LINES)

    def add(self, text: str) -> None:
        """Take some lines."""
        for line in text.splitlines():
            if line.strip():
                self.last_lines.append(line.rstrip())
                if not self._quiet:
                    self._progress.output(line.rstrip())


def _failed(dockerfile: str, reason: str, output: BuildOutput) -> BackendError:
    lines = list(output.last_lines)
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
