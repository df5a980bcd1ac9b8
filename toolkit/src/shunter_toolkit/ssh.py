"""An sshd and its keys for one job: made when the job starts, kept in memory, removed when it ends.

No image contains a key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

from .errors import ClusterError

_PREFIX = "shunter-keys-"
_SSHD_PLACES = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd")


class Keys:
    """A folder for keys and sockets, readable by this user only, removed at the end.

    It is in ``SHUNTER_KEY_DIR``, else in memory (``/dev/shm``) if that can be written, else among temporary
    files. It is locked while its job runs, so the next job can recognise and remove one whose ``train`` was
    killed.
    """

    def __init__(self) -> None:
        memory = os.environ.get("SHUNTER_KEY_DIR") or "/dev/shm"
        usable = os.path.isdir(memory) and os.access(memory, os.W_OK)
        place = memory if usable else tempfile.gettempdir()
        remove_stale(place)
        # Locked before it gets the name that other jobs look for: none can take it for a stale one.
        made = tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=place)
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks: then no other job removes it
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.folder = os.path.join(place, os.path.basename(made)[1:])
        os.rename(made, self.folder)

    def path(self, name: str) -> str:
        """The path of a file in the folder."""
        return os.path.join(self.folder, name)

    def write(self, name: str, text: str) -> str:
        """Write a file that only this user can read; return its path."""
        path = self.path(name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(text)
        return path

    def make_key(self, name: str) -> str:
        """Make a key pair; return the public key.

        Raises:
            ClusterError: ssh-keygen is missing or fails.
        """
        line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "shunter", "-f", self.path(name)]
        try:
            subprocess.run(line, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ClusterError(
                f"Cannot make an ssh key: {error}. MPI on several hosts needs OpenSSH: "
                "install openssh-server and openssh-client in the image."
            ) from None
        with open(self.path(f"{name}.pub"), encoding="ascii") as file:
            return file.read().strip()

    def remove(self) -> None:
        """Remove the folder and all in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def remove_stale(place: str) -> None:
    """Remove this user's key folders of jobs that have ended: no process holds their locks any more."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if not name.startswith(_PREFIX):
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # in use, or on a file system without locks: it is kept
        finally:
            os.close(lock)


def client_config(keys: Keys, hosts: Mapping[str, tuple[int, str]]) -> str:
    """Write an ssh configuration for exactly these hosts, which are verified by their keys.

    Args:
        keys: the folder with the key named ``id``.
        hosts: address -> (port, public host key).

    Returns:
        The path of the configuration.
    """
    known = "".join(f"[{address}]:{port} {key}\n" for address, (port, key) in hosts.items())
    parts = [f"Host {address}\n  Port {port}\n" for address, (port, _) in hosts.items()]
    parts.append(
        f"Host *\n  User {_user()}\n  IdentityFile {keys.path('id')}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {keys.write('known_hosts', known)}\n  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 30\n  LogLevel ERROR\n"
    )
    return keys.write("ssh_config", "".join(parts))


def server_command(keys: Keys, port: int, variables: Mapping[str, str]) -> list[str]:
    """Write a configuration for an sshd that accepts the job's key only; return its command line.

    Args:
        keys: the folder with the host key named ``host``, to which ``authorized_keys`` will be written.
        port: to listen on.
        variables: set in every session. They must not be secret: they are written to the configuration.

    Raises:
        ClusterError: there is no sshd in the image.
    """
    program = next((path for path in _SSHD_PLACES if os.access(path, os.X_OK)), shutil.which("sshd"))
    if program is None:
        raise ClusterError("There is no sshd here. MPI on several hosts needs openssh-server in the image.")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    settings = [
        f'"{name}={value}"' for name, value in variables.items() if '"' not in value and "\n" not in value
    ]
    text = (
        f"Port {port}\nHostKey {keys.path('host')}\nAuthorizedKeysFile {keys.path('authorized_keys')}\n"
        f"PidFile none\nUsePAM no\nStrictModes no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        f"KbdInteractiveAuthentication no\nX11Forwarding no\nPrintMotd no\nLogLevel ERROR\nMaxStartups 200\n"
        f"SetEnv {' '.join(settings)}\n"
    )
    return [program, "-D", "-e", "-f", keys.write("sshd_config", text)]


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name
