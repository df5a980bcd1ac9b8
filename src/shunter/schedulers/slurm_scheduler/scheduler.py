"""`slurm`: jobs on a Slurm cluster, by sbatch, squeue, sacct, scancel and srun, here or on a login node."""

from __future__ import annotations

import builtins
import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.errors import ConfigError, UnreachableError
from shunter.schedulers.api import Check, accepted
from shunter.schedulers.capabilities import ALL_RETRIES, SEPARATE_STREAMS, Capabilities
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.follow_up_request import without_memory
from shunter.schedulers.hpc.observed_job import Place
from shunter.schedulers.hpc.queries import JobIds, NativeJob
from shunter.schedulers.hpc.request import HpcRequest
from shunter.schedulers.hpc.scheduler import LIST_FILTERS, HpcJobDetails, HpcScheduler
from shunter.schedulers.hpc.shared_folder import FOLLOW_UP_SCRIPT
from shunter.schedulers.hpc.storage import Storage
from shunter.schedulers.slurm_scheduler import observe, rules
from shunter.schedulers.slurm_scheduler.doctor import examine
from shunter.schedulers.slurm_scheduler.observe import PartitionNodes, SlurmJob
from shunter.schedulers.slurm_scheduler.options import HYPHENATED, SlurmOpts
from shunter.schedulers.slurm_scheduler.request import CLEAN_ENVIRONMENT, make_script, queue_words
from shunter.schedulers.slurm_scheduler.rules import HINTS
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopts
from shunter.specs.status import AppState, is_terminal
from shunter.workspace.shipment import Shipment

#: More ids than this are not put into a command line of squeue: it lists all jobs of the user then.
MOST_IDS = 100
#: How far `list` looks back in accounting, in seconds.
LOOK_BACK = 7 * 24 * 3600.0
_TIMES = {"SLURM_TIME_FORMAT": observe.TIME_FORMAT}


