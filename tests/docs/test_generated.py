"""The reference pages are those that the code gives."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.docs.documents import GENERATED, ROOT


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()


@pytest.mark.parametrize("name", generator.PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (GENERATED / name).read_text() == generator.page(name), "run `make docs`"


def test_llms_txt_is_up_to_date() -> None:
    assert (ROOT / "docs/llms.txt").read_text() == "\n".join(generator.llms()) + "\n", "run `make docs`"


def test_every_page_is_generated() -> None:
    assert {path.name for path in GENERATED.iterdir()} == set(generator.PAGES)


def test_check_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    reference = tmp_path / "reference"
    monkeypatch.setattr(generator, "REFERENCE", reference)
    monkeypatch.setattr(generator, "LLMS", tmp_path / "llms.txt")
    assert generator.main(["--check"]) == 1
    assert not reference.exists()
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    assert capsys.readouterr().out.count("written") == len(generator.PAGES) + 1


def test_pages_hold_what_is_declared() -> None:
    assert "`auto_set_cuda_visible_devices`" in generator.page("schedulers.md")
    assert "| `aws_p4d.24xlarge` | 96 | 8 |" in generator.page("resources.md")
    assert "## utils.echo" in generator.page("components.md")
    assert "`--exit-code-from ROLE/ID\\|any`" in generator.page("commands.md")
