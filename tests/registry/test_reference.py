from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shunter.docker.image_reference import Reference
from shunter.errors import ConfigError

D = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("python", "docker.io", "library/python", None, None),
        ("python:3.12", "docker.io", "library/python", "3.12", None),
        ("index.docker.io/me/x:1", "docker.io", "me/x", "1", None),
        ("ghcr.io/me/a/b:v1", "ghcr.io", "me/a/b", "v1", None),
        ("localhost:5000/x", "localhost:5000", "x", None, None),
        ("[::1]:5000/x", "[::1]:5000", "x", None, None),
        ("myhost:5000/a__b/c-d.e", "myhost:5000", "a__b/c-d.e", None, None),
        (f"ghcr.io/x@{D}", "ghcr.io", "x", None, D),
        (f"ghcr.io/x:t@{D}", "ghcr.io", "x", "t", D),
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
        ("Me/Train", "'me/train'|'train'"),
        ("ghcr.io/Me/x", "lower-case: 'me/x'"),
        ("x:", "'' is not a tag"),
        ("x:" + "t" * 129, "is not a tag"),
        ("x@sha256:12", "'sha256:12' is not a digest"),
        ("a//b", "'a//b' is not a repository"),
        ("-x", "'-x' is not a repository"),
        ("host:99999/x", "'host:99999' is not a registry's host"),
        ("ho_st.x/x", "'ho_st.x' is not a registry's host"),
        (D, "is the id of an image on this machine"),
        ("x" * 256, "longer than 255"),
        ("https://ghcr.io/me/x", "is not the name of an image"),
        ("x\n", "is not a repository"),
    ],
)
def test_wrong_names_say_which_part_is_wrong(text, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        Reference.parse(text)
    assert caught.value.hint


@given(st.text(max_size=60))
@example("[/x")
@example("a:b:c/d:e@f")
def test_any_text_is_a_name_or_an_error_of_ours(text):
    try:
        reference = Reference.parse(text)
    except ConfigError:
        return
    assert Reference.parse(str(reference)) == reference
