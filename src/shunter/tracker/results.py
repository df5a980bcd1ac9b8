"""Results of trials by key, under the names of ``torchx.runtime.tracking``."""

from __future__ import annotations

from shunter._toolkit.tracking import results

FsspecResultTracker = results.FsspecResultTracker
ResultTracker = results.ResultTracker
