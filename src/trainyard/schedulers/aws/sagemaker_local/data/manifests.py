"""Manifests: files that tell which objects a channel has.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html and,
for those with attributes, https://docs.aws.amazon.com/sagemaker/latest/dg/augmented-manifest.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from trainyard.schedulers.aws.sagemaker_local.data.objects import Item, Objects, Place, StoreFailure

#: What a pipe brings for one line of an augmented manifest: texts as they are, and the content of objects.
Piece = bytes | Item
_REFERENCE = "-ref"


def read_manifest(objects: Objects, place: Place) -> list[Item]:
    """Return the objects that a manifest names, in its order.

    Raises:
        StoreFailure: it is none, or names what does not exist.
    """
    text = b"".join(objects.chunks(place))
    try:
        head, *names = json.loads(text)
        prefix = head["prefix"]
        places = [(name, Place.parse(prefix + name)) for name in names]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreFailure(f"{place.uri} is not a manifest: {error}") from None
    items = []
    for name, where in places:
        found = [item for item in objects.listing(where) if item.place == where]
        if not found:
            raise StoreFailure(f"{place.uri} names {where.uri}, which does not exist")
        if ".." in name.split("/"):
            raise StoreFailure(f"{place.uri} names {name!r}, which would leave the channel's directory")
        items.append(Item(where, found[0].size, name.lstrip("/"), found[0].tag, found[0].modified))
    return items


def read_augmented(objects: Objects, place: Place, attributes: list[str]) -> list[list[Piece]]:
    """Return what each line of an augmented manifest brings: its attributes, in the order that is asked for.

    The value of an attribute whose name ends in ``-ref`` is the URI of an object, which is fetched when its
    turn comes. A text is brought without its quotes, any other value as JSON.

    Raises:
        StoreFailure: it is none, or a line has not all attributes.
    """
    text = b"".join(objects.chunks(place)).decode("utf-8", "surrogateescape")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_line(f"line {number} of {place.uri}", line, attributes) for number, line in lines]


def _line(where: str, line: str, attributes: Iterable[str]) -> list[Piece]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise StoreFailure(f"{where} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise StoreFailure(f"{where} is not a JSON object")
    missing = [name for name in attributes if name not in values]
    if missing:
        raise StoreFailure(f"{where} has no attribute {', '.join(map(repr, missing))}")
    return [_piece(where, name, values[name]) for name in attributes]


def _piece(where: str, name: str, value: Any) -> Piece:
    if not name.endswith(_REFERENCE):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return text.encode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        raise StoreFailure(f"{where}: the attribute {name!r} is {value!r}, which is no URI of an object")
    try:
        place = Place.parse(value)
    except StoreFailure as error:
        raise StoreFailure(f"{where}: the attribute {name!r}: {error}") from None
    return Item(place, 0, name)
