"""Running the ``docker`` command, and what its refusals mean."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from shunter.docker.daemon_errors import EngineForbiddenError, EngineUnavailableError
from shunter.errors import BackendError, ConfigError

#: Options of a container's log. It keeps bytes that are not UTF-8, and everything: by default old lines are
#: dropped, and "unlimited" is refused.
_LOG_WORDS = ("--log-driver", "local", "--log-opt", "max-size=1000p")
#: Variable with the command, which is ``docker`` by default.
PROGRAM_VARIABLE = "SHUNTER_DOCKER"
DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"
#: The endpoint of Podman, which has no daemon.
PODMAN = "podman"
#: Variables that name the daemon; an empty value is none.
_DAEMON_VARIABLES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
#: How long the command may take; the daemon of a loaded machine takes long to set up a container.
COMMAND_SECONDS = 300.0
_UNREACHABLE = re.compile(
    r"Cannot connect to the Docker daemon|Is the docker daemon running|error during connect"
    r"|failed to connect to the docker API|dial unix .*connection refused|unexpected EOF|connection reset"
    r"|use of closed network connection",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"permission denied while trying to connect", re.IGNORECASE)
_ABSENT = re.compile(
    r"No such (?:container|image|object|network)|(?:network|container) \S+ not found|could not find the file"
    r"|(?:image|network) not known|no container with name",
    re.IGNORECASE,
)
#: Variables that the command itself reads; a container's of these names are given in its arguments.
_OF_THE_COMMAND = re.compile(
    r"(?:DOCKER_|BUILDKIT_|LD_|DYLD_|GO|OTEL_|SSH_|SSL_|XDG_).*|PATH|HOME|TMPDIR|(?:HTTPS?|NO|ALL)_PROXY",
    re.IGNORECASE,
)

# Tried in this order; the first that is found in the daemon's message counts.
_ADVICE: list[tuple[str, str]] = [
    (
        r"could not select device driver",
        (
            "Docker cannot hand GPUs to containers here: install the NVIDIA Container Toolkit "
            "(`sudo nvidia-ctk runtime configure --runtime=docker`, then restart Docker), or ask for no GPU."
        ),
    ),
    (
        r"nvidia-container-cli",
        "The job asks for more GPUs than there are, or the driver does not work: nvidia-smi",
    ),
    (
        r"bind source path does not exist",
        "The path must exist on the Docker daemon's machine. Create it, or correct the mount's src.",
    ),
    (
        r"port is already allocated|address already in use",
        "Another program uses that port. Publish another one, or stop it: `docker ps` shows the ports.",
    ),
    (
        r"unable to apply caps|operation not permitted",
        "This machine does not let Docker grant all capabilities. Run without the option privileged.",
    ),
    (
        r"Range of CPUs is from",
        "Ask for no more CPUs than the machine has (the role's resource.cpu), or set no limit with -1.",
    ),
    (
        r"docker-init",
        "The daemon has no docker-init, which comes with Docker: install the package tini-static.",
    ),
    (
        r"container-init binary not found",
        "Podman has no init program for containers: install the package catatonit.",
    ),
    (
        r"executable file not found|no such file or directory.*unknown|not found in \$PATH",
        "The image has no such program. Check the image; the program must be in the image's PATH.",
    ),
    (r"permission denied", "The image's program is not executable (chmod +x), or the mount is not readable."),
    (r"network .* not found|No such network", "`docker network ls` shows the networks."),
    (r"error gathering device information", "The Docker daemon's machine has no such device."),
    (r"no space left on device", "Free space on the disk of the daemon: `docker system df`, `shunter gc`."),
    (r"platform|exec format error", "The image is for another platform; set the option platform."),
]


class DockerRefused(BackendError):
    """The daemon refused what the ``docker`` command was asked for; the message is the daemon's own.

    Attributes:
        is_absent: whether it says that there is no such container, network or file.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, hint=advice(message))
        self.is_absent = _ABSENT.search(message) is not None


