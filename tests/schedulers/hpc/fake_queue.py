#!/usr/bin/python3 -SE
"""A tiny queueing system, to test what the schedulers of clusters share. The real ones are tested elsewhere.

    fake_queue.py submit [--name NAME] [--after ID[:any]]... [--limit SECONDS] [--warn SECONDS]  < script
    fake_queue.py list [ID|NAME...]      one JSON object a line; nothing for a job that has been purged
    fake_queue.py cancel ID...
    fake_queue.py purge ID...            forgets jobs, as a queue without accounting does

FAKE_QUEUE names its directory. A file "down" there makes every command fail as if nothing answered; a file
"calls" counts the commands.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

ROOT = os.environ["FAKE_QUEUE"]


def folder(native: str) -> str:
    return os.path.join(ROOT, "jobs", native)


def read(native: str) -> dict:
    with open(os.path.join(folder(native), "state.json")) as file:
        return json.load(file)


def write(native: str, state: dict) -> None:
    path = os.path.join(folder(native), "state.json")
    with open(f"{path}.{os.getpid()}", "w") as file:
        json.dump(state, file)
    os.replace(f"{path}.{os.getpid()}", path)


@contextlib.contextmanager
def locked():
    """Only one process changes states at a time."""
    with open(os.path.join(ROOT, "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def submit(words: list) -> None:
    options: dict = {"after": []}
    while words:
        name, value = words.pop(0)[2:], words.pop(0)
        if name == "after":
            options["after"].append(value)
        else:
            options[name] = value
    if options.get("name", "").startswith("refused"):
        sys.exit("fake_queue: error: jobs of this name are not wanted")
    script = sys.stdin.buffer.read()
    os.makedirs(os.path.join(ROOT, "jobs"), exist_ok=True)
    number = 1 + len(os.listdir(os.path.join(ROOT, "jobs")))
    while True:
        try:
            os.mkdir(folder(str(number)))
            break
        except FileExistsError:
            number += 1
    native = str(number)
    with open(os.path.join(folder(native), "script"), "wb") as file:
        file.write(script)
    write(native, {"id": native, "state": "PENDING", "submitted": time.time(), **options})
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if os.fork() == 0:
            run(native, options)
        os._exit(0)
    print("submitted", native)


def run(native: str, options: dict) -> None:
    for after in options["after"]:
        other, _, any_end = after.partition(":")
        while (state := read(other)["state"]) in ("PENDING", "RUNNING"):
            time.sleep(0.05)
        if state != "DONE" and not any_end:
            return finish(native, "CANCELLED", None)
    with locked(), open(os.path.join(folder(native), "output"), "wb") as output:
        if (state := read(native))["state"] != "PENDING":
            return None
        process = subprocess.Popen(
            ["sh", os.path.join(folder(native), "script")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "FAKE_QUEUE_ID": native},
        )
        write(native, {**state, "state": "RUNNING", "started": time.time(), "pid": process.pid})
    limit, warn = options.get("limit"), options.get("warn")
    try:
        if limit and warn:
            try:
                process.wait(float(limit) - float(warn))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)
                process.wait(float(warn))
        else:
            process.wait(float(limit) if limit else None)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return finish(native, "TIMEOUT", 137)
    return finish(native, "FAILED" if process.returncode else "DONE", process.returncode)


def finish(native: str, state: str, code: "int | None") -> None:
    with locked():
        if (job := read(native))["state"] in ("PENDING", "RUNNING"):
            write(native, {**job, "state": state, "code": code, "ended": time.time()})


def main() -> None:
    with open(os.path.join(ROOT, "calls"), "a") as file:
        file.write(" ".join(sys.argv[1:2]) + "\n")
    if os.path.exists(os.path.join(ROOT, "down")):
        sys.exit("fake_queue: error: connection refused")
    verb, words = sys.argv[1], sys.argv[2:]
    if verb == "submit":
        submit(words)
        return
    known = (
        sorted(os.listdir(os.path.join(ROOT, "jobs"))) if os.path.isdir(os.path.join(ROOT, "jobs")) else []
    )
    jobs = {native: read(native) for native in known}
    jobs = {native: job for native, job in jobs.items() if job["state"] != "PURGED"}
    if verb == "list":
        for native, job in jobs.items():
            if not words or native in words or job.get("name") in words:
                print(json.dumps(job))
    for native in words:
        job = jobs.get(native)
        if verb == "purge":
            write(native, {**jobs[native], "state": "PURGED"})
        if verb == "cancel" and job is not None:
            with locked():
                job = read(native)
                if job["state"] in ("PENDING", "RUNNING"):
                    write(native, {**job, "state": "CANCELLED", "ended": time.time()})
                    if "pid" in job:
                        os.killpg(job["pid"], signal.SIGTERM)


main()
