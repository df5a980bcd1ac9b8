"""Access to the page's server: only the browser that has the token, and no page of another origin.

Five checks, each of which would stop most attacks: the server listens on loopback only; a request must name
it by one of its own names (``Host``), so that a foreign name cannot be pointed at it; what a browser marks as
coming from another site is refused, links too; a cookie is needed, which the token of the printed URL is
exchanged for; and whatever changes something needs a second secret, which only our own pages have. Pages
carry a policy that forbids every script and style but ours.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Carries the secret of a form, where it is not a field of it.
CSRF_HEADER = "x-shunter-csrf"
CSRF_FIELD = "csrf"
MOST_BODY = 1 << 20

_SAME = ("same-origin", "none")


class Secrets:
    """The secrets of one server. None of them is ever written to a log or to a file.

    Attributes:
        token: the token in the printed URL.
        cookie: the cookie that a browser gets in exchange for the token.
        csrf: the secret that forms carry.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.cookie = secrets.token_urlsafe(32)
        self.csrf = hmac.new(self.cookie.encode(), b"csrf", hashlib.sha256).hexdigest()


class BrowserGuard:
    """Refuses requests that do not come from the browser with the token, or not from our own pages.

    Args:
        app: the application that answers all other requests.
        kept: the secrets of this server.
        port: where the server listens.
    """

    def __init__(self, app: ASGIApp, kept: Secrets, port: int) -> None:
        self._app = app
        self._kept = kept
        self.cookie_name = f"shunter_ui_{port}"  # browsers send cookies to all ports of a host
        self._hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        nonce = scope["state"]["nonce"] = secrets.token_urlsafe(16)
        scope["state"]["csrf"] = self._kept.csrf
        answer = (
            self._foreign_host(scope)
            or self._exchange(scope)
            or self._foreign_page(scope)
            or self._without_cookie(scope)
        )

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_policies(MutableHeaders(scope=message), nonce)
            await send(message)

        if answer is None and "let_in" in scope["state"]:  # see shunter.ui.connection_limits
            scope["state"]["let_in"]()
        await (answer or self._app)(scope, receive, send_guarded)

    def _foreign_host(self, scope: Scope) -> PlainTextResponse | None:
        if Headers(scope=scope).get("host", "") in self._hosts:
            return None
        return _refused("This server answers to 127.0.0.1 and localhost only.", 421)

    def _foreign_page(self, scope: Scope) -> PlainTextResponse | None:
        """Return the refusal of a request that none of our pages sends; None if one may have sent it."""
        headers = Headers(scope=scope)
        host = headers["host"]
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return _refused("Requests from other origins are refused.")
        if headers.get("sec-fetch-site", "none") not in _SAME:
            return _refused(
                "Requests from other sites are refused. Open the URL that `shunter ui` has printed."
            )
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            return _refused(f"{method[:20]} is not supported.", 405)
        if method != "POST":
            return None
        if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            return _refused("A request that changes something must say where it comes from.")
        length = headers.get("content-length", "")
        is_known = "transfer-encoding" not in headers and length.isdecimal() and len(length) <= 8
        if not is_known or int(length) > MOST_BODY:
            return _refused("The request is too long, or has no Content-Length.", 413)
        return None

    def _exchange(self, scope: Scope) -> HTMLResponse | PlainTextResponse | None:
        """Exchange the token for a cookie, and leave the URL that contains the token.

        A redirect would not work: browsers withhold a strict cookie when a link in another program is opened.
        """
        query = scope["query_string"]
        if scope["path"] != "/" or scope["method"] != "GET" or b"token=" not in query:
            return None
        given = parse_qs(query.decode("latin-1")).get("token", [""])[0]
        if not is_secret(given, self._kept.token):
            return _refused("This token is not valid: `shunter ui` prints another URL each time it starts.")
        answer = HTMLResponse(
            '<!doctype html><meta http-equiv="refresh" content="0;url=/">'
            '<link rel="icon" href="data:,"><a href="/">Jobs</a>'
        )
        answer.headers["referrer-policy"] = "no-referrer"
        answer.set_cookie(self.cookie_name, self._kept.cookie, httponly=True, samesite="strict", path="/")
        return answer

    def _without_cookie(self, scope: Scope) -> PlainTextResponse | None:
        """Return the refusal of a browser that has not been let in.

        A browser sends the cookies of all programs at 127.0.0.1, in any syntax, some perhaps with our name.
        """
        for header in Headers(scope=scope).getlist("cookie"):
            for cookie in header.split(";"):
                name, _, value = cookie.strip().partition("=")
                if name == self.cookie_name and is_secret(value, self._kept.cookie):
                    return None
        return _refused("Open the URL that `shunter ui` has printed: it lets this browser in.", 401)


def is_secret(given: str, kept: str) -> bool:
    """Tell whether what a browser sent is the secret, in a time that does not depend on either."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), kept.encode())


def _refused(text: str, status: int = 403) -> PlainTextResponse:
    return PlainTextResponse(text + "\n", status)


def _add_policies(headers: MutableHeaders, nonce: str) -> None:
    headers["content-security-policy"] = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types htmx"
    )
    headers["x-content-type-options"] = "nosniff"
    headers["x-frame-options"] = "DENY"
    headers.setdefault("referrer-policy", "same-origin")  # with "no-referrer" forms have the origin "null"
    headers["cross-origin-opener-policy"] = "same-origin"
    headers["cross-origin-resource-policy"] = "same-origin"
    headers.setdefault("cache-control", "no-store")
