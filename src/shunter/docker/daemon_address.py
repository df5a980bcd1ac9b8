"""Where the Docker daemon is, by the rules of the ``docker`` command.

The first of these that is set decides: ``DOCKER_HOST`` (with ``DOCKER_TLS_VERIFY`` and
``DOCKER_CERT_PATH``), ``DOCKER_CONTEXT``, ``currentContext`` of the Docker configuration, and then the first
existing socket among the system's, the rootless daemon's and Docker Desktop's.
https://docs.docker.com/reference/cli/docker/#environment-variables
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from shunter.errors import ConfigError
from shunter.paths import read_regular_file, xdg
from shunter.system.identity import home

SYSTEM_SOCKET = "/var/run/docker.sock"
DEFAULT_CONTEXT = "default"
DEFAULT_PORT = 2375
DEFAULT_TLS_PORT = 2376
_EXAMPLES = "Examples: unix:///var/run/docker.sock, tcp://10.0.0.5:2376, ssh://me@host."


class DaemonAddress(NamedTuple):
    """An address of a daemon.

    ``scheme`` is ``unix``, ``tcp`` or ``ssh``; ``address`` a path or a host; ``port`` 0 for ssh's
    default; ``tls`` a `Tls`, or None; ``origin`` says where it was found.
    """

    scheme: str
    address: str
    port: int = 0
    user: str = ""
    tls: Tls | None = None
    origin: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.address}"
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.scheme}://{user}{host}" + (f":{self.port}" if self.port else "")

    @property
    def is_local(self) -> bool:
        """Whether the daemon runs on this machine."""
        return self.scheme == "unix" or self.address in ("localhost", "127.0.0.1", "::1")


class Tls(NamedTuple):
    """TLS with the files ``ca.pem``, ``cert.pem`` and ``key.pem`` of a directory, as far as they exist."""

    directory: str
    verify: bool


def find_daemon(environ: Mapping[str, str] | None = None) -> DaemonAddress:
    """Return where the daemon is. Contacts nothing.

    Raises:
        ConfigError: a variable or a context does not name a daemon.
    """
    env = os.environ if environ is None else environ
    host = env.get("DOCKER_HOST", "")
    if host:
        return parse_address(host, _tls_of_environment(env), "DOCKER_HOST")
    name, origin = env.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    directory = docker_config_dir(env)
    if not name:
        origin = os.path.join(directory, "config.json")
        name = str(_read_json(origin).get("currentContext") or "")
    if name and name != DEFAULT_CONTEXT:
        return _context(directory, name, origin)
    return DaemonAddress("unix", _first_socket(env), tls=None, origin="default")


def docker_config_dir(environ: Mapping[str, str]) -> str:
    """Return the directory of the Docker client's configuration."""
    return environ.get("DOCKER_CONFIG") or os.path.join(home(environ), ".docker")


def parse_address(text: str, tls: Tls | None = None, origin: str = "") -> DaemonAddress:
    """Read an address as ``DOCKER_HOST`` holds it.

    Raises:
        ConfigError: it is not an address.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "tcp", text
    where = f" ({origin})" if origin else ""
    if scheme == "unix":
        return DaemonAddress("unix", rest or SYSTEM_SOCKET, origin=origin)
    if scheme not in ("tcp", "http", "https", "ssh"):
        raise ConfigError(f"{text!r}{where} is not the address of a Docker daemon", hint=_EXAMPLES)
    if scheme == "https" and tls is None:
        tls = Tls("", True)
    authority = rest.partition("/")[0]
    user, _, place = authority.rpartition("@")
    host, port = _split_port(place)
    if not host or port is None:
        raise ConfigError(f"{text!r}{where} is not the address of a Docker daemon", hint=_EXAMPLES)
    if scheme == "ssh":
        if host.startswith("-") or user.startswith("-"):  # ssh would take it for an option
            raise ConfigError(f"{text!r}{where} is not the address of a Docker daemon", hint=_EXAMPLES)
        return DaemonAddress("ssh", host, port, user, None, origin)
    return DaemonAddress("tcp", host, port or (DEFAULT_TLS_PORT if tls else DEFAULT_PORT), "", tls, origin)


def _split_port(place: str) -> tuple[str, int | None]:
    """Split ``host:port``; the port is 0 if it is missing, None if it is not a number."""
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = place.partition(":")
    if not port:
        return host, 0
    return host, int(port) if port.isdecimal() and 0 < int(port) < 65536 else None


def _tls_of_environment(env: Mapping[str, str]) -> Tls | None:
    verify = bool(env.get("DOCKER_TLS_VERIFY"))
    if not verify and not env.get("DOCKER_TLS"):
        return None
    return Tls(env.get("DOCKER_CERT_PATH") or docker_config_dir(env), verify)


def _context(directory: str, name: str, origin: str) -> DaemonAddress:
    digest = hashlib.sha256(name.encode()).hexdigest()
    path = os.path.join(directory, "contexts", "meta", digest, "meta.json")
    docker = _read_json(path).get("Endpoints", {}).get("docker", {})
    host = docker.get("Host")
    if not isinstance(host, str) or not host:
        raise ConfigError(
            f"{origin} names the Docker context {name!r}, which does not exist",
            hint="`docker context ls` shows those that exist. DOCKER_CONTEXT=default is this machine's.",
        )
    certificates = os.path.join(directory, "contexts", "tls", digest, "docker")
    has_tls = os.path.isdir(certificates) or bool(docker.get("SkipTLSVerify"))
    tls = Tls(certificates, not docker.get("SkipTLSVerify")) if has_tls else None
    return parse_address(host, tls, f"the Docker context {name!r}")


def _first_socket(env: Mapping[str, str]) -> str:
    candidates = [SYSTEM_SOCKET]
    if runtime := xdg("XDG_RUNTIME_DIR", env):
        candidates.append(os.path.join(runtime, "docker.sock"))
    candidates.append(os.path.join(home(env), ".docker", "run", "docker.sock"))
    return next((path for path in candidates if os.path.exists(path)), SYSTEM_SOCKET)


def _read_json(path: str) -> dict[str, Any]:
    try:
        data = json.loads(read_regular_file(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="Correct or remove it.") from None
    return data if isinstance(data, dict) else {}
