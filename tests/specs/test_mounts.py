from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import MountParseError
from shunter.specs import BindMount, DeviceMount, MountType, VolumeMount, parse_mounts


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("type=bind,src=/a,dst=/b", BindMount("/a", "/b")),
        ("type=bind,source=/a,target=/b,readonly", BindMount("/a", "/b", True)),
        ("type=bind,source=/a,destination=/b,read_only", BindMount("/a", "/b", True)),
        ("type=bind,src=/a,dst=/b,readonly=true", BindMount("/a", "/b", True)),
        ("type=bind,src=/a,dst=/b,readonly=False", BindMount("/a", "/b", False)),
        ("type=bind,dst=/b,src=/a=c", BindMount("/a=c", "/b")),
        ("type=volume,src=~/v,dst=/b", VolumeMount("~/v", "/b")),
        ("type=volume,src=v,dst=/b,readonly", VolumeMount("v", "/b", True)),
        ("type=device,src=/dev/x", DeviceMount("/dev/x", "/dev/x")),
        ("type=device,src=/dev/x,dst=/dev/y,perm=rw", DeviceMount("/dev/x", "/dev/y", "rw")),
        ("type=device,src=/dev/x,permissions=r", DeviceMount("/dev/x", "/dev/x", "r")),
    ],
)
def test_mounts(text: str, mount: object) -> None:
    assert parse_mounts(text.split(",")) == [mount]


def test_several_mounts_and_none() -> None:
    text = "type=bind,src=/a,dst=/b,type=volume,src=v,dst=/w,readonly,type=device,src=/d"
    assert parse_mounts(text.split(",")) == [
        BindMount("/a", "/b"),
        VolumeMount("v", "/w", True),
        DeviceMount("/d", "/d"),
    ]
    assert parse_mounts([]) == []
    assert [kind.value for kind in MountType] == ["bind", "volume", "device"]


def test_the_home_directory_is_expanded_for_bind_mounts_only(tmp_path: Path) -> None:
    home = str(tmp_path / "user")
    assert parse_mounts(["type=bind", "src=~/a", "dst=~/b"]) == [BindMount(f"{home}/a", "~/b")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("src=/a", "item 1 ('src=/a'): a mount must begin with type="),
        ("type=tape,src=/a,dst=/b", "there is no mount type 'tape'"),
        ("type=bind,src=/a", "dst is missing"),
        ("type=bind,dst=/a", "src is missing"),
        ("type=bind,src=/a,dst=/b,colour=red", "item 4 ('colour=red'): unknown key 'colour'"),
        ("type=bind,sorce=/a,dst=/b", "unknown key 'sorce'"),
        ("type=bind,src=/a,src=/c,dst=/b", "src is given twice"),
        ("type=bind,src=/a,source=/c,dst=/b", "src is given twice"),
        ("type=bind,src=,dst=/b", "src has no value"),
        ("type=bind,src=/a,dst", "dst has no value"),
        ("type=", "type has no value"),
        ("type=bind,src=/a,dst=/b,readonly=perhaps", "must be true or false"),
        ("type=bind,src=/a,dst=/b,perm=r", "perm does not apply to a mount of type bind"),
        ("type=device,src=/a,readonly", "readonly does not apply to a mount of type device"),
        ("type=device,src=/a,perm=rx", "'x' is not one of r, w, m"),
    ],
)
def test_malformed(text: str, problem: str) -> None:
    with pytest.raises(MountParseError) as caught:
        parse_mounts(text.split(","))
    assert problem in str(caught.value)
    assert caught.value.hint


@given(
    st.lists(
        st.text("typebindsrc=/,~ \tdolumv") | st.sampled_from(["type=bind", "src=/a", "dst=/b", "readonly"])
    )
)
def test_anything_parses_or_is_refused(items: list[str]) -> None:
    try:
        mounts = parse_mounts(items)
    except MountParseError as error:
        assert error.message  # noqa: PT017 - it need not be raised
    else:
        assert len(mounts) == sum(item.partition("=")[0].strip() == "type" for item in items)
