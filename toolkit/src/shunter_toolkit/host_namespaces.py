"""Gives each host's processes their own view: its base directory at ``/opt/ml``, all hosts in ``/etc/hosts``.

Scripts write to the path ``/opt/ml/checkpoints`` and connect to ``algo-2``. If hosts are processes of one
machine, each gets its own ``/opt/ml`` in a mount namespace, which ends with the host's last process and
leaves nothing on the machine. A user who may not mount gets a user namespace too, with the same user and
group.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

from . import kernel, log
from .errors import ClientError
from .layout import DEFAULT_BASE

if TYPE_CHECKING:
    from .hostnames import Keeper
    from .job_document import Job
    from .layout import Layout

HOSTS_FILE = "/etc/hosts"
#: ``loopback``: the job's hosts are processes of one machine; their names get loopback addresses.
NETWORK_VARIABLE = "SHUNTER_HOST_NETWORK"
LOOPBACK = "loopback"
#: Where the launcher says that the first host is reached.
FIRST_HOST_VARIABLE = "TORCHX_RANK0_HOST"
_HOSTS_PER_NETWORK = 250
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_BIND, _MOVE, _RECURSIVE, _SLAVE, _DETACH = 1 << 12, 1 << 13, 1 << 14, 1 << 19, 2
_SETGID, _SETUID, _SYS_ADMIN, _SETFCAP = 1 << 6, 1 << 7, 1 << 21, 1 << 31
#: Only these are covered to add a directory to them: no new files are expected in them while a job runs.
_COVERABLE = ("/", "/opt")
_SSH_CONFIG = "/etc/ssh/ssh_config"
_SWITCHED_OFF = "their number, user.max_user_namespaces, is 0 or used up"
_RESULTS = ("model", "checkpoints", "output")
_MOST_LOST = 1000


class ViewError(Exception):
    """The machine does not allow it; the text says what it refused."""


class HostView:
    """The view that one host should get, and whether it is in place.

    Args:
        layout: the paths of the job.
        hosts: the names of all hosts.
        current: this host's.
        job: the job document, or None on a platform that has prepared the base directory.
    """

    def __init__(self, layout: Layout, hosts: Sequence[str], current: str, job: Job | None) -> None:
        self.layout = layout
        self.hosts = list(hosts)
        self.current = current
        self.job = job
        #: Why /opt/ml is that of the machine and not this host's own; "" if it is its own.
        self.refusal = ""
        #: Why the hosts' names do not resolve; "" if they do.
        self.unresolved = ""
        self._began = 0.0
        self._hosts_file = ""
        self._before: str | None = None
        self._keeper: Keeper | None = None

    def open(self) -> None:
        """Enter the view, for this process and all that it will start. What fails is kept for `warn`.

        Call it before anything is linked into the base directory, and before there are threads.
        """
        has_own_base = not _is_same(self.layout.base, DEFAULT_BASE)
        hidden = self._hidden() if has_own_base else ""
        if hidden:
            self._refuse_base(f"the machine's own {DEFAULT_BASE} holds {hidden}, which this job needs")
        pairs = [(self.layout.base, DEFAULT_BASE)] if has_own_base and not hidden else []
        unnamed = self._unnamed()
        if (
            unnamed
            and (pairs or _has_capabilities(_SYS_ADMIN) or not self._own_hosts_file())
            and os.path.exists(HOSTS_FILE)
        ):
            self._hosts_file = self._copy_of_hosts_file()
            pairs.append((self._hosts_file, HOSTS_FILE))
        reason = f"there is no {HOSTS_FILE}"
        if pairs:
            try:
                show(pairs, os.path.join(self.layout.base, ".view"))
            except ViewError as error:
                reason, self._hosts_file = str(error), ""
                if pairs[0][1] == DEFAULT_BASE:
                    self._refuse_base(reason)
        if unnamed:
            self._hosts_file = self._hosts_file or self._own_hosts_file()
            if self._hosts_file:
                self._name(unnamed)
            else:
                self.unresolved = reason

    def close(self) -> None:
        """Stop updating the hosts' names."""
        if self._keeper is not None:
            self._keeper.close()

    def _hidden(self) -> str:
        """A path that the job needs in the machine's own /opt/ml; "" without one."""
        place = os.path.realpath(DEFAULT_BASE) + os.sep
        document = self.job.document if self.job is not None else {}
        channels = [channel.uri for channel in self.job.channels] if self.job is not None else []
        uris = [document.get("code"), *channels]
        uris += [document.get(section, {}).get("uri") for section in ("output", "checkpoints")]
        paths = [uri[7:] if uri.startswith("file://") else uri for uri in uris if uri]
        paths += [self.layout.base, os.getcwd(), sys.prefix, sys.executable, __file__]
        return next((path for path in paths if f"{os.path.realpath(path)}/".startswith(place)), "")

    def _refuse_base(self, reason: str) -> None:
        self.refusal = reason
        self._began = time.time()

    def warn(self, code: str, name: str, args: Sequence[str], *, needs_names: bool) -> None:
        """Say what the view lacks, if the script uses it.

        Args:
            code: the code directory.
            name: the entry point, relative to it; "" if there is none.
            args: the script's arguments.
            needs_names: whether the job needs the hosts' names, whatever its script says.
        """
        if not self.refusal and not self.unresolved:
            return
        from . import script_text

        texts = [("an argument", " ".join(args).encode("utf-8", "surrogateescape"))]
        texts += script_text.texts(code, name)
        users = [file for file, text in texts if script_text.uses_base(text)]
        if self.refusal and users:
            log.warning(
                f"{users[0]} uses {DEFAULT_BASE}, which is not this job's own here: {self.refusal}. "
                "Use SM_MODEL_DIR and the other SM_ variables."
            )
        if self.unresolved and (
            needs_names or any(script_text.uses_names(text, self.hosts) for _, text in texts)
        ):
            log.warning(
                f"The names of this job's hosts do not resolve here: {self.unresolved}. "
                f"Use 127.0.0.1 in place of {self.current}."
            )

    # ---- names

    def _unnamed(self) -> list[str]:
        """The hosts whose names do not resolve yet, if the toolkit has to make them resolve."""
        known = names_in(_read(HOSTS_FILE))
        unnamed = [host for host in self.hosts if host not in known and host.split() == [host]]
        if not unnamed or len(self.hosts) == 1 or self._share_machine:
            return unnamed
        if self.job is None or FIRST_HOST_VARIABLE not in os.environ:
            return []  # the platform names its hosts, or the first host's address is not known
        from . import hostnames

        return [] if hostnames.are_known(self.hosts, self.current) else unnamed

    @property
    def _share_machine(self) -> bool:
        return os.environ.get(NETWORK_VARIABLE) == LOOPBACK

    def _name(self, unnamed: Sequence[str]) -> None:
        """Write the hosts' names and addresses to the hosts file."""
        if len(self.hosts) == 1 or self._share_machine:
            name = self.job.name if self.job else os.environ.get("TRAINING_JOB_NAME", self.layout.base)
            table = loopback_addresses(name, self.hosts)
            self._write_hosts({host: table[host] for host in unnamed})
            return
        from . import hostnames

        self._keeper = hostnames.Keeper(self.hosts, self.current, self._write_hosts)
        missing = self._keeper.missing()
        if missing:
            log.warning(
                f"The names of {', '.join(missing)} do not resolve yet: these hosts did not join within the "
                "time of SHUNTER_HOST_WAIT_SECONDS. The script is started nevertheless."
            )

    def _own_hosts_file(self) -> str:
        """The container's own /etc/hosts, if this user can write it; "" otherwise."""
        return HOSTS_FILE if _is_mounted(HOSTS_FILE) and os.access(HOSTS_FILE, os.W_OK) else ""

    def _copy_of_hosts_file(self) -> str:
        """Copy the machine's /etc/hosts to a file that can be written; return its path."""
        path = os.path.join(self.layout.config, "hosts")
        os.makedirs(self.layout.config, exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(_read(HOSTS_FILE))
        return path

    def _write_hosts(self, table: Mapping[str, str]) -> None:
        """Add these addresses to the original content of the hosts file, which is never empty meanwhile."""
        if self._before is None:
            text = _read(self._hosts_file)
            self._before = text if text.endswith("\n") or not text else text + "\n"
        lines = "".join(f"{address} {host}\n" for host, address in table.items())
        data = (self._before + lines).encode("utf-8", "surrogateescape")
        descriptor = os.open(self._hosts_file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    # ---- afterwards

    def lost(self) -> list[str]:
        """Files that were written to the machine's own /opt/ml during the run, by this user."""
        if not self.refusal:
            return []
        found: list[str] = []
        for seen, path in enumerate(_files([os.path.join(DEFAULT_BASE, name) for name in _RESULTS])):
            if seen > _MOST_LOST * 100 or len(found) >= _MOST_LOST:
                break
            try:
                facts = os.lstat(path)
            except OSError:
                continue
            if facts.st_uid == os.geteuid() and max(facts.st_mtime, facts.st_ctime) >= self._began - 0.01:
                found.append(path)
        return found

    def judge(self) -> None:
        """Report the files that the script left in the machine's own /opt/ml.

        Raises:
            ClientError: results or checkpoints should be kept, but all of them were written there.
        """
        lost = self.lost()
        if not lost:
            return
        text = (
            f"{len(lost)} file(s) were written to this machine's own {DEFAULT_BASE} during the run, such as "
            f"{lost[0]}. They are not kept with the job: write to SM_MODEL_DIR, SM_OUTPUT_DATA_DIR and "
            "SM_CHECKPOINT_DIR."
        )
        document = self.job.document if self.job is not None else {}
        kept = {
            "model": ("output", self.layout.model),
            "output": ("output", self.layout.output_data),
            "checkpoints": ("checkpoints", self.job.checkpoint_dir(self.layout) if self.job else ""),
        }
        for path in lost:
            section, own = kept[os.path.relpath(path, DEFAULT_BASE).split(os.sep)[0]]
            if document.get(section, {}).get("uri") and not any(_files([own])):
                raise ClientError(text)
        log.error(text)


def _files(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        for where, _, names in os.walk(folder):
            for name in names:
                yield os.path.join(where, name)


def loopback_addresses(job: str, hosts: Sequence[str]) -> dict[str, str]:
    """The addresses of hosts that share a machine: 127.128.0.1 and above, different for every job.

    All processes of the job compute the same addresses, without communication. So two jobs can use the same
    port on their hosts ``algo-1``.
    """
    first = binascii.crc32(job.encode("utf-8", "surrogateescape"))
    table = {}
    for number, host in enumerate(hosts):
        network = 0x8000 | (first + number // _HOSTS_PER_NETWORK) & 0x7FFF
        table[host] = f"127.{network >> 8}.{network & 255}.{1 + number % _HOSTS_PER_NETWORK}"
    return table


def names_in(text: str) -> set[str]:
    """The names that an /etc/hosts gives addresses to."""
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return {name for words in lines for name in words[1:]}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _is_mounted(path: str) -> bool:
    """Whether a file is a mount: container runtimes mount their own files over some of the image's."""
    return any(line.split()[4] == path for line in _read(f"{kernel.PROC}/self/mountinfo").splitlines())


def _has_capabilities(wanted: int) -> bool:
    for line in _read(f"{kernel.PROC}/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & wanted == wanted
    return False


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


# ---- mount namespaces


def show(pairs: Sequence[tuple[str, str]], stage: str) -> None:
    """Mount each first path at the second one, for this process and its children only.

    A child creates the namespaces, and this process joins them only when they are complete: if the system
    refuses a step, this process is unchanged.

    Args:
        pairs: source and target. A target that does not exist is made, in the namespace only.
        stage: a directory that is used meanwhile. It is made and removed.

    Raises:
        ViewError: the system refuses; nothing has changed.
    """
    system = _system()
    stage = os.path.realpath(stage)
    pairs = [(os.path.realpath(source), os.path.realpath(place)) for source, place in pairs]
    os.makedirs(stage, exist_ok=True)
    reading, writing = os.pipe()
    held, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.close(told)
        _build(system, pairs, stage, held, writing)
    os.close(writing)
    os.close(held)
    try:
        with os.fdopen(reading, "rb") as answers:
            _join(system, pid, answers, told)
    finally:
        os.close(told)  # the child ends
        os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.rmdir(stage)


class _System:
    """Calls of the C library, which raise OSError."""

    def __init__(self) -> None:
        import ctypes

        self._errno: Callable[[], int] = ctypes.get_errno
        library = kernel.c_library()
        self._unshare, self._setns = library.unshare, library.setns
        self._mount, self._umount = library.mount, library.umount2
        self._mount.argtypes = (
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_ulong,
            ctypes.c_char_p,
        )

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            number = self._errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    def unshare(self, spaces: int) -> None:
        self._check(self._unshare(spaces), "this user cannot make a mount namespace")

    def join(self, descriptor: int) -> None:
        self._check(self._setns(descriptor, 0), "cannot join a namespace")

    def mount(self, source: str, target: str, kind: str, flags: int) -> None:
        words = [os.fsencode(word) for word in (source, target, kind)]
        data = b"mode=755" if kind == "tmpfs" else None
        self._check(self._mount(*words, flags, data), f"cannot mount at {target}")

    def umount(self, target: str) -> None:
        self._check(self._umount(os.fsencode(target), _DETACH), f"cannot unmount {target}")


def _system() -> _System:
    try:
        return _System()
    except (ImportError, OSError, AttributeError):
        raise ViewError("this system has no mount namespaces") from None


def _join(system: _System, pid: int, answers: BinaryIO, told: int) -> None:
    """Follow a child that makes namespaces, and join them.

    Raises:
        ViewError: they could not be made.
    """
    spaces = ["mnt"]
    try:
        answer = answers.readline().strip()
        if answer == b"user":
            _map_ids(pid)
            os.write(told, b"\n")
            spaces.insert(0, "user")
            answer = answers.readline().strip()
        if answer != b"done":
            raise ViewError(answer.decode("utf-8", "replace") or "making a mount namespace was interrupted")
        descriptors = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in spaces]
        directory = os.getcwd()
        try:
            for descriptor in descriptors:
                system.join(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        os.chdir(directory)
    except OSError as error:
        raise ViewError(_reason(error)) from None


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text} ({error.filename})" if error.filename else text


def _map_ids(pid: int) -> None:
    """Map our user and group into a child's user namespace, or all that we have if we are permitted to."""
    is_whole = _has_capabilities(_SETUID | _SETGID | _SETFCAP)
    if not is_whole:
        _write(f"/proc/{pid}/setgroups", "deny")
    for kind, own in (("gid", os.getegid()), ("uid", os.geteuid())):
        ranges = [(own, 1)]
        if is_whole:
            lines = _read(f"/proc/self/{kind}_map").splitlines()
            ranges = [(int(words[0]), int(words[2])) for words in map(str.split, lines)]
        _write(f"/proc/{pid}/{kind}_map", "".join(f"{first} {first} {count}\n" for first, count in ranges))


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode("ascii"))  # the kernel accepts all of it or nothing
    except OSError as error:
        text = f"cannot map a user into a user namespace: {error.strerror or ''}"
        raise OSError(error.errno, text) from None
    finally:
        os.close(descriptor)


def _build(system: _System, pairs: Sequence[tuple[str, str]], stage: str, held: int, writing: int) -> None:
    """Make the namespaces in this forked process, and keep them until they are joined. Never returns."""
    answer = "error"
    has_user_namespace = False
    try:
        for received in (signal.SIGTERM, signal.SIGINT):
            signal.signal(received, signal.SIG_DFL)
        try:
            system.unshare(_NEW_MOUNTS)
        except PermissionError:
            try:
                system.unshare(_NEW_MOUNTS | _NEW_USER)
            except OSError as error:
                number = error.errno or 0
                reason = _SWITCHED_OFF if number == errno.ENOSPC else os.strerror(number)
                raise OSError(
                    number, f"a mount namespace needs CAP_SYS_ADMIN or a user namespace ({reason})"
                ) from None
            has_user_namespace = True
            os.write(writing, b"user\n")
            if not os.read(held, 1):
                os._exit(1)
        system.mount("none", "/", "", _RECURSIVE | _SLAVE)  # later mounts of the machine still appear
        if has_user_namespace:
            with contextlib.suppress(OSError):  # then ssh itself says what is wrong
                _adopt_ssh_config(system, stage)
        covered: set[str] = set()
        for source, target in pairs:
            _show(system, source, target, stage, covered)
        answer = "done"
    except OSError as error:
        answer = _reason(error)
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    finally:
        os.write(writing, answer.replace("\n", " ").encode("utf-8", "replace") + b"\n")
        os.read(held, 1)
        os._exit(0)


def _show(system: _System, source: str, target: str, stage: str, covered: set[str]) -> None:
    if not os.path.lexists(target):
        parent = os.path.dirname(target)
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent)
        if parent not in covered:
            _cover(system, parent, stage)
            covered.add(parent)
        os.makedirs(target)
    system.mount(source, target, "", _BIND | _RECURSIVE)


def _cover(system: _System, folder: str, stage: str) -> None:
    """Cover a directory with one in memory that has the same entries, and to which others can be added."""
    if folder not in _COVERABLE:
        raise OSError(2, f"there is no directory to show in {folder}")
    system.mount("shunter", stage, "tmpfs", 0)
    for entry in os.scandir(folder):
        place = os.path.join(stage, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
            continue
        if entry.is_dir():
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT))
        system.mount(entry.path, place, "", _BIND | _RECURSIVE)
    if folder != "/":
        system.mount(stage, folder, "", _MOVE)
        return
    system.umount(stage + stage)  # which came along with the directory that it is in
    os.chdir(stage)
    system.mount(".", "/", "", _MOVE)
    os.chroot(".")
    os.chdir("/")


def _adopt_ssh_config(system: _System, stage: str) -> None:
    """Replace the system's files that /etc/ssh/ssh_config includes with copies that this user owns.

    ssh accepts such files only if root or its user owns them, and here root appears as nobody.
    """
    paths = [path for path in _included(_SSH_CONFIG, 0) if os.stat(path).st_uid != os.getuid()]
    if not paths:
        return
    system.mount("shunter", stage, "tmpfs", 0)
    try:
        for number, path in enumerate(paths):
            copy = os.path.join(stage, str(number))
            with open(path, "rb") as source, open(copy, "wb") as target:
                target.write(source.read())
            os.chmod(copy, 0o644)
            system.mount(copy, path, "", _BIND)
    finally:
        system.umount(stage)  # the mounted files stay


def _included(path: str, depth: int) -> list[str]:
    """The files that an ssh configuration includes, by their real paths; those that can be read."""
    found: list[str] = []
    for line in _read(path).splitlines() if depth < 8 else ():
        words = line.replace("=", " ").replace('"', " ").split()
        if not words or words[0].lower() != "include":
            continue
        for pattern in words[1:]:
            folder, name = os.path.split(os.path.join(os.path.dirname(_SSH_CONFIG), pattern))
            start, star, end = name.partition("*")
            names = os.listdir(folder) if star and os.path.isdir(folder) else [name]
            for each in names:
                full = os.path.realpath(os.path.join(folder, each))
                matches = each.startswith(start) and each.endswith(end)
                if matches and full not in found and os.path.isfile(full) and os.access(full, os.R_OK):
                    found += [full, *_included(full, depth + 1)]
    return list(dict.fromkeys(found))
