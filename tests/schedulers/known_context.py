"""A context for schedulers that are tested without a runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shunter.schedulers.api import Context


class KnownContext(Context):
    def __init__(
        self, options: Mapping[str, Any] | None = None, ids: Mapping[str, str] | None = None
    ) -> None:
        self.options = dict(options or {})
        self.ids = dict(ids or {})

    def native_id(self, app_id: str) -> str | None:
        return self.ids.get(app_id)

    def configured_options(self) -> Mapping[str, Any]:
        return self.options