class SlurmScheduler(HpcScheduler):
    """Runs jobs on Slurm. See ``docs/schedulers/slurm.md``."""

    capabilities = Capabilities(
        list_filters=LIST_FILTERS,
        streams=SEPARATE_STREAMS,
        arrays=True,
        mounts=("bind",),
        retries=ALL_RETRIES,
        notes={"mounts": "bind, in containers", "exec": "srun --overlap"},
    )
    unreachable_words = (
        r"unable to contact slurm controller|socket timed out|connection refused|connection timed out|"
        r"zero bytes were transmitted|slurm backup controller in standby|unable to establish control|"
        r"unable to connect|no route to host|problem talking to the database|communication"
    )
    id_pattern = r"^(\d+(?:;[\w.-]+)?)$"  # ID or ID;CLUSTER
    cancel_command = ("scancel",)
    over_words = "invalid job id|already"
    refusal_hints = HINTS
    opts_class = SlurmOpts
    make_script = staticmethod(make_script)
    queue_words = staticmethod(queue_words)
    examine = examine

    def __init__(self, session_name: str) -> None:
        super().__init__("slurm", session_name)

    def run_opts(self) -> runopts:
        """Return the options; those that TorchX had keep its names."""
        declared = runopts.from_dataclass(self.opts_class)
        return runopts(**{HYPHENATED.get(name, name): opt for name, opt in declared})

    # ---- places

    def commands(self, host: str) -> Commands:
        """Return what runs Slurm's programs.

        Raises:
            UnreachableError: the configuration does not exist; Slurm's programs would wait a minute for it.
        """
        path = os.environ.get("SLURM_CONF")
        if not host and path and not os.path.exists(path):
            raise UnreachableError(
                f"cannot reach Slurm: there is no configuration {path}, which SLURM_CONF names",
                hint="Set SLURM_CONF to the site's slurm.conf, or unset it where the site needs none.",
            )
        return super().commands(host)

    def storage(self, host: str) -> Storage:
        """Return the shared storage, which needs no Slurm."""
        return Storage(super().commands(host))

    # ---- submitting

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[HpcRequest]:
        options = {name.replace("-", "_"): value for name, value in cfg.items()}
        return super()._submit_dryrun(app, options, shipment)

    def runs_in_image(self, role: Role, cfg: Mapping[str, Any]) -> bool:
        """Tell whether a container runs the role's replicas."""
        return bool(cfg.get("container")) and role.image not in ("", NO_IMAGE)

    def schedule(self, dryrun_info: AppDryRunInfo[HpcRequest]) -> str:
        """Submit a job, after a look at the partitions: Slurm accepts jobs that can never start."""
        self._check_against_cluster(dryrun_info.request)
        return super().schedule(dryrun_info)

    def examine_job(self, job: AppDryRunInfo[HpcRequest]) -> builtins.list[Check]:
        """Check that nodes of the partition could run the job."""
        text = "nodes of its partition could run it"
        return [accepted("the job", lambda: self._check_against_cluster(job.request), text)]

    def _check_against_cluster(self, request: HpcRequest) -> None:
        commands = self.commands(request.host)
        needs = request.details["slurm"]["needs"]
        found = self.partitions(commands)
        problem = rules.impossible(found, needs)
        if problem:
            raise ConfigError(
                f"the job can never start on Slurm {commands.where}: {problem}",
                hint="`sinfo -o '%P %l %D %c %m %G'` lists partitions, limits, nodes, CPUs, MiB and GPUs.",
            )
        partition = rules.has_no_limit(found, needs)
        if partition:
            warnings.warn(
                f"the partition {partition} has no time limit, so the job has none, and may wait for a "
                "maintenance to pass; give one with -cfg time=...",
                stacklevel=3,
            )
        if rules.memory_is_unknown(found, needs):
            scripts = {**request.files, "": request.script}
            for name in {"", FOLLOW_UP_SCRIPT} & scripts.keys():
                scripts[name] = re.sub(r"^#SBATCH --mem=.*\n", "", scripts[name], flags=re.MULTILINE)
            request.script = scripts.pop("")
            request.files = without_memory(scripts)
        if "--container-image=" in request.script and not self.has_pyxis(commands):
            raise ConfigError(
                f"container=pyxis: srun {commands.where} does not know --container-image",
                hint="The site has not installed pyxis. Try container=apptainer, or ask the administrators.",
            )

    def partitions(self, commands: Commands) -> builtins.list[PartitionNodes]:
        """Return the partitions with their nodes, those that are alike together."""
        text = self.ask(
            commands, ["sinfo", "-h", "-a", "-o", observe.PARTITION_FORMAT], "list the partitions"
        )
        return observe.partitions_from_text(text)

    def has_pyxis(self, commands: Commands) -> bool:
        """Tell whether srun has pyxis's options."""
        return "--container-image" in commands.run(["srun", "--help"]).text

    def submit_natively(self, commands: Commands, command: Sequence[str], script: str) -> str:
        """Send a script to Slurm without the secrets of this environment; returns the job's id."""
        return super().submit_natively(
            commands, ["sh", "-c", CLEAN_ENVIRONMENT, *command[:1], *command], script
        )

    def wait_options(self, after: Sequence[tuple[str, bool]]) -> builtins.list[str]:
        """Return --dependency; a job whose condition can no longer be met ends instead of waiting for ever.

        The links of a chain wait for any end of the one before, not for its failure: the wrapper sees by its
        records whether anything is left to do. So a link goes on after the loss of a node, too, and none
        stays behind. All is in one option, since sbatch takes the last one alone.
        """
        conditions = []
        for kind, kind_ends in (("afterok", False), ("afterany", True)):
            ids = [_plain(native_id) for native_id, any_end in after if any_end == kind_ends]
            conditions += [":".join([kind, *ids])] if ids else []
        return [f"--dependency={','.join(conditions)}", "--kill-on-invalid-dep=yes"]

    def is_native_id(self, text: str) -> bool:
        """Tell whether a text could be Slurm's id of a job."""
        return re.fullmatch(self.id_pattern, text) is not None

    # ---- observing

    def query(self, commands: Commands, refs: Sequence[JobIds]) -> Mapping[str, builtins.list[NativeJob]]:
        """Ask squeue once, and sacct once for what squeue no longer lists.

        Raises:
            UnreachableError: the controller does not answer.
        """
        found: dict[str, builtins.list[NativeJob]] = {}
        for cluster in sorted({_cluster(each) for ref in refs for each in ref.native_ids or [""]}):
            some = [ref for ref in refs if _cluster(*ref.native_ids[:1]) == cluster]
            for app_id, jobs in self._query_cluster(commands, cluster, some).items():
                found.setdefault(app_id, []).extend(jobs)
        return found

    def _query_cluster(
        self, commands: Commands, cluster: str, refs: Sequence[JobIds]
    ) -> dict[str, builtins.list[NativeJob]]:
        ids = {_plain(each): ref.app_id for ref in refs for each in ref.native_ids}
        names = {ref.app_id for ref in refs if not ref.native_ids or ref.may_have_more}
        which = ["--me"] if names or len(ids) > MOST_IDS else ["-j", ",".join(ids)]
        seen = self._queue(commands, cluster, which)
        missing = [each for each in ids if each not in seen]
        if missing:
            seen |= self._accounting(commands, cluster, ["-j", ",".join(missing)])
        lost = names - {job.app_id for job in seen.values()}
        if lost:
            words = ["-S", _day(time.time() - LOOK_BACK), "--name=" + ",".join(sorted(lost))]
            seen |= self._accounting(commands, cluster, words)
        found: dict[str, builtins.list[NativeJob]] = {}
        for native_id, job in sorted(seen.items(), key=lambda item: int(item[0])):
            app_id = ids.get(native_id, "")
            if not app_id and job.app_id in names and not is_terminal(job.state):
                app_id = job.app_id  # one that has ended and has no folder any more was deleted
            if app_id:
                job.native_id = f"{native_id};{cluster}" if cluster else native_id
                found.setdefault(app_id, []).append(job)
        return found

    def query_all(self, commands: Commands, since: float | None) -> builtins.list[NativeJob]:
        """Return this user's jobs: those of the queue, and those that accounting has of the last days."""
        begin = _day(since if since is not None else time.time() - LOOK_BACK)
        found = self._accounting(commands, "", ["-S", begin]) | self._queue(commands, "", ["--me"])
        return [found[key] for key in sorted(found, key=int)]

    def _queue(self, commands: Commands, cluster: str, which: Sequence[str]) -> dict[str, NativeJob]:
        """Ask squeue. It forgets jobs soon after their end, so an unknown id is not an error."""
        command = ["squeue", *_on(cluster), "-t", "all", *which, "-h", "-o", observe.QUEUE_FORMAT]
        answer = commands.run(command, env=_TIMES)
        if answer.code != 0 and not re.search("invalid job id", answer.words, re.IGNORECASE):
            raise self.refusal(commands, "list the jobs", answer.words)
        return observe.jobs_from_text(answer.text)

    def _accounting(self, commands: Commands, cluster: str, which: Sequence[str]) -> dict[str, NativeJob]:
        """Ask sacct. Where it is missing or does not answer, nothing is known of its jobs: that is no end."""
        command = ["sacct", *_on(cluster), "-n", "-X", "-P", "-D", *which, "-o", observe.ACCOUNTING_FIELDS]
        try:
            answer = commands.run(command, env=_TIMES)
        except (UnreachableError, ConfigError):
            return {}
        return observe.jobs_from_text(answer.text) if answer.code == 0 else {}

    def details(self, app_id: str) -> SlurmJobDetails:
        """Return what else can be asked about a job: also its place in the queue, and what would start it."""
        return SlurmJobDetails(self, app_id)

    def position_of(self, place: Place, native_id: str) -> str:
        """Return how many jobs of its partition precede a waiting job, and when Slurm plans to start it."""
        cluster, job_id = _cluster(native_id), _plain(native_id)
        base = ["squeue", *_on(cluster), "-h", "-a"]
        commands = self.commands(place.host)
        text = self.ask(commands, [*base, "-j", job_id, "-O", "Partition:100"], "look at the job")
        where = [f"--partition={partition}" for partition in text.split()[:1]]
        command = [*base, "--start", "--sort=-p,i", "-o", "%A %S", *where]
        text = self.ask(commands, command, "list the waiting jobs")
        return observe.position_from_text(text, job_id)

    # ---- ending and entering

    def cancel_natively(self, commands: Commands, native_ids: Sequence[str]) -> None:
        """Cancel submissions by one call for each cluster."""
        for cluster in sorted({_cluster(each) for each in native_ids}):
            ids = [_plain(each) for each in native_ids if _cluster(each) == cluster]
            super().cancel_natively(commands, [*_on(cluster), *ids])

    def task_id(self, native_id: str, number: int) -> str:
        """Return the id of a task, ``ID_TASK``, perhaps with ``;CLUSTER``."""
        job_id, separator, cluster = native_id.partition(";")
        return f"{job_id}_{number}{separator}{cluster}"

    def enter_command(
        self, native: NativeJob, number: int, host: str, command: Sequence[str], *, tty: bool
    ) -> builtins.list[str]:
        """Return the srun that runs a command on a replica's node, as a step that shares what it has."""
        places = [
            (part, node) for part in native.parts if part.number in (None, number) for node in part.hosts
        ]
        here = [(part, node) for part, node in places if _short(node) == _short(host)]
        if not here and len(places) != 1:
            raise ConfigError(f"Slurm has no node {host} for the replica in {native.native_id}")
        part, node = (here or places)[0]
        assert isinstance(part, SlurmJob)
        is_component = part.component is not None
        return [
            "srun",
            *_on(_cluster(native.native_id)),
            f"--jobid={_plain(native.native_id) if is_component else part.raw_id}",
            *([f"--het-group={part.component}"] if is_component else []),
            *("--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet"),
            *(["--pty"] if tty else []),
            *command,
        ]


