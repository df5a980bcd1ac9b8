"""The files that pages load, by name. What is not in this table cannot be asked for."""

from __future__ import annotations

import hashlib
from functools import cached_property
from importlib import resources

_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_NAMES = (
    "charts.js",
    "htmx.min.js",
    "hx-csp.min.js",
    "hx-sse.min.js",
    "icon.svg",
    "page.css",
    "page.js",
    "uPlot.iife.min.js",
    "uPlot.min.css",
)


class Asset:
    """One of the files."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.media_type = _MEDIA_TYPES[name[name.rindex(".") :]]

    @cached_property
    def content(self) -> bytes:
        """Its content."""
        return resources.files("shunter.ui").joinpath("static", self.name).read_bytes()

    @cached_property
    def tag(self) -> str:
        """Identifies its content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:20]}"'


ASSETS = {name: Asset(name) for name in _NAMES}
