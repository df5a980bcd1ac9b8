"""Building images with Docker, from a context that is streamed to it; a workspace's own Dockerfile above all.

With BuildKit through the ``docker`` command, since its protocol is a session over gRPC; without it through
the engine's own builder, which every daemon has.
"""

from __future__ import annotations

import base64
import collections
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from shunter.docker.credentials import credentials_for, engine_auth_header
from shunter.docker.daemon_errors import EngineError
from shunter.docker.engine import Engine
from shunter.docker.image_reference import IMAGE_ID, Reference
from shunter.docker.image_store import inspect_image, tag
from shunter.errors import BackendError, ConfigError
from shunter.progress import Progress
from shunter.workspace.images.dockerfile import IMAGE_ARG, WORKSPACE_ARG, BuildContext, Dockerfile, parse
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.layer import tar_stream

#: Lines of a failing build that its error shows.
SHOWN_LINES = 25
#: How long an interrupted build may take to end by itself.
ENDING_SECONDS = 10.0
_STEP = re.compile(r"^Step \d+/\d+ : ")


def build(
    engine: Engine,
    context: BuildContext,
    name: str,
    *,
    image: str,
    workspace: str,
    labels: Mapping[str, str],
    cache: ImageCache,
    progress: Progress,
    quiet: bool,
    platform: str | None = None,
) -> dict[str, Any]:
    """Build a workspace's own Dockerfile, unless the image is there; returns what `inspect_image` says of it.

    The image counts as there if it has the name and no image that its Dockerfile names has changed since.

    Args:
        engine: the daemon.
        context: what it is built with.
        name: repository and tag that it gets; they stand for the context and all arguments.
        image: the role's image, build argument ``IMAGE``.
        workspace: the workspace in words, build argument ``WORKSPACE``.
        labels: labels that it gets.
        cache: where it is remembered which bases it was built from.
        progress: gets the output, unless ``quiet``.
        quiet: whether the output is shown only if the build fails.
        platform: what it is built for; the daemon's own by default.

    Raises:
        BackendError: the build failed.
        ConfigError: the Dockerfile needs BuildKit, and there is none.
    """
    arguments = {IMAGE_ARG: image, WORKSPACE_ARG: workspace}
    needs = parse(context.text, arguments)
    found = inspect_image(engine, name)
    built = cache.recall("built", engine.endpoint, name)
    if found is not None and built == [found["Id"], _ids(engine, needs)]:
        return found
    progress.step(f"building {context.dockerfile}")
    made = _build(engine, context, needs, arguments, labels, _BuildOutput(progress, quiet), platform)
    result = inspect_image(engine, made)
    if result is None:
        raise ConfigError(
            f"{context.dockerfile} was built, but the daemon at {engine.endpoint} does not have the image",
            hint="Does the `docker` command use another daemon or builder? See `docker context ls`.",
        )
    tag(engine, made, name)
    cache.remember([result["Id"], _ids(engine, needs)], "built", engine.endpoint, name)
    return result


def _ids(engine: Engine, needs: Dockerfile) -> dict[str, str]:
    """Return the ids of the bases, as far as the daemon has them; BuildKit keeps what it pulled to itself."""
    found = {base: inspect_image(engine, base) for base in needs.bases}
    return {base: image["Id"] if image else "" for base, image in found.items()}


def _build(
    engine: Engine,
    context: BuildContext,
    needs: Dockerfile,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    output: _BuildOutput,
    platform: str | None,
) -> str:
    stream = tar_stream(context.content)
    buildkit = find_buildkit(engine)
    if buildkit is not None:
        command, environ = buildkit
        given = {**arguments, IMAGE_ARG: _nameable(engine, arguments[IMAGE_ARG])}
        command = [*command, "--platform", platform] if platform else command
        return _build_with_buildkit(command, environ, stream, context.dockerfile, given, labels, output)
    if needs.buildkit:
        raise ConfigError(
            f"{context.dockerfile} needs BuildKit ({needs.buildkit}), which cannot be used here",
            hint="Install the docker command with its buildx plugin, or write the Dockerfile without it.",
        )
    return build_on_engine(
        engine,
        stream,
        context.dockerfile,
        arguments,
        labels,
        output,
        registry_config=_registry_config(needs.bases),
        platform=platform,
    )


def _nameable(engine: Engine, image: str) -> str:
    """Return a name for an image: BuildKit mistakes an id for the name of an image in a registry."""
    if not IMAGE_ID.fullmatch(image) or inspect_image(engine, image) is None:
        return image
    name = f"shunter/base:{image.removeprefix('sha256:')}"
    tag(engine, image, name)
    return name


def _registry_config(bases: Iterable[str]) -> str | None:
    """Return the header ``X-Registry-Config``, with the credentials for images' registries, or None.

    https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Image/operation/ImageBuild
    """
    document = {}
    for host in {Reference.parse(base).registry for base in bases if not IMAGE_ID.fullmatch(base)}:
        if credentials := credentials_for(host):
            one = json.loads(base64.urlsafe_b64decode(engine_auth_header(credentials)))
            document[one.pop("serveraddress")] = one
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode() if document else None


# ---- the engine's builder