class SlurmJobDetails(HpcJobDetails):
    """What Slurm can tell about the job with an id beside its description."""

    _scheduler: SlurmScheduler

    def queue_position(self) -> str:
        """Return how many jobs of its partition come first, and when Slurm plans to start it."""
        place, native, _ = self._scheduler.observed(self._app_id)
        waiting = next((job for job in native if job.state == AppState.PENDING), None)
        return "" if waiting is None else self._scheduler.position_of(place, waiting.native_id)

    def smallest_change(self) -> str:
        """Return how many nodes, or how large ones, are idle instead of those that the job asks for."""
        place, _, job = self._scheduler.observed(self._app_id)
        needs = (job.document.get("slurm") or {}).get("needs") if job is not None else None
        if not needs:
            return ""
        return rules.smallest_change(self._scheduler.partitions(self._scheduler.commands(place.host)), needs)


def _on(cluster: str) -> builtins.list[str]:
    return [f"--clusters={cluster}"] if cluster else []


def _short(host: str) -> str:
    return host.partition(".")[0]


def _cluster(native_id: str = "") -> str:
    return native_id.partition(";")[2]


def _plain(native_id: str) -> str:
    return native_id.partition(";")[0]


def _day(when: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(when))


def create_scheduler(session_name: str, **kwargs: object) -> SlurmScheduler:
    """Make the scheduler; see `SlurmScheduler`."""
    return SlurmScheduler(session_name)
