"""For scripts: save your state when the job is asked to stop.

from shunter_toolkit.on_stop import on_stop
on_stop(lambda: model.save(checkpoint_path))
"""

from __future__ import annotations

import signal
from collections.abc import Callable


def on_stop(save: Callable[[], object], exit_code: int | None = None) -> None:
    """Call ``save`` once when SIGTERM arrives, then end the script.

    Args:
        save: called in the main thread, between two steps of Python code.
        exit_code: what the script ends with; default 143 (128 + SIGTERM). 0 tells schedulers that the job
            is done.
    """

    def handle(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            save()
        finally:
            raise SystemExit(143 if exit_code is None else exit_code)

    signal.signal(signal.SIGTERM, handle)
