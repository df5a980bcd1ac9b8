"""`shunter.Executor` on processes of this machine: real jobs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import shunter
from shunter._toolkit import sealed_pickle
from shunter.backoff import Backoff
from shunter.errors import ConfigError, InvalidRunConfigException, UnreachableError, UsageError
from shunter.functions import futures as futures_module
from shunter.functions import submitted_job
from shunter.functions.call_results import RemoteTraceback
from shunter.runner.calls import unused_calls
from shunter.runner.records import JobRecord
from shunter.specs.sweep_points import Point
from shunter.sweeps import run_sweep
from tests.cluster_hosts import wait_until
from tests.functions import work


@pytest.fixture
def executor() -> Iterator[shunter.Executor]:
    with shunter.Executor("local_cwd") as executor:
        yield executor


def rows() -> list[JobRecord]:
    """Return the jobs of the history, the latest first."""
    with shunter.get_runner() as runner:
        return runner.history.rows()


def rerun(future: shunter.JobFuture) -> str:
    assert future.job is not None
    with shunter.get_runner() as runner:
        return runner.rerun(future.job.handle)


def test_a_call_is_a_job_and_its_value_comes_back(executor):
    future = executor.submit(work.double, [1, "a"], say="hello from the job")
    assert future.result(60) == [1, "a", 1, "a"]
    assert future.job.state == shunter.AppState.SUCCEEDED
    assert "hello from the job" in list(future.job.log())
    with pytest.raises(UsageError, match=r"no role 'x'\nIt has: "):
        list(future.job.log(role="x"))
    with pytest.raises(UsageError, match="no replica 7"):
        list(future.job.log(replica=7))
    assert rows()[0].name == "double"


def test_functions_of_main_and_closures_travel_whole(executor):
    offset = 10

    def add(x):
        return x + offset

    add.__module__ = "__main__"
    assert executor.submit(add, 5).result(60) == 15
    assert executor.submit(lambda: "anonymous").result(60) == "anonymous"


def test_the_functions_exception_is_raised_with_its_remote_traceback(executor):
    future = executor.submit(work.fail, 7)
    with pytest.raises(work.Unlucky) as caught:
        future.result(60)
    assert caught.value.args == (7,)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "work.py" in str(caught.value.__cause__)
    assert "raise Unlucky(x)" in str(caught.value.__cause__)
    assert "Unlucky" in future.job.why().headline


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (work.die, (), "SIGKILL|killed"),
        (work.leave, (3,), r"sys\.exit\(3\)"),
        (work.leave, (0,), r"sys\.exit\(0\)"),
        (work.fail_stubbornly, (), "Stubborn: 1 and 2"),
        (work.return_generator, (), "returned a generator, which cannot be pickled"),
    ],
)
def test_without_a_result_the_error_says_why(executor, function, arguments, message):
    with pytest.raises(shunter.ResultError, match=message):
        executor.submit(function, *arguments).result(60)


def test_map_is_one_job_whose_results_come_in_order(executor):
    with shunter.Executor("local_cwd", max_running=2) as limited:
        results = list(limited.map(work.double_here, range(5)))
    assert results == [(2 * x, os.getcwd()) for x in range(5)]  # in the same directory, as without an array
    jobs = rows()
    assert [len(job.app["roles"]) for job in jobs] == [1]
    assert jobs[0].app["roles"][0]["num_replicas"] == 5
    assert jobs[0].cfg["max_running"] == 2
    assert jobs[0].app["roles"][0]["metadata"]["sweep"]["points"][3]["values"] == {"x": "3"}


def test_results_of_map_stream_and_an_exception_comes_in_its_turn(executor, tmp_path):
    gate = tmp_path / "gate"
    with executor.batch():
        first = executor.submit(work.double, 1)
        second = executor.submit(work.wait_for, str(gate))
        third = executor.submit(work.fail, 3)
    assert first.job == second.job == third.job
    assert first.result(60) == 2
    assert not second.done()
    gate.touch()
    assert second.result(60) == "it came"
    assert isinstance(third.exception(60), work.Unlucky)


def test_chunks_of_map_share_a_replica(executor):
    assert list(executor.map(work.double, range(5), chunksize=2)) == [0, 2, 4, 6, 8]
    assert rows()[0].app["roles"][0]["num_replicas"] == 3


def test_cancelling_a_future_cancels_its_job(executor, tmp_path):
    future = executor.submit(work.wait_for, str(tmp_path / "never"))
    assert future.cancel()
    assert future.job.wait(60).state == shunter.AppState.CANCELLED
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(60)


def test_cancelling_one_call_of_an_array_leaves_the_others(executor, tmp_path):
    gate = tmp_path / "gate"
    with executor.batch():
        futures = [executor.submit(work.wait_for, str(gate)) for _ in range(2)]
    assert futures[1].cancel()
    job = futures[1].job
    wait_until(lambda: job.status().replicas()[1].state == shunter.AppState.CANCELLED, "the end of the call")
    gate.touch()
    assert futures[0].result(60) == "it came"
    done, not_done = concurrent.futures.wait(futures, 60)
    assert len(done) == 2
    assert not not_done


@pytest.mark.parametrize("is_iterator", [True, False])
def test_a_job_whose_calls_are_all_cancelled_is_stopped(executor, tmp_path, is_iterator):
    calls = [str(tmp_path / "never")] * 2
    if is_iterator:
        results = executor.map(work.wait_for, [os.devnull, *calls])
        assert next(results) == "it came"
        results.close()  # as Ctrl-C does
    else:
        with executor.batch():
            futures = [executor.submit(work.wait_for, path) for path in [os.devnull, *calls]]
        assert futures[0].result(60) == "it came"
        assert [future.cancel() for future in futures] == [False, True, True]
    assert shunter.job(rows()[0].handle).wait(60).state == shunter.AppState.CANCELLED


def test_a_job_that_is_cancelled_by_others_cancels_its_future(executor, tmp_path):
    future = executor.submit(work.wait_for, str(tmp_path / "never"))
    shunter.job(future.job.id).cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(60)


def test_a_future_can_be_had_again_from_the_jobs_name(executor):
    first = executor.submit(work.double, 21)
    name = first.job.id
    assert shunter.future(name).result(60) == 42
    assert shunter.job(name).result(60) == 42
    list(executor.map(work.double, range(3)))
    array = shunter.job(rows()[0].handle)
    assert array.result(60) == [0, 2, 4]
    assert [future.result(60) for future in shunter.futures(array.handle)] == [0, 2, 4]


def test_asyncio_and_as_completed_take_the_futures(executor):
    async def both() -> list[int]:
        return await asyncio.gather(*(asyncio.wrap_future(executor.submit(work.double, n)) for n in (1, 2)))

    assert asyncio.run(both()) == [2, 4]
    futures = {executor.submit(work.double, n) for n in (3, 4)}
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures, 60)) == [6, 8]


def test_inside_a_call_the_job_is_known_and_the_keys_are_not(executor):
    future = executor.submit(work.who)
    assert future.result(60) == (0, 1, future.job.handle, True)
    assert executor.submit(work.secrets).result(60) == []


@pytest.mark.slow
def test_a_call_in_a_fork_of_the_toolkit_finds_what_a_new_interpreter_would(executor):
    # by another name of the same Python, it is started
    with shunter.Executor("local_cwd", env={"SHUNTER_PYTHON": "python3"}) as other:
        forked, started = executor.submit(work.process).result(), other.submit(work.process).result()
    assert (forked.pop("no_site"), started.pop("no_site")) == (1, 0)
    assert forked == started
    assert forked["squares"] == [2, 4]


def test_the_end_of_a_call_waits_for_threads_and_exit_functions(executor, tmp_path):
    future = executor.submit(work.end_late, str(tmp_path))
    assert future.result() == "returned"
    assert future.job.wait().state.name == "SUCCEEDED"
    assert (tmp_path / "exit").exists()
    assert (tmp_path / "thread").exists()
    assert "not flushed" in "".join(future.job.log())


def test_each_of_several_hosts_makes_the_call(monkeypatch):
    with shunter.Executor("local_cwd", nodes=2) as executor:
        future = executor.submit(work.who)
        assert [value[:2] for value in future.result(60)] == [(0, 2), (1, 2)]


def test_large_arguments_travel_in_a_file(executor, tmp_path):
    data = os.urandom(1 << 20)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "readme.txt").touch()
    with shunter.Executor("local_cwd", workspace=str(tmp_path / "code")) as travelling:
        for each in (executor, travelling):
            assert each.submit(work.double, data).result(60) == 2 * data


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (work.double, (), "cannot call double: missing a required argument: 'x'"),
        (work.double, (threading.Lock(),), "cannot pickle the call of double"),
        ("text", (), "it is not a function"),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_is_submitted(
    executor, function, arguments, message
):
    with pytest.raises(ConfigError, match=message):
        executor.submit(function, *arguments)
    assert rows() == []


def test_options_are_checked_when_the_executor_is_made():
    with pytest.raises(ConfigError, match="3 names no scheduler"):
        shunter.Executor(3)
    with pytest.raises(InvalidRunConfigException, match="partion"):
        shunter.Executor("slurm", partion="gpu")
    with pytest.raises(InvalidRunConfigException, match=r"(?s)'gpus'.*Did you mean gpu"):
        shunter.Executor("slurm", gpus=1)


@pytest.mark.slow
def test_an_array_that_is_too_large_is_refused(executor):
    with pytest.raises(ConfigError, match="at most 5,000"):
        executor.map(work.double, range(5001))
    assert len(list(executor.map(work.double, range(5001), chunksize=5001))) == 5001


def test_what_an_untrusted_project_chooses_is_refused(tmp_path, monkeypatch):
    (tmp_path / "shunter.toml").write_text('[component."train.script"]\noutput = "s3://theirs/x"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="only if you trust the project"):
        shunter.Executor("local_cwd")
    shunter.Executor("local_cwd", output=str(tmp_path / "mine")).shutdown()


def test_a_result_that_cannot_be_reached_now_is_read_later(executor, monkeypatch):
    refusals = [UnreachableError("the storage does not answer")] * 2

    def result_of(*args):
        if refusals:
            raise refusals.pop()
        return submitted_job.result_of(*args)

    monkeypatch.setattr(futures_module, "result_of", result_of)
    assert executor.submit(work.double, 4).result(60) == 8
    assert not refusals


@pytest.mark.slow
def test_calls_are_kept_as_long_as_a_job_may_need_them(executor):
    assert executor.submit(work.double, 4).result(60) == 8
    (folder,) = Path(os.environ["SHUNTER_HOME"], "state", "calls").iterdir()
    with shunter.get_runner() as runner:
        runner.jobs()  # asks for the final state
        needed, later = (runner.history.needed_calls(seconds) for seconds in (3600, -1))
    assert unused_calls(needed, -1) == []
    assert unused_calls(later, -1) == [str(folder)]
    assert unused_calls(later, 3600) == []


def test_a_shut_executor_takes_no_calls():
    executor = shunter.Executor("local_cwd")
    executor.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(work.double, 1)


def test_debug_calls_in_this_process():
    with shunter.Executor("debug") as executor:
        assert executor.submit(os.getpid).result() == os.getpid()
        assert isinstance(executor.submit(work.fail, 1).exception(), work.Unlucky)


def test_a_call_goes_on_after_a_stop_as_its_checkpoint_says(tmp_path):
    with shunter.Executor("local_cwd", retries=1) as executor:
        future = executor.submit(work.Counting(), str(tmp_path))
        os.kill(int(read_soon(tmp_path / "run-1")), signal.SIGTERM)
        assert future.result(60) == [2]  # the object was pickled with what it had counted


def read_soon(path: Path) -> str:
    pauses = Backoff(0.02, limit=60)
    while not path.exists():
        assert pauses.pause()
    return path.read_text()


def result_path(future: shunter.JobFuture) -> Path:
    assert future.job is not None
    folder = Path(os.environ["SHUNTER_HOME"], "state", "jobs", future.job.id)
    (path,) = folder.glob("ml/*/output/data/returned-0.pickle")
    return path


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


def test_nothing_is_unpickled_that_the_job_has_not_sealed(executor, tmp_path):
    """Others may write to the folders of results; unpickling what they wrote would run their code."""
    first, second = executor.submit(work.double, 1), executor.submit(work.double, 2)
    assert (first.result(60), second.result(60)) == (2, 4)
    good = result_path(first).read_bytes()
    bomb = pickle.dumps(Bomb(tmp_path / "mark"))
    header = {"kind": "value", "python": "", "type": "x", "text": ""}
    forged = [
        bomb,
        good[:82] + bomb,
        good[:-3] + b"x" + good[-2:],
        result_path(second).read_bytes(),
        sealed_pickle.seal(header, bomb, b"0" * 32, "result 0 0"),
    ]
    for data in forged:
        result_path(first).write_bytes(data)
        with pytest.raises(shunter.ResultError, match="does not have this job's key"):
            first.job.result(60)
    assert not (tmp_path / "mark").exists()
    result_path(first).write_bytes(good)
    assert first.job.result(60) == 2


def test_a_call_that_others_wrote_is_not_made(executor, tmp_path):
    future = executor.submit(work.wait_for, str(tmp_path / "gate"), "x" * (1 << 20))
    digest = rows()[0].app["roles"][0]["metadata"]["function_call"]["digest"]
    (tmp_path / "gate").touch()
    assert future.result(60) == "it came"
    (path,) = Path(os.environ["SHUNTER_HOME"], "state", "calls").glob(f"{digest[:32]}/*")
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "mark")) + b" " * (2 << 20))
    again = rerun(future)
    with pytest.raises(shunter.JobFailedError, match="does not have this job's key"):
        shunter.job(again).result(60)
    assert not (tmp_path / "mark").exists()


def test_a_repeated_job_makes_its_call_again_and_the_history_has_no_key(executor):
    future = executor.submit(work.double, "ab")
    assert future.result(60) == "abab"
    again = rerun(future)
    assert shunter.job(again).result(60) == "abab"
    state = Path(os.environ["SHUNTER_HOME"], "state")
    database = b"".join(path.read_bytes() for path in state.glob("history*"))
    assert b"SHUNTER_CALL_KEY" not in database


def test_notebooks_show_the_points_of_a_sweep_as_the_legend_of_its_charts(executor, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nfor k in range(3): print(f'step {k} loss={k * float(sys.argv[1])}')\n")
    points = [Point({"rate": rate}, ["--script", str(script), "--", rate]) for rate in ("1", "2")]
    with shunter.get_runner() as runner:
        handle = run_sweep(runner, "utils.python", points, "local_cwd")
        runner.wait(handle)
    shown = shunter.Job(handle)._repr_html_()
    assert "<p>python/0: loss 2</p>" in shown
    for number, rate in enumerate("12"):
        row = f"python/{number}</td><td>SUCCEEDED</td><td>localhost</td><td>rate={rate}</td>"
        assert f"</span> {row}" in shown


def test_notebooks_show_jobs_and_futures(executor):
    good = executor.submit(
        work.double, ["<b>"], say='{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n<i>'
    )
    bad = executor.submit(work.double, None)
    concurrent.futures.wait([good, bad], 60)
    shown = good._repr_html_()
    assert "Call 0 returned [&#x27;&lt;b&gt;&#x27;, &#x27;&lt;b&gt;&#x27;]" in shown
    assert "<td>double/0</td><td>SUCCEEDED</td>" in shown
    assert "step 2, loss 0.25" in shown
    assert "<figcaption>loss: 0.25 to 0.5, steps 1 to 2</figcaption><svg" in shown
    assert "&lt;i&gt;" in shown
    assert "<i>" not in shown
    assert "Call 0 raised TypeError" in bad._repr_html_()
    assert "<p>double/0 raised an exception: TypeError" in bad.job._repr_html_()
    assert "return 2 * x" in bad.job.why()._repr_html_()
    assert "neither failed nor waits" in good.job.why()._repr_html_()
    assert "does not know the job" in shunter.Job("local_cwd://shunter/nothing-x")._repr_html_()
