"""Results of trials by key, under the names of ``torchx.runtime.tracking``."""

from __future__ import annotations

from shunter.toolkit_import import results

FsspecResultTracker = results.FsspecResultTracker
ResultTracker = results.ResultTracker
