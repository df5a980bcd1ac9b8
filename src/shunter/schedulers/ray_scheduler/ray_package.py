"""The two packages that travel to a Ray cluster. Ray keeps them by name and unpacks them on each node.

One is named by its content, and contains the code as ``code.tar`` (Ray's own zip files would lose links and
modes), the driver, and the toolkit; jobs with the same code share it. The other contains the plan of one job.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from shunter.errors import WorkspaceChangedError, WorkspaceError
from shunter.progress import Progress, Silent
from shunter.schedulers.ray_scheduler.dashboard import UPLOAD_SILENCE, Dashboard
from shunter.schedulers.ray_scheduler.request import DRIVER
from shunter.specs.workspace import Workspace
from shunter.workspace.code_store import Store
from shunter.workspace.images.layer import content_of, tar_stream
from shunter.workspace.manifest import Manifest
from shunter.workspace.shipment import ATTEMPTS, Report
from shunter.workspace.snapshot import snapshot
from shunter.workspace.toolkit_files import toolkit_archive

#: To be changed whenever the same files would be packed differently.
LAYOUT = 1
#: Ray stores less than this (GRPC_CPP_MAX_MESSAGE_SIZE of ray._private.ray_constants); old releases, 100 MiB.
LARGEST = 512 << 20
PLAN_PATH = "shunter_plan/plan.json"
_SHIPPED = (DRIVER, "replica_actor.py", "replica_process.py")
_PIECE = 1 << 20


class RayPackage:
    """The package with a job's code, planned: the `Shipment` of this scheduler.

    Args:
        workspace: the code; None for the driver and the toolkit alone.
        dashboard: returns where it is sent to.
    """

    def __init__(self, workspace: Workspace | None, dashboard: Callable[[], Dashboard]) -> None:
        self._workspace = workspace
        self._dashboard = dashboard
        self._parts = {name: _shipped(name) for name in _SHIPPED} | {"toolkit.pyz": toolkit_archive()}
        self._snapshot = snapshot(workspace) if workspace else None

    @property
    def manifest(self) -> Manifest | None:
        """The files that are shipped; None without a workspace."""
        return self._snapshot.manifest if self._snapshot is not None else None

    @property
    def report(self) -> Report:
        """What the user should know of them."""
        return self._snapshot.report if self._snapshot is not None else Report()

    @property
    def uri(self) -> str:
        """The package's URI in Ray, named by its content."""
        digests = [hashlib.sha256(content).hexdigest() for content in self._parts.values()]
        fingerprint = self.manifest.fingerprint if self.manifest is not None else ""
        return _uri(json.dumps([LAYOUT, fingerprint, *digests]).encode())

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values."""
        manifest, report = self.manifest, self.report
        return {
            "kind": "package",
            "fingerprint": manifest.fingerprint if manifest is not None else None,
            "files": manifest.files if manifest is not None else 0,
            "size": manifest.size if manifest is not None else 0,
            "package": self.uri,
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Progress) -> dict[str, str]:
        """Send the package, unless the cluster has it; returns its planned URI -> the real one."""
        planned = self.uri
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._send(progress)
                break
            except WorkspaceChangedError:
                if self._workspace is None or self._workspace.frozen or attempt == ATTEMPTS:
                    raise
                self._snapshot = snapshot(self._workspace)
        if self._snapshot is not None:
            Store().keep_sources(self._snapshot)
        return {planned: self.uri}

    def _send(self, progress: Progress) -> None:
        status, _ = self._dashboard().send("GET", _path(self.uri), ok=(200, 404))
        if status == 200:  # the cluster has it, and keeps it for a while now
            return
        progress.step("packing the driver" if self._snapshot is None else "packing the code")
        with tempfile.TemporaryFile(prefix="shunter-") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                for name, content in self._parts.items():
                    archive.writestr(_entry(name), content)
                if self._snapshot is not None:
                    with archive.open(_entry("code.tar"), "w", force_zip64=True) as member:
                        for piece in tar_stream(content_of(self._snapshot)):
                            member.write(piece)
            size = file.tell()
            if size >= LARGEST:
                raise WorkspaceError(
                    f"the code is too large for Ray: {size / (1 << 20):.0f} MiB as a package, "
                    f"and Ray takes less than {LARGEST >> 20} MiB",
                    hint="Leave out what the job does not need in .shunterignore (`shunter workspace "
                    "show` lists the largest files), and read data from storage.",
                )
            files = f"{self.manifest.files} files, " if self.manifest is not None else ""
            progress.step(f"sending a package to Ray: {files}{size / (1 << 20):.1f} MiB")
            _upload(self._dashboard(), self.uri, file, size, progress)


def send_plan(dashboard: Dashboard, plan: dict[str, Any]) -> str:
    """Send the package with a plan; returns its URI, which nobody can guess."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry(PLAN_PATH, 0o600), json.dumps(plan).encode())
    uri = _uri(file.getvalue())
    _upload(dashboard, uri, file, len(file.getvalue()), Silent())
    return uri


def _upload(dashboard: Dashboard, uri: str, file: IO[bytes], size: int, progress: Progress) -> None:
    file.seek(0)

    def pieces() -> Iterator[bytes]:
        while piece := file.read(_PIECE):
            yield piece
            progress.advance("package", file.tell(), size)

    headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
    dashboard.send("PUT", _path(uri), pieces(), headers, silence=UPLOAD_SILENCE)


def _uri(content: bytes) -> str:
    """Return the URI of a package, as Ray names its own."""
    return f"gcs://_ray_pkg_{hashlib.sha256(content).hexdigest()[:40]}.zip"


def _path(uri: str) -> str:
    return f"/api/packages/{uri.replace('://', '/')}"


def _shipped(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "shipped", name), "rb") as file:
        return file.read()


def _entry(name: str, mode: int = 0o644) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # of 1980, so that the same files are the same package
    entry.external_attr = mode << 16
    entry.create_system = 3
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
