"""A job's code in Secrets, where there is no registry to push an image to.

Code and toolkit become one compressed archive, cut into Secrets that the job owns. Before each pod's program,
an init container joins them, compares the SHA-256, and unpacks them into a directory of the pod. So a pod
that is started again finds the code as the first one did, without the client; and the Jobs are made last, so
that no pod ever starts without all of it.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Any

from shunter.errors import ConfigError, WorkspaceChangedError
from shunter.progress import Progress
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.names import inner
from shunter.specs.workspace import Workspace
from shunter.workspace.code_store import Store
from shunter.workspace.images.image_content import JobCode
from shunter.workspace.images.layer import LayerContent, tar_stream
from shunter.workspace.manifest import Entry, Manifest
from shunter.workspace.shipment import ATTEMPTS, Report
from shunter.workspace.toolkit_files import TOOLKIT_BASE, TOOLKIT_PATH

#: Bytes of the archive in one Secret, which takes 1 MiB with its keys, and in all. All of it is in etcd until
#: the job is removed, and a usual etcd holds 2 GiB.
PART_BYTES, MOST_BYTES = 1_000_000, 20_000_000
#: Where pods find the code and the toolkit; the init container also the parts of the archive.
FOLDER = TOOLKIT_PATH.rpartition("/")[0]
CODE_FOLDER = f"{FOLDER}/code"
_PARTS_FOLDER = f"{FOLDER}-parts"
CONTAINER, _VOLUME, _PARTS_VOLUME = "shunter-code", "shunter-code", "shunter-code-parts"
_BASE_VOLUME = "shunter-base"
_KEY = "part"
#: Unpacks the parts, whose digest is its argument. Files belong to the user that unpacks them.
_UNPACK = f"""set -e
digest=$(cat {_PARTS_FOLDER}/* | sha256sum)
if [ "${{digest%% *}}" != "$1" ]; then
  echo "the code of this job is not the one that was submitted: its SHA-256 is ${{digest%% *}}, not $1" >&2
  exit 1
fi
cat {_PARTS_FOLDER}/* | tar -x -z -o -f - -C {FOLDER}"""


class CodeObjects:
    """The code of a job, packed: the `Shipment` of clusters without a registry.

    Args:
        workspace: what travels; an empty one for the toolkit alone.
        with_toolkit: whether a role needs the toolkit.

    Raises:
        WorkspaceError: the workspace cannot be read, or changes all the time.
        ConfigError: it is too large for this way, or has to be built by Docker.
    """

    def __init__(self, workspace: Workspace, *, with_toolkit: bool) -> None:
        self.has_workspace = bool(workspace)
        self.has_toolkit = with_toolkit
        for attempt in range(1, ATTEMPTS + 1):
            self._code = JobCode(workspace, with_toolkit=with_toolkit)
            if self._code.context is not None:
                raise ConfigError(
                    f"the workspace has a {self._code.context.dockerfile}, and an image that is built has to "
                    "be pushed to a registry",
                    hint="Name a repository: -cfg image_repo=ghcr.io/me/jobs. Or ship the files alone: rename"
                    f" {self._code.context.dockerfile}.",
                )
            try:
                self.packed = _packed_once(self._code)
                break
            except WorkspaceChangedError:
                if attempt == ATTEMPTS or workspace.frozen:
                    raise
        self.digest = hashlib.sha256(self.packed).hexdigest()

    @property
    def manifest(self) -> Manifest | None:
        """The files that travel; None if it is nothing but the toolkit."""
        return self._code.manifest

    @property
    def report(self) -> Report:
        """What the user should know of them."""
        return self._code.snapshot.report if self._code.snapshot else Report()

    @property
    def count(self) -> int:
        """The number of Secrets."""
        return -(-len(self.packed) // PART_BYTES)

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values."""
        return {
            "kind": "secrets",
            "fingerprint": self.manifest.fingerprint if self.manifest else None,
            "files": self.manifest.files if self.manifest else 0,
            "size": self.manifest.size if self.manifest else 0,
            "packed": len(self.packed),
            "objects": self.count,
            "secrets": self.report.secrets,
            "problems": [list(problem) for problem in self.report.problems],
        }

    def ship(self, progress: Progress) -> dict[str, str]:
        """Do nothing but remember the files: the Secrets are made with the job's other objects."""
        if self._code.snapshot is not None:
            Store().keep_sources(self._code.snapshot)
        progress.step(f"sending the code in {self.count} Secrets ({len(self.packed) / 1e6:.1f} MB)")
        return {}

    def manifests(self, metadata: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the Secrets of a job.

        Args:
            metadata: of the job's objects: name, namespace and labels.
        """
        labels = {**metadata["labels"], names.LABEL_CODE: "true"}
        return [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {**metadata, "name": f"{metadata['name']}-code-{number}", "labels": labels},
                "type": "Opaque",
                "immutable": True,
                "data": {_KEY: base64.b64encode(self._part(number)).decode()},
            }
            for number in range(self.count)
        ]

    def _part(self, number: int) -> bytes:
        return self.packed[number * PART_BYTES : (number + 1) * PART_BYTES]

    def add_to(self, pod: dict[str, Any], job_name: str, *, with_base: bool) -> None:
        """Have a pod unpack the code before its program, which finds it as its working directory.

        Args:
            pod: the template.
            job_name: name of the job, with which those of the Secrets begin.
            with_base: whether the toolkit runs in it, whose base directory its user must be able to write.
        """
        spec = pod["spec"]
        main = spec["containers"][0]
        sources = [
            {
                "secret": {
                    "name": f"{job_name}-code-{number}",
                    "items": [{"key": _KEY, "path": f"{number:03}"}],
                }
            }
            for number in range(self.count)
        ]
        spec.setdefault("volumes", []).extend(
            [
                {"name": _VOLUME, "emptyDir": {}},
                {"name": _PARTS_VOLUME, "projected": {"sources": sources}},
            ]
        )
        mount = {"name": _VOLUME, "mountPath": FOLDER}
        main.setdefault("volumeMounts", []).append(mount)
        if with_base and not any(
            each["mountPath"].rstrip("/") == TOOLKIT_BASE for each in main["volumeMounts"]
        ):
            spec["volumes"].append({"name": _BASE_VOLUME, "emptyDir": {}})
            main["volumeMounts"].insert(0, {"name": _BASE_VOLUME, "mountPath": TOOLKIT_BASE})
        if self.has_workspace:
            main.setdefault("workingDir", CODE_FOLDER)
        parts = {"name": _PARTS_VOLUME, "mountPath": _PARTS_FOLDER, "readOnly": True}
        command = ["sh", "-c", _UNPACK.replace("$(", "$$("), "sh", self.digest]
        unpacker = helper(main, CONTAINER, command, [mount, parts])
        spec["initContainers"] = [unpacker, *inner(spec, "initContainers")]


def helper(
    main: dict[str, Any], name: str, command: list[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a container beside the program's, of the same image and user, without its devices."""
    copied = ("image", "imagePullPolicy", "securityContext")
    sizes = {
        kind: {key: amount for key, amount in amounts.items() if key in ("cpu", "memory")}
        for kind, amounts in inner(main, "resources").items()
    }
    return {
        "name": name,
        **{key: main[key] for key in copied if key in main},
        "command": command,
        **({"resources": sizes} if any(sizes.values()) else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


#: The last archive, by its content: an executor submits the same code many times.
_LAST: dict[str, bytes] = {}


def _packed_once(code: JobCode) -> bytes:
    key = code.key("", with_toolkit=code.toolkit is not None)
    packed = _LAST.get(key)
    if packed is None:
        packed = _packed(code)
        _LAST.clear()
        _LAST[key] = packed
    return packed


def _packed(code: JobCode) -> bytes:
    """Return the archive: the same files give the same bytes.

    Raises:
        ConfigError: it is too large.
        WorkspaceChangedError: a file no longer has its content.
    """
    entries: dict[str, Entry] = {}
    sources: dict[str, Entry] = {}
    toolkit = code.toolkit or b""
    if code.manifest is not None:
        entries["code"] = Entry("code", "dir", 0o755)
        for entry in code.manifest.entries:
            path = f"code/{entry.path}"
            entries[path], sources[path] = entry._replace(path=path), entry
    toolkit_name = TOOLKIT_PATH.rpartition("/")[2]
    if toolkit:
        digest = hashlib.sha256(toolkit).hexdigest()
        entries[toolkit_name] = Entry(toolkit_name, "file", 0o755, size=len(toolkit), digest=digest)
    snapshot = code.snapshot

    def read(entry: Entry) -> Any:
        if entry.path == toolkit_name or snapshot is None:
            return (toolkit,)
        return snapshot.read(sources[entry.path])

    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    packed = bytearray()
    for piece in tar_stream(LayerContent(tuple(entries[path] for path in sorted(entries)), read)):
        packed += packer.compress(piece)
        if len(packed) > MOST_BYTES:
            raise ConfigError(
                f"the workspace {code.workspace} is too large to travel without a registry: compressed it has"
                f" more than {MOST_BYTES // 1_000_000} MB",
                hint="Push it in an image: -cfg image_repo=ghcr.io/me/jobs. Or leave out what the job does "
                "not need in .shunterignore (`shunter workspace show` lists the largest files), and read "
                "data from a bucket or a claim; if the image has the code, --workspace '' ships none.",
            )
    return bytes(packed + packer.flush())
