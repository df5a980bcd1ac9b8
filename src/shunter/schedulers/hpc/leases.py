"""Races on a cluster: what a job's folder has of the lease, which `run.sh` takes, and who holds it.

The file `LEASE` has, in lines, the path of the lease or the presigned URLs of an object of S3 as JSON, the
job's handle, and for each rival in the same queue its folder and the native command that cancels it.
"""

from __future__ import annotations

import inspect
import posixpath
from collections.abc import Sequence

from shunter._toolkit import race_lease
from shunter.errors import UnreachableError
from shunter.schedulers.hpc.request import HpcRequest
from shunter.schedulers.hpc.shared_folder import LEASE, SharedJob, job_folder
from shunter.schedulers.hpc.storage import Storage

#: Takes a lease that is an object of S3.
PROGRAM = "lease.py"


def enter(
    storage: Storage,
    request: HpcRequest,
    lease: str,
    handle: str,
    rivals: Sequence[str],
    cancel_command: Sequence[str],
) -> None:
    """Put what a job needs to take the lease of its race into its request, and make the folder of leases.

    Args:
        storage: the shared storage.
        request: the job's, at home.
        lease: path of the lease, or the URLs of the object.
        handle: the job's.
        rivals: ids of the other jobs of the race in this queue.
        cancel_command: the native command that ends submissions, whose ids follow.
    """
    if race_lease.is_object(lease):
        request.files[PROGRAM] = inspect.getsource(race_lease)
    else:
        folder, name = posixpath.split(lease)
        lease = posixpath.join(request.shared_dir, posixpath.basename(folder), name)  # without ~
        storage.make_folder(posixpath.dirname(lease))
    lines = [lease, handle]
    for rival in rivals:
        lines += [job_folder(request.shared_dir, rival), " ".join(cancel_command)]
    request.files[LEASE] = "".join(f"{line}\n" for line in lines)


def holder(storage: Storage, job: SharedJob | None) -> str:
    """Return the handle of the job that has the lease of a job's race; "" if none has it, or there is none.

    Raises:
        UnreachableError: S3 cannot be reached.
    """
    if job is None or not job.lease:
        return ""
    if not race_lease.is_object(job.lease):
        return (storage.read([job.lease])[0] or b"").decode().strip()
    try:
        return race_lease.holder(job.lease)
    except OSError as error:
        raise UnreachableError(f"the lease of the race of {job.app_id} cannot be seen: {error}") from error
