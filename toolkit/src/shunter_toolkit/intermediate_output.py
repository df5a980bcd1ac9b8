"""Synchronising ``output/intermediate`` from a framework's own code, under the predecessors' name."""

from __future__ import annotations

import os

from . import log
from .layout import Layout
from .store import Place
from .sync import Mirror

FAILURE_FILE = "failure"
SUCCESS_FILE = "success"


# Module-level paths of the predecessors, under the base directory: see __getattr__.
_PATHS = {
    "intermediate_path": "output/intermediate",
    "failure_file_path": "output/failure",
    "success_file_path": "output/success",
    "tmp_dir_path": "output/intermediate/.tmp.sagemaker_s3_sync",
}


def __getattr__(name: str) -> str:
    if name in _PATHS:
        return os.path.join(Layout().base, _PATHS[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class IntermediateSync:
    """A running synchronisation.

    ``join()`` sends the rest and ends it, as joining the predecessors' process does.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror: Mirror | None = mirror
        mirror.start()

    def join(self, timeout: float | None = None) -> None:
        """Send what is left and stop. ``timeout`` is ignored: sending is not cut short.

        Raises:
            StoreError: the store refused.
        """
        if self._mirror is not None:
            mirror, self._mirror = self._mirror, None
            mirror.finish()


def start_sync(
    s3_output_location: str,
    region: str | None,
    endpoint_url: str | None = None,
    intermediate_path: str | None = None,
) -> IntermediateSync | None:
    """Begin to send files of ``output/intermediate`` as they are completed.

    Args:
        s3_output_location: ``s3://bucket/prefix``; ``file://`` or nothing: there is nothing to do.
        region: where the bucket lies; None: boto3's default.
        endpoint_url: of a store that is not AWS's.
        intermediate_path: the folder; default: ``output/intermediate``.

    Returns:
        The running synchronisation; None if there is nowhere to send to, or if the platform has made the
        folder and sends its files itself.

    Raises:
        ValueError: the location is none of these.
    """
    folder = intermediate_path or Layout().intermediate
    if not s3_output_location or s3_output_location.startswith("file://") or os.path.isdir(folder):
        return None
    if not s3_output_location.startswith("s3://"):
        raise ValueError(
            f"Cannot send intermediate output to {s3_output_location!r}: expected s3://bucket/prefix."
        )
    if region:
        os.environ.setdefault("AWS_DEFAULT_REGION", region)
    if endpoint_url:
        os.environ["S3_ENDPOINT_URL"] = endpoint_url
    name = os.environ.get("TRAINING_JOB_NAME", "")
    parts = (s3_output_location.rstrip("/"), name, "output/intermediate")
    uri = "/".join(part for part in parts if part)
    log.info(f"Sending {folder} to {uri} as it fills")
    return IntermediateSync(Mirror(folder, Place.of(uri), "intermediate output"))
