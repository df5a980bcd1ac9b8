"""IAM by moto, with the one operation that moto lacks: SimulatePrincipalPolicy, on the policies in moto.

It judges identity policies as IAM does as far as tests need it: Allow and Deny, wildcards, StringEquals,
StringLike and Bool conditions. Its answers are checked against botocore's model of the service.
"""

from __future__ import annotations

import json
import re
import threading
from fnmatch import fnmatchcase
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.aws.fake.wire import ApiError, render_answer, render_error

SIMULATE = "SimulatePrincipalPolicy"


class Iam(ThreadingHTTPServer):
    """The endpoint.

    Attributes:
        calls: operations that were asked for, in order.
        forbidden: operations that the caller may not carry out.
    """

    daemon_threads = True

    def __init__(self, moto: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        import botocore.session

        self.moto = moto
        #: For what tests prepare, which is not counted.
        self.client: Any = botocore.session.Session().create_client("iam", "us-east-1", endpoint_url=moto)
        self.calls: list[str] = []
        self.forbidden: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Iam:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def trust(self, role: str, *actions: str, service: str = "sagemaker.amazonaws.com") -> None:
        """Say who may assume a role."""
        statement = {"Effect": "Allow", "Action": list(actions), "Principal": {"Service": service}}
        self.client.update_assume_role_policy(RoleName=role, PolicyDocument=_document([statement]))

    def put(self, kind: str, name: str, *statements: dict[str, Any]) -> None:
        """Give a user or role one policy, with these statements."""
        key = {f"{kind.capitalize()}Name": name}
        given = [{"Effect": "Allow", **statement} for statement in statements]
        put = getattr(self.client, f"put_{kind}_policy")
        put(PolicyName="all", PolicyDocument=_document(given), **key)

    def policies(self, principal: str) -> list[dict[str, Any]]:
        """Return the inline policies of a user or role, as moto has them."""
        client = self.client
        kind = "user" if ":user/" in principal else "role"
        key, name = f"{kind.capitalize()}Name", principal.rpartition("/")[2]
        found = []
        for policy in getattr(client, f"list_{kind}_policies")(**{key: name})["PolicyNames"]:
            document = getattr(client, f"get_{kind}_policy")(**{key: name, "PolicyName": policy})
            statements = document["PolicyDocument"]["Statement"]
            found += statements if isinstance(statements, list) else [statements]
        return found

    def simulate(self, form: dict[str, str]) -> dict[str, Any]:
        statements = self.policies(form["PolicySourceArn"])
        context = {}
        for number in range(1, 50):
            key = form.get(f"ContextEntries.member.{number}.ContextKeyName")
            if key:
                context[key] = form[f"ContextEntries.member.{number}.ContextKeyValues.member.1"]
        results = []
        for action in _members(form, "ActionNames"):
            for resource in _members(form, "ResourceArns"):
                decision, missing = judge(statements, action, resource, context)
                results.append(
                    {
                        "EvalActionName": action,
                        "EvalResourceName": resource,
                        "EvalDecision": decision,
                        "MissingContextValues": sorted(missing),
                    }
                )
        return {"EvaluationResults": results, "IsTruncated": False}


def _document(statements: list[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _members(form: dict[str, str], name: str) -> list[str]:
    return [value for key, value in form.items() if re.fullmatch(rf"{name}\.member\.\d+", key)]


def judge(
    statements: list[dict[str, Any]], action: str, resource: str, context: dict[str, str]
) -> tuple[str, set[str]]:
    """Return IAM's decision, and the keys of conditions that nobody gave a value for."""
    effects, missing = set(), set()
    for statement in statements:
        if not any(fnmatchcase(action.lower(), each.lower()) for each in _list(statement["Action"])):
            continue
        if not any(fnmatchcase(resource, each) for each in _list(statement["Resource"])):
            continue
        lacking = {key for test in statement.get("Condition", {}).values() for key in test} - set(context)
        missing |= lacking
        if not lacking and _holds(statement.get("Condition", {}), context):
            effects.add(statement["Effect"])
    if "Deny" in effects:
        return "explicitDeny", missing
    return ("allowed" if "Allow" in effects else "implicitDeny"), missing


def _holds(condition: dict[str, Any], context: dict[str, str]) -> bool:
    for operator, tests in condition.items():
        matches = fnmatchcase if operator == "StringLike" else (lambda value, wanted: value == wanted)
        for key, wanted in tests.items():
            if not any(matches(context[key], str(each)) for each in _list(wanted)):
                return False
    return True


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Iam

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        operation = form["Action"]
        self.server.calls.append(operation)
        try:
            if operation in self.server.forbidden:
                message = (
                    f"User: arn:aws:iam::123456789012:user/me is not authorized to perform: iam:{operation}"
                )
                raise ApiError("AccessDenied", message, 403)
            if operation == SIMULATE:
                answer = render_answer("iam", SIMULATE, self.server.simulate(form))
            else:
                answer = self._forwarded(body)
        except ApiError as error:
            answer = render_error("iam", error)
        status, headers, content = answer
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(self.server.moto)
        connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=30)
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            connection.request("POST", self.path, body, headers)
            answer = connection.getresponse()
            kind = {"Content-Type": answer.getheader("Content-Type") or "text/xml"}
            return answer.status, kind, answer.read()
        finally:
            connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass
