"""What the documents say holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shunter.errors import InvalidRunConfigException
from shunter.runner import get_runner
from shunter.runner.config import RUN_KEYS, effective_options, load_config
from shunter.specs import AppState, Role, named_resources
from tests.trusting import trust_project

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / name).read_text(), re.M | re.S)


def test_the_configuration_example_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = next(block for block in blocks("configuration.md", "toml") if "[run]" in block)
    (tmp_path / "shunter.toml").write_text(example)
    config = load_config()
    assert config.command("run")["scheduler"].value == "local_cwd"
    assert config.component("jobs.py:train")["lr"].value == 0.1
    assert config.command("list")["scheduler"].value == "local_cwd"
    trust_project()
    assert load_config().trackers() == {"fsspec": "s3://bucket/runs"}
    with get_runner() as runner:
        opts = runner.scheduler_run_opts("local_cwd")
        assert effective_options(config, "local_cwd", opts)["log_dir"].value == "logs"
        (tmp_path / "shunter.toml").write_text(example.replace("log_dir", "log_dri"))
        with pytest.raises(InvalidRunConfigException) as caught:
            effective_options(load_config(), "local_cwd", opts)
    shown = str(caught.value).removeprefix(f"{tmp_path}/")
    assert shown in (DOCS / "configuration.md").read_text()


def test_tables_are_complete() -> None:
    configuration, specs = ((DOCS / name).read_text() for name in ("configuration.md", "specs.md"))
    assert all(f"`{key}`" in configuration for key in RUN_KEYS)
    fields = set(Role.__dataclass_fields__) - {"base_image"}
    assert all(f"`{field}`" in specs for field in fields)
    assert all(state.name in specs for state in AppState)
    assert all(name in named_resources for name in ("cpu.nano", "cpu.xlarge", "gpu.small", "aws_p5.48xlarge"))
