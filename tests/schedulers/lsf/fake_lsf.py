#!/usr/bin/env python3
"""Stands in for bsub, bjobs, bkill, bhist, blaunch and what tells of hosts: LSF cannot be installed here.

It is called by each of these names, keeps jobs as files in $FAKE_LSF, and really runs them. What it prints
follows the documents of LSF 10.1 and answers that users have published. A "minute" of -W and -wt takes
$FAKE_LSF_MINUTE seconds. While the file ``down`` is there, it answers as LSF does without mbatchd.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(os.environ.get("FAKE_LSF", "/nonexistent"))
MINUTE = float(os.environ.get("FAKE_LSF_MINUTE", "60"))
GRACE = 3.0  # JOB_TERMINATE_INTERVAL
ENDED = ("DONE", "EXIT")
NEVER = "Dependency condition invalid or never satisfied;"


@contextmanager
def locked():
    with open(ROOT / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def path_of(number: int, index: int) -> Path:
    return ROOT / f"{number}.{index}.json"


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def change(path: Path, **fields) -> None:
    with locked():
        put(path, {**(read(path) if path.exists() else {}), **fields})


def put(path: Path, job: dict) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(job))
    new.replace(path)


def all_jobs() -> list[dict]:
    paths = sorted(ROOT.glob("*.*.json"), key=lambda p: [int(x) for x in p.stem.split(".")])
    return [read(path) for path in paths]


def fail(text: str) -> None:
    print(text, file=sys.stderr)
    sys.exit(255)


# ---- bsub


def bsub(arguments: list[str]) -> None:
    script = sys.stdin.read()
    embedded = [
        word
        for line in script.splitlines()
        if line.startswith("#BSUB")
        for word in shlex.split(line.removeprefix("#BSUB"))
    ]
    options = parse([*embedded, *arguments])  # the command line overrides the script
    if "q" in options and options["q"] not in ("normal", "gpu"):
        fail(f"{options['q']}: No such queue. Job not submitted.")
    if "w" in options and any(not jobs_of(n) for n in re.findall(r"\((\d+)\)", options["w"])):
        fail("Job dependency condition invalid. Job not submitted.")
    for value in (options.get("M"), *re.findall(r"mem=([^],]+)", " ".join(options["R"]))):
        if value and not value.endswith("MB"):
            fail(f"Bad resource requirement: {value} has no unit. Job not submitted.")
    name, _, rest = options.get("J", "").partition("[")
    match = re.match(r"1-(\d+)\](?:%(\d+))?", rest)
    indexes = range(1, int(match[1]) + 1) if match else range(1)
    with locked():
        counter = ROOT / "next"
        number = int(counter.read_text()) if counter.exists() else 1001
        counter.write_text(str(number + 1))
    (ROOT / f"{number}.sh").write_text(script)
    for index in indexes:
        change(
            path_of(number, index), id=number, index=index, name=f"{name}[{index}]" if match else name,
            stat="PEND", reason="New job is waiting for scheduling;", submitted=time.time(), options=options,
            limit=int(match[2]) if match and match[2] else 0, code=None, exit_reason="", host="",
        )  # fmt: skip
    for index in indexes:
        subprocess.Popen(
            [sys.executable, __file__, "--run", str(number), str(index)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    print(f"Job <{number}> is submitted to {'queue' if 'q' in options else 'default queue'} <normal>.")


def parse(words: list[str]) -> dict:
    options: dict = {"R": []}
    words = list(words)
    while words:
        flag = words.pop(0).lstrip("-")
        if flag in ("r", "rn", "x", "ti"):
            options[flag] = True
        elif flag == "R":
            options["R"].append(words.pop(0))
        elif flag in ("J", "o", "q", "P", "g", "app", "W", "wa", "wt", "n", "M", "gpu", "Q", "w", "sla"):
            options[flag] = words.pop(0)
        else:
            fail(f"bsub: Illegal option -- {flag}. Job not submitted.")
    return options


def jobs_of(number: object) -> list[dict]:
    return [job for job in all_jobs() if str(job["id"]) == str(number)]


# ---- running, as sbatchd does


def run(number: int, index: int) -> None:
    path = path_of(number, index)
    while True:
        with locked():
            job = read(path)
            if job["stat"] in ENDED:
                return
            wait = why_not(job)
            if wait is None:  # no other element of an array starts meanwhile
                put(path, {**job, "stat": "RUN", "started": time.time(), "reason": ""})
        if wait is None:
            break
        if wait == NEVER and job["options"].get("ti"):
            said = "TERM_ORPHAN_SYSTEM: orphaned job terminated automatically by LSF."
            change(path, stat="EXIT", exit_reason=said, finished=time.time())
            return
        if wait != job["reason"]:
            change(path, reason=wait)
        time.sleep(0.05)
    options = job["options"]
    slots = int(options.get("n", "1"))
    per_host = re.search(r"ptile=(\d+)", " ".join(options["R"]))
    each = int(per_host[1]) if per_host else slots
    hosts = [f"host{i}" for i in range(-(-slots // each))]
    env = {
        **os.environ, "LSB_JOBID": str(number), "LSB_JOBINDEX": str(index), "LSB_JOBNAME": job["name"],
        "FAKE_LSF": str(ROOT),
        "LSB_MCPU_HOSTS": " ".join(f"{host} {each}" for host in hosts),
    }  # fmt: skip
    with open(options.get("o", os.devnull), "ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", str(ROOT / f"{number}.sh")], env=env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    shown = ":".join(f"{each}*{host}" if each > 1 else host for host in hosts)
    change(path, stat="RUN", started=time.time(), host=shown, pid=process.pid, reason="")
    end = None
    hours, _, minutes = options["W"].rpartition(":") if "W" in options else ("", "", "")
    limit = (int(hours or 0) * 60 + int(minutes)) * MINUTE if minutes else None
    warning = limit - int(options["wt"]) * MINUTE if limit and "wt" in options else None
    begin = time.monotonic()
    killed = ""
    while process.poll() is None:
        passed = time.monotonic() - begin
        if warning is not None and passed > warning:
            signal_all(process.pid, signal.SIGUSR2)
            warning = None
        if limit is not None and passed > limit and end is None:
            killed, end = (
                "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
                time.monotonic() + GRACE,
            )
            signal_all(process.pid, signal.SIGINT)
            signal_all(process.pid, signal.SIGTERM)
        if (ROOT / f"{number}.{index}.kill").exists() and end is None:
            killed, end = "TERM_OWNER: job killed by owner.", time.monotonic() + GRACE
            signal_all(process.pid, signal.SIGINT)
            signal_all(process.pid, signal.SIGTERM)
        if end is not None and time.monotonic() > end:
            kill_job(number, index)
        time.sleep(0.02)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    stat = "DONE" if code == 0 and not killed else "EXIT"
    change(path, stat=stat, code=code, exit_reason=killed, finished=time.time())


def why_not(job: dict) -> str | None:
    for kind, number in re.findall(r"(done|ended)\((\d+)\)", job["options"].get("w", "")):
        stats = {each["stat"] for each in jobs_of(number)}
        if kind == "done" and "EXIT" in stats:
            return NEVER
        if not stats <= set(ENDED):
            return "Job dependency condition not satisfied;"
    if (ROOT / "hold").exists():
        return "Not enough slots or resources for whole duration of the job;"
    running = sum(each["stat"] == "RUN" for each in jobs_of(job["id"]))
    if job["limit"] and running >= job["limit"]:
        return "The job array has reached its job slot limit;"
    return None


def signal_all(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def kill_job(number: str, index: int) -> None:
    """Kill all processes of a job, in whatever session: LSF keeps them in a cgroup."""
    marks = {f"LSB_JOBID={number}".encode(), f"LSB_JOBINDEX={index}".encode(), f"FAKE_LSF={ROOT}".encode()}
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if marks <= set(environ.read_bytes().split(b"\0")):
                os.kill(int(environ.parent.name), signal.SIGKILL)


# ---- bjobs, bkill, bhist


def bjobs(arguments: list[str]) -> None:
    fields = arguments[arguments.index("-o") + 1].split()
    numbers = [word for word in arguments if word.isdecimal()]
    jobs = [job for job in all_jobs() if not job.get("forgotten")]
    records, missing = [], 0
    for number in numbers:
        found = [job for job in jobs if str(job["id"]) == number]
        missing += not found
        records += [record_of(job, fields) for job in found]
        if not found:
            records.append({"JOBID": number, "ERROR": f"Job <{number}> is not found"})
    if not numbers:
        records = [record_of(job, fields) for job in jobs]
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))
    sys.exit(255 if missing else 0)


def record_of(job: dict, fields: list[str]) -> dict[str, str]:
    code = job["code"]
    values = {
        "jobid": job["id"], "jobindex": job["index"], "job_name": job["name"], "stat": job["stat"],
        "exec_host": job["host"], "exit_code": code if code else "", "exit_reason": job["exit_reason"],
        "pend_reason": job["reason"], "submit_time": stamp(job["submitted"]),
        "start_time": stamp(job.get("started")), "finish_time": f"{stamp(job.get('finished'))} L".strip(" L"),
    }  # fmt: skip
    return {field.upper(): str(values[field]) for field in fields}


def stamp(seconds: float | None) -> str:
    return time.strftime("%b %e %H:%M", time.localtime(seconds)) if seconds else ""


def bkill(arguments: list[str]) -> None:
    code = 0
    for number in arguments:
        job_id, _, index = number.rstrip("]").partition("[")
        found = [job for job in jobs_of(job_id) if not index or str(job["index"]) == index]
        if not found:
            print(f"Job <{number}>: No matching job found", file=sys.stderr)
            code = 255
        elif all(job["stat"] in ENDED for job in found):
            print(f"Job <{number}>: Job has already finished", file=sys.stderr)
            code = 255
        else:
            for job in found:
                (ROOT / f"{job['id']}.{job['index']}.kill").touch()
                if job["stat"] == "PEND":
                    change(
                        path_of(job["id"], job["index"]), stat="EXIT", finished=time.time(),
                        exit_reason="TERM_OWNER: job killed by owner.",
                    )  # fmt: skip
            print(f"Job <{number}> is being terminated")
    sys.exit(code)


def bhist(arguments: list[str]) -> None:
    for number in [word for word in arguments if word.isdecimal()]:
        for job in jobs_of(number) or [None]:
            if job is None:
                print(f"Job <{number}> is not found", file=sys.stderr)
                continue
            index = f"[{job['index']}]" if job["index"] else ""
            print(f"\nJob <{number}{index}>, Job Name <{job['name']}>, User <me>, Command <x>")
            print(f"{long_stamp(job['submitted'])}: Submitted from host <login1>, CWD <$HOME>;")
            if job.get("started"):
                print(f"{long_stamp(job['started'])}: Dispatched 1 Task(s) on Host(s) <{job['host']}>;")
            if job["stat"] == "DONE":
                print(f"{long_stamp(job['finished'])}: Done successfully. The CPU time used is 0.1 seconds;")
            elif job["stat"] == "EXIT":
                why = job["exit_reason"] or f"exit code {job['code']}"
                said = f"Exited with exit code {job['code']}" if job["code"] else "Exited"
                print(f"{long_stamp(job['finished'])}: {said}. The CPU time used is 0.1 seconds;")
                print(f"{long_stamp(job['finished'])}: Completed <exit>; {why}")
            print("-" * 78)


def long_stamp(seconds: float) -> str:
    return time.strftime("%a %b %e %H:%M:%S", time.localtime(seconds))


# ---- the others


def blaunch(arguments: list[str]) -> None:
    os.execv("/bin/sh", ["sh", "-c", " ".join(arguments[1:])])


def lsid(arguments: list[str]) -> None:
    print("IBM Spectrum LSF 10.1.0.13, Apr 15 2022\n\nMy cluster name is cluster1\nMy master name is host0")


#: Name: status, slots, memory, GPUs. Of the last one, which is down, LSF knows little.
HOSTS = {
    "host0": ("ok", 8, "15.7G", 0),
    "gpu1": ("ok", 16, "503.5G", 4),
    "gpu2": ("closed_Full", 16, "503.5G", 2),
    "down1": ("unavail", 64, "-", 0),
}
HOSTS_OF_QUEUE = {"normal": "all", "gpu": "gpu1+2 gpu2"}


def bqueues(arguments: list[str]) -> None:
    if arguments[:1] == ["-l"]:
        for queue in arguments[1:] or HOSTS_OF_QUEUE:
            print(f"\nQUEUE: {queue}\n  -- a queue.\n\nPARAMETERS/STATISTICS")
            print("PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS")
            print(" 30    0  Open:Active       -    -    -    -     0     0     0     0     0    0     0")
            print(f"\nUSERS: all\nHOSTS:  {HOSTS_OF_QUEUE[queue]}")
            if (ROOT / "grows").exists():
                print("RC_HOSTS:  awshost")
        return
    print("QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP")
    print("normal           30  Open:Active       -    -    -    -     0     0     0     0")
    print("gpu              40  Closed:Active     -    -    -    -     0     0     0     0")


def bparams(arguments: list[str]) -> None:
    print("Default Queues:  normal\nMBD_SLEEP_TIME used for calculations:  10 seconds")


def bhosts(arguments: list[str]) -> None:
    print("HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV")
    for name in [word for word in arguments if not word.startswith("-")] or HOSTS:
        status, slots, _, _ = HOSTS[name]
        print(f"{name:<18} {status:<15} - {slots:>6} {0:>6} {0:>6} {0:>6} {0:>6} {0:>6}")


def lshosts(arguments: list[str]) -> None:
    print("HOST_NAME                       type       model  cpuf ncpus maxmem maxswp server RESOURCES")
    for name, (status, slots, memory, _) in HOSTS.items():
        is_up = status != "unavail"
        kind, cpus = ("X86_64", slots) if is_up else ("UNKNOWN", "-")
        print(f"{name:<20} {kind:>15} Intel_EM64T  60.0 {cpus:>5} {memory:>6} {'-':>6}    Yes (mg)")


def lsload(arguments: list[str]) -> None:
    if (ROOT / "no-gpus").exists():
        fail("lsload: -gpu: illegal option")
    print("HOST_NAME                 status ngpus gpu_shared_avg_mut gpu_shared_avg_ut ngpus_physical")
    for name, (status, _, _, gpus) in HOSTS.items():
        if status == "unavail":
            print(f"{name:<20} unavail")
        else:
            print(f"{name:<25} ok {gpus or '-':>5} {'0%':>18} {'0%':>17} {gpus or '-':>14}")


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        run(int(sys.argv[2]), int(sys.argv[3]))
        return
    name = Path(sys.argv[0]).name
    if (ROOT / "calls").exists():
        with open(ROOT / "calls", "a") as file:
            file.write(f"{name}\n")
    if (ROOT / "down").exists() and name != "blaunch":
        fail("Failed in an LSF library call: LIM is down; try later. Job not submitted.")
    of_jobs, of_hosts = (
        (bsub, bjobs, bkill, bhist, blaunch),
        (lsid, bqueues, bparams, bhosts, lshosts, lsload),
    )
    {f.__name__: f for f in (*of_jobs, *of_hosts)}[name](sys.argv[1:])


if __name__ == "__main__":
    main()
