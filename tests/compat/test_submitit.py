"""Programs that were written for submitit: real jobs on this machine and on Slurm."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shunter.compat.submitit as submitit
from shunter.compat.submitit.job_parameters import checked, words_of
from tests import backends
from tests.functions import work
from tests.slurm_cluster import shared_cluster as shared_slurm


@pytest.fixture
def executor(tmp_path: Path) -> submitit.AutoExecutor:
    return submitit.AutoExecutor(folder=tmp_path / "logs" / "%j", cluster="local")


@pytest.fixture
def on_slurm(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> submitit.AutoExecutor:
    backends.need("slurm")
    monkeypatch.setenv("SLURM_CONF", shared_slurm(tmp_path_factory).environment["SLURM_CONF"])
    executor = submitit.AutoExecutor(folder=tmp_path / "logs")
    assert executor.cluster == "slurm"
    return executor


def add(a: int, b: int) -> int:
    print(f"{a} + {b}")
    print("added", file=sys.stderr)
    return a + b


def place() -> tuple[int, ...]:
    job = submitit.JobEnvironment()
    print(f"rank {job.global_rank}")
    ports = {submitit.helpers.TorchDistributedEnvironment().export(overwrite=True).master_port}
    assert os.environ["RANK"] == str(job.global_rank)
    return job.num_nodes, job.num_tasks, job.node, job.global_rank, job.local_rank, *ports


def job_id() -> str:
    assert submitit.JobEnvironment().cluster in ("local", "debug")
    return submitit.JobEnvironment().job_id


class Slow(submitit.helpers.Checkpointable):
    """Runs until its time limit, and ends when it was continued."""

    def __init__(self) -> None:
        self.was_stopped = False

    def __call__(self, never: str) -> str:
        return "continued" if self.was_stopped else work.wait_for(never)

    def checkpoint(self, never: str) -> submitit.DelayedSubmission:
        self.was_stopped = True
        return super().checkpoint(never)


def test_a_job_its_logs_and_their_links(executor):
    executor.update_parameters(timeout_min=1, slurm_partition="dev", mem_gb=0.1, name="my addition")
    job = executor.submit(add, 5, b=7)
    assert job.result() == 12
    assert job.job_id.startswith("my-addition-")
    assert (job.done(), job.state, job.exception()) == (True, "FINISHED", None)
    assert job.stdout() == job.paths.stdout.read_text() == "5 + 7\n"
    assert job.stderr() == job.paths.stderr.read_text() == "added\n"
    assert job.paths.folder.name == job.job_id
    executor.update_parameters(stderr_to_stdout=True)
    job = executor.submit(add, 1, 2)
    job.wait()
    assert (sorted((job.stdout() or "").splitlines()), job.stderr()) == (["1 + 2", "added"], None)


def test_arrays_and_jobs_of_yesterday(executor, capsys):
    jobs = executor.map_array(add, [1, 2], [10, 20])
    assert {id(job) for job in submitit.helpers.as_completed(jobs)} == set(map(id, jobs))
    submitit.helpers.monitor_jobs(jobs, poll_frequency=0.1)
    assert capsys.readouterr().out.endswith("2 of 2 jobs have ended: 2 FINISHED\n")
    assert [job.result() for job in jobs] == [11, 22]
    assert jobs[1].stdout() == "2 + 20\n"
    again = [pickle.loads(pickle.dumps(jobs[1])), submitit.LocalJob(executor.folder, jobs[1].job_id)]
    assert [job.result() for job in again] == [22, 22]
    with executor.batch():
        first, second = executor.submit(job_id), executor.submit(job_id)
        with pytest.raises(AttributeError, match="when the batch ends"):
            _ = first.job_id
        with pytest.raises(RuntimeError, match="cannot change inside"):
            executor.update_parameters(mem_gb=1)
        with pytest.raises(AttributeError, match="when the batch ends"):
            first.result()
    assert [first.result(), second.result()] == [first.job_id, second.job_id]
    assert first.job_id.rpartition("_")[::2] == (second.job_id.rpartition("_")[0], "0")


@pytest.mark.slow
def test_calls_with_several_tasks_are_jobs_of_their_own(executor):
    executor.update_parameters(tasks_per_node=2)
    jobs = executor.map_array(add, [1, 2], [10, 20])
    assert all(job.state in ("RUNNING", "FINISHED") for job in jobs)
    assert [job.results() for job in jobs] == [[11, 11], [22, 22]]
    assert jobs[0].job_id != jobs[1].job_id
    assert [job.task(1).stdout() for job in jobs] == ["1 + 10\n", "2 + 20\n"]
    with pytest.raises(AssertionError, match="several tasks"):
        jobs[0].result()


def test_errors(executor, tmp_path):
    failed = executor.submit(work.fail, 7)
    assert (failed.submission().function, failed.submission().args) == (work.fail, (7,))
    with pytest.raises(submitit.FailedJobError, match=r"raise Unlucky\(x\)") as caught:
        failed.result()
    assert isinstance(caught.value.__cause__, work.Unlucky)
    assert failed.state == "FINISHED"
    dead = executor.submit(work.die)
    assert type(dead.exception()) is submitit.UncompletedJobError
    assert dead.state == "INTERRUPTED"
    with pytest.raises(submitit.FailedSubmissionError, match="missing a required argument: 'b'"):
        executor.submit(add, 1)
    cancelled = executor.submit(work.wait_for, str(tmp_path / "never"))
    cancelled.cancel()
    with pytest.raises(submitit.UncompletedJobError, match="was cancelled"):
        cancelled.result()


@pytest.mark.slow
def test_awaiting(executor):
    async def both() -> list[int]:
        return await asyncio.gather(*(executor.submit(add, n, n).awaitable().result() for n in (1, 2)))

    assert asyncio.run(both()) == [2, 4]
    error = asyncio.run(executor.submit(work.fail, 7).awaitable().exception())
    assert isinstance(error, submitit.FailedJobError)


@pytest.mark.slow
def test_a_callable_goes_on_after_its_time_limit(tmp_path):
    executor = submitit.AutoExecutor(folder=tmp_path, cluster="local")
    executor.update_parameters(timeout_min=8 / 60)  # a busy machine needs seconds for its start
    assert executor.submit(Slow(), str(tmp_path / "never")).result() == "continued"


def test_a_sequence_is_continued_where_it_was(executor, monkeypatch):
    sequence = submitit.helpers.FunctionSequence(verbose=True)
    sequence.add(add, 1, 2)
    sequence.delayed_functions[0].result()
    sequence.add(add, 3, 4)
    job = executor.submit(sequence)
    assert job.result() == [3, 7]
    assert job.stdout() == "Starting from 1/2\n3 + 4\n"
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with submitit.helpers.clean_env():
        assert "SLURM_JOB_ID" not in os.environ
    assert os.environ["SLURM_JOB_ID"] == "12"


@pytest.mark.slow
def test_jobs_in_a_snapshot_run_its_code(executor, tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    for name in ("part.py", "left.out", "extra.txt"):
        (code / name).write_text("VALUE = 'as it was'")
    for words in (["init", "-q"], ["add", "part.py", "left.out"]):
        subprocess.run(["git", *words], cwd=code, check=True)
    monkeypatch.chdir(code)
    monkeypatch.syspath_prepend(str(code))

    def read() -> tuple[str, list[str]]:
        import part

        return part.VALUE, sorted(os.listdir("."))

    with submitit.helpers.RsyncSnapshot(tmp_path / "copy", exclude=["*.out"], include=["extra.txt"]):
        assert Path.cwd() == tmp_path / "copy"
        frozen = executor.submit(read)
    assert Path.cwd() == code
    (code / "part.py").write_text("VALUE = 'edited'")
    value, files = frozen.result()
    assert (value, [name for name in files if name != "__pycache__"]) == (
        "as it was",
        ["extra.txt", "part.py"],
    )
    assert executor.submit(read).result()[0] == "edited"


def test_debug_calls_when_the_outcome_is_asked_for(tmp_path):
    executor = submitit.AutoExecutor(folder=tmp_path, cluster="debug")
    job = executor.submit(job_id)
    assert job.state == "QUEUED"
    assert job.result() == job.job_id
    assert job.state == "DONE"
    assert isinstance(executor.submit(work.fail, 1).exception(), work.Unlucky)
    with pytest.raises(RuntimeError, match="not in a job"):
        submitit.JobEnvironment()


def test_commands(executor, tmp_path):
    command = submitit.helpers.CommandFunction(["sh", "-c", 'echo "$@"; test "$1" != 2', "sh"], cwd=tmp_path)
    assert executor.submit(command, 1, lr=0.1).result() == "1 --lr=0.1"
    with pytest.raises(submitit.FailedJobError):
        command(2)


PROGRAM = """
import shunter.compat.submitit
shunter.compat.submitit.install()

