"""The package of the specs."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path

import pytest

from shunter import specs
from shunter.specs import api

#: Of TorchX's module, but about types and terminals.
NOT_NOUNS = {"RESET", "T", "YELLOW_BOLD", "get_type_name"}


def test_no_module_hides_an_exported_name() -> None:
    """Importing a module binds its name in the package, over a class of the same name."""
    modules = {module.name for module in pkgutil.iter_modules(specs.__path__)}
    assert not modules & set(specs.__all__)


@pytest.mark.parametrize("name", specs.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(specs, name) is not None


def test_the_nouns_are_in_the_module_where_torchx_has_them() -> None:
    recorded = Path(__file__).parent.parent / "compat" / "recorded" / "2025-09.json"
    names = set(json.loads(recorded.read_text())["torchx.specs.api"]) - NOT_NOUNS
    assert names - set(api.__all__) == set()
    assert set(api.__all__) <= set(specs.__all__)
    assert api.Role is specs.Role
