from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["macros", "runopts"])
@pytest.mark.parametrize("before", ["", "import shunter.specs.substitution, shunter.specs.options"])
def test_a_name_is_the_same_whatever_was_imported_before(name: str, before: str) -> None:
    """The modules `macros` and `runopts` share their names with what they define."""
    program = f"{before}\nfrom shunter.specs import {name}\nassert isinstance({name}, type), {name}"
    subprocess.run([sys.executable, "-c", program], check=True)
