"""One layer of an image as a tar stream: the same entries give the same bytes.

Names are bytes as the file system has them; the tar says which are not UTF-8 (``hdrcharset=BINARY``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from shunter.errors import BackendError
from shunter.image_registry.push import LayerFile
from shunter.progress import Progress
from shunter.workspace.manifest import Entry
from shunter.workspace.snapshot import Snapshot

#: Modification time of every entry: 1980-01-02 UTC. Zip files cannot hold an earlier day, so with 1970
#: a job that packs its own code would fail.
MTIME = 315_619_200
BLOCK = 512
#: Size of the pieces that a stream is handed on in.
PIECE = 1 << 20
#: What the name of a file begins with that hides the one of lower layers (OCI image spec, layer.md).
WHITEOUT = ".wh."
#: A delta larger than this part of the whole layer is not worth a second layer.
LARGEST_DELTA = 0.25

_TYPES = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "dir": tarfile.DIRTYPE}

Reader = Callable[[Entry], Iterable[bytes]]


@dataclass(frozen=True)
class LayerContent:
    """What a layer holds: its entries sorted by path, and how to read a file's content.

    ``read`` must return exactly the content that has the entry's digest, or raise.
    """

    entries: tuple[Entry, ...]
    read: Reader = field(compare=False)


def content_of(taken: Snapshot) -> LayerContent:
    """Return a workspace as the content of a layer or archive, owned by root."""
    return LayerContent(taken.manifest.entries, taken.read)


def tar_size(entries: Iterable[Entry]) -> int:
    """Return how long the tar will be, without reading any content."""
    return sum(_entry_size(entry) for entry in entries) + 2 * BLOCK


def tar_stream(content: LayerContent) -> Iterator[bytes]:
    """Yield the layer's tar in pieces of about 1 MiB.

    Raises:
        WorkspaceChangedError: by ``content.read``, where a file no longer has its content.
    """
    return _gather(_tar_parts(content))


def write_gzip(
    content: LayerContent, path: str, advance: Callable[[int], None] = lambda done: None
) -> LayerFile:
    """Write the layer to a file, compressed: level 1, no time, no name.

    Args:
        content: what is in the layer.
        path: the file.
        advance: receives how many bytes of the tar have been written.

    Raises:
        OSError: the file cannot be written.
        WorkspaceChangedError: a file no longer has its content.
    """
    plain, packed = hashlib.sha256(), hashlib.sha256()
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    done = size = 0
    with open(path, "wb") as file:
        for piece in itertools.chain(tar_stream(content), [b""]):
            plain.update(piece)
            part = packer.compress(piece) if piece else packer.flush()
            packed.update(part)
            file.write(part)
            size += len(part)
            done += len(piece)
            advance(done)
    return LayerFile(path, f"sha256:{plain.hexdigest()}", f"sha256:{packed.hexdigest()}", size)


def write_tar(content: LayerContent, path: str, progress: Progress) -> None:
    """Write the tar to a file. Raises as `write_gzip` does."""
    advance = packing(content, progress)
    done = 0
    with open(path, "wb") as file:
        for piece in tar_stream(content):
            file.write(piece)
            done += len(piece)
            advance(done)


def packing(content: LayerContent, progress: Progress) -> Callable[[int], None]:
    """Say that a tar is being written; returns what to call with the number of bytes that have been."""
    total = tar_size(content.entries)
    progress.step(f"packing {total / 1e6:.1f} MB")
    return lambda done: progress.advance("packing the layer", done, total)


@contextlib.contextmanager
def work_folder() -> Iterator[str]:
    """Give a folder for layers, removed afterwards, whatever happens.

    Raises:
        BackendError: its disk is full.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="shunter-") as folder:
            yield folder
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BackendError(
            f"the layer cannot be written: {tempfile.gettempdir()} is full",
            hint="Free space there, or let TMPDIR name a directory with more. Nothing was pushed.",
        ) from error


def _gather(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts, so that what follows is called once per MiB and not once per header."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _tar_parts(content: LayerContent) -> Iterator[bytes]:
    for entry in content.entries:
        yield _headers(entry)
        if entry.kind == "file" and entry.size:
            yield from content.read(entry)
            padding = -entry.size % BLOCK
            if padding:
                yield bytes(padding)
    yield bytes(2 * BLOCK)


def _entry_size(entry: Entry) -> int:
    size = len(_headers(entry))
    return size + (entry.size + BLOCK - 1) // BLOCK * BLOCK if entry.kind == "file" else size


def _headers(entry: Entry) -> bytes:
    """Return an entry's header, after its pax header where it needs one."""
    info = tarfile.TarInfo(entry.path)
    info.type, info.mode, info.mtime = _TYPES[entry.kind], entry.mode, MTIME
    info.uid, info.gid, info.linkname = entry.uid, entry.gid, entry.target
    info.size = entry.size if entry.kind == "file" else 0
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


# ---- the difference of two layers


def small_change(before: Sequence[Entry], content: LayerContent) -> LayerContent | None:
    """Return what has to be put on one layer to make it another one, with the directories above it.

    None if that is not worth a second layer. Nor does one do if something was removed, or is a directory,
    file or link where it was not: a layer that hides it would also hide what the base image has there.
    """
    old = {entry.path: entry for entry in before}
    new = {entry.path: entry for entry in content.entries}
    if any(path not in new or new[path].kind != entry.kind for path, entry in old.items()):
        return None
    changed = [entry for entry in content.entries if old.get(entry.path) != entry]
    sizes = [sum(BLOCK + entry.size for entry in entries) for entries in (changed, content.entries)]
    if sizes[0] > LARGEST_DELTA * sizes[1]:
        return None
    paths = {entry.path for entry in changed}
    for path in list(paths):
        while path := path.rpartition("/")[0]:
            paths.add(path)
    return replace(content, entries=tuple(entry for entry in content.entries if entry.path in paths))
