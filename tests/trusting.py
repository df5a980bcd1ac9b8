"""Trust the configuration files of the project in the current directory, as `shunter trust` does."""

from __future__ import annotations

from shunter.runner.config import load_config
from shunter.runner.project_trust import trust


def trust_project() -> None:
    for source in load_config().sources:
        if source.project:
            trust(source)
