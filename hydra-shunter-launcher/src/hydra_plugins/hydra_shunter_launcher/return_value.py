"""In the job: keeps what the task returned, for the launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

FILE = ".shunter-return.json"


class SaveReturnValue(Callback):
    """Writes the task's return value to the output directory if JSON can represent it."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Write the return value of a completed job."""
        if job_return.status == JobStatus.COMPLETED:
            try:
                text = json.dumps(job_return.return_value)
            except TypeError:
                return
            Path(config.hydra.runtime.output_dir, FILE).write_text(text)
