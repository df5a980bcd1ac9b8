"""Noticing answers whose end was lost on the way.

botocore does not compare an answer with its ``Content-Length``, and makes an empty answer of text that is not
whole JSON: a list of jobs that broke off in the middle would read as "no jobs".
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: botocore repeats requests that were answered with this code.
_REPEATED = b'{"__type": "RequestTimeout", "message": "the end of the answer was lost"}'


def refuse_cut_answers(client: Any) -> None:
    """Make a client of botocore repeat requests whose answers are cut short, and raise if that does not help.

    Works for services that answer in JSON.
    """
    client.meta.events.register("before-parse", _have_repeated)
    client.meta.events.register("after-call", _refuse)


def _have_repeated(response_dict: dict[str, Any], **_: Any) -> None:
    body = response_dict["body"]
    if isinstance(body, bytes) and _is_cut(response_dict["headers"], body):
        response_dict["status_code"] = 500
        response_dict["body"] = _REPEATED


def _refuse(http_response: Any, model: Any, **_: Any) -> None:
    if model.has_event_stream_output or model.has_streaming_output:
        return
    if _is_cut(http_response.headers, http_response.content):
        from botocore.exceptions import ConnectionClosedError

        raise ConnectionClosedError(endpoint_url=http_response.url)


def _is_cut(headers: Any, body: bytes) -> bool:
    length = headers.get("content-length", "")
    return length.isdecimal() and len(body) < int(length)
