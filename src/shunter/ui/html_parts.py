"""What the pages are made of: the frame around each, badges, times, forms. All text is escaped by htpy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import htpy as h

from shunter.specs.status import AppState
from shunter.terminal import clean, clean_lines, format_duration
from shunter.ui.browser_guard import CSRF_FIELD

if TYPE_CHECKING:
    from starlette.requests import Request

#: Not deferred: htmx would not wait for its extensions then.
SCRIPTS = ("htmx.min.js", "hx-csp.min.js", "hx-sse.min.js", "uPlot.iife.min.js")
OWN_SCRIPTS = ("page.js", "charts.js")
STYLES = ("uPlot.min.css", "page.css")


class Parts:
    """Makes the parts of the answer to one request, with its secrets."""

    def __init__(self, request: Request) -> None:
        self._nonce: str = request.scope["state"]["nonce"]
        self._csrf: str = request.scope["state"]["csrf"]

    def htmx(self, **attributes: str | None) -> dict[str, str]:
        """Return attributes for htmx; ``sse_connect`` is ``hx-sse:connect``. No others count."""
        named = {
            "hx-" + name.replace("sse_", "sse:").replace("_", "-"): value
            for name, value in attributes.items()
            if value is not None
        }
        return {**named, "hx-nonce": self._nonce}

    def csrf(self) -> h.Element | h.VoidElement:
        """Return the hidden field that a form needs to change something."""
        return h.input(type="hidden", name=CSRF_FIELD, value=self._csrf)

    def document(self, title: str, *content: h.Node) -> str:
        """Return a whole page."""
        config = {"extensions": "hx-csp, sse", "history": False, "includeIndicatorCSS": False}
        page = h.html(lang="en")[
            h.head[
                h.meta(charset="utf-8"),
                h.meta(name="viewport", content="width=device-width, initial-scale=1"),
                h.meta(name="color-scheme", content="light dark"),
                h.meta(name="htmx-config", content=json.dumps(config)),
                h.title[f"{clean(title)} · shunter"],
                h.link(rel="icon", href="/static/icon.svg"),
                [h.link(rel="stylesheet", href=f"/static/{name}") for name in STYLES],
                [h.script(src=f"/static/{name}", nonce=self._nonce) for name in SCRIPTS],
                [h.script(src=f"/static/{name}", nonce=self._nonce, defer=True) for name in OWN_SCRIPTS],
            ],
            h.body[
                h.a(".skip", href="#content")["Skip to the content"],
                h.header(".top")[
                    h.a(".brand", href="/")["shunter"],
                    h.nav(aria_label="Pages")[h.a(href="/")["Jobs"], h.a(href="/charts")["Charts"]],
                    h.button(".keys", type="button", data_keys=True, aria_label="Keyboard shortcuts")["?"],
                ],
                h.main("#content", tabindex="-1")[content],
                _shortcuts(),
            ],
        ]
        return str(page)


def _shortcuts() -> h.Element:
    keys = {
        "/": "search",
        "j, k": "next and previous job",
        "x": "select the job",
        "Enter": "open the job",
        "g": "back to the jobs",
        "e": "end of the log",
        "f": "search the log",
        "n, p": "next and previous line that matches",
        "?": "this list",
        "Esc": "close",
    }
    return h.dialog("#shortcuts", aria_label="Keyboard shortcuts")[
        h.h2["Keyboard"],
        h.dl[[(h.dt[h.kbd[key]], h.dd[text]) for key, text in keys.items()]],
        h.form(method="dialog")[h.button["Close"]],
    ]


def url(path: str, **query: Any) -> str:
    """Return the URL of one of our pages; what is None or "" is left out."""
    pairs = {name: value for name, value in query.items() if value not in (None, "", [])}
    return f"{path}?{urlencode(pairs, doseq=True, errors='replace')}" if pairs else path


def badge(state: AppState | str, *, stale: bool = False) -> h.Element:
    """Return a state as a coloured word."""
    name = str(state)
    return h.span(class_=f"badge {name.lower()}" + (" stale" if stale else ""))[name]


def shown_time(seconds: float | None) -> h.Node:
    """Return a time as this machine's clock has it."""
    if seconds is None:
        return "-"
    local = time.localtime(seconds)
    today = time.strftime("%F", local) == time.strftime("%F")
    text = time.strftime("%H:%M:%S" if today else "%b %d %H:%M", local)
    return h.time(datetime=time.strftime("%FT%T%z", local), title=time.strftime("%F %T", local))[text]


def duration(start: float | None, end: float | None, *, ended: bool) -> str:
    """Return how long something has taken, or takes until now."""
    if start is None or (ended and end is None):
        return "-"
    return format_duration((end or time.time()) - start)


def size(count: float) -> str:
    """Return a number of bytes as readable text."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def facts(rows: Mapping[str, h.Node]) -> h.Element:
    """Return a list of names and values, without those that are empty."""
    return h.dl(".facts")[[h.div[h.dt[name], h.dd[value]] for name, value in rows.items() if value]]


def problem(text: str, hint: str = "") -> h.Element:
    """Return a message about something that is wrong."""
    return h.p(".problem", role="status")[clean_lines(text), h.br if hint else None, clean_lines(hint)]


def verbatim(text: str) -> h.Element:
    """Return a text as it was written, control characters made visible."""
    return h.pre(tabindex="0")[clean_lines(text)]


def tabs(entries: Sequence[tuple[str, str]], current: str) -> h.Element:
    """Return links to the parts of a page: names and URLs."""
    return h.nav(".tabs", aria_label="Parts of this page")[
        [h.a(href=target, aria_current="page" if name == current else None)[name] for name, target in entries]
    ]


def drawing(name: str, **attributes: Any) -> h.Element:
    """Return the opening of an SVG element; geometry is in attributes, so that no styles are needed."""
    shown = {key: f"{value:.1f}" if isinstance(value, float) else value for key, value in attributes.items()}
    return h.Element(name)({key.rstrip("_").replace("_", "-"): value for key, value in shown.items()})
