"""Documents of a registry that is broken, or hostile. A real one refuses to store them."""

from __future__ import annotations

import copy
import gzip
import io
import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.docker.image_reference import Reference
from shunter.errors import ShunterError
from shunter.image_registry.client import ManifestDocument
from shunter.image_registry.image_manifest import (
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    RegistryImage,
    parse_object,
    read_image,
)
from shunter.image_registry.registry_errors import RegistryError
from shunter.workspace.images.base_files import RegistryFiles
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_config import add_layers, working_dir
from tests.registry.images import sha256

REFERENCE = Reference.parse("registry.test/job:v1")
CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"WorkingDir": "/app", "Labels": {"a": "b"}, "Env": ["A=1"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "1" * 64]},
    "history": [{"created_by": "a step"}],
}
MANIFEST = {
    "schemaVersion": 2,
    "mediaType": OCI_MANIFEST,
    "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "", "size": 2},
    "layers": [{"mediaType": f"{OCI_LAYER}+gzip", "digest": "sha256:" + "2" * 64, "size": 100}],
    "annotations": {"a": "b"},
}
INDEX = {
    "schemaVersion": 2,
    "mediaType": OCI_INDEX,
    "manifests": [
        {"digest": "", "size": 2, "platform": {"os": "linux", "architecture": "amd64", "variant": "v8"}}
    ],
}


class Registry:
    """Gives out these documents, whatever they are, and refuses digests that it would not find."""

    registry = "registry.test"

    def __init__(self, index, manifest, config):
        config_body, manifest_body = json.dumps(config).encode(), json.dumps(manifest).encode()
        manifest_body = manifest_body.replace(b'"digest": ""', f'"digest": "{sha256(config_body)}"'.encode())
        index_body = json.dumps(index).encode()
        index_body = index_body.replace(b'"digest": ""', f'"digest": "{sha256(manifest_body)}"'.encode())
        self.blobs = {sha256(config_body): config_body}
        self.manifests = {"v1": index_body, sha256(manifest_body): manifest_body}

    def manifest(self, repository, selector):
        body = self.manifests[selector]
        return ManifestDocument(body, "", sha256(body))

    def read_blob(self, repository, digest, longest):
        return self.blobs[digest]


def places(value, path=()):
    """Yield the path of every member of a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in items:
        yield from places(member, (*path, key))


PLACES = [
    (which, path) for which, document in enumerate((INDEX, MANIFEST, CONFIG)) for path in places(document)
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(place=st.sampled_from(PLACES), value=JSON, remove=st.booleans())
def test_one_member_is_something_else(place, value, remove):
    documents = copy.deepcopy([INDEX, MANIFEST, CONFIG])
    which, (*above, last) = place
    parent = documents[which]
    for key in above:
        parent = parent[key]
    if remove:
        del parent[last]
    else:
        parent[last] = value
    try:
        image = read_image(Registry(*documents), REFERENCE, "linux/amd64")
    except ShunterError:
        return
    workdir = working_dir(image.config)
    made = add_layers(image.config, ["sha256:x"], workdir=workdir, labels={}, history=["ours"])
    assert made["rootfs"]["diff_ids"][-1] == "sha256:x"
    assert all(layer["digest"].startswith("sha256:") for layer in image.manifest["layers"])


@pytest.mark.parametrize(
    ("body", "what"),
    [(b"[" * 100_000, "deep"), (b"[]", "a list"), (b"\xff", "not text"), (b"", "empty"), (b"1", "a number")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_an_object(body, what):
    with pytest.raises(RegistryError, match="the manifest of x is not a JSON object"):
        parse_object(body, "the manifest of x")


@pytest.mark.parametrize("digest", ["sha256:../../../v2/other", "sha256:" + "A" * 64, "md5:" + "0" * 32, "x"])
def test_a_digest_that_is_not_one_never_reaches_a_url(digest):
    index = copy.deepcopy(INDEX)
    index["manifests"][0]["digest"] = digest
    with pytest.raises(RegistryError, match=r"manifests\[0\]\.digest is not a digest"):
        read_image(Registry(index, MANIFEST, CONFIG), REFERENCE, "linux/amd64")


class Layers:
    """One layer to be looked into."""

    registry = "x"

    def __init__(self, packed):
        self.packed = io.BytesIO(packed)

    def patiently(self, ask, purpose):
        return ask()

    def open_blob(self, repository, digest):
        return self

    def read(self, size=1 << 12):
        return self.packed.read(size)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def look(tmp_path):
    """Return what a layer has at ``app``."""

    def look(packed):
        key = sha256(packed)
        media_type = f"{OCI_LAYER}+gzip" if packed.startswith(b"\x1f\x8b") else OCI_LAYER
        descriptor = {"mediaType": media_type, "digest": key, "size": len(packed)}
        manifest = {**MANIFEST, "layers": [descriptor]}
        image = RegistryImage(REFERENCE, key, OCI_MANIFEST, manifest, CONFIG, "linux/amd64", key)
        return RegistryFiles(Layers(packed), image, ImageCache(str(tmp_path))).lookup(["app"])

    return look


def archive(*members, pax=None):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT, pax_headers=pax) as tar:
        for name, size in members:
            info = tarfile.TarInfo(name)
            info.size, info.uid = size, 7
            tar.addfile(info, io.BytesIO(bytes(size)))
    return raw.getvalue()


def test_layers_are_looked_into(look):
    plain = archive(("other", 10_000), ("app", 5))
    for packed in (plain, gzip.compress(plain), gzip.compress(plain[:700]) + gzip.compress(plain[700:])):
        found = look(packed)
        assert (found["app"].kind, found["app"].uid) == ("file", 7)
    assert look(gzip.compress(plain)[:-700]) == {}
