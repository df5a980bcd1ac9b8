"""Certificates for registries: those that are trusted, and our client certificates."""

from __future__ import annotations

import glob
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping

from shunter.errors import ConfigError
from shunter.paths import xdg
from shunter.system.identity import home


def registry_context(
    host: str, port: int, environ: Mapping[str, str], certs_dirs: Iterable[str] | None = None
) -> ssl.SSLContext:
    """Return the context for a registry.

    The system's authorities, ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` apply as usual. So do the files that
    Docker and Podman read for a registry: ``*.crt`` (authorities) and ``*.cert`` with ``*.key`` (our client
    certificate), in ``/etc/docker/certs.d/HOST[:PORT]`` and the like.
    https://docs.docker.com/engine/security/certificates/

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.create_default_context()
    # OpenSSL reads the process's environment; this is for an environment that was handed in
    for variable, option in (("SSL_CERT_FILE", "cafile"), ("SSL_CERT_DIR", "capath")):
        path = environ.get(variable)
        if path and environ is not os.environ:
            _load_authority(context, path, option)
    for directory in certs_dirs if certs_dirs is not None else _certs_dirs(environ):
        for folder in _folders(directory, host, port):
            _load_folder(context, folder)
    return context


def _certs_dirs(environ: Mapping[str, str]) -> list[str]:
    config = xdg("XDG_CONFIG_HOME", environ) or os.path.join(home(environ), ".config")
    return [
        os.path.join(directory, program, "certs.d")
        for program in ("docker", "containers")
        for directory in ("/etc", config)
    ]


def _folders(directory: str, host: str, port: int) -> Iterator[str]:
    bare = f"[{host}]" if ":" in host else host
    for name in (f"{bare}:{port}", bare if port == 443 else ""):
        folder = os.path.join(directory, name) if name else ""
        if folder and os.path.isdir(folder):
            yield folder


def _load_folder(context: ssl.SSLContext, folder: str) -> None:
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.crt"))):
        _load_authority(context, path, "cafile")
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.cert"))):
        key = f"{path.removesuffix('.cert')}.key"
        try:
            context.load_cert_chain(path, key)
        except OSError as error:  # as ssl.SSLError is
            raise ConfigError(f"cannot use the certificate {path} with the key {key}: {error}") from error


def _load_authority(context: ssl.SSLContext, path: str, option: str) -> None:
    try:
        context.load_verify_locations(**{option: path})
    except OSError as error:
        raise ConfigError(f"cannot read certificates of authorities from {path}: {error}") from error
