"""Noticing answers that are not whole, or not AWS's.

botocore does not compare an answer with its ``Content-Length``, and makes an empty answer of text that is not
whole JSON: a list of jobs that broke off in the middle would read as "no jobs", and a proxy's page as a job
without a state.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: botocore repeats requests that were answered with this code.
_REPEATED = b'{"__type": "RequestTimeout", "message": "the end of the answer was lost"}'


def refuse_cut_answers(client: Any) -> None:
    """Make a client of botocore repeat requests whose answers are not whole, and raise if that does not help.

    Whether an answer is one of AWS's at all is told for services that answer in JSON.
    """
    client.meta.events.register("before-parse", _have_repeated)
    client.meta.events.register("after-call", _refuse)


def _have_repeated(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
    body = response_dict["body"]
    if isinstance(body, bytes) and (
        _is_cut(response_dict["headers"], body)
        or (response_dict["status_code"] < 300 and _is_foreign(operation_model, body))
    ):
        response_dict["status_code"] = 500
        response_dict["body"] = _REPEATED


def _refuse(http_response: Any, model: Any, **_: Any) -> None:
    if model.has_event_stream_output or model.has_streaming_output:
        return
    body = http_response.content
    if _is_cut(http_response.headers, body):
        from botocore.exceptions import ConnectionClosedError

        raise ConnectionClosedError(endpoint_url=http_response.url)
    if http_response.status_code < 300 and _is_foreign(model, body):
        from botocore.parsers import ResponseParserError

        raise ResponseParserError(f"no answer of {model.name}: {body[:40]!r}")


def _is_cut(headers: Any, body: bytes) -> bool:
    length = headers.get("content-length", "")
    return length.isdecimal() and len(body) < int(length)


def _is_foreign(operation: Any, body: bytes) -> bool:
    """Tell whether a body is none that the service could have answered with. It is not read for that."""
    if operation.service_model.resolved_protocol not in ("json", "rest-json"):
        return False
    text = body.strip()
    if not text:
        shape = operation.output_shape
        return shape is not None and bool(shape.required_members)
    return not (text.startswith(b"{") and text.endswith(b"}"))
