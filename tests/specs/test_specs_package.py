"""The package of the specs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["macros", "runopts"])
def test_a_module_does_not_hide_the_class_of_its_name(name: str) -> None:
    program = (
        f"import importlib; importlib.import_module('trainyard.specs.{name}');"
        f"from trainyard.specs import {name}; assert isinstance({name}, type), {name};"
        f"from trainyard.specs.{name} import {name} as same; assert same is {name}"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
