from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import ConfigError
from shunter.workspace.images.image_content import Cargo, locate
from shunter.workspace.images.layer import (
    MTIME,
    LayerContent,
    small_change,
    tar_size,
    tar_stream,
    write_gzip,
)
from shunter.workspace.manifest import Entry


def content_of(entries: Iterable[Entry], contents: Mapping[str, bytes] | None = None) -> LayerContent:
    given = contents or {}
    return LayerContent(
        tuple(entries), lambda entry: [given.get(entry.path, b"\1" * entry.size)] if entry.size else []
    )


def tar_of(entries: Iterable[Entry], contents: Mapping[str, bytes] | None = None) -> bytes:
    return b"".join(tar_stream(content_of(entries, contents)))


def members(tar: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as archive:
        return archive.getmembers()


# ---- the tar

_names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=90).filter(
    lambda name: name not in (".", "..") and not name.startswith(".wh.")
)
_raw_names = st.binary(min_size=1, max_size=60).filter(
    lambda name: not set(name) & {0, 47} and name not in (b".", b"..") and not name.startswith(b".wh.")
)
_paths = st.lists(st.one_of(_names, _raw_names.map(os.fsdecode)), min_size=1, max_size=6).map("/".join)
_entries = st.builds(
    Entry,
    path=_paths,
    kind=st.sampled_from(["file", "link", "dir"]),
    mode=st.integers(0, 0o7777),
    uid=st.one_of(st.integers(0, 70_000), st.integers(0, 2**32 - 2)),
    gid=st.integers(0, 70_000),
    target=st.one_of(_paths, st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1)),
)


@given(st.lists(_entries, max_size=5), st.integers(0, 2000))
def test_the_tar_says_what_the_entries_say(entries: list[Entry], size: int) -> None:
    entries = [entry._replace(size=size if entry.kind == "file" else 0) for entry in entries]
    tar = tar_of(entries)
    assert len(tar) == tar_size(entries)
    found = members(tar)
    assert len(found) == len(entries)
    for entry, member in zip(entries, found, strict=True):
        assert os.fsencode(member.name) == os.fsencode(entry.path)
        assert (member.mode, member.uid, member.gid) == (entry.mode, entry.uid, entry.gid)
        assert (member.size, member.mtime, member.uname) == (entry.size, MTIME, "")
        assert (member.isreg(), member.issym(), member.isdir()) == tuple(
            entry.kind == kind for kind in ("file", "link", "dir")
        )
        if entry.kind == "link":
            assert os.fsencode(member.linkname) == os.fsencode(entry.target)


def test_a_file_of_more_than_8_gib_has_its_size() -> None:
    entry = Entry("big", "file", 0o644, size=(8 << 30) + 5)
    head = next(tar_stream(LayerContent((entry,), lambda entry: itertools.repeat(bytes(1 << 20)))))
    with tarfile.open(fileobj=io.BytesIO(head[:1536] + bytes(512)), mode="r|") as archive:
        first = archive.next()
    assert first is not None
    assert first.size == entry.size
    assert tar_size([entry]) == 1536 + entry.size + (-entry.size % 512) + 1024


def test_a_layer_in_a_file(tmp_path: Path) -> None:
    block = os.urandom(3_000_000)
    content = content_of([Entry("a", "file", 0o644, len(block))], {"a": block})
    seen: list[int] = []
    layer = write_gzip(content, str(tmp_path / "layer.gz"), seen.append)
    packed, tar = (tmp_path / "layer.gz").read_bytes(), b"".join(tar_stream(content))
    assert gzip.decompress(packed) == tar
    assert layer.digest == f"sha256:{hashlib.sha256(packed).hexdigest()}"
    assert layer.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    assert (layer.size, seen[-1]) == (len(packed), len(tar))
    write_gzip(content, str(tmp_path / "again.gz"))
    assert (tmp_path / "again.gz").read_bytes() == packed


# ---- deltas

Tree = Mapping[str, Any]
_leaves = st.tuples(st.sampled_from(["file", "link"]), st.integers(0, 2))
_trees = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), _leaves, max_size=3),
    lambda below: st.dictionaries(st.sampled_from("abcd"), st.one_of(_leaves, below), max_size=4),
    max_leaves=12,
)


def layer_of(tree: Tree, path: str = "w", mode: int = 0o755) -> list[Entry]:
    entries = [Entry(path, "dir", mode)]
    for name, item in tree.items():
        below = f"{path}/{name}"
        if isinstance(item, dict):
            entries += layer_of(item, below, 0o700 + len(item))
        elif item[0] == "file":
            entries.append(Entry(below, "file", 0o644, digest=str(item[1])))
        else:
            entries.append(Entry(below, "link", 0o777, target=str(item[1])))
    return sorted(entries)


def flattened(*layers: Iterable[Entry]) -> dict[str, Entry]:
    """Lay layers on top of each other, as the OCI image spec says."""
    result: dict[str, Entry] = {}
    for layer in layers:
        entries = list(layer)
        for entry in entries:
            was = result.get(entry.path)
            if entry.kind != "dir" or (was is not None and was.kind != "dir"):
                below = f"{entry.path}/"
                result = {path: kept for path, kept in result.items() if not path.startswith(below)}
            parent = entry.path.rpartition("/")[0]
            assert not parent or result[parent].kind == "dir", f"{entry.path} has no directory above it"
            result[entry.path] = entry
    return result


@given(_trees, _trees, _trees)
def test_base_anchor_and_delta_are_base_and_the_new_layer(base: Tree, old: Tree, new: Tree) -> None:
    below, anchor, whole = layer_of(base, mode=0o711), layer_of(old), layer_of(new)
    change = small_change(anchor, content_of(whole))
    if change is not None:
        assert flattened(below, anchor, change.entries) == flattened(below, whole)


# ---- placement and content


def lookup_in(image: Mapping[str, Entry]) -> Any:
    return lambda paths: {path: image[path] for path in paths if path in image}


def test_links_on_the_way_are_followed() -> None:
    image = {
        "app": Entry("app", "link", 0o777, target="srv/../data/code"),
        "data": Entry("data", "dir", 0o750),
        "data/code": Entry("data/code", "link", 0o777, target="/real"),
        "srv": Entry("srv", "dir", 0o755),
    }
    where = locate("/app/sub", lookup_in(image))
    assert where.path == "real/sub"
    assert list(where.by_path) == ["real", "real/sub"]


def test_a_circle_of_links_and_a_file_in_the_way_are_refused() -> None:
    with pytest.raises(ConfigError, match="loop of symbolic links"):
        locate(
            "/a",
            lookup_in(
                {"a": Entry("a", "link", 0o777, target="b"), "b": Entry("b", "link", 0o777, target="a")}
            ),
        )
    with pytest.raises(ConfigError, match="/a/b is a file there"):
        locate("/a/b/c", lookup_in({"a": Entry("a", "dir", 0o755), "a/b": Entry("a/b", "file", 0o755)}))


def test_a_name_that_means_removal_is_refused() -> None:
    cargo = Cargo([Entry("a/.wh.b", "file", 0o644, 0, "")], lambda entry: [])
    with pytest.raises(ConfigError, match=r"'a/\.wh\.b'") as caught:
        cargo.compose("/app", lookup_in({}))
    assert ".shunterignore" in caught.value.hint
