"""Native scripts that are kept as files: `SHUNTER_GOLDEN=write` writes them."""

from __future__ import annotations

import os
import re
from pathlib import Path

_WRITE = os.environ.get("SHUNTER_GOLDEN") == "write"


def check(path: Path, text: str, app_id: str) -> None:
    """Compare a text with the file; the job's id is left out of it."""
    text = text.replace(app_id, "APP_ID")
    text = re.sub(r"^cd .* \|\| no_folder .*$", "cd WORKDIR || no_folder WORKDIR", text, flags=re.M)
    if _WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    assert path.read_text() == text + "\n"
