"""Options of Ray."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.supervision import HangOpts, NotifyOpts, RetryOpts, StopOpts
from shunter.specs.options import ADDRESS, CREDENTIALS, DESTINATION, FILES_OUTSIDE, PROGRAM, SECONDS, option

SPREAD = "SPREAD"
#: https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html
STRATEGIES = (SPREAD, "STRICT_SPREAD", "PACK", "STRICT_PACK")


@dataclass
class RayOpts(StopOpts, HangOpts, RetryOpts, NotifyOpts):
    """How a job runs on a Ray cluster."""

    dashboard_address: str | None = option(
        "address of the cluster's dashboard, such as http://head:8265; by default that of "
        "RAY_API_SERVER_ADDRESS or RAY_ADDRESS, or else 127.0.0.1:8265",
        default=None,
        needs_trust=ADDRESS,
    )
    headers: dict[str, str] | None = option(
        "headers of every request, for a proxy before the dashboard; RAY_JOB_HEADERS by default",
        default=None,
        secret=True,
        needs_trust=CREDENTIALS,
    )
    verify: str = option(
        "whether https is checked: true, false, or a file or directory with certificates of authorities",
        default="true",
        needs_trust=ADDRESS,
    )
    requirements: str | None = option(
        "a requirements.txt of this machine, whose packages Ray installs for this job with pip",
        default=None,
        needs_trust=FILES_OUTSIDE,
    )
    runtime_env: str | None = option(
        "more of Ray's runtime environment, as JSON or a JSON file: conda, pip, uv, config, ...",
        default=None,
        needs_trust=PROGRAM,
    )
    placement: str = option(
        "how replicas are placed on nodes: SPREAD, STRICT_SPREAD, PACK or STRICT_PACK", default=SPREAD
    )
    placement_timeout: float | None = option(
        "fail the job if there is no room for it within this many seconds; by default it waits",
        default=None,
    )
    label_selector: dict[str, str] | None = option(
        "labels that the nodes of the replicas must have, such as ray.io/accelerator-type:H100; Ray 2.49 or "
        "newer",
        default=None,
    )
    entrypoint_num_cpus: float | None = option("CPUs that are reserved for the driver", default=None)
    entrypoint_num_gpus: float | None = option("GPUs that are reserved for the driver", default=None)
    entrypoint_memory: int | None = option("bytes of memory that are reserved for the driver", default=None)
    entrypoint_resources: dict[str, str] | None = option(
        "custom resources that are reserved for the driver, so that it runs on a node that has them",
        default=None,
    )
    entrypoint_label_selector: dict[str, str] | None = option(
        "labels that the driver's node must have", default=None
    )
    job_dir: str | None = option(
        "directory that all nodes share: replicas work in JOB_DIR/APP_ID, and their logs are kept there; a "
        "temporary directory of each node by default",
        default=None,
        needs_trust=DESTINATION,
    )
    python: str | None = option(
        "the Python on the nodes that has Ray; by default python or python3 in their PATH",
        default=None,
        needs_trust=PROGRAM,
    )
    timeout: float | None = option(
        "stop the job this many seconds after its replicas have started", default=None, time_limit=SECONDS
    )
    metadata: dict[str, str] | None = option("metadata of Ray's job, in addition to ours", default=None)
    cluster_config_file: str | None = option(
        "no longer read: give dashboard_address, which `ray get-head-ip FILE` helps to find",
        default=None,
        needs_trust=ADDRESS,
    )
    cluster_name: str | None = option(
        "no longer read: give dashboard_address", default=None, needs_trust=ADDRESS
    )
