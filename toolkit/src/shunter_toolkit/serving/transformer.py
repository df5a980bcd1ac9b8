"""Answers one request with the user's functions.

A module defines ``model_fn(model_dir)`` and any of ``input_fn(data, content_type)``, ``predict_fn(data,
model)``, ``output_fn(prediction, accept)``; or ``transform_fn(model, data, content_type, accept)`` in place
of those three.
"""

from __future__ import annotations

import json
import os
import traceback
import types
from dataclasses import dataclass
from typing import Any

from .. import log
from ..errors import ClientError, UnsupportedFormatError
from . import content_types, decoders, encoders


@dataclass
class Answer:
    """An HTTP answer: status, body, content type."""

    status: int
    body: bytes
    content_type: str = content_types.JSON


def default_model_fn(model_dir: str) -> Any:
    """Raise an error: there is no general way to load a model."""
    raise ClientError(
        "Cannot load the model: define model_fn(model_dir) in the entry point; it returns the model."
    )


def default_predict_fn(data: Any, model: Any) -> Any:
    """Call the model, or its ``predict``."""
    predict = getattr(model, "predict", model)
    if not callable(predict):
        raise ClientError(
            "Cannot predict: define predict_fn(data, model), or return a callable from model_fn."
        )
    return predict(data)


def default_output_fn(prediction: Any, accept: str) -> Answer:
    """Encode as the client asks."""
    return Answer(200, encoders.encode(prediction, accept), accept)


class Transformer:
    """The user's functions, and the model once :meth:`initialize` has loaded it.

    Raises:
        ClientError: ``transform_fn`` is defined together with a function that it replaces.
    """

    def __init__(self, module: types.ModuleType | None = None) -> None:
        self.model: Any = None
        self._model_fn = getattr(module, "model_fn", default_model_fn)
        self._input_fn = getattr(module, "input_fn", decoders.decode)
        self._predict_fn = getattr(module, "predict_fn", default_predict_fn)
        self._output_fn = getattr(module, "output_fn", default_output_fn)
        self._transform_fn = getattr(module, "transform_fn", None)
        replaced = [name for name in ("input_fn", "predict_fn", "output_fn") if hasattr(module, name)]
        if self._transform_fn is not None and replaced:
            raise ClientError(
                "transform_fn replaces input_fn, predict_fn and output_fn, so remove "
                f"{', '.join(replaced)}, or remove transform_fn."
            )

    def initialize(self, model_dir: str) -> None:
        """Load the model."""
        self.model = self._model_fn(model_dir)

    def transform(self, data: bytes, content_type: str, accept: str) -> Answer:
        """Answer one request.

        Errors of the user's code become an answer with status 500; nothing is raised.
        """
        try:
            return self._transform(data, content_type, accept)
        except UnsupportedFormatError as error:
            return failed(415 if error.content_type == content_type else 406, error)
        except ClientError as error:
            return failed(400, error)
        except Exception as error:
            return failed(500, error)

    def _transform(self, data: bytes, content_type: str, accept: str) -> Answer:
        if content_type.split(";")[0].strip() in content_types.UTF8_TYPES:
            try:
                body: Any = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ClientError(f"Cannot read the request as {content_type}: {error}.") from None
        else:
            body = data
        if self._transform_fn is not None:
            return _answer(self._transform_fn(self.model, body, content_type, accept), accept)
        prediction = self._predict(self._input_fn(body, content_type), content_type)
        return _answer(self._output_fn(prediction, accept), accept)

    def _predict(self, data: Any, content_type: str) -> Any:
        """Predict; values that we decoded as text and that the model cannot take are the client's fault."""
        try:
            return self._predict_fn(data, self.model)
        except (TypeError, ValueError) as error:
            ours = self._input_fn is decoders.decode
            if not ours or getattr(getattr(data, "dtype", None), "kind", "") not in ("U", "O"):
                raise
            raise ClientError(
                f"Cannot predict from this {content_type}: some values are not numbers, and the model "
                f"does not take them ({type(error).__name__}: {error})."
            ) from error


def _answer(result: Any, accept: str) -> Answer:
    """What ``output_fn`` may return: an answer, a body, or (body, content type)."""
    if isinstance(result, Answer):
        return result
    if isinstance(result, tuple):
        body, accept = result
    else:
        body = result
    return Answer(200, body.encode("utf-8") if isinstance(body, str) else bytes(body), accept)


def failed(status: int, error: Exception) -> Answer:
    """An answer that names the error.

    The traceback goes to the log from status 500 on, and to the client with SHUNTER_SERVE_DEBUG=1.
    """
    trace = traceback.format_exc()
    if status >= 500:
        log.error(trace)
    shown = trace if os.environ.get("SHUNTER_SERVE_DEBUG") == "1" else ""
    content = {"error": type(error).__name__, "error-message": str(error), "stack-trace": shown}
    return Answer(status, json.dumps(content).encode("utf-8"))
