"""Which proxy leads to a host, by the environment."""

from __future__ import annotations

import base64
import ipaddress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from trainyard.docker.image_reference import is_loopback
from trainyard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Proxy(NamedTuple):
    """A proxy, and the headers that it wants."""

    host: str
    port: int
    headers: dict[str, str]


def proxy_for(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a host; None for a direct connection, which loopback always has.

    Raises:
        ConfigError: the variable is no URL of a proxy.
    """
    if is_loopback(f"[{host}]" if ":" in host else host):
        return None
    name = f"{scheme}_proxy"
    names = (name, name.upper(), "all_proxy", "ALL_PROXY")
    url = next((environ[key] for key in names if environ.get(key)), "")
    no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if not url or _is_direct(host, port, no_proxy):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        proxy_host, proxy_port = parts.hostname, parts.port
    except ValueError:
        proxy_host, proxy_port, parts = None, None, urlsplit("")
    if not proxy_host or parts.scheme != "http":
        raise ConfigError(
            f"the proxy for {scheme} in the environment ({name}) cannot be used: only http:// proxies can",
            hint=f"Right: {name}=http://proxy.example.com:3128, or name the host in no_proxy.",
        )
    headers = {}
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(proxy_host, proxy_port or 80, headers)


def _is_direct(host: str, port: int, no_proxy: str) -> bool:
    """Tell whether ``no_proxy`` names a host: itself, a domain of it, its network, with or without port."""
    for entry in no_proxy.replace(",", " ").lower().split():
        name = entry.removesuffix(f":{port}").lstrip(".")
        if entry == "*" or host == name or host.endswith(f".{name}"):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(name.strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False
