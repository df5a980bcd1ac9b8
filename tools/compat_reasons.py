"""Why names of TorchX's API differ in shunter, by pattern of ``module.name``; for `compat_report.py`."""

from __future__ import annotations

_KEYWORDS = "TorchX's options are given by name, and ours too; there are more of them"

REASONS = {
    r"cli\.cmd_run\.\w+_MSG": "texts of messages are our own",
    r"cli\.main\.main": "None means the words of the command line",
    r"components\..*": "there is no image that suits every project; the program `torchx` uses TorchX's",
    r"runner\.events\.(api\.TorchxEvent|log_event)": "as in TorchX of 2025, which put `app_metadata` before",
    r"schedulers\.DEFAULT_SCHEDULER_MODULES": "there is neither GCP Batch nor MCAD, as in TorchX since 2026",
    r"schedulers\.SchedulerFactory": "a type for type checkers: any callable is a factory",
    r"schedulers\.api\.DescribeAppResponse": "as in TorchX since 2025-09, which put `metadata` before",
    r"schedulers\.aws_batch_scheduler\.(AWSBatchOpts|Opts)": (
        f"{_KEYWORDS}; `user` is looked up when a job is submitted, `priority` is only sent if given"
    ),
    r"schedulers\.(gcp_batch|kubernetes_mcad)_scheduler\.\w+Scheduler": (
        "not there; making one says what to use instead"
    ),
    r"schedulers\.kubernetes_scheduler\.KubernetesJob": (
        "the request holds several objects (`manifests`), since a job need not be Volcano's"
    ),
    r"schedulers\.kubernetes_scheduler\.(KubernetesOpts|Opts)": _KEYWORDS,
    r"schedulers\.local_scheduler\.(LocalOpts|Opts)": _KEYWORDS,
    r"schedulers\.slurm_scheduler\.SLURM_STATES": "a job that is being resized runs",
    r"specs\.(api\.)?ReplicaStatus": "ours has more to say of a replica; `hostaddr` comes after that",
    r"specs\.(api\.)?RetryPolicy": "HOT_SPARE was never implemented, and is gone from TorchX since 2025",
    r"specs\.(api\.)?Role": (
        "`base_image`, which TorchX removed in 2025, still has its place, and `workspace` comes last"
    ),
}
