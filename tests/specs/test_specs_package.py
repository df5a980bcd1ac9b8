"""The package of the specs."""

from __future__ import annotations

import pkgutil

import pytest

from shunter import specs


def test_no_module_hides_an_exported_name() -> None:
    """Importing a module binds its name in the package, over a class of the same name."""
    modules = {module.name for module in pkgutil.iter_modules(specs.__path__)}
    assert not modules & set(specs.__all__)


@pytest.mark.parametrize("name", specs.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(specs, name) is not None
