"""The cluster's shared storage, as files of this machine or over ssh.

Both kinds answer alike. What several files hold is asked for in one call, since each call over ssh takes a
round trip. Whole folders appear by a rename, so that no reader sees half of one.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import tarfile
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TypeVar

from shunter.errors import BackendError, StateStoreError, UnreachableError
from shunter.paths import LARGEST, remove_tree
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.supervisor.directories import has_results, size_of

T = TypeVar("T")

STORAGE_HINT = "Free space or fix the permissions, or choose another folder: -cfg shared_dir=DIR."
#: Copying code may take long.
COPY_SECONDS = 3600.0
#: Arguments of one remote command: far below the 128 KiB that one argument may have.
_MOST_ARGUMENTS = 64 << 10


class Storage(ABC):
    """Files that the cluster's nodes reach by the same paths."""

    @abstractmethod
    def home(self) -> str:
        """Return the user's home directory there."""

    @abstractmethod
    def read(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the content of files; None for each that does not exist."""

    @abstractmethod
    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return parts of files (path, offset, count); what does not exist is empty."""

    @abstractmethod
    def sizes(self, folders: Sequence[str]) -> dict[str, int]:
        """Return the sizes of all files directly in these folders, by path; missing folders are empty."""

    @abstractmethod
    def texts(self, folders: Sequence[str]) -> dict[str, str]:
        """Return the content of all small files directly in these folders, by path."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted, without hidden ones; [] if it does not exist."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Tell whether a path exists."""

    @abstractmethod
    def owners(self, paths: Sequence[str]) -> tuple[int, list[tuple[int, int] | None]]:
        """Return our user id, and owner and mode of each path; None for each that does not exist."""

    @abstractmethod
    def put_folder(
        self, folder: str, files: Mapping[str, tuple[bytes, int]], empty: Iterable[str] = ()
    ) -> bool:
        """Make a private folder with these files (relative path -> content, mode), whole or not at all.

        Args:
            folder: must not exist; the folders above it are made.
            files: what is in it.
            empty: folders in it that are empty.

        Returns:
            Whether it was made; False if it exists already.
        """

    @abstractmethod
    def put_archive(self, folder: str, archive: IO[bytes]) -> bool:
        """Unpack a tar archive as a folder, like `put_folder`."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Replace a file, whole or not at all, by one that only its owner can read."""

    @abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders, as far as they exist.

        Raises:
            StateStoreError: something cannot be removed.
        """

    @abstractmethod
    def disk_usage(self, paths: Sequence[str]) -> list[tuple[int, float]]:
        """Return size in bytes and time of the last change of each path; (0, 0) if it does not exist."""

    @abstractmethod
    def have_results(self, folders: Sequence[str]) -> list[bool]:
        """Tell of folders of base directories whether scripts left results in them."""


class LocalStorage(Storage):
    """Shared storage that is mounted on this machine."""

    def home(self) -> str:
        """Return the home directory."""
        return os.path.expanduser("~")

    def read(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the content of files."""
        return [_read(path) for path in paths]

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return parts of files."""
        found = []
        for path, offset, count in ranges:
            try:
                with _opened(path) as file:  # opening asks an NFS server for the present size
                    file.seek(offset)
                    found.append(file.read(count))
            except FileNotFoundError:
                found.append(b"")
            except OSError as error:
                raise _failure("read", path, error) from error
        return found

    def sizes(self, folders: Sequence[str]) -> dict[str, int]:
        """Return the sizes of all files directly in these folders."""
        found = {}
        for folder in folders:
            for name in self.names(folder):
                path = os.path.join(folder, name)
                try:
                    with _opened(path) as file:
                        found[path] = os.fstat(file.fileno()).st_size
                except OSError:
                    continue
        return found

    def texts(self, folders: Sequence[str]) -> dict[str, str]:
        """Return the content of all files directly in these folders."""
        found = {}
        for folder in folders:
            for name in self.names(folder):
                content = _read(os.path.join(folder, name))
                if content is not None:
                    found[os.path.join(folder, name)] = content.decode("utf-8", "replace")
        return found

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        try:
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failure("read", folder, error) from error

    def exists(self, path: str) -> bool:
        """Tell whether there is something."""
        return os.path.lexists(path)

    def owners(self, paths: Sequence[str]) -> tuple[int, list[tuple[int, int] | None]]:
        """Return our user id, and owner and mode of each path."""
        found: list[tuple[int, int] | None] = []
        for path in paths:
            try:
                info = os.stat(path)
                found.append((info.st_uid, stat.S_IMODE(info.st_mode)))
            except OSError:
                found.append(None)
        return os.getuid(), found

    def put_folder(
        self, folder: str, files: Mapping[str, tuple[bytes, int]], empty: Iterable[str] = ()
    ) -> bool:
        """Make a private folder with these files."""

        def fill(partial: str) -> None:
            for name in empty:
                os.makedirs(os.path.join(partial, name), mode=0o700, exist_ok=True)
            for name, (content, mode) in files.items():
                path = os.path.join(partial, name)
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
                with open(descriptor, "wb") as file:
                    file.write(content)

        return self._made(folder, fill)

    def put_archive(self, folder: str, archive: IO[bytes]) -> bool:
        """Unpack a tar archive as a folder."""

        def fill(partial: str) -> None:
            with tarfile.open(fileobj=archive, mode="r:") as members:
                # Our own archive, whose links may lead out. Before Python 3.11.4 there are no filters.
                if hasattr(tarfile, "fully_trusted_filter"):
                    members.extractall(partial, filter="fully_trusted")
                else:
                    members.extractall(partial)

        return self._made(folder, fill)

    def _made(self, folder: str, fill: Callable[[str], None]) -> bool:
        if os.path.lexists(folder):
            return False
        try:
            make_private_folder(os.path.dirname(folder))
            partial = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(folder))
            try:
                fill(partial)
                os.rename(partial, folder)
            except BaseException:
                remove_tree(partial)
                raise
        except OSError as error:
            if os.path.lexists(folder):
                return False
            raise _failure("make", folder, error) from error
        return True

    def write(self, path: str, content: bytes) -> None:
        """Replace a file."""
        try:
            descriptor, partial = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(path))
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(partial, path)
        except OSError as error:
            raise _failure("write", path, error) from error

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders."""
        for path in paths:
            try:
                if os.path.isdir(path) and not os.path.islink(path):
                    remove_tree(path)
                elif os.path.lexists(path):
                    os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _failure("remove", error.filename or path, error) from error

    def disk_usage(self, paths: Sequence[str]) -> list[tuple[int, float]]:
        """Return size and time of the last change of each path."""
        found = []
        for path in paths:
            try:
                found.append((size_of([path]), os.stat(path).st_mtime))
            except OSError:
                found.append((0, 0.0))
        return found

    def have_results(self, folders: Sequence[str]) -> list[bool]:
        """Tell of folders of base directories whether scripts left results in them."""
        return [has_results(folder) for folder in folders]


class RemoteStorage(Storage):
    """Shared storage that is reached through a login node.

    Args:
        commands: what runs programs there.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._home = ""

    def home(self) -> str:
        """Return the user's home directory there."""
        if not self._home:
            self._home = self._shell('printf %s "$HOME"').decode("utf-8", "replace")
        return self._home

    def read(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the content of files."""
        found = self._contents(paths)
        return [found.get(path) for path in paths]

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return parts of files."""
        # The size is printed before the bytes; the file may grow in between, so no more than that is printed.
        script = (
            "while [ $# -ge 3 ]; do f=$1 o=$2 c=$3; shift 3; "
            'if [ -f "$f" ]; then n=$(($(wc -c <"$f") - o)); else n=0; fi; '
            '[ "$n" -gt 0 ] || n=0; if [ "$c" -ge 0 ] && [ "$n" -gt "$c" ]; then n=$c; fi; echo "$n"; '
            'if [ "$n" -gt 0 ]; then tail -c +$((o + 1)) <"$f" | head -c "$n"; fi; done'
        )
        found: list[bytes] = []
        flat = [(path, str(offset), str(count)) for path, offset, count in ranges]
        for chunk in _chunks(flat):
            data = self._shell(script, [word for item in chunk for word in item])
            found += _framed(data, len(chunk))
        return found

    def sizes(self, folders: Sequence[str]) -> dict[str, int]:
        """Return the sizes of all files directly in these folders."""
        # GNU's find takes one process; without it there is one for each file
        script = (
            'if find . -maxdepth 0 -printf "" 2>/dev/null; then '
            "find \"$@\" -maxdepth 1 -type f ! -name '.*' -printf '%s %p\\0' 2>/dev/null; "
            'else for d; do for f in "$d"/*; do [ -f "$f" ] && n=$(wc -c <"$f") && '
            'printf "%s %s\\0" $((n)) "$f"; done; done; fi; :'
        )
        found = {}
        for chunk in _chunks(folders):
            for item in self._shell(script, chunk).split(b"\0"):
                size, _, path = item.partition(b" ")
                if path:
                    found[os.fsdecode(path)] = int(size)
        return found

    def texts(self, folders: Sequence[str]) -> dict[str, str]:
        """Return the content of all files directly in these folders."""
        wanted = set(folders)
        return {
            path: content.decode("utf-8", "replace")
            for path, content in self._contents(folders).items()
            if posixpath.dirname(path) in wanted and not posixpath.basename(path).startswith(".")
        }

    def _contents(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the content of files, and of all files below folders, by path; one call for all."""
        if not paths:
            return {}
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        data = self._shell("tar -c -P -f - --null -T - 2>/dev/null; :", stdin=names)
        found = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                for member in archive:
                    if member.isfile() and (file := archive.extractfile(member)) is not None:
                        found[member.name] = file.read()
        except tarfile.TarError as error:
            raise UnreachableError(f"an answer over ssh was cut off: {error}", hint="Try again.") from error
        return found

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        script = 'cd "$1" 2>/dev/null || exit 0; for f in *; do [ -e "$f" ] && printf "%s\\0" "$f"; done; :'
        return sorted(os.fsdecode(name) for name in self._shell(script, [folder]).split(b"\0") if name)

    def exists(self, path: str) -> bool:
        """Tell whether there is something."""
        return self._shell('[ -e "$1" ] && echo yes; :', [path]).strip() == b"yes"

    def owners(self, paths: Sequence[str]) -> tuple[int, list[tuple[int, int] | None]]:
        """Return our user id, and owner and mode of each path."""
        script = 'id -u; for f; do stat -L -c "%u %a" -- "$f" 2>/dev/null || echo -; done'
        ours, *lines = self._shell(script, list(paths)).decode().splitlines()
        found = [line.split() for line in lines]
        return int(ours), [(int(words[0]), int(words[1], 8)) if len(words) == 2 else None for words in found]

    def put_folder(
        self, folder: str, files: Mapping[str, tuple[bytes, int]], empty: Iterable[str] = ()
    ) -> bool:
        """Make a private folder with these files."""
        with archive_of(files, empty) as archive:
            return self.put_archive(folder, archive)

    def put_archive(self, folder: str, archive: IO[bytes]) -> bool:
        """Unpack a tar archive as a folder."""
        script = (
            'umask 077; if [ -e "$1" ]; then cat >/dev/null; echo there; exit 0; fi; '
            'd=$(dirname -- "$1") && mkdir -p -- "$d" && n=$(mktemp -d "$d/.new-XXXXXX") || exit 1; '
            'tar -x -p -f - -C "$n" || { rm -rf -- "$n"; exit 1; }; '
            # -T: without it, mv would move it into a folder that somebody else has made meanwhile
            'if mv -T -- "$n" "$1" 2>/dev/null; then echo made; else rm -rf -- "$n"; '
            '[ -e "$1" ] && echo there; fi'
        )
        out = self._shell(script, [folder], stdin=archive, timeout=COPY_SECONDS)
        return out.strip() == b"made"

    def write(self, path: str, content: bytes) -> None:
        """Replace a file."""
        script = 'umask 077; n=$(mktemp "$(dirname -- "$1")/.new-XXXXXX") && cat >"$n" && mv -f -- "$n" "$1"'
        self._shell(script, [path], stdin=content)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders."""
        script = 'chmod -R u+rwX -- "$@" 2>/dev/null; rm -rf -- "$@"'
        for chunk in _chunks(paths):
            self._shell(script, chunk, timeout=COPY_SECONDS)

    def disk_usage(self, paths: Sequence[str]) -> list[tuple[int, float]]:
        """Return size and time of the last change of each path."""
        script = (
            'for f; do if [ -e "$f" ]; then echo "$(du -sk -- "$f" | cut -f1) $(stat -c %Y -- "$f")"; '
            'else echo "0 0"; fi; done'
        )
        found = []
        for chunk in _chunks(paths):
            for line in self._shell(script, chunk, timeout=COPY_SECONDS).decode().splitlines():
                size, time = line.split()
                found.append((int(size) << 10, float(time)))
        return found

    def have_results(self, folders: Sequence[str]) -> list[bool]:
        """Tell of folders of base directories whether scripts left results in them."""
        places = " -o ".join(f"-path '*/{part}/*'" for part in ("model", "output/data", "checkpoints"))
        script = f'for d; do find "$d" -type f \\( {places} \\) 2>/dev/null | head -n 1 | wc -l; done; :'
        found: list[bool] = []
        for chunk in _chunks(folders):
            found += [int(line) > 0 for line in self._shell(script, chunk).split()]
        return found

    def _shell(
        self,
        script: str,
        arguments: Sequence[str] = (),
        *,
        stdin: bytes | IO[bytes] = b"",
        timeout: float = 60.0,
    ) -> bytes:
        answer = self._commands.shell(script, arguments, stdin=stdin, timeout=timeout)
        if answer.code != 0:
            raise StateStoreError(
                f"cannot use the shared storage {self._commands.where}: {answer.words}",
                hint=STORAGE_HINT,
            )
        return answer.out


def make_private_folder(folder: str) -> None:
    """Make a folder on this machine with all missing parents, each accessible to its user only."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def check_owners(storage: Storage, folders: Sequence[str]) -> None:
    """Check that nobody else can change what our jobs run from these folders; missing ones are skipped.

    Raises:
        StateStoreError: one belongs to another user.
    """
    ours, found = storage.owners(folders)
    for path, seen in zip(folders, found, strict=True):
        if seen is None:
            continue
        owner, mode = seen
        if owner not in (ours, 0):
            raise StateStoreError(
                f"cannot use {path}: it belongs to another user, who could change what your jobs run",
                hint="Choose a folder of yours: -cfg shared_dir=DIR.",
            )
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            warnings.warn(
                f"everybody can write to {path}, and so change what your jobs run: chmod o-w {path}",
                stacklevel=2,
            )


def storage_of(commands: Commands) -> Storage:
    """Return the shared storage as seen where these commands run."""
    return RemoteStorage(commands) if commands.host else LocalStorage()


def archive_of(files: Mapping[str, tuple[bytes, int]], empty: Iterable[str] = ()) -> IO[bytes]:
    """Return a tar archive of these files (relative path -> content, mode), in an unnamed file."""
    raw = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in empty:
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(info)
        for name, (content, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    raw.seek(0)
    return raw


def _chunks(items: Sequence[T]) -> Iterator[list[T]]:
    """Cut arguments into lists that fit into one command."""
    chunk: list[T] = []
    length = 0
    for item in items:
        size = 8 + len(item if isinstance(item, str) else str(item))
        if chunk and length + size > _MOST_ARGUMENTS:
            yield chunk
            chunk, length = [], 0
        chunk.append(item)
        length += size
    if chunk:
        yield chunk


def _framed(data: bytes, count: int) -> list[bytes]:
    """Read parts that are preceded by a line with their length."""
    found: list[bytes] = []
    position = 0
    for _ in range(count):
        end = data.find(b"\n", position)
        size = int(data[position:end]) if end >= 0 else 0
        position = end + 1
        if end < 0 or position + size > len(data):
            raise UnreachableError("an answer over ssh was cut off", hint="Try again.")
        found.append(data[position : position + size])
        position += size
    return found


def _opened(path: str) -> IO[bytes]:
    """Open a regular file; a FIFO, which would keep us waiting, counts as missing, like a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return open(descriptor, "rb")


def _read(path: str) -> bytes | None:
    try:
        with _opened(path) as file:
            return file.read(LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failure("read", path, error) from error


def _failure(attempt: str, path: str, error: OSError) -> BackendError:
    return StateStoreError(
        f"cannot {attempt} {path}: {error.strerror or error}",
        hint=STORAGE_HINT,
    )
