from __future__ import annotations

import subprocess
import sys

import pytest

import shunter.specs


def test_every_name_is_there() -> None:
    for name in shunter.specs.__all__:
        assert getattr(shunter.specs, name) is not None
    assert sorted(dir(shunter.specs)) == sorted(shunter.specs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        shunter.specs.nope  # noqa: B018


@pytest.mark.parametrize("name", ["macros", "runopts"])
@pytest.mark.parametrize("before", ["", "import shunter.specs.substitution, shunter.specs.options"])
def test_a_name_is_the_same_whatever_was_imported_before(name: str, before: str) -> None:
    """The modules `macros` and `runopts` share their names with what they define."""
    program = f"{before}\nfrom shunter.specs import {name}\nassert isinstance({name}, type), {name}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_states_and_handles_import_little() -> None:
    program = "import sys; from shunter.specs import AppState, parse_app_handle; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert not {"dataclasses", "inspect", "json", "logging"} & set(result.stdout.split())
