"""Trust the configuration files of the project in the current directory, as `trainyard trust` does."""

from __future__ import annotations

from trainyard.runner.config import load_config
from trainyard.runner.project_trust import trust


def trust_project() -> None:
    for source in load_config().sources:
        if source.project:
            trust(source)
