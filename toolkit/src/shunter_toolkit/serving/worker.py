"""The WSGI application: routes of the contract, nothing else."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .. import script_command
from ..layout import Layout
from . import content_types
from .transformer import Answer, Transformer

_REASONS = {200: "OK", 204: "No Content", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
_REASONS.update({406: "Not Acceptable", 415: "Unsupported Media Type", 500: "Internal Server Error"})


class Worker:
    """Serves one model.

    Args:
        transformer: answers ``POST /invocations``; its model is loaded already.
        healthy: tells ``GET /ping`` whether all is well; default: always.
        execution_parameters: answers ``GET /execution-parameters``; None: 404.
    """

    def __init__(
        self,
        transformer: Transformer,
        healthy: Callable[[], bool] | None = None,
        execution_parameters: Callable[[], Answer] | None = None,
    ) -> None:
        self._transformer = transformer
        self._healthy = healthy or (lambda: True)
        self._execution_parameters = execution_parameters

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request, as WSGI has it."""
        answer = self._route(environ)
        reason = _REASONS.get(answer.status, "Status")
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} {reason}", headers)
        return [answer.body]

    def _route(self, environ: dict[str, Any]) -> Answer:
        route = (environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""))
        if route == ("GET", "/ping"):
            return Answer(200 if self._healthy() else 500, b"")
        if route == ("POST", "/invocations"):
            return self._invoke(environ)
        if route == ("GET", "/execution-parameters") and self._execution_parameters is not None:
            return self._execution_parameters()
        known = route[1] in ("/ping", "/invocations")
        return Answer(405 if known else 404, b"{}")

    def _invoke(self, environ: dict[str, Any]) -> Answer:
        length = environ.get("CONTENT_LENGTH")
        body = environ["wsgi.input"].read(int(length)) if length else environ["wsgi.input"].read()
        given = environ.get("HTTP_CONTENTTYPE") or environ.get("CONTENT_TYPE") or content_types.JSON
        accept = environ.get("HTTP_ACCEPT") or content_types.ANY
        if accept == content_types.ANY:
            accept = os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT") or content_types.JSON
        return self._transformer.transform(body, given, accept)


def application() -> Callable[..., Any]:
    """The application that the server runs: ``SAGEMAKER_SERVING_MODULE`` (``module:app``), or a `Worker`.

    Raises:
        ClientError: the entry point is missing, or its model cannot be loaded.
    """
    named = os.environ.get("SAGEMAKER_SERVING_MODULE")
    if named:
        module, _, attribute = named.partition(":")
        app: Callable[..., Any] = getattr(importlib.import_module(module), attribute or "main")
        return app
    layout = Layout()
    transformer = Transformer(_user_module(layout))
    transformer.initialize(layout.model)
    return Worker(transformer)


def _user_module(layout: Layout) -> Any:
    name = os.environ.get("SAGEMAKER_PROGRAM", "")
    script_command.check(layout.code, name)
    if layout.code not in sys.path:
        sys.path.insert(0, layout.code)
    return importlib.import_module((name[:-3] if name.endswith(".py") else name).replace("/", "."))
