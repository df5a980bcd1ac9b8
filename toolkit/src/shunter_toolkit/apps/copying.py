"""Copy one file: ``--src A --dst B``."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import sys
from collections.abc import Sequence

from ..errors import ConfigError
from .urls import BUFFER_BYTES, local_path, open_to_read, open_to_write, run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Copy; return 0."""
    parser = argparse.ArgumentParser(prog="copy_main", description="Copy a file.")
    parser.add_argument("--src", required=True, help="the file, as a path or URL")
    parser.add_argument("--dst", required=True, help="where to, as a path or URL")
    parser.add_argument("--bufsize", type=int, default=BUFFER_BYTES, help="bytes to copy at once")
    args = parser.parse_args(argv)
    for url in (args.src, args.dst):
        if os.path.isdir(local_path(url) or ""):
            raise ConfigError(f"{url} is a directory: name the file itself, in --src and in --dst")
    with open_to_read(args.src) as source, open_to_write(args.dst) as target:
        shutil.copyfileobj(source, target, args.bufsize)
    return 0


run = functools.partial(run_program, main)

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