class DockerCommand:
    """The ``docker`` command for one daemon. Safe for use by several threads.

    Args:
        environ: variables that say where the daemon is, in addition to this process's.
        program: the path of the command; looked up in PATH by default.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, program: str = "") -> None:
        self.environ = dict(environ or {})
        self._program = program
        self._endpoint = ""

    @classmethod
    def of_client(cls, docker_client: Any) -> DockerCommand:
        """Return the command for the daemon of a `docker.DockerClient` (or of its ``api``)."""
        api = getattr(docker_client, "api", docker_client)
        path = getattr(getattr(api, "_custom_adapter", None), "socket_path", None)
        return cls({"DOCKER_HOST": f"unix://{path}" if path else re.sub(r"^https?:", "tcp:", api.base_url)})

    @property
    def program(self) -> str:
        """The path of the command.

        Raises:
            ConfigError: it is not installed.
        """
        if not self._program:
            name = self.environ.get(PROGRAM_VARIABLE) or os.environ.get(PROGRAM_VARIABLE) or "docker"
            path = shutil.which(name)
            if path is None:
                raise ConfigError(
                    f"containers are run by the command `{name}`, which is not in PATH",
                    hint="Install Docker: https://docs.docker.com/engine/install/. "
                    f"{PROGRAM_VARIABLE}=podman names another command.",
                )
            self._program = path
        return self._program

    @property
    def is_podman(self) -> bool:
        """Whether the command is Podman's, which has no daemon.

        Raises:
            ConfigError: it is not installed.
        """
        return os.path.basename(os.path.realpath(self.program)) == "podman"

    def pinned(self) -> DockerCommand:
        """Return the command for the same daemon, whatever variables and contexts other processes have."""
        environ = {**os.environ, **self.environ}
        places = {name: environ.get(name, "") for name in _DAEMON_VARIABLES}
        if not places["DOCKER_HOST"]:
            places["DOCKER_HOST"], certificates = self._context()
            if places["DOCKER_HOST"] == PODMAN:
                return DockerCommand({PROGRAM_VARIABLE: self.program}, self._program)
            places |= {"DOCKER_TLS_VERIFY": "1" if certificates else "", "DOCKER_CERT_PATH": certificates}
        return DockerCommand(places, self._program)

    @property
    def endpoint(self) -> str:
        """Where the daemon is: ``unix:///var/run/docker.sock``, ``ssh://me@host``. Contacts nothing.

        Raises:
            ConfigError: the command's context does not exist.
        """
        if not self._endpoint:
            host = {**os.environ, **self.environ}.get("DOCKER_HOST", "")
            self._endpoint = host or self._context()[0]
        return self._endpoint

    def _context(self) -> tuple[str, str]:
        """Return where the daemon of the command's context is, and the folder of its certificates or ""."""
        try:
            if self.is_podman:
                return PODMAN, ""
        except ConfigError:
            return DEFAULT_ENDPOINT, ""
        done = self.call("context", "inspect", "--format", "{{.Endpoints.docker.Host}} {{.Storage.TLSPath}}")
        if done.returncode:
            raise ConfigError(
                f"the command docker does not say which daemon it uses: {tidy(done.stderr)}",
                hint="`docker context ls` shows the contexts. DOCKER_CONTEXT=default is this machine's.",
            )
        host, _, folder = done.stdout.strip().partition(" ")
        certificates = os.path.join(folder, "docker")
        return host, certificates if os.path.isdir(certificates) else ""

    @property
    def is_local(self) -> bool:
        """Whether the daemon runs on this machine, so that it sees the same files."""
        host = urlsplit(self.endpoint).hostname or ""
        return self.endpoint.startswith(("unix://", PODMAN)) or host in ("localhost", "127.0.0.1", "::1")

    def facts(self) -> dict[str, Any]:
        """Return what the daemon says of itself and its machine, as ``docker info`` has it.

        Raises:
            EngineUnavailableError: no daemon answers.
            ConfigError: the command is not installed.
        """
        done = self.call("info", "--format", "{{json .}}")
        facts: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if self.is_podman and facts:
            return _facts_of_podman(facts)
        problems = facts.get("ServerErrors") or ([] if facts else [done.stderr])
        if problems:
            raise refusal(str(problems[0]))
        return facts

    def call(
        self, *words: str, env: Mapping[str, str] | None = None, seconds: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run the command with these words, whatever the daemon answers.

        Args:
            words: the command's arguments.
            env: variables that the words name without a value (``--env NAME``).
            seconds: how long it may take.

        Raises:
            EngineUnavailableError: no daemon answers, or none that this user may use.
            ConfigError: the command is not installed.
        """
        named = {name: value for name, value in (env or {}).items() if not _OF_THE_COMMAND.fullmatch(name)}
        try:
            done = subprocess.run(
                [self.program, *words],
                env={**os.environ, **named, **self.environ},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
                start_new_session=True,  # Ctrl-C reaches us, and not the command in the middle of its work
            )
        except subprocess.TimeoutExpired:
            raise EngineUnavailableError(
                f"the Docker daemon did not answer `docker {words[0]}` within {seconds:g} s"
            ) from None
        if done.returncode and isinstance(error := refusal(done.stderr), EngineUnavailableError):
            raise error
        return done

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Run the command; returns what it prints. The arguments are those of `call`.

        Raises:
            DockerRefused: the daemon refuses.
            EngineUnavailableError: no daemon answers, or none that this user may use.
            ConfigError: the command is not installed.
        """
        done = self.call(*words, env=env)
        if done.returncode:
            raise refusal(done.stderr)
        return done.stdout

    def lines(self, *words: str, stdin: str = os.devnull) -> Generator[str, None, None]:
        """Run a command that takes long, and yield the lines that it prints meanwhile, errors among them.

        Args:
            words: the command's arguments.
            stdin: file that it reads.

        Raises:
            DockerRefused: it failed; the message is the last line.
            EngineUnavailableError: no daemon answers, or none that this user may use.
            ConfigError: the command is not installed.
        """
        with open(stdin, "rb") as source:
            process = subprocess.Popen(
                [self.program, *words],
                env={**os.environ, **self.environ},
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        line = ""
        try:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    yield line
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if code:
            raise refusal(line or f"`docker {words[0]}` ended with exit code {code}")

    def print_to(self, file: IO[bytes], *words: str) -> None:
        """Run a command whose output is large, such as an archive, and have it written to a file.

        Raises:
            DockerRefused: the daemon refuses.
            EngineUnavailableError: no daemon answers, or none that this user may use.
            ConfigError: the command is not installed.
        """
        done = subprocess.run(
            [self.program, *words],
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
            start_new_session=True,
        )
        if done.returncode:
            raise refusal(done.stderr.decode(errors="replace"))

    def create(self, words: Sequence[str], env: Mapping[str, str]) -> str:
        """Create a container by the words of ``docker create``, with these variables; returns its id.

        Raises:
            DockerRefused: the daemon refuses.
            EngineUnavailableError: no daemon answers.
            ConfigError: the command is not installed.
        """
        log_words = [] if self.is_podman else _LOG_WORDS  # Podman's own driver keeps everything
        return self.run("create", *log_words, *words, env=env).split()[-1]

    def inspect(self, kind: str, *names: str, seconds: float = COMMAND_SECONDS) -> list[dict[str, Any]]:
        """Return what the daemon knows of containers, networks or images (``kind``), without those it lacks.

        Raises:
            DockerRefused: it does not say.
            EngineUnavailableError: no daemon answers.
        """
        done = self.call(kind, "inspect", *names, seconds=seconds)
        error = refusal(done.stderr) if done.returncode else None
        if isinstance(error, DockerRefused) and not error.is_absent:
            raise error
        found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
        return found

    def ids(self, kind: str, label: str, value: str | None = None) -> list[str]:
        """Return the ids of all containers or networks (``kind``) that have a label."""
        words = ["container", "ls", "--all"] if kind == "container" else [kind, "ls"]
        chosen = label if value is None else f"{label}={value}"
        return self.run(*words, "--quiet", "--no-trunc", "--filter", f"label={chosen}").split()


def _facts_of_podman(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``podman info`` says, by the names that Docker has for it."""
    host = info["host"]
    return {
        "ServerVersion": info["version"]["Version"],
        "OSType": host["os"],
        "Architecture": host["arch"],
        "NCPU": host["cpus"],
        "MemTotal": host["memTotal"],
        "InitBinary": "catatonit" if shutil.which("catatonit") else "",
    }


def environment_words(env: Mapping[str, str]) -> list[str]:
    """Return the words that give a container its variables.

    Values are not among them, since every user of a machine may read the arguments of programs: the command
    takes them from its own environment. What it would take for its own is the exception.
    """
    words = []
    for name, value in env.items():
        words += ["--env", f"{name}={value}" if _OF_THE_COMMAND.fullmatch(name) else name]
    return words


@dataclass(frozen=True)
class Mount:
    """A mount: its kind (``bind`` or ``volume``), a path or volume of the daemon's machine, where it goes."""

    kind: str
    source: str
    target: str
    read_only: bool = False

    def word(self) -> str:
        """Return it as ``--mount`` takes it: fields as in a CSV file."""
        buffer = io.StringIO()
        fields = [f"type={self.kind}", f"source={self.source}", f"target={self.target}"]
        csv.writer(buffer, lineterminator="").writerow([*fields, *(["readonly"] if self.read_only else [])])
        return buffer.getvalue()


def remove_containers(docker: DockerCommand, names: Iterable[str]) -> None:
    """Remove containers, whether they run or not. What is gone already is no error.

    Raises:
        DockerRefused: one cannot be removed.
        EngineUnavailableError: no daemon answers.
    """
    _remove(docker, ["rm", "--force", "--volumes"], names)


def remove_networks(docker: DockerCommand, names: Iterable[str]) -> None:
    """Remove networks. What is gone already is no error.

    Raises:
        DockerRefused: containers still use one.
        EngineUnavailableError: no daemon answers.
    """
    _remove(docker, ["network", "rm"], names)


def _remove(docker: DockerCommand, words: Sequence[str], names: Iterable[str]) -> None:
    for name in names:
        try:
            docker.run(*words, name)
        except DockerRefused as error:
            if not error.is_absent and "already in progress" not in error.message:
                raise


def refusal(stderr: str) -> BackendError:
    """Return the error that the command's message on standard error stands for."""
    text = tidy(stderr)
    if _FORBIDDEN.search(text):
        return EngineForbiddenError(
            f"this user may not use the Docker daemon: {text}",
            hint="Add the user to the group docker, or set DOCKER_HOST to a daemon of your own.",
        )
    if _UNREACHABLE.search(text):
        return EngineUnavailableError(
            f"cannot reach a Docker daemon: {text}", hint="Start it, or set DOCKER_HOST to where it is."
        )
    return DockerRefused(text)


def tidy(message: str) -> str:
    """Return the daemon's message without the prefixes of the layers that it came through."""
    lines = [line for line in message.strip().splitlines() if line.strip() and "--help" not in line]
    text = " ".join(line.strip() for line in lines)
    text = re.sub(
        r"^(?:docker: |Error: failed to start containers: \S+|Error response from daemon: |Error: )*",
        "",
        text,
    )
    text = re.sub(
        r"^(?:OCI runtime create failed|failed to create (?:shim(?: task)?|task for container)|driver failed "
        r"programming external connectivity on endpoint \S+ \(\w+\)|invalid mount config for type "
        r"\"\w+\"): ",
        "",
        text,
    )
    return text.removesuffix(" Error: failed to start containers").removesuffix(": unknown")


def advice(message: str) -> str:
    """Return what to do about a refusal, "" if that is not known."""
    return next((words for pattern, words in _ADVICE if re.search(pattern, message, re.IGNORECASE)), "")
