"""Enters a job of `shunter dev`: runs a command, or a shell, with the variables and directory of its keeper.

The keeper, ``python -m shunter_toolkit dev``, runs as the job's script, so it has what a script has. `shunter
dev` and `exec` run the text of this file in the replica, as ``python -c TEXT [COMMAND...]``, with whatever
Python the replica has.
"""

import os
import shlex
import sys
import time

JOB = b"TORCHX_JOB_ID"
#: Variables of the session's terminal.
OWN = (b"TERM", b"COLORTERM", b"LANG")
KEEPER = [b"-m", b"shunter_toolkit", b"dev"]
#: Seconds between looks; until the waiting is mentioned; until a job without any process has ended.
PAUSE, PATIENCE, LONGEST_ABSENCE = 0.1, 2.0, 5.0


def read(path: str) -> "list[bytes]":
    """Return the parts of a file of /proc; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def variables_of(pid: str) -> "dict[bytes, bytes]":
    """Return the environment that a process was started with."""
    pairs = (item.partition(b"=") for item in read(f"/proc/{pid}/environ"))
    return {name: value for name, _, value in pairs if name}


def find_keeper() -> "tuple[str, dict[bytes, bytes]]":
    """Return pid and variables of the keeper; wait for it while the job prepares its data and packages."""
    job, began, seen, mentioned = os.environb.get(JOB, b""), time.monotonic(), time.monotonic(), False
    while True:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) == os.getpid():
                continue
            variables = variables_of(pid)
            if variables.get(JOB) == job:
                seen = time.monotonic()
                if read(f"/proc/{pid}/cmdline")[1:4] == KEEPER:
                    return pid, variables
        now = time.monotonic()
        if now - seen > LONGEST_ABSENCE:
            sys.exit("shunter: nothing of this job runs here any more")
        if now - began > PATIENCE and not mentioned:
            mentioned = True
            sys.stderr.write("shunter: waiting until the job has its data and packages\n")
            sys.stderr.flush()
        time.sleep(PAUSE)


def shell(variables: "dict[bytes, bytes]") -> "list[str]":
    """Return the command of a shell. What ~/.bashrc does to PATH must not hide the job's environment."""
    path = os.fsdecode(variables.get(b"PATH", os.fsencode(os.defpath)))
    if not any(os.access(os.path.join(folder, "bash"), os.X_OK) for folder in path.split(os.pathsep)):
        return ["sh"]
    reading, writing = os.pipe()
    lines = f'[ ! -f ~/.bashrc ] || . ~/.bashrc\nPATH={shlex.quote(path)}:"$PATH"\n'
    os.write(writing, lines.encode("utf-8", "surrogateescape"))
    os.close(writing)
    os.set_inheritable(reading, True)
    return ["bash", "--rcfile", f"/dev/fd/{reading}"]


def main() -> None:
    """Become the command."""
    pid, variables = find_keeper()
    variables.update({name: os.environb[name] for name in OWN if name in os.environb})
    command = sys.argv[1:] or shell(variables)
    try:
        os.chdir(f"/proc/{pid}/cwd")
        os.execvpe(command[0], command, variables)
    except OSError as error:
        sys.stderr.write(f"shunter: cannot run {command[0]} in the job: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
