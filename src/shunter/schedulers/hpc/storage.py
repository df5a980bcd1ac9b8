"""The cluster's shared storage, by `tar` and the shell, on this machine or over ssh.

What several files hold is asked for in one call, since each call over ssh takes a round trip. Whole folders
appear by a rename, so that no reader sees half of one. The login node has GNU's tar, find and coreutils.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import stat
import tarfile
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from shunter.errors import StateStoreError, UnreachableError
from shunter.schedulers.hpc.commands import COMMAND_SECONDS, Commands
from shunter.schedulers.kept_results import no_such_file
from shunter.specs.training import RESULTS

STORAGE_HINT = "Free space or fix the permissions, or choose another folder: -cfg shared_dir=DIR."
#: Copying code may take long.
COPY_SECONDS = 3600.0

#: Copies files to standard output. What is missing is left out; on stderr is what cannot be read.
_READ = "LC_ALL=C tar -c -P -f - --null -T -; [ $? -le 2 ]"
_UNREADABLE = re.compile(r"^tar: (.*): Cannot \w+: (?!No such file|Not a directory)(.*)$", re.M)
#: Prints parts of files (OFFSET:COUNT:PATH), each after a line with its size. The files may grow meanwhile.
_READ_RANGES = """\
for part; do
    offset=${part%%:*} part=${part#*:}
    most=${part%%:*} path=${part#*:} size=0
    [ ! -f "$path" ] || size=$(($(wc -c <"$path") - offset))
    [ "$size" -gt 0 ] || size=0
    [ "$size" -le "$most" ] || size=$most
    echo "$size"
    [ "$size" = 0 ] || tail -c +$((offset + 1)) <"$path" | head -c "$size"
done
"""
#: Prints "SIZE PATH" for the files in folders. To open a file asks an NFS server for its present size.
_SIZES = """\
for folder; do
    for file in "$folder"/*; do [ ! -f "$file" ] || true <"$file"; done
done 2>/dev/null
find "$@" -maxdepth 1 -type f ! -name '.*' -printf '%s %p\\0' 2>/dev/null
:
"""
_NAMES = """cd "$1" 2>/dev/null || exit 0; for f in *; do [ ! -e "$f" ] || printf '%s\\0' "$f"; done"""
_OWNERS = 'id -u; for f; do stat -L -c "%u %a" -- "$f" 2>/dev/null || echo -; done'
#: Unpacks an archive as a folder. Without -T, mv would move it into one that somebody else made meanwhile.
_PUT = """\
umask 077
if [ -e "$1" ]; then cat >/dev/null; exit; fi
parent=$(dirname -- "$1") && mkdir -p -- "$parent" && new=$(mktemp -d "$parent/.new-XXXXXX") || exit 1
if tar -x -p -f - -C "$new" && mv -T -- "$new" "$1"; then echo made; exit; fi
rm -rf -- "$new"
[ -e "$1" ]
"""
_WRITE = 'umask 077; n=$(mktemp "$(dirname -- "$1")/.new-XXXXXX") && cat >"$n" && mv -f -- "$n" "$1"'
_REMOVE = 'chmod -R u+rwX -- "$@" 2>/dev/null; rm -rf -- "$@"'
#: Prints size in KiB, time of the last change, and how many files with results there are (one is enough).
_USAGE = """\
for folder; do
    if [ ! -e "$folder" ]; then echo '0 0 0'; continue; fi
    results=$(find "$folder/ml" -type f \\( -path '*/model/*' -o -path '*/output/data/*' -o \\
        -path '*/checkpoints/*' \\) 2>/dev/null | head -n 1 | wc -l)
    echo "$(du -sk -- "$folder" | cut -f1) $(stat -c %Y -- "$folder") $results"
done
"""

#: Prints "SIZE TIME PATH" for the results below a base directory, links to other results among them, and
#: "- - PATH" for what is left out.
_RESULTS = """\
cd -P -- "$1" 2>/dev/null || exit 0
base=$(pwd -P)
shift
find "$@" -type f -printf '%s %T@ %p\\0' 2>/dev/null
find "$@" ! -type f ! -type d -print0 2>/dev/null | base=$base xargs -0 -r sh -c '
    for name; do
        real=$(readlink -f -- "$name")
        if [ -d "$real" ] && [ -L "$name" ]; then case $real in "$base"/*) continue ;; esac; fi
        facts="- -"
        case $real in "$base"/*) [ ! -f "$real" ] || facts=$(stat -c "%s %Y" -- "$real") ;; esac
        printf "%s %s\\0" "$facts" "$name"
    done' sh
:
"""
#: Prints a part of a result, unless its path leads elsewhere by now.
_READ_RESULT = """\
base=$(readlink -f -- "$1") && real=$(readlink -f -- "$1/$2") || exit 44
case $real in "$base"/*) ;; *) exit 44 ;; esac
[ -f "$real" ] || exit 44
tail -c +"$3" <"$real" | head -c "$4"
"""
_NO_RESULT = 44


class Storage:
    """Files that the cluster's nodes reach by the same paths.

    Args:
        commands: what runs programs where the storage is seen: on this machine, or on a login node.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._home = ""

    @property
    def is_remote(self) -> bool:
        """Whether it is reached through another machine."""
        return bool(self._commands.host)

    def home(self) -> str:
        """Return the user's home directory there."""
        if not self.is_remote:
            return os.path.expanduser("~")
        if not self._home:
            self._home = os.fsdecode(self._shell('printf %s "$HOME"'))
        return self._home

    def contents(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the content of files, and of all files below folders, by path; missing ones are left out.

        Raises:
            StateStoreError: something is there and cannot be read.
        """
        names = _with_zeros(paths)
        if not names:
            return {}
        answer = self._commands.shell(_READ, stdin=names)
        unreadable = _UNREADABLE.search(answer.err)
        if answer.code != 0 or unreadable is not None:
            raise self._failure(f"{unreadable[1]}: {unreadable[2]}" if unreadable else answer.words)
        contents = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(answer.out), mode="r:") as archive:
                for member in archive:
                    if member.isfile() and (file := archive.extractfile(member)) is not None:
                        contents[member.name] = file.read()
        except tarfile.TarError as error:
            raise UnreachableError(f"an answer over ssh was cut off: {error}", hint="Try again.") from error
        return contents

    def read(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the content of files; None for each that does not exist."""
        contents = self.contents(paths)
        return [contents.get(path) for path in paths]

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return parts of files (path, offset, count); what does not exist is empty."""
        data = self._for_each(_READ_RANGES, [f"{offset}:{count}:{path}" for path, offset, count in ranges])
        parts: list[bytes] = []
        position = 0
        for _ in ranges:
            end = data.find(b"\n", position)
            size = int(data[position:end]) if end >= 0 else 0
            position = end + 1
            if end < 0 or position + size > len(data):
                raise UnreachableError("an answer over ssh was cut off", hint="Try again.")
            parts.append(data[position : position + size])
            position += size
        return parts

    def sizes(self, folders: Sequence[str]) -> dict[str, int]:
        """Return the sizes of all files directly in these folders, by path; missing folders are empty."""
        sizes = {}
        for item in self._for_each(_SIZES, folders).split(b"\0"):
            size, _, path = item.partition(b" ")
            if path:
                sizes[os.fsdecode(path)] = int(size)
        return sizes

    def results(self, base: str) -> list[tuple[str, int | None, float]]:
        """Return path, size and time of the last change of each result below a base directory.

        The size is None of what is left out: a link that leads elsewhere, a FIFO.
        """
        data = self._shell(_RESULTS, base, *RESULTS, timeout=COPY_SECONDS)
        found: list[tuple[str, int | None, float]] = []
        for item in data.split(b"\0")[:-1]:
            size, modified, path = os.fsdecode(item).split(" ", 2)
            found.append((path, None, 0.0) if size == "-" else (path, int(size), float(modified)))
        return found

    def read_result(self, base: str, path: str, offset: int, count: int) -> bytes:
        """Return a part of a result; empty at its end.

        Raises:
            ConfigError: there is no such file, or its path leads out of the results.
        """
        words = [base, path, str(offset + 1), str(count)]
        answer = self._commands.shell(_READ_RESULT, words, timeout=COPY_SECONDS)
        if answer.code == _NO_RESULT:
            raise no_such_file(path)
        if answer.code != 0:
            raise self._failure(answer.words)
        return answer.out

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted, without hidden ones; [] if it does not exist."""
        return sorted(os.fsdecode(name) for name in self._shell(_NAMES, folder).split(b"\0") if name)

    def exists(self, path: str) -> bool:
        """Tell whether a path exists."""
        return self._shell('[ ! -e "$1" ] || echo yes', path) != b""

    def owners(self, paths: Sequence[str]) -> tuple[int, list[tuple[int, int] | None]]:
        """Return our user id, and owner and mode of each path; None for each that does not exist."""
        ours, *lines = self._shell(_OWNERS, *paths).decode().splitlines()
        words = [line.split() for line in lines]
        return int(ours), [(int(each[0]), int(each[1], 8)) if len(each) == 2 else None for each in words]

    def make_folder(self, folder: str) -> None:
        """Make a folder with all missing parents, each accessible to its user only."""
        self._shell('umask 077; mkdir -p -- "$1"', folder)

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
        with archive_of(files, empty) as archive:
            return self.put_archive(folder, archive)

    def put_archive(self, folder: str, archive: IO[bytes]) -> bool:
        """Unpack a tar archive as a folder, like `put_folder`."""
        return self._shell(_PUT, folder, stdin=archive, timeout=COPY_SECONDS).strip() == b"made"

    def write(self, path: str, content: bytes) -> None:
        """Replace a file, whole or not at all, by one that only its owner can read."""
        self._shell(_WRITE, path, stdin=content)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files and folders, as far as they exist.

        Raises:
            StateStoreError: something cannot be removed.
        """
        self._for_each(_REMOVE, paths, timeout=COPY_SECONDS)

    def usage(self, folders: Sequence[str]) -> list[tuple[int, float, bool]]:
        """Return of each folder its size in bytes, the time of its last change, and whether it has results.

        Results are what scripts left in base directories below ``ml``. What does not exist has (0, 0, False).
        """
        lines = self._for_each(_USAGE, folders, timeout=COPY_SECONDS).decode().splitlines()
        words = [line.split() for line in lines]
        return [(int(size) << 10, float(time), results != "0") for size, time, results in words]

    def _for_each(self, script: str, paths: Sequence[str], *, timeout: float = COMMAND_SECONDS) -> bytes:
        """Run a script with many arguments: `xargs` calls it as often as it takes."""
        command = ["xargs", "-0", "-r", "sh", "-c", script, "sh"]
        answer = self._commands.run(command, stdin=_with_zeros(paths), timeout=timeout)
        if answer.code != 0:
            raise self._failure(answer.words)
        return answer.out

    def _shell(
        self,
        script: str,
        *arguments: str,
        stdin: bytes | IO[bytes] = b"",
        timeout: float = COMMAND_SECONDS,
    ) -> bytes:
        answer = self._commands.shell(script, arguments, stdin=stdin, timeout=timeout)
        if answer.code != 0:
            raise self._failure(answer.words)
        return answer.out

    def _failure(self, words: str) -> StateStoreError:
        return StateStoreError(
            f"cannot use the shared storage {self._commands.where}: {words}", hint=STORAGE_HINT
        )


def check_shared_folder(storage: Storage, shared: str) -> None:
    """Check that nobody else can change what our jobs run from the shared folder, as far as it is there.

    Raises:
        StateStoreError: it belongs to another user.
    """
    folders = [
        shared,
        *(posixpath.join(shared, part) for part in ("jobs", "code", "toolkit", "environments", "races")),
    ]
    ours, owners = storage.owners(folders)
    for path, seen in zip(folders, owners, strict=True):
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


def _with_zeros(paths: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)
