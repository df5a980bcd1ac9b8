"""Check jobs before they are submitted: Slurm refuses some, accepts others but never starts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunter.errors import did_you_mean, refuse
from shunter.schedulers.slurm_scheduler.observe import PartitionNodes, minutes
from shunter.schedulers.slurm_scheduler.options import GPUS_PER_NODE, GRES, OCI, RUNTIMES, SlurmOpts
from shunter.specs.app import NO_IMAGE, AppDef, RetryPolicy, Role

#: A partition whose nodes have less memory than this has none configured: RealMemory is 1 by default.
KNOWN_MEMORY = 1000
#: How many components of a heterogeneous job srun can name (MAX_HET_JOB_COMPS of slurm.h).
MOST_COMPONENTS = 128
#: Options that the script or the query of jobs depends on.
_OURS = frozenset({"parsable", "wrap", "job-name", "array", "output", "error", "hold", "wait", "test-only"})


@dataclass
class Shape:
    """What each replica of a role needs; roles of equal shape can share an allocation."""

    cpus: int
    gpus: int
    memory: int


def shape_of(role: Role) -> Shape:
    """Return what each replica of a role needs."""
    resource = role.resource
    return Shape(resource.cpu, max(resource.gpu, 0), resource.memMB)


def check(app: AppDef, opts: SlurmOpts) -> None:
    """Check a job and its options as far as that is possible without asking Slurm.

    Raises:
        ConfigError: with all that is wrong.
    """
    problems = [*_option_problems(opts), *_job_problems(app, opts)]
    refuse("the job cannot run on slurm", problems)


def _option_problems(opts: SlurmOpts) -> Iterator[str]:
    if opts.time is not None and not minutes(opts.time):
        yield (
            f"time={opts.time!r} is not a time limit. Leave it out to have the partition's, or write "
            "minutes, H:MM:SS or D-HH, such as 90, 1:30:00 or 2-12"
        )
    if opts.gpu_flag not in (GPUS_PER_NODE, GRES):
        yield f"gpu_flag must be {GPUS_PER_NODE} or {GRES}, not {opts.gpu_flag!r}"
    if opts.container is not None and opts.container not in RUNTIMES:
        yield f"container must be one of {', '.join(RUNTIMES)}, not {opts.container!r}"
    for name, value in (("replicas_per_node", opts.replicas_per_node), ("segment", opts.segment)):
        if value is not None and value < 1:
            yield f"{name} is {value}; it must be at least 1"
    for word in opts.sbatch_args or ():
        name = word.removeprefix("--").partition("=")[0]
        if not word.startswith("-") or "\n" in word:
            yield f"sbatch_args: {word!r} is not an option; write it as --name=value"
        elif name in _OURS:
            yield f"sbatch_args: shunter sets {word!r} itself, and needs it to follow the job"
    for word in opts.srun_args or ():
        if not word.startswith("-"):
            yield f"srun_args: {word!r} is not an option; write it as --name=value"
    known = {"mem", "gres", "gpus-per-node", "signal", "cpus-per-task", "nodes", "ntasks", "ntasks-per-node"}
    known |= {"requeue", "no-requeue", "export", "open-mode", "time", "partition", "comment"}
    for name in opts.omit or ():
        bare = name.strip().removeprefix("--")
        if bare in _OURS:
            yield f"omit: shunter needs --{bare} to follow the job"
        elif bare not in known:
            yield f"omit: no option of ours is named {bare!r}. {did_you_mean(bare, known)}"


def _job_problems(app: AppDef, opts: SlurmOpts) -> Iterator[str]:
    if opts.array and len(app.roles) > 1:
        yield "array=True takes one role, and the job has several"
    if opts.array and opts.replicas_per_node > 1:
        yield "replicas_per_node is not for arrays: Slurm places each task separately"
    replicas = sum(role.num_replicas for role in app.roles)
    for role in app.roles:
        if role.max_retries and role.retry_policy == RetryPolicy.REPLICA and replicas > 1 and not opts.array:
            yield (
                f"role {role.name!r}: the retry policy REPLICA is for arrays (array=True); Slurm "
                "restarts replicas that run together as a whole (APPLICATION)"
            )
        if role.max_retries and role.retry_policy == RetryPolicy.ROLE and len(app.roles) > 1:
            yield (
                f"role {role.name!r}: the retry policy ROLE is not for jobs of several roles; use APPLICATION"
            )
        if role.mounts and opts.container in (None, OCI):
            yield f"role {role.name!r}: mounts need container=pyxis or container=apptainer"
    if len(app.roles) > MOST_COMPONENTS and any(
        shape_of(role) != shape_of(app.roles[0]) for role in app.roles
    ):
        yield (
            f"{len(app.roles)} roles with different needs: a heterogeneous job has at most {MOST_COMPONENTS} "
            "components; give all roles equal resources"
        )
    if opts.replicas_per_node > 1 and len(app.roles) > 1:
        yield "replicas_per_node is for jobs of one role"


def warnings(app: AppDef, opts: SlurmOpts) -> list[str]:
    """Return warnings about settings that have no effect on Slurm."""
    found = []
    for role in app.roles:
        if opts.container is None and role.image not in ("", NO_IMAGE):
            found.append(
                f"role {role.name!r}: slurm ignores the image {role.image} without the option container"
            )
        if role.resource.devices:
            names = ", ".join(role.resource.devices)
            found.append(f"role {role.name!r}: slurm ignores resource.devices ({names}); use the option gres")
        if opts.gres and role.resource.gpu > 0:
            found.append(
                f"role {role.name!r}: gres={opts.gres} replaces the {role.resource.gpu} GPUs of its resource"
            )
    if len({role.max_retries for role in app.roles}) > 1:
        least = min(role.max_retries for role in app.roles)
        found.append(
            f"the job restarts as a whole, {least} times at most: the lowest max_retries of its roles"
        )
    return found


# ---- what is checked against the cluster


def needs(opts: SlurmOpts, groups: Sequence[tuple[Shape, int]]) -> dict[str, Any]:
    """Return what a job needs as JSON values, for `impossible`.

    Args:
        opts: the options.
        groups: shape and number of the replicas of each component.
    """
    nodes = []
    for shape, replicas in groups:
        on_node = min(opts.replicas_per_node, replicas)
        amounts = {name: max(amount, 0) * on_node for name, amount in vars(shape).items()}
        nodes.append({"count": -(-replicas // opts.replicas_per_node), **amounts})
    return {"partition": opts.partition, "time": opts.time, "nodes": nodes}


def impossible(found: Sequence[PartitionNodes], job: dict[str, Any]) -> str:
    """Return why a job can never start with the cluster as it is; "" if it can, or nothing is known.

    Slurm accepts some such jobs and keeps them PENDING for ever, for example with more nodes than there are.
    """
    names = {nodes.partition for nodes in found}
    unknown = [name for name in partitions_of(job, found) if name not in names]
    if unknown and found:
        return f"there is no partition {unknown[0]!r}. {did_you_mean(unknown[0], names)}"
    problems = [_partition_problem(name, found, job) for name in partitions_of(job, found)] if found else []
    return problems[0] if problems and all(problems) else ""


def _partition_problem(name: str, found: Sequence[PartitionNodes], job: dict[str, Any]) -> str:
    nodes = [item for item in found if item.partition == name]
    limit, most = minutes(job.get("time") or ""), minutes(nodes[0].max_time)
    if limit and most and limit > most:
        return f"time={job['time']} is longer than the partition {name} allows ({nodes[0].max_time})"
    for group in job.get("nodes", ()):
        units = (("cpus", "CPUs"), ("gpus", "GPUs"), ("memory", "MiB"))
        words = ", ".join(f"{group[key]:,} {unit}" for key, unit in units if group[key])
        there = sum(item.count for item in nodes if _fits(item, group))
        if not there:
            return f"no node of the partition {name} has {words}; its largest have {_largest(nodes)}"
        if group["count"] > there:
            such = f" with {words}" if words else ""
            return f"it needs {group['count']} nodes{such}, but the partition {name} has only {there}"
    for key, unit in (("cpus", "CPUs"), ("gpus", "GPUs")):  # several components can share a node
        needed = sum(group["count"] * group[key] for group in job.get("nodes", ()))
        all_of_it = sum(item.count * getattr(item, key) for item in nodes)
        if needed > all_of_it:
            return f"it needs {needed:,} {unit} in all, and the partition {name} has {all_of_it:,}"
    return ""


def smallest_change(found: Sequence[PartitionNodes], job: dict[str, Any]) -> str:
    """Return what a job that waits for nodes could start with now, in words; "" if nothing is idle for it."""
    # planned: idle, and reserved for a job that waits; Slurm soon plans the idle nodes for this one
    idle = [nodes for nodes in nodes_for(job, found) if nodes.state in ("idle", "planned")]
    groups = job.get("nodes", ())
    if not idle or len(groups) != 1:
        return ""
    there, count = sum(nodes.count for nodes in idle if _fits(nodes, groups[0])), groups[0]["count"]
    if there >= count:
        return ""  # something else keeps it waiting
    if there:
        words = f"with {there} instead of {count} it could start now."
        return f"{there} of the nodes that fit are idle: {words}"
    return (
        f"The largest idle nodes have {_largest(idle)}: a job that asks for no more per node could start now."
    )


def _largest(nodes: Sequence[PartitionNodes]) -> str:
    largest = max(nodes, key=lambda item: (item.gpus, item.cpus, item.memory))
    return f"{largest.cpus} CPUs, {largest.gpus} GPUs and {largest.memory:,} MiB"


def _fits(nodes: PartitionNodes, group: dict[str, Any]) -> bool:
    """Tell whether each of these nodes has what a component asks of one."""
    has_memory = nodes.memory >= group["memory"] or nodes.memory <= KNOWN_MEMORY
    return bool(nodes.cpus >= group["cpus"] and nodes.gpus >= group["gpus"] and has_memory)


def partitions_of(job: Mapping[str, Any], found: Sequence[PartitionNodes]) -> list[str]:
    """Return the partitions that a job may go to: those it names, or else the default one, if any."""
    if job.get("partition"):
        return str(job["partition"]).split(",")
    return [item.partition for item in found if item.is_default][:1]


def nodes_for(job: Mapping[str, Any], found: Sequence[PartitionNodes]) -> list[PartitionNodes]:
    """Return the nodes of the partitions that a job may go to."""
    names = partitions_of(job, found)
    return [item for item in found if item.partition in names]


def has_no_limit(found: Sequence[PartitionNodes], job: dict[str, Any]) -> str:
    """Return the partition in which a job without ``time`` would have no time limit; "" if it has one."""
    for item in () if job.get("time") else nodes_for(job, found):
        if not minutes(item.default_time) and not minutes(item.max_time):
            return item.partition
    return ""


def memory_is_unknown(found: Sequence[PartitionNodes], job: dict[str, Any]) -> bool:
    """Tell whether a job's nodes have no memory that could be asked for."""
    memories = [item.memory for item in nodes_for(job, found)]
    return bool(memories) and max(memories) <= KNOWN_MEMORY


