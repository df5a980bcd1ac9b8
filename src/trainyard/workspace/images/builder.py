"""Having Docker build an image from a context that is streamed to it.

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
from typing import IO, TYPE_CHECKING

from trainyard.docker.credentials import Credentials, engine_auth_header
from trainyard.docker.engine import Engine, EngineError
from trainyard.errors import BackendError

if TYPE_CHECKING:
    from trainyard.progress import Progress

#: Lines of a failing build that its error shows.
SHOWN_LINES = 25
#: How long an interrupted build may take to end by itself.
ENDING_SECONDS = 10.0
_STEP = re.compile(r"^Step \d+/\d+ : ")


def build_on_engine(
    engine: Engine,
    context: Iterable[bytes],
    dockerfile: str,
    build_args: Mapping[str, str],
    labels: Mapping[str, str],
    progress: Progress,
    *,
    quiet: bool,
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
        progress: gets the output.
        quiet: whether it does not.
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
    output = _Output(progress, quiet)
    image = ""
    try:
        with engine.stream("POST", "/build", params=params, data=context, headers=headers) as answer:
            for item in answer.json_lines():
                image = (item.get("aux") or {}).get("ID", image)
                output.add(item.get("stream") or item.get("status") or "")
    except EngineError as error:
        raise _failed(dockerfile, str(error), output) from error
    if not image:
        raise _failed(dockerfile, "the daemon did not say which image came of it", output)
    return image


def build_with_buildkit(
    command: Sequence[str],
    environ: Mapping[str, str],
    context: Iterable[bytes],
    dockerfile: str,
    build_args: Mapping[str, str],
    labels: Mapping[str, str],
    progress: Progress,
    *,
    quiet: bool,
) -> str:
    """Build with BuildKit; returns the image's id.

    Args:
        command: words that build with it, see `find_buildkit`.
        environ: environment of the command.
        context: the same as in `build_on_engine`, like the others.
        dockerfile: the same.
        build_args: the same.
        labels: the same.
        progress: the same.
        quiet: the same.

    Raises:
        BackendError: the build failed; shows the step and the end of its output.
    """
    output = _Output(progress, quiet)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
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
    words: Sequence[str], environ: Mapping[str, str], context: Iterable[bytes], output: _Output
) -> int:
    """Run a command that reads the context; ends it with us, whatever ends us."""
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
        _end(process)
        raise
    finally:
        process.wait()
        reader.join()
        process.stdout.close()
        if not process.stdin.closed:
            _close_quietly(process.stdin)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that may be waiting for more of its input, or for a daemon that does."""
    process.terminate()
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _close_quietly(file: IO[bytes]) -> None:
    try:
        file.close()
    except BrokenPipeError:
        pass


def _drain(stream: IO[bytes], output: _Output) -> None:
    for line in stream:
        output.add(line.decode("utf-8", "replace"))


def find_buildkit(engine: Engine) -> tuple[list[str], dict[str, str]] | None:
    """Return words and environment of a command that builds with BuildKit; None if there is none.

    The command of Docker 23 and newer needs its plugin ``buildx`` for it; older ones have it built in, and
    use the daemon's.
    """
    if not _daemon_has_buildkit(engine):
        return None
    for program in _docker_commands():
        environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
        if engine.endpoint.startswith("unix://"):
            environ["DOCKER_HOST"] = engine.endpoint
            environ.pop("DOCKER_CONTEXT", None)
        if _succeeds([program, "buildx", "version"], environ):
            return [program, "buildx", "build", "--load"], environ
        version = _output_of([program, "version", "--format", "{{.Client.Version}}"], environ)
        major = version.partition(".")[0]
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


def _docker_commands() -> Iterator[str]:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        program = shutil.which("docker", path=directory)
        if program:
            yield program


def _succeeds(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(words, env=dict(environ), capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _output_of(words: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            words,
            env=dict(environ),
            capture_output=True,
            timeout=30,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


class _Output:
    """The output of a build: passed on, and its end kept for the error."""

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

    def end(self) -> str:
        shown = list(self._last)
        if self._step and self._step not in shown:
            shown.insert(0, self._step)
        return "\n".join(f"  {line}" for line in shown)


def _failed(dockerfile: str, reason: str, output: _Output) -> BackendError:
    end = output.end()
    return BackendError(
        f"building {dockerfile} failed: {reason}" + (f"\nThe end of its output:\n{end}" if end else ""),
        hint=f"Mend {dockerfile}, or what its failing step needs.",
    )


def registry_config(known: Mapping[str, Credentials]) -> str | None:
    """Return the header ``X-Registry-Config``, of credentials by registry host; None if there are none.

    https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Image/operation/ImageBuild
    """
    if not known:
        return None
    document = {}
    for credentials in known.values():
        one = json.loads(base64.urlsafe_b64decode(engine_auth_header(credentials)))
        document[one.pop("serveraddress")] = one
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()
