"""Calls in this process, for looking into a function: ``Executor("debug")``."""

from __future__ import annotations

import pdb
import sys
import traceback

from shunter.functions.futures import JobFuture
from shunter.functions.packing import Call


def called_here(call: Call) -> JobFuture:
    """Make a call now and return its future; at a terminal, a debugger opens where it raises an exception."""
    future = JobFuture()
    try:
        future.set_result(call.function(*call.args, **call.kwargs))
    except Exception as error:
        if sys.stdin is not None and sys.stdin.isatty():
            traceback.print_exc()
            pdb.post_mortem(error.__traceback__)
        future.set_exception(error)
    return future
