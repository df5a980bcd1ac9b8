"""Our lazily completed dataclasses: what `dataclasses` and plain Python make of them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import typing

import pytest

from shunter.lazy_dataclass import default_of, fields, has_default, is_dataclass
from shunter.specs import AppDef, Resource, Role
from shunter.specs.mounts import BindMount


def test_the_functions_of_dataclasses_work_on_the_specs():
    role = Role("train", "img", args=["a"])
    assert dataclasses.is_dataclass(Role)
    assert [field.name for field in dataclasses.fields(Role)][:4] == [
        "name",
        "image",
        "min_replicas",
        "base_image",
    ]
    assert dataclasses.asdict(BindMount("a", "b")) == {"src_path": "a", "dst_path": "b", "read_only": False}
    assert dataclasses.replace(role, image="other") == Role("train", "other", args=["a"])
    assert Role.__match_args__[0] == "name"


def test_each_object_has_containers_to_itself():
    one, two = AppDef("a"), AppDef("b")
    one.roles.append(Role("r", "i"))
    assert two.roles == []


def test_equality_repr_copies_and_hash_are_those_of_dataclasses():
    resource = Resource(1, 0, 512, tags={"a": 1})
    assert resource == pickle.loads(pickle.dumps(resource)) == copy.deepcopy(resource)
    assert resource != Resource(2, 0, 512)
    assert repr(BindMount("a", "b")) == "BindMount(src_path='a', dst_path='b', read_only=False)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(resource)


def test_signatures_and_hints_can_be_read():
    assert list(inspect.signature(AppDef).parameters) == ["name", "roles", "metadata"]
    assert typing.get_type_hints(Role)["num_replicas"] is int
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'image'"):
        Role("r")  # type: ignore[call-arg]


def test_an_ordinary_dataclass_can_extend_one():
    @dataclasses.dataclass
    class Own(Role):
        team: str = "none"

    own = Own("r", "i", team="ml")
    assert own.team == "ml"
    assert own.args == []
    assert [field.name for field in fields(own)][-1] == "team"
    assert is_dataclass(own)


def test_fields_of_either_kind_tell_their_defaults():
    @dataclasses.dataclass
    class Ordinary:
        needed: int
        listed: list[int] = dataclasses.field(default_factory=lambda: [1])

    needed, listed = fields(Ordinary)
    assert (has_default(needed), default_of(needed)) == (False, None)
    assert (has_default(listed), default_of(listed)) == (True, [1])
    name, image, *_, overrides = fields(Role)
    assert [has_default(field) for field in (name, image, overrides)] == [False, False, True]


_ALONE = """
import sys
from shunter.lazy_dataclass import dataclass, field

@dataclass(frozen=True)
class Point:
    x: int
    tags: list = field(default_factory=list, metadata={"help": "words"})
    y: int = 2

    def __post_init__(self):
        assert self.y == 2

point = Point(1)
assert (point.x, point.y, point.tags) == (1, 2, [])
assert "dataclasses" not in sys.modules and "typing" not in sys.modules
import dataclasses
assert dataclasses.fields(point)[1].metadata["help"] == "words"
assert dataclasses.replace(point, x=5).x == 5
try:
    point.x = 3
except dataclasses.FrozenInstanceError:
    print("frozen")
try:
    @dataclass
    class Wrong:
        x: int = 1
        y: int
except TypeError as error:
    print(error)
"""


def test_it_needs_dataclasses_only_when_asked_from_outside():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{_ALONE}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["frozen", "Wrong: 'y' has no default, but 'x' before it has"], (
        done.stderr
    )
