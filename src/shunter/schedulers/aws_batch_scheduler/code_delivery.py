"""Code that reaches containers without an image made for the job: as an object of S3, or within the request.

A small program, which comes with the request, begins each replica's command. It fetches the archive by a
presigned URL, or takes it from a variable, compares its SHA-256 with the one in the request, unpacks it into
the working directory and runs the command. It needs nothing but Python: no role, no AWS tools. What a job
leaves goes back in the same way, by a presigned form.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shunter.errors import ConfigError, WorkspaceChangedError
from shunter.image_registry.push import LayerFile
from shunter.progress import Progress
from shunter.schedulers.aws.s3 import LONGEST_SECONDS, S3, regional_session, split_uri, url_end
from shunter.schedulers.aws.session import AwsSession
from shunter.specs.app import AppDef, Role
from shunter.specs.workspace import Workspace
from shunter.workspace.code_store import Store
from shunter.workspace.images.layer import LayerContent, tar_stream, work_folder, write_gzip
from shunter.workspace.manifest import Entry, Manifest
from shunter.workspace.shipment import ATTEMPTS, Report
from shunter.workspace.snapshot import Snapshot, snapshot
from shunter.workspace.toolkit_files import TOOLKIT_PATH, needs_toolkit, toolkit_archive

#: How large an object of a presigned form may be.
LARGEST_OBJECT = 5 << 30
#: Larger workspaces cannot fit into a request, however well they can be compressed.
LARGEST_IN_REQUEST = 1 << 20

#: Variables of the containers: the program, the code's digest, its presigned URL, or the code itself.
START, DIGEST, URL, CODE = "SHUNTER_START", "SHUNTER_CODE_SHA256", "SHUNTER_CODE_SECRET", "SHUNTER_CODE"
#: Where results go, and the presigned form by which they are sent; the toolkit's `posted_results` has them.
RESULTS, FORM = "SHUNTER_RESULTS", "SHUNTER_RESULTS_SECRET"
STARTER = ("python3", "-I", "-c", f"import os;exec(os.environ.pop('{START}'))")
_TOOLKIT = ".shunter/toolkit.pyz"
_TOOLKIT_OF_IMAGE = b"""import sys
try:
    from shunter_toolkit.cli import main
except ImportError:
    sys.exit("shunter: toolkit_in_image=true, but python3 of this image has no package shunter-toolkit")
sys.exit(main(sys.argv[1:] or ["train"]))
"""

_PROGRAM = """import base64, hashlib, io, os, re, shutil, sys, tarfile, tempfile, time
import http.client, urllib.error, urllib.request
def fail(text, code=1):
    print("shunter: " + text, file=sys.stderr)
    sys.exit(code)
def fetch(url, digest):
    problem = ""
    for pause in (0, 1, 2, 4, 8, 16):
        time.sleep(pause)
        file, sha = tempfile.TemporaryFile(), hashlib.sha256()
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                for block in iter(lambda: answer.read(1 << 20), b""):
                    sha.update(block)
                    file.write(block)
                is_whole = not answer.length
        except urllib.error.HTTPError as error:
            said = re.search("<Message>(.*?)</Message>", error.read(2000).decode("utf-8", "replace"))
            problem = "S3 answers %d (%s)" % (error.code, said[1] if said else error.reason)
            if error.code == 403:
                problem += ": the URL is valid for 7 days, or as long as the submitter's credentials"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:
            problem = str(getattr(error, "reason", error))
        else:
            if sha.hexdigest() == digest:
                return file
            problem = "its SHA-256 is not that of the code that was submitted"
            if is_whole:
                break
        file.close()
    fail("cannot fetch the job's code: " + problem)
digest, url = os.environ.pop("SHUNTER_CODE_SHA256"), os.environ.pop("SHUNTER_CODE_SECRET", "")
file = fetch(url, digest) if url else io.BytesIO(base64.b64decode(os.environ.pop("SHUNTER_CODE")))
if not url and hashlib.sha256(file.getvalue()).hexdigest() != digest:
    fail("the code in the request is damaged: its SHA-256 is wrong")
if not os.access(".", os.W_OK):
    os.chdir(tempfile.mkdtemp(prefix="shunter-"))
