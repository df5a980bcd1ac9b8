from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shunter.docker.image_reference import Reference, api_host, is_loopback, split_host
from shunter.errors import ConfigError

D = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("python", "docker.io", "library/python", None, None),
        ("python:3.12", "docker.io", "library/python", "3.12", None),
        ("me/train", "docker.io", "me/train", None, None),
        ("docker.io/python", "docker.io", "library/python", None, None),
        ("index.docker.io/me/x:1", "docker.io", "me/x", "1", None),
        ("ghcr.io/me/a/b:v1", "ghcr.io", "me/a/b", "v1", None),
        ("localhost/x", "localhost", "x", None, None),
        ("localhost:5000/x", "localhost:5000", "x", None, None),
        ("127.0.0.1:5000/x:y", "127.0.0.1:5000", "x", "y", None),
        ("[::1]:5000/x", "[::1]:5000", "x", None, None),
        ("[2001:db8::1]/x", "[2001:db8::1]", "x", None, None),
        ("myhost:5000/a__b/c-d.e", "myhost:5000", "a__b/c-d.e", None, None),
        (f"ghcr.io/x@{D}", "ghcr.io", "x", None, D),
        (f"ghcr.io/x:t@{D}", "ghcr.io", "x", "t", D),
        ("HOST/x", "HOST", "x", None, None),
        (
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/x:1",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com",
            "team/x",
            "1",
            None,
        ),
    ],
)
def test_names_mean_what_they_mean_to_docker(text, registry, repository, tag, digest):
    assert Reference.parse(text) == Reference(registry, repository, tag, digest)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the repository is missing"),
        ("ghcr.io/", "the repository is missing"),
        ("Me/Train", "'me/train'|'train'"),
        ("ghcr.io/Me/x", "lower-case: 'me/x'"),
        ("x:", "'' is not a tag"),
        ("x:a b", "'a b' is not a tag"),
        ("x:" + "t" * 129, "is not a tag"),
        ("x@sha256:12", "'sha256:12' is not a digest"),
        ("x@", "'' is not a digest"),
        ("a//b", "'a//b' is not a repository"),
        ("-x", "'-x' is not a repository"),
        ("host:99999/x", "'host:99999' is not a registry's host"),
        ("ho_st.x/x", "'ho_st.x' is not a registry's host"),
        (D, "is the id of an image on this machine"),
        ("a" * 64, "is the id of an image on this machine"),
        ("x" * 256, "longer than 255"),
        ("https://ghcr.io/me/x", "is not the name of an image"),
        ("x\n", "is not a repository"),
    ],
)
def test_wrong_names_say_which_part_is_wrong(text, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        Reference.parse(text)
    assert caught.value.hint


_name = st.from_regex(r"[a-z0-9]+(?:(?:\.|_|__|-{1,3})[a-z0-9]+){0,2}", fullmatch=True)
_hosts = st.sampled_from(
    ["docker.io", "ghcr.io", "localhost", "localhost:5000", "[::1]:5000", "A.b:1", "10.0.0.1"]
)
_tags = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)
_digests = st.none() | st.binary(min_size=32, max_size=32).map(lambda value: f"sha256:{value.hex()}")


@given(_hosts, st.lists(_name, min_size=1, max_size=3).map("/".join), _tags, _digests)
def test_what_is_written_reads_back(registry, path, tag, digest):
    repository = f"library/{path}" if registry == "docker.io" and "/" not in path else path
    reference = Reference(registry, repository, tag, digest)
    assert Reference.parse(str(reference)) == reference
    assert Reference.parse(str(reference.pinned(D))) == Reference(registry, repository, None, D)


@given(st.text(max_size=60))
@example("[/x")
@example("a:b:c/d:e@f")
def test_any_text_is_a_name_or_an_error_of_ours(text):
    try:
        reference = Reference.parse(text)
    except ConfigError:
        return
    assert Reference.parse(str(reference)) == reference


def test_selector_prefers_what_is_exact():
    assert Reference.parse("x").selector == "latest"
    assert Reference.parse("x:1").selector == "1"
    assert Reference.parse(f"x:1@{D}").selector == D


def test_hosts():
    assert api_host("docker.io") == "registry-1.docker.io"
    assert api_host("ghcr.io") == "ghcr.io"
    assert split_host("[::1]:5000") == ("::1", 5000)
    assert split_host("ghcr.io") == ("ghcr.io", None)
    loopback = ["localhost", "LOCALHOST:5", "127.0.0.1", "127.9.8.7:1", "[::1]", "[::1]:5000"]
    assert all(is_loopback(host) for host in loopback)
    assert not any(
        is_loopback(host) for host in ["10.0.0.1", "localhost.example.com", "[2001:db8::1]:5000", "1270.1"]
    )
