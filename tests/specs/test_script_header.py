import pytest

from shunter.errors import ConfigError
from shunter.specs.script_header import read_header

SCRIPT = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "numpy<3",
# ]
#
# [tool.shunter]
# gpu = 1
# ///
import numpy
"""


@pytest.mark.parametrize("text", [SCRIPT, SCRIPT.replace("\n", "\r\n")])
def test_a_header_is_read_as_toml(text: str) -> None:
    assert read_header(text) == {
        "requires-python": ">=3.11",
        "dependencies": ["numpy<3"],
        "tool": {"shunter": {"gpu": 1}},
    }


@pytest.mark.parametrize(
    "text", ["", "print(1)\n", "# /// script\nprint(1)\n", "# /// other\n# a = 1\n# ///\n"]
)
def test_a_script_without_one_has_none(text: str) -> None:
    assert read_header(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# /// script\n# a = \n# ///\n", r"header `# /// script` of train.py is not TOML: Invalid value"),
        ("# /// script\n# a = 1\n# ///\nx = 1\n# /// script\n# a = 1\n# ///\n", "train.py has 2 headers"),
    ],
)
def test_a_wrong_header_is_an_error_that_names_the_script(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_header(text, "train.py")