import library

print(library.run())
"""
LIBRARY = """
import submitit
from submitit.core.utils import FailedJobError
from submitit.helpers import Checkpointable

class Task(Checkpointable):
    def __call__(self):
        return submitit.__name__, isinstance(self, submitit.helpers.Checkpointable)

def run():
    executor = submitit.AutoExecutor(folder="logs", cluster="local")
    return executor.submit(Task()).result()
"""


def test_libraries_that_import_submitit_are_served_in_jobs_too(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "library.py").write_text(LIBRARY)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "('shunter.compat.submitit', True)\n", done.stderr


def test_parameters_of_others_are_unknown(executor):
    with pytest.raises(NameError, match="slurm_partion"):
        executor.update_parameters(slurm_partion="gpu")
    with pytest.raises(AssertionError):
        executor.update_parameters(mem_gb="2GB")
    with pytest.raises(ValueError, match="slurm_partion"):
        submitit.SlurmExecutor(folder=".").update_parameters(partion="gpu")
    with pytest.warns(UserWarning, match="partition should be given as slurm_partition"):
        executor.update_parameters(partition="gpu")
    with pytest.raises(TypeError, match="slurm_foo"):
        submitit.AutoExecutor(folder=".", slurm_foo=1)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"timeout_min": 90, "slurm_time": "1-00"}, {"time": "1-00"}),
        (
            {"nodes": 2, "tasks_per_node": 4, "mem_gb": 64},
            {"nodes": 8, "replicas_per_node": 4, "mem": "16384M"},
        ),
        ({"slurm_mem": "2GB", "local_signal_delay_s": 5}, {"mem": "2048M"}),
        ({"gpus_per_node": 8}, {"gpu": 8}),
        ({"gpus_per_node": 8, "tasks_per_node": 8}, {"gres": "gpu:8", "nodes": 8, "replicas_per_node": 8}),
        (
            {"slurm_setup": ["module load x"], "slurm_array_parallelism": 3},
            {"prologue": ["module load x"], "max_running": 3},
        ),
        (
            {"slurm_mem_per_cpu": "2G", "slurm_additional_parameters": {"nice": 100, "spread_job": True}},
            {"sbatch_args": ["--mem-per-cpu=2G", "--nice=100", "--spread-job"]},
        ),
    ],
)
def test_parameters_of_slurm(parameters, words):
    defaults = {"nodes": 1, "replicas_per_node": 1, "sbatch_args": []}
    assert words_of(checked(parameters, "slurm"), "slurm") == defaults | words


#: What the configuration ``hydra/launcher=submitit_slurm`` gives by default.
HYDRA = {
    "timeout_min": 60,
    "cpus_per_task": None,
    "gpus_per_node": None,
    "tasks_per_node": 1,
    "mem_gb": None,
    "nodes": 1,
    "name": "train",
    "stderr_to_stdout": False,
    **dict.fromkeys(("slurm_partition", "slurm_qos", "slurm_comment", "slurm_constraint", "slurm_exclude")),
    **dict.fromkeys(("slurm_gres", "slurm_cpus_per_gpu", "slurm_gpus_per_task", "slurm_mem_per_gpu")),
    **dict.fromkeys(("slurm_mem_per_cpu", "slurm_account", "slurm_setup")),
    "slurm_signal_delay_s": 120,
    "slurm_additional_parameters": {},
    "slurm_array_parallelism": 256,
}


@pytest.mark.slow
@pytest.mark.timeout(300)  # other tests fill the queue
def test_slurm(on_slurm):
    on_slurm.update_parameters(**HYDRA)
    on_slurm.update_parameters(timeout_min=5, mem_gb=0.1, slurm_additional_parameters={"nice": 10})
    jobs = on_slurm.map_array(add, [1, 2], [10, 20])
    on_slurm.update_parameters(nodes=2, tasks_per_node=2, mem_gb=0.2, slurm_setup=["export SET=up"])
    several = on_slurm.submit(place)
    assert [job.result() for job in jobs] == [11, 22]
    assert jobs[1].paths.stdout.read_text() == "2 + 20\n"
    port = several.results()[0][-1]
    assert several.results() == [(2, 4, k // 2, k, k % 2, port) for k in range(4)]
    assert several.task(3).result() == (2, 4, 1, 3, 1, port)
    assert several.task(3).stdout() == "rank 3\n"
    with pytest.raises(ValueError, match="between 0 and 3"):
        several.task(4)


@pytest.mark.slow
@pytest.mark.timeout(200)  # Slurm counts whole minutes
def test_a_time_limit_on_slurm(on_slurm):
    on_slurm.update_parameters(timeout_min=1, slurm_signal_delay_s=5, mem_gb=0.1)
    job = on_slurm.submit(time.sleep, 300)
    assert "time limit" in str(job.exception())
    assert job.state == "TIMEOUT"


class WithoutInit(submitit.helpers.Checkpointable):
    def __call__(self, first: bool = True) -> int:
        return 7


def test_small_things_that_programs_use(tmp_path: Path) -> None:
    job: submitit.Job[int] | None = None  # a type with an argument
    assert job is None
    assert WithoutInit(True)() == 7
    paths = submitit.JobPaths(tmp_path / "array-%A-index-%a", "456_3")
    assert paths.stdout == tmp_path / "array-456-index-3" / "456_3_0_log.out"
    assert submitit.JobPaths(tmp_path / "%j", "456").folder == tmp_path / "456"
    assert submitit.JobPaths.get_first_id_independent_folder(tmp_path / "a" / "x_%j" / "y") == tmp_path / "a"
    assert submitit.helpers.RsyncSnapshot.available()
    assert submitit.core.utils.FailedJobError is submitit.FailedJobError
    assert submitit.slurm.slurm.SlurmJob is submitit.SlurmJob
    assert issubclass(submitit.SlurmExecutor, submitit.Executor)
    delayed = submitit.DelayedSubmission(max, 3, 4)
    assert delayed.result() == 4
    delayed.dump(tmp_path / "delayed.pkl")
    loaded = submitit.DelayedSubmission.load(tmp_path / "delayed.pkl")
    assert loaded.done()
    assert loaded.result() == 4
