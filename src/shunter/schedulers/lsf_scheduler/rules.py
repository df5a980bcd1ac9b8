"""Hints for LSF's refusals: patterns of its messages, and what to do about each."""

from __future__ import annotations

HINTS: tuple[tuple[str, str], ...] = (
    (
        r"No such queue|User cannot use the queue",
        "`bqueues -u $USER` lists the queues that you may use: queue=NAME.",
    ),
    (
        r"not a member of the project|No such project|project",
        "`bparams -l` and your site say which: project=NAME.",
    ),
    (
        r"Bad resource requirement|unknown resource",
        "`lsinfo` lists resources. -cfg omit=-R leaves a line of ours out.",
    ),
    (
        r"MEMLIMIT|Memory limit|memory",
        "The queue limits memory: `bqueues -l QUEUE`. mem_per says what is counted.",
    ),
    (
        r"RUNLIMIT|run limit|Run time",
        "The queue limits the time: `bqueues -l QUEUE`, then -cfg time=HOURS:MINUTES.",
    ),
    (
        r"Dependency condition invalid|job not found",
        "A job that it waits for is unknown to LSF (`bjobs -a`).",
    ),
    (
        r"Too many processors|PROCLIMIT|TASKLIMIT|Number of slots",
        "The queue limits slots: `bqueues -l QUEUE`.",
    ),
    (
        r"Pending job (threshold|limit)|reached its pending",
        "Wait for other jobs to end; an array (array=True) counts as one job at most.",
    ),
    (r"[Ii]llegal option|Bad argument", "See bsub(1). -cfg omit=OPTION leaves out what we write."),
)
