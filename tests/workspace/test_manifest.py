from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.workspace.manifest import Entry, Manifest

names = (
    st.binary(min_size=1, max_size=6)
    .map(os.fsdecode)
    .filter(lambda name: "/" not in name and "\0" not in name)
)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
files = st.tuples(names, st.just("file"), st.integers(0, 0o7777), st.integers(0, 2**40), digests)
links = st.tuples(names, st.just("link"), st.just(0o777), st.just(0), st.just(""), names)
directories = st.tuples(names, st.just("dir"), st.integers(0, 0o7777))
entries = st.one_of(files, links, directories).map(lambda fields: Entry(*fields))
manifests = st.lists(entries, unique_by=lambda entry: entry.path).map(Manifest)


@given(manifests)
def test_there_and_back(manifest: Manifest) -> None:
    again = Manifest.loads(manifest.dumps())
    assert again == manifest
    assert again.fingerprint == manifest.fingerprint


def test_what_makes_a_difference() -> None:
    digest, other = "a" * 64, "b" * 64
    variants = [
        [],
        [Entry("a", "file", 0o644, 1, digest)],
        [Entry("b", "file", 0o644, 1, digest)],
        [Entry("a", "file", 0o755, 1, digest)],
        [Entry("a", "file", 0o644, 1, other)],
        [Entry("a", "link", 0o777, target="b")],
        [Entry("a", "link", 0o777, target="c")],
        [Entry("a", "dir", 0o755)],
        [Entry("a", "file", 0o644, 1, digest), Entry("e", "dir", 0o755)],
    ]
    assert len({Manifest(variant).fingerprint for variant in variants}) == len(variants)


def test_the_fingerprint_is_the_same_for_ever() -> None:
    manifest = Manifest([Entry("a", "file", 0o644, 1, "a" * 64), Entry("l", "link", 0o777, target="a")])
    assert manifest.fingerprint == FIXED


FIXED = "a1def54e42e735b77ff0cc9468c07b0bbeb3dd3e0a14fc63109c4ca5582d80af"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"format": 99, "fingerprint": "", "entries": []}', b"null", b"\xff"],
)
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(ValueError):
        Manifest.loads(data)


def test_a_damaged_manifest() -> None:
    data = Manifest([Entry("a", "file", 0o644, 1, "a" * 64)]).dumps()
    with pytest.raises(ValueError, match="fingerprint"):
        Manifest.loads(data.replace(b"aaaa", b"aaab"))
