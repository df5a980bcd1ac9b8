"""The wire formats of AWS, both ways, from botocore's service models.

A request of any client is taken apart by the model of its service, and an answer is checked against the
model's output shape before it is written: what this fake says to a client, AWS could say too.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import uuid
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote
from xml.sax.saxutils import escape

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator

ACCOUNT = "123456789012"
REGION = "eu-west-1"
SERVICES = ("batch", "logs", "sts", "iam", "ecs", "ssm")
_SCOPE = re.compile(r"Credential=[^/]+/\d{8}/[^/]+/(?P<service>[^/]+)/aws4_request")


class ApiError(Exception):
    """An answer that is an error, as the service words it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class WrongAnswerError(AssertionError):
    """The fake was about to send what AWS cannot send: a defect of the fake."""


@functools.cache
def service_model(service: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(service)


def service_of(headers: Any) -> str:
    """Return the service that a request was signed for."""
    match = _SCOPE.search(headers.get("Authorization", ""))
    if match is None or match["service"] not in SERVICES:
        raise ApiError("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
    return match["service"]


def parse_request(
    service: str, method: str, path: str, headers: Any, body: bytes
) -> tuple[str, dict[str, Any]]:
    """Return the operation that a request asks for, and its parameters."""
    protocol = service_model(service).metadata["protocol"]
    if protocol == "json":
        name = headers.get("X-Amz-Target", "").partition(".")[2]
        _known(service, name)
        params = json.loads(body or b"{}")
    elif protocol == "query":
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        name = form.pop("Action", "")
        _known(service, name)
        params = _from_form(form, service_model(service).operation_model(name))
    else:
        name, params = _parse_rest(service, method, path)
        params |= json.loads(body or b"{}")
    shape = service_model(service).operation_model(name).input_shape
    report = ParamValidator().validate(params, shape) if shape is not None else None
    if report is not None and report.has_errors():
        code = "ClientException" if service == "batch" else "InvalidParameterException"
        raise ApiError(code, report.generate_report())
    return name, params


def _known(service: str, name: str) -> None:
    if name not in service_model(service).operation_names:
        raise ApiError("UnknownOperationException", f"unknown operation {name}", 404)


@functools.cache
def _routes(service: str) -> list[tuple[str, re.Pattern[str], str]]:
    model = service_model(service)
    routes = []
    for name in model.operation_names:
        http = model.operation_model(name).http
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^?]+)", re.escape(http["requestUri"].partition("?")[0]))
        routes.append((http["method"], re.compile(pattern), name))
    return routes


def _parse_rest(service: str, method: str, path: str) -> tuple[str, dict[str, Any]]:
    bare, _, query = path.partition("?")
    for route_method, pattern, name in _routes(service):
        match = pattern.fullmatch(bare)
        if match and method == route_method:
            params: dict[str, Any] = {key: unquote(value) for key, value in match.groupdict().items()}
            return name, params | parse_qs(query)
    raise ApiError("UnknownOperationException", f"{method} {path}", 404)


def _from_form(form: dict[str, str], operation: OperationModel) -> dict[str, Any]:
    params: dict[str, Any] = {}
    shape = operation.input_shape
    for name, member in (shape.members if shape is not None else {}).items():
        if member.type_name == "list":
            keys = sorted(
                (k for k in form if k.startswith(f"{name}.member.")), key=lambda k: int(k.split(".")[2])
            )
            if keys:
                params[name] = [form[key] for key in keys]
        elif name in form:
            params[name] = form[name]
    return params


def check_answer(service: str, operation: str, answer: dict[str, Any]) -> None:
    """Raise unless the model allows this answer: names, types, required members, enumerations."""
    shape = service_model(service).operation_model(operation).output_shape
    if shape is None:
        problems = ["there is no answer to this operation"] if answer else []
    else:
        report = ParamValidator().validate(answer, shape)
        problems = ([report.generate_report()] if report.has_errors() else []) + _enum_problems(answer, shape)
    if problems:
        raise WrongAnswerError(f"{service}.{operation} cannot answer this: {'; '.join(problems)}\n{answer}")


def _enum_problems(value: Any, shape: Shape, path: str = "") -> list[str]:
    if shape.type_name == "structure":
        return [
            problem
            for k, v in value.items()
            for problem in _enum_problems(v, shape.members[k], f"{path}.{k}")
        ]
    if shape.type_name == "list":
        return [problem for item in value for problem in _enum_problems(item, shape.member, f"{path}[]")]
    if shape.type_name == "map":
        return [problem for v in value.values() for problem in _enum_problems(v, shape.value, f"{path}{{}}")]
    enum = shape.metadata.get("enum")
    return [f"{path}: {value!r} is none of {enum}"] if enum and value not in enum else []


def render_answer(service: str, operation: str, answer: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    check_answer(service, operation, answer)
    protocol = service_model(service).metadata["protocol"]
    headers = {"x-amzn-RequestId": str(uuid.uuid4())}
    if protocol == "query":
        shape = service_model(service).operation_model(operation).output_shape
        inner = _xml(answer, shape) if shape is not None else ""
        result = f"<{operation}Result>{inner}</{operation}Result>"
        text = f"<{operation}Response>{result}</{operation}Response>"
        return 200, headers | {"Content-Type": "text/xml"}, text.encode()
    kind = "application/x-amz-json-1.1" if protocol == "json" else "application/json"
    return 200, headers | {"Content-Type": kind}, json.dumps(answer, default=_plain).encode()


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value.timestamp()


def _xml(value: Any, shape: Shape) -> str:
    if shape.type_name == "structure":
        return "".join(f"<{k}>{_xml(v, shape.members[k])}</{k}>" for k, v in value.items())
    if shape.type_name == "list":
        return "".join(f"<member>{_xml(item, shape.member)}</member>" for item in value)
    if shape.type_name == "boolean":
        return "true" if value else "false"
    return escape(value.isoformat() if hasattr(value, "isoformat") else str(value))


def render_error(service: str, error: ApiError) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an error."""
    protocol = service_model(service).metadata["protocol"]
    headers = {"x-amzn-RequestId": str(uuid.uuid4())}
    if protocol == "query":
        text = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{error.code}</Code>"
            f"<Message>{escape(error.message)}</Message></Error><RequestId>r</RequestId></ErrorResponse>"
        )
        return error.status, headers | {"Content-Type": "text/xml"}, text.encode()
    if protocol == "json":
        body = {"__type": error.code, "message": error.message}
        headers["Content-Type"] = "application/x-amz-json-1.1"
    else:
        body = {"message": error.message}
        headers |= {"Content-Type": "application/json", "x-amzn-ErrorType": error.code}
    return error.status, headers, json.dumps(body).encode()
