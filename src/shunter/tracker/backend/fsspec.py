"""The tracker that keeps runs in files, under TorchX's names."""

from __future__ import annotations

from shunter._toolkit.tracking import fsspec_tracker

FsspecTracker = fsspec_tracker.FsspecTracker
create = fsspec_tracker.create
generate_filename = fsspec_tracker.generate_filename