try:
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        tar.extractall()
    file.close()
    try:
        os.makedirs("/opt/ml", exist_ok=True)
        writable = os.access("/opt/ml", os.W_OK)
    except OSError:
        writable = False
    if not writable:
        os.environ.setdefault("SAGEMAKER_BASE_DIR", tempfile.mkdtemp(prefix="shunter-ml-"))
except OSError as error:
    fail("cannot unpack the job's code: %s" % error)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    fail("cannot run %s: %s" % (sys.argv[1], error.strerror), 127)
"""


def _planned(what: str) -> str:
    return f"<{what}, made when the job is submitted>"


_PLANNED = {name: _planned(what) for name, what in ((DIGEST, "digest"), (URL, "URL"), (FORM, "form"))}


class CodeDelivery:
    """The code of one job, planned: a `Shipment`.

    Args:
        app: the job; the commands of its roles are changed.
        workspace: what travels; empty for nothing but the toolkit.
        location: the folder of S3 (``s3://bucket/prefix``) that code goes to; "" for the request.
        toolkit_in_image: whether the images have the toolkit.
        session: returns the session of a region that uploads and signs; of None, that of the job's.

    Raises:
        WorkspaceError: the workspace cannot be read.
        ConfigError: there is no location, and the code does not fit into a request.
    """

    def __init__(
        self,
        app: AppDef,
        workspace: Workspace,
        location: str,
        *,
        toolkit_in_image: bool,
        session: Callable[[str | None], AwsSession],
    ) -> None:
        self._workspace = workspace
        self._location = location.rstrip("/")
        self._session = session
        self._results = ""
        roles = [role for role in app.roles if workspace or needs_toolkit(role)]
        with_toolkit = any(needs_toolkit(role) for role in roles)
        self._snapshot = snapshot(workspace) if workspace else None
        self._toolkit = b""
        if with_toolkit:
            self._toolkit = _TOOLKIT_OF_IMAGE if toolkit_in_image else toolkit_archive()
        if not location:
            self._check_size(with_toolkit=with_toolkit and not toolkit_in_image)
        self._roles = {role.name for role in roles}
        for role in roles:
            words = [role.entrypoint, *(word.replace(TOOLKIT_PATH, _TOOLKIT) for word in role.args)]
            role.entrypoint, role.args = STARTER[0], [*STARTER[1:], *words]

    def _check_size(self, *, with_toolkit: bool) -> None:
        """Refuse what cannot be in a request; what may be is packed, and checked with the request."""
        if with_toolkit:
            raise ConfigError(
                "the toolkit, which runs the script, does not fit into a request of AWS Batch (24 KiB)",
                hint=f"{_PLACES} Or install shunter-toolkit in the image, and say so: "
                "-cfg toolkit_in_image=true. Or run the script without it: train.script --toolkit=false.",
            )
        size = self.manifest.size if self.manifest else 0
        if size > LARGEST_IN_REQUEST:
            raise too_large(f"{size} bytes of code do not fit into a request of AWS Batch")

    # ---- what a `Shipment` has

    @property
    def manifest(self) -> Manifest | None:
        """The workspace's files; None if only the toolkit travels."""
        return self._snapshot.manifest if self._snapshot else None

    @property
    def report(self) -> Report:
        """What the user should know of them."""
        return self._snapshot.report if self._snapshot else Report()

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values."""
        manifest, report = self.manifest, self.report
        return {
            "kind": "object" if self._location else "request",
            "fingerprint": manifest.fingerprint if manifest else None,
            "files": manifest.files if manifest else 0,
            "size": manifest.size if manifest else 0,
            "toolkit": bool(self._toolkit) and self._toolkit is not _TOOLKIT_OF_IMAGE,
            "place": self._location or "the request",
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Progress) -> dict[str, str]:
        """Upload the code unless it is there, and sign what gives access to it and takes the results."""
        if self._snapshot is not None:
            Store().keep_sources(self._snapshot)
        if not self._location:
            return {}
        session = regional_session(self._session, split_uri(self._location)[0], "code_location")
        with work_folder() as folder:
            layer = self._pack(str(Path(folder, "code")), progress)
            digest = layer.digest.partition(":")[2]
            uri = f"{self._location}/code/{digest}.tar.gz"
            s3 = S3(session)
            if not s3.has(uri):
                s3.put(Path(layer.path), uri, progress, "code")
        ends = url_end(session)
        progress.done(f"{uri} has the code; the job can fetch it until {ends.astimezone():%Y-%m-%d %H:%M}")
        return {_PLANNED[URL]: _presigned(session, uri), _PLANNED[DIGEST]: digest, **self._form(session)}

    # ---- the request

    def warnings(self) -> list[str]:
        """Return what of it may surprise."""
        if not self._location or not os.environ.get("AWS_SESSION_TOKEN"):
            return []
        text = "the credentials are temporary (AWS_SESSION_TOKEN), and the URL of the code ends with them"
        return [f"{text}: a job that starts or is repeated later fails. With a user's own it lasts 7 days"]

    @property
    def sends_results(self) -> bool:
        """Whether replicas send results without another place to the folder of the code."""
        return bool(self._results)

    def variables(self, role: Role, job: str) -> dict[str, str]:
        """Return the variables of a role's containers.

        Args:
            role: the role.
            job: name of the job.

        Raises:
            ConfigError: the code does not fit into a request.
        """
        if role.name not in self._roles:
            return {}
        if not self._location:
            packed = self._packed()
            digest = hashlib.sha256(packed).hexdigest()
            return {START: _PROGRAM, DIGEST: digest, CODE: base64.b64encode(packed).decode()}
        found = {START: _PROGRAM, DIGEST: _PLANNED[DIGEST], URL: _PLANNED[URL]}
        if not writes_to_log(role):
            return found
        self._results = f"{self._location}/results/{job}"
        return {**found, RESULTS: self._results, FORM: _PLANNED[FORM]}

    def _packed(self) -> bytes:
        return gzip.compress(b"".join(tar_stream(self._content())), 9, mtime=0)

    def _pack(self, path: str, progress: Progress) -> LayerFile:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return write_gzip(self._content(), path)
            except WorkspaceChangedError:
                if attempt == ATTEMPTS or self._workspace.frozen:
                    raise
                progress.step("the workspace has changed; reading it again")
                self._snapshot = snapshot(self._workspace)
        raise AssertionError("unreachable")

    def _content(self) -> LayerContent:
        entries = list(self.manifest.entries) if self.manifest else []
        taken: Snapshot | None = self._snapshot
        if self._toolkit:
            digest = hashlib.sha256(self._toolkit).hexdigest()
            entries.append(Entry(_TOOLKIT, "file", 0o755, len(self._toolkit), digest))

        def read(entry: Entry) -> Iterable[bytes]:
            if entry.path == _TOOLKIT:
                return (self._toolkit,)
            assert taken is not None
            return taken.read(entry)

        return LayerContent(tuple(sorted(entries)), read)

    def _form(self, session: AwsSession) -> dict[str, str]:
        """Return the form by which the replicas send their results, by its planned reference."""
        if not self._results:
            return {}
        bucket, prefix = split_uri(self._results)
        form = session.client("s3").generate_presigned_post(
            bucket,
            f"{prefix}/${{filename}}",
            Conditions=[["content-length-range", 0, LARGEST_OBJECT]],
            ExpiresIn=LONGEST_SECONDS,
        )
        return {_PLANNED[FORM]: json.dumps(form, separators=(",", ":"))}


_PLACES = (
    "Name a folder of S3 that the code can go to: -cfg code_location=s3://BUCKET/PREFIX; or a registry: "
    "-cfg image_repo=REPOSITORY."
)


def too_large(what: str) -> ConfigError:
    """Return the error for code that does not fit into a request."""
    return ConfigError(
        f"{what}; nothing was submitted",
        hint=f"{_PLACES} Large variables and arguments can go into a file of it.",
    )


def writes_to_log(role: Role) -> bool:
    """Tell whether a role's results have no other place than its log."""
    specification = role.metadata.get("train")
    return isinstance(specification, dict) and bool((specification.get("output") or {}).get("log"))


def check_location(location: str) -> str:
    """Return what is wrong with a place for code; "" if nothing is."""
    bucket = split_uri(location)[0] if location.startswith("s3://") else ""
    return "" if bucket else f"code_location must be s3://BUCKET/PREFIX, not {location!r}"


def _presigned(session: AwsSession, uri: str) -> str:
    bucket, key = split_uri(uri)
    url: str = session.client("s3").generate_presigned_url(
        "get_object", {"Bucket": bucket, "Key": key}, ExpiresIn=LONGEST_SECONDS
    )
    return url
