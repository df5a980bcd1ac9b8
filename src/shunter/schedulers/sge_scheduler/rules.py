"""Hints for Grid Engine's refusals: patterns of its messages, and what to do about each."""

from __future__ import annotations

HINTS: tuple[tuple[str, str], ...] = (
    (r"unknown queue|queue .* does not exist", "`qconf -sql` lists the queues: -cfg queue=NAME."),
    (
        r"parallel environment .* does not exist",
        "`qconf -spl` lists the parallel environments: -cfg pe=NAME for several hosts, smp_pe=NAME for one.",
    ),
    (
        r"unknown resource",
        "`qconf -sc` lists resources. Request memory and gpus with -cfg memory=NAME,gpu=NAME; '' for none.",
    ),
    (
        r"requested project .* does not exist|access to project",
        "`qconf -sprjl` lists projects: -cfg project=NAME.",
    ),
    (r"no suitable queues", "No queue fits such a job. `qstat -f` and `qhost -F` show what there is."),
    (
        r"job rejected: (only|the)? ?\S* ?(jobs|limit)|would exceed|max_(u_)?jobs",
        "A limit of the site is reached. Wait for other jobs to end; an array (-cfg array=True) counts once.",
    ),
    (
        r"is not a submit host|no submit host|neither submit nor admin host",
        "Submit from a login node: -cfg host=NODE.",
    ),
    (
        r"SGE_ROOT|unable to read qmaster name",
        "Source the site's settings.sh first, or submit from a login node: host=.",
    ),
    (r"invalid option argument|unknown option", "See qsub(1). -cfg omit=OPTION leaves out what we write."),
)
