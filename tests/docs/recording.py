"""What a terminal showed as a picture: SVG whose lines appear one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from shunter.ui.log_html import as_html

COLOUR = re.compile(r"\x1b\[[\d;]*m")
LINE, CHARACTER, MARGIN, WIDEST = 18, 7.9, 14, 104
SECONDS_OF_COMMAND, SECONDS_OF_LINE, PAUSE = 0.6, 0.05, 1.0
SVG = "{http://www.w3.org/2000/svg}"
STYLE = """
rect{fill:#1b1f27} .command,.b{font-weight:bold} .faint{opacity:.6}
text{fill:#d8dee9;font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}
text{animation:show 1ms backwards} @keyframes show{from{visibility:hidden}}
.c1{fill:#e88388} .c2{fill:#a3be8c} .c3{fill:#ebcb8b} .c4{fill:#81a1c1} .c5{fill:#b48ead} .c6{fill:#88c0d0}
@media (prefers-reduced-motion){text{animation:none}}
"""


def draw(commands: Iterable[tuple[str, list[str]]]) -> str:
    """Return the picture of commands and of what they printed, colours included."""
    shown: list[str] = []
    longest, seconds = 0, 0.0

    def add(text: str, kind: str) -> None:
        nonlocal longest
        y = MARGIN + LINE * (len(shown) + 0.7)
        attributes = f'class="{kind}" x="{MARGIN}" y="{y:.0f}" style="animation-delay:{seconds:.2f}s"'
        shown.append(f"<text {attributes}>{spans(text)}</text>")
        longest = max(longest, len(COLOUR.sub("", text)))

    for command, lines in commands:
        add(f"$ {command}", "command")
        seconds += SECONDS_OF_COMMAND
        for line in lines:
            add(line, "line")
            seconds += SECONDS_OF_LINE
        seconds += PAUSE
    width, height = min(longest, WIDEST) * CHARACTER + 2 * MARGIN, len(shown) * LINE + 2 * MARGIN
    size = f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} xml:space="preserve">'
    back = '<rect width="100%" height="100%" rx="8"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", back, *shown, "</svg>", ""])


def spans(line: str) -> str:
    """Return a line as SVG, its colours as classes."""
    html = str(as_html(f"{line}\n".encode()))
    inner = html.removeprefix('<div class="l">').removesuffix("</div>")
    return inner.replace("<span ", "<tspan ").replace("</span>", "</tspan>")


def lines_of(picture: Path) -> list[str]:
    """Return the lines of text in a picture."""
    return ["".join(text.itertext()) for text in ET.parse(picture).iter(f"{SVG}text")]