#: What to do about a refusal, by a pattern of Slurm's words (errors of sbatch, slurm/slurm_errno.h).
HINTS: tuple[tuple[str, str], ...] = (
    (r"invalid partition", "`sinfo -s` lists the partitions; set -cfg partition=NAME."),
    (r"invalid account", ("`sacctmgr show associations user=$USER` lists your accounts; set -cfg "
        "account=NAME.")),
    (r"invalid qos", ("`sacctmgr show associations user=$USER format=account,qos` lists yours; set "
        "-cfg qos=NAME.")),
    (r"invalid feature", "`sinfo -o '%P %f'` lists the features of nodes; see -cfg constraint."),
    (r"reservation", "`scontrol show reservation` lists the reservations; see -cfg reservation."),
    (r"invalid node name", "`sinfo -N` lists the nodes; see -cfg nodelist and -cfg exclude."),
    (r"time limit", ("`sinfo -o '%P %l'` lists the limits; set a shorter -cfg time, with -cfg "
        "chain=N for long work.")),
    (r"memory", "`sinfo -o '%P %m'` lists nodes' memory. Where memory is not scheduled: -cfg omit=mem."),
    (r"invalid generic resource|gres|gpu", ("`sinfo -o '%P %G'` lists GPUs; see -cfg gpu_flag, "
        "gpu_type and gres.")),
    (r"node configuration is not available", ("No node has all of it: `sinfo -o '%P %D %c %m %G'` "
        "lists what nodes have.")),
    (r"job array", ("Indices end at MaxArraySize - 1 (`scontrol show config`): submit several jobs, "
        "or let each replica do more.")),
    (r"qos|policy|limit", ("A limit of the account or QoS: `sacctmgr show qos` and `sacctmgr show "
        "associations` list them.")),
    (r"unrecognized option|invalid option|ambiguous", ("This Slurm does not know an option: leave "
        "ours out with -cfg omit=NAME.")),
)  # fmt: skip
