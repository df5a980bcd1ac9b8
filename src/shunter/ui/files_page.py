"""The page of a job's files: folders, and the beginning of a text or an image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import htpy as h

from shunter.schedulers.kept_results import ResultFile
from shunter.terminal import clean
from shunter.ui.html_parts import problem, shown_time, size, url, verbatim
from shunter.ui.job_files import CODE, IMAGES, FolderView

#: Files and folders that one page lists; sentences about what is left out.
MOST_LISTED, MOST_LEFT_OUT = 1000, 20


@dataclass(frozen=True)
class FilesView:
    """Where the page is: a job, and one of its places, of which each has folders.

    Attributes:
        handle: the job.
        place: ``ROLE/K``, or `CODE`.
        places: all of them.
    """

    handle: str
    place: str
    places: Sequence[str]

    def url(self, path: str = "/job", **query: Any) -> str:
        """Return a URL about this place."""
        tab = "Files" if path == "/job" else None
        return url(path, handle=self.handle, tab=tab, place=self.place, **query)


def folder_part(view: FilesView, folder: FolderView) -> list[h.Node]:
    """Return what is in a folder."""
    below = folder.path + "/" if folder.path else ""
    folders = list(folder.folders.items())[:MOST_LISTED]
    files = folder.files[: MOST_LISTED - len(folders)]
    listed = len(folder.folders) + len(folder.files)
    return [
        _heading(view, folder.path, is_file=False),
        h.table(".jobs.files")[
            h.thead[h.tr[[h.th(scope="col")[text] for text in ("Name", "Size", "Changed", "")]]],
            h.tbody[
                [
                    h.tr(data_row=True)[
                        h.td(".name")[h.a(href=view.url(folder=below + name))[_shown(name) + "/"]],
                        h.td(".time")[size(total)],
                        h.td[h.small[f"{count} file{'' if count == 1 else 's'}"]],
                        h.td[_archive(view, below + name)],
                    ]
                    for name, (count, total) in folders
                ],
                [_file_row(view, file, len(below)) for file in files],
            ],
        ]
        if listed
        else h.p(".note")["There are no files here."],
        h.p(".note")[f"{MOST_LISTED} of {listed} are listed."] if listed > MOST_LISTED else None,
        [h.p(".note")[f"Left out: {_shown(text)}"] for text in folder.left_out[:MOST_LEFT_OUT]],
        h.p(".note")[f"Left out: {len(folder.left_out) - MOST_LEFT_OUT} more"]
        if len(folder.left_out) > MOST_LEFT_OUT
        else None,
    ]


def _file_row(view: FilesView, file: ResultFile, skipped: int) -> h.Element:
    return h.tr(data_row=True)[
        h.td(".name")[h.a(href=view.url(file=file.path))[_shown(file.path[skipped:])]],
        h.td(".time")[size(file.size)],
        h.td[shown_time(file.modified)],
        h.td[_download(view, file.path)],
    ]


def file_part(view: FilesView, file: ResultFile, data: bytes) -> list[h.Node]:
    """Return a file: an image, the beginning of a text, or that it is neither."""
    kind = os.path.splitext(file.path)[1].lower()
    shown: h.Node
    if kind in IMAGES:
        shown = h.img(".view", src=view.url("/job/file", file=file.path, view="image"), alt=_shown(file.path))
    elif b"\0" in data:
        shown = h.p(".note")["It is not text. Download it to look at it."]
    else:
        more = file.size > len(data)
        shown = h.fragment[
            verbatim(data.decode("utf-8", "replace")) if data else h.p(".note")["It is empty."],
            h.p(".note")[f"The first {size(len(data))} of {size(file.size)}."] if more else None,
        ]
    return [
        _heading(view, file.path, is_file=True),
        h.p(".bar")[h.span[size(file.size)], shown_time(file.modified) if file.modified else None],
        shown,
    ]


def nothing_part(view: FilesView, text: str, hint: str) -> list[h.Node]:
    """Return the choice of places, and why this one has no files."""
    return [_heading(view, "", is_file=False, is_there=False), problem(text, hint)]


def _heading(view: FilesView, path: str, *, is_file: bool, is_there: bool = True) -> h.Element:
    """Return the choice of a place, the folders above, and the download."""
    parts = path.split("/") if path else []
    links: list[h.Node] = [h.a(href=view.url())["All files"]]
    for number, name in enumerate(parts, 1):
        folder = "/".join(parts[:number])
        is_last = number == len(parts)
        links += [" / ", _shown(name) if is_last else h.a(href=view.url(folder=folder))[_shown(name)]]
    results = [place for place in view.places if place != CODE]
    return h.div(".bar")[
        h.form(method="get", action="/job", data_submit_on_change=True)[
            h.input(type="hidden", name="handle", value=view.handle),
            h.input(type="hidden", name="tab", value="Files"),
            h.select(name="place", aria_label="Whose files")[
                [
                    h.option(value=place, selected=place == view.place)[
                        "code, as submitted" if place == CODE else clean(f"results of {place}")
                    ]
                    for place in view.places[:5000]
                ]
            ],
            h.button(".submit", type="submit")["Show"],
        ],
        h.nav(".folders", aria_label="Folders above")[links],
        h.span(".right")[
            (_download(view, path) if is_file else _archive(view, path)) if is_there else None,
            _button(url("/job/files.tar", handle=view.handle), f"Results of all {len(results)}")
            if len(results) > 1
            else None,
        ],
    ]


def _download(view: FilesView, path: str) -> h.Element:
    return _button(view.url("/job/file", file=path), "Download", f"Download {_shown(path)}")


def _archive(view: FilesView, folder: str) -> h.Element:
    label = f"Download {_shown(folder) or 'all'} as tar"
    return _button(view.url("/job/files.tar", folder=folder), "Download as tar", label)


def _button(href: str, text: str, label: str | None = None) -> h.Element:
    return h.a(".button", href=href, download=True, aria_label=label)[text]


def _shown(text: str) -> str:
    """Return a name as text that can be sent: file systems allow names that are not UTF-8."""
    return clean(text.encode("utf-8", "replace").decode())


def as_attachment(name: str) -> str:
    """Return the header that saves an answer as a file."""
    return f"attachment; filename*=UTF-8''{quote(name.encode('utf-8', 'replace'), safe='')}"
