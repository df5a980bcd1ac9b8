"""Why names of TorchX's API differ in shunter, by pattern of ``module.name``; for `compat_report.py`."""

from __future__ import annotations

_KEYWORDS = "TorchX's options are given by name, and ours too; there are more of them"

REASONS = {
    r"cli\.main\.main": "None means the words of the command line",
    r"cli\.argparse_util\..*": "an action knows itself what it was given; `torchxconfig_*` are functions",
    r"components\..*": "there is no image that suits every project; the program `torchx` uses TorchX's",
    r"runner\.events\.((api\.)?TorchxEvent|log_event)": "the order is that of TorchX since 2025",
    r"schedulers\.DEFAULT_SCHEDULER_MODULES": "there is neither GCP Batch nor MCAD, as in TorchX since 2026",
    r"schedulers\.SchedulerFactory": "a type for type checkers: any callable is a factory",
    r"schedulers\.api\.DescribeAppResponse": "as in TorchX 0.7; `metadata`, which came in 2025, is last",
    r"schedulers\.aws_batch_scheduler\.(AWSBatchOpts|Opts)": (
        f"{_KEYWORDS}; `user` is looked up when a job is submitted, `priority` is only sent if given"
    ),
    r"schedulers\.(aws_batch|docker|kubernetes|lsf|slurm|local)_scheduler\.(\w+Scheduler|create_scheduler)": (
        "makes our scheduler; a subclass overrides TorchX's hooks, and starts no process of its own"
    ),
    r"schedulers\.ids\.random_id": "the length of an id is exact",
    r"specs\.finder\.get_\w+": "components are checked by the same rules everywhere",
    r"specs\.overlays\.apply_overlay": "operators are always applied",
    r"(specs|specs\.api|workspace|workspace\.api)\.Workspace": "a plain class",
    r"schedulers\.kubernetes_scheduler\.KubernetesJob": (
        "the request holds several objects (`manifests`), since a job need not be Volcano's"
    ),
    r"schedulers\.kubernetes_scheduler\.(KubernetesOpts|Opts)": _KEYWORDS,
    r"schedulers\.local_scheduler\.(LocalOpts|Opts)": _KEYWORDS,
    r"util\.shlex\.join": "Python's own",
    r"specs\.(api\.)?ReplicaStatus": "ours has more to say of a replica; `hostaddr` comes after that",
    r"specs\.(api\.)?RetryPolicy": "HOT_SPARE was never implemented, and is gone from TorchX since 2025",
    r"specs\.(api\.)?Role": (
        "`base_image`, which TorchX removed in 2025, still has its place, and `workspace` comes last"
    ),
}
