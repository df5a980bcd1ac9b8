"""Builds the toolkit as one file that any Python 3.8 or newer runs. The same sources give the same bytes.

Usage: ``python toolkit/build_zipapp.py dist/shunter-toolkit.pyz``
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent / "src"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can carry
# Without arguments it trains: `python train.pyz` is all that a container has to say.
MAIN = b"import sys\nfrom shunter_toolkit.cli import main\nsys.exit(main(sys.argv[1:] or ['train']))\n"
# What a wheel serves by its .pth file, unless SHUNTER_ALIASES=0: predecessors, trackers of the launchers.
ALIASED = ("sagemaker_containers", "sagemaker_training", "torchx", "shunter")
STAND_IN = (
    b"import os\nfrom shunter_toolkit.aliases import stand_in\n"
    b"stand_in(__name__, os.path.dirname(os.path.dirname(__file__)))\n"
)
# No version in the line: the image has whatever Python it has.
SHEBANG = b"#!/usr/bin/env python3\n"


def build() -> bytes:
    """The archive's bytes."""
    files = sorted(path for path in SOURCE.rglob("*") if path.suffix == ".py" or path.name == "py.typed")
    raw = io.BytesIO()
    # Stored, not compressed: compressed bytes differ between versions of zlib.
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", MAIN)
        for name in ALIASED:
            _add(archive, f"aliases/{name}/__init__.py", STAND_IN)
        for path in files:
            _add(archive, path.relative_to(SOURCE).as_posix(), path.read_bytes())
    return SHEBANG + raw.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3
    archive.writestr(entry, content)


def main() -> None:
    """Write the archive to the path given."""
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(build())
    target.chmod(0o755)


if __name__ == "__main__":
    main()
