from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shunter import plugins
from shunter.errors import ConfigError
from shunter.specs import NULL_RESOURCE, Resource, get_named_resources, named_resources, resource
from shunter.specs.named_resources_aws import EFA_DEVICE, INSTANCE_TYPE, NEURON_DEVICE
from shunter.specs.resource_catalog import NamedResources

GIB = 1024


@pytest.mark.parametrize(
    ("name", "cpu", "gpu", "memory"),
    [
        ("gpu.small", 8, 1, 32 * GIB),
        ("cpu.nano", 1, 0, 512),
        ("cpu.xlarge", 8, 0, 32 * GIB),
    ],
)
def test_generic_names(name: str, cpu: int, gpu: int, memory: int) -> None:
    assert get_named_resources(name) == Resource(cpu, gpu, memory)


@pytest.mark.parametrize(
    ("name", "cpu", "gpu", "memory", "devices"),
    [
        ("t3.medium", 2, 0, 3932, {}),
        ("p3.2xlarge", 8, 1, 59963, {}),
        ("p5.48xlarge", 192, 8, 2013184, {EFA_DEVICE: 32}),
        ("c5.18xlarge", 72, 0, 139586, {}),
        ("g4dn.8xlarge", 32, 1, 125824, {EFA_DEVICE: 1}),
        ("trn1.32xlarge", 128, 0, 503296, {EFA_DEVICE: 8, NEURON_DEVICE: 16}),
        ("inf2.24xlarge", 96, 0, 377472, {NEURON_DEVICE: 6}),
    ],
)
def test_instance_types(name: str, cpu: int, gpu: int, memory: int, devices: dict[str, int]) -> None:
    found = named_resources[f"aws_{name}"]
    assert found == Resource(cpu, gpu, memory, {INSTANCE_TYPE: name}, devices)


def test_every_name_makes_a_new_resource() -> None:
    assert {"NULL", "MISSING", "cpu.nano", "aws_p5.48xlarge"} <= set(named_resources)
    assert len(named_resources) == len(list(named_resources)) >= 50
    for name in named_resources:
        made = named_resources[name]
        assert isinstance(made, Resource)
        made.capabilities["mine"] = 1
        assert "mine" not in named_resources[name].capabilities
    assert NULL_RESOURCE.capabilities == {}


def test_unknown_names_get_suggestions() -> None:
    assert "aws_p5.48xlarge" in named_resources
    assert "nope" not in named_resources
    for call in (get_named_resources, named_resources.__getitem__, lambda name: resource(h=name)):
        with pytest.raises(ConfigError, match=r"there is no named resource 'gpu\.smal'") as caught:
            call("gpu.smal")
        assert "Did you mean gpu.small" in caught.value.hint
        assert isinstance(caught.value, KeyError)
    assert named_resources.get("nope") is None


def test_resource_from_figures_or_name() -> None:
    assert resource() == Resource(2, 0, 1024)
    assert resource(cpu=0, gpu=1, memMB=0) == Resource(0, 1, 0)
    assert resource(cpu=99, gpu=99, memMB=99, h="cpu.nano") == Resource(1, 0, 512)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], NamedResources]]:
    def install(group: str) -> NamedResources:
        root = tmp_path
        info = root / "plug-1.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(
            f"[{group}.named_resources]\nbig = plug_resources:big\ngpu.small = plug_resources:big\n"
        )
        (root / "plug_resources.py").write_text(
            "from shunter.specs import Resource\ndef big(): return Resource(999, 0, 1)\n"
        )
        monkeypatch.syspath_prepend(str(root))
        monkeypatch.delitem(sys.modules, "plug_resources", raising=False)
        plugins._entry_points_of_group.cache_clear()
        return NamedResources()

    yield install
    plugins._entry_points_of_group.cache_clear()


@pytest.mark.parametrize("group", ["shunter", "torchx"])
def test_plugins_add_names(plugin: Callable[[str], NamedResources], group: str) -> None:
    names = plugin(group)
    assert names["big"].cpu == 999
    assert names["gpu.small"].cpu == 8
