"""Certificates for registries: those that are trusted, and our client certificates."""

from __future__ import annotations

import glob
import os
import ssl

from shunter.errors import ConfigError
from shunter.paths import xdg
from shunter.system.identity import home


def registry_context(host: str, port: int) -> ssl.SSLContext:
    """Return the context for a registry.

    The system's authorities, ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` apply as usual. So do the files that
    Docker and Podman read for a registry: ``*.crt`` (authorities) and ``*.cert`` with ``*.key`` (our client
    certificate), in ``/etc/docker/certs.d/HOST[:PORT]`` and the like.
    https://docs.docker.com/engine/security/certificates/

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.create_default_context()
    bare = f"[{host}]" if ":" in host else host
    names = [f"{bare}:{port}", bare] if port == 443 else [f"{bare}:{port}"]
    for folder in [os.path.join(directory, name) for directory in certs_dirs() for name in names]:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*"))):
            try:
                if path.endswith(".crt"):
                    context.load_verify_locations(path)
                elif path.endswith(".cert"):
                    context.load_cert_chain(path, f"{path.removesuffix('.cert')}.key")
            except OSError as error:  # as ssl.SSLError is
                raise ConfigError(f"cannot use the certificate {path}: {error}") from error
    return context


def certs_dirs() -> list[str]:
    """Return the directories with a folder for each registry."""
    config = xdg("XDG_CONFIG_HOME", os.environ) or os.path.join(home(os.environ), ".config")
    return [
        os.path.join(directory, program, "certs.d")
        for program in ("docker", "containers")
        for directory in ("/etc", config)
    ]