def build_on_engine(
    engine: Engine,
    context: Iterable[bytes],
    dockerfile: str,
    build_args: Mapping[str, str],
    labels: Mapping[str, str],
    output: _BuildOutput,
    *,
    registry_config: str | None = None,
    platform: str | None = None,
) -> str:
    """Build with the engine's own builder; returns the image's id.

    Args:
        engine: the daemon.
        context: a tar.
        dockerfile: path of the Dockerfile in it.
        build_args: values of ``ARG``.
        labels: labels of the image.
        output: gets the output.
        registry_config: text of the header ``X-Registry-Config``, for bases that have to be pulled.
        platform: what it is built for; the daemon's own by default.

    Raises:
        BackendError: the build failed; shows the step and the end of its output.
    """
    params = {
        "dockerfile": dockerfile,
        "buildargs": dict(build_args),
        "labels": dict(labels),
        "rm": True,
        "forcerm": True,
        "platform": platform,
    }
    headers = {"Content-Type": "application/x-tar"}
    if registry_config:
        headers["X-Registry-Config"] = registry_config
    image = ""
    try:
        with engine.stream("POST", "/build", params=params, data=context, headers=headers) as answer:
            for item in answer.json_lines():
                image = (item.get("aux") or {}).get("ID", image)
                output.add(item.get("stream") or item.get("status") or "")
    except EngineError as error:
        raise _failed(dockerfile, str(error), output) from error
    if not image:
        raise _failed(dockerfile, "the daemon did not say which image it built", output)
    return image


def build_quietly(
    engine: Engine, context: Iterable[bytes], labels: Mapping[str, str], progress: Progress
) -> str:
    """Build a context's ``Dockerfile`` with the engine's own builder; its output is shown if it fails."""
    return build_on_engine(engine, context, "Dockerfile", {}, labels, _BuildOutput(progress, quiet=True))


# ---- BuildKit


def find_buildkit(engine: Engine) -> tuple[list[str], dict[str, str]] | None:
    """Return words and environment of a command that builds with BuildKit, or None.

    The command of Docker 23 and newer needs its plugin ``buildx`` for it; older ones have it built in, and
    use the daemon's.
    """
    if not _daemon_has_buildkit(engine):
        return None
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        program = shutil.which("docker", path=directory)
        if not program:
            continue
        environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
        if engine.endpoint.startswith("unix://"):
            environ["DOCKER_HOST"] = engine.endpoint
            environ.pop("DOCKER_CONTEXT", None)
        if _output_of([program, "buildx", "version"], environ) is not None:
            return [program, "buildx", "build", "--load"], environ
        version = _output_of([program, "version", "--format", "{{.Client.Version}}"], environ, any_code=True)
        major = (version or "").partition(".")[0]
        if major.isdecimal() and int(major) < 23:
            return [program, "build"], environ
    return None


def _daemon_has_buildkit(engine: Engine) -> bool:
    """Tell whether BuildKit is in the daemon. Docker 20.10 has it, but recommends it only when configured."""
    with engine.stream("GET", "/_ping", timeout=30) as answer:
        answer.read()
        server = answer.headers.get("server", "")
        return answer.headers.get("builder-version") == "2" or (
            server.startswith("Docker/") and "(linux)" in server
        )


def _output_of(words: Sequence[str], environ: Mapping[str, str], *, any_code: bool = False) -> str | None:
    """Return what a command prints; None if it fails."""
    try:
        done = subprocess.run(words, env=dict(environ), capture_output=True, timeout=30, check=not any_code)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()


def _build_with_buildkit(
    command: Sequence[str],
    environ: Mapping[str, str],
    context: Iterable[bytes],
    dockerfile: str,
    build_args: Mapping[str, str],
    labels: Mapping[str, str],
    output: _BuildOutput,
) -> str:
    """Build with a command that `find_buildkit` found; the rest as `build_on_engine`."""
    with tempfile.TemporaryDirectory(prefix="shunter-") as folder:
        result = os.path.join(folder, "image")
        words = [*command, "--progress=plain", "--iidfile", result, "--file", dockerfile]
        for name, value in build_args.items():
            words += ["--build-arg", f"{name}={value}"]
        for name, value in labels.items():
            words += ["--label", f"{name}={value}"]
        code = _run_fed([*words, "-"], environ, context, output)
        if code:
            raise _failed(dockerfile, f"`docker build` ended with exit code {code}", output)
        with open(result, encoding="ascii") as file:
            return file.read().strip()


def _run_fed(
    words: Sequence[str], environ: Mapping[str, str], context: Iterable[bytes], output: _BuildOutput
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


def _drain(stream: IO[bytes], output: _BuildOutput) -> None:
    for line in stream:
        output.add(line.decode("utf-8", "replace"))


# ---- output


class _BuildOutput:
    """The output of a build: passed on, unless it is quiet, and its end kept for the error."""

    def __init__(self, progress: Progress, quiet: bool) -> None:
        self._progress = progress
        self._quiet = quiet
        self._last: collections.deque[str] = collections.deque(maxlen=SHOWN_LINES)
        self._step = ""

    def add(self, text: str) -> None:
        for line in text.splitlines():
            line = line.rstrip()
            if not line:
                continue
            if _STEP.match(line):
                self._step = line
            self._last.append(line)
            if not self._quiet:
                self._progress.output(line)

    def last_lines(self) -> Iterator[str]:
        if self._step and self._step not in self._last:
            yield self._step
        yield from self._last


def _failed(dockerfile: str, reason: str, output: _BuildOutput) -> BackendError:
    end = "\n".join(f"  {line}" for line in output.last_lines())
    return BackendError(
        f"building {dockerfile} failed: {reason}" + (f"\nThe end of its output:\n{end}" if end else ""),
        hint=f"Correct {dockerfile}, or provide what its failing step needs.",
    )
