"""How jobs end, what is kept of them, and what is said of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import botocore.exceptions
import pytest

from shunter.runner import get_runner
from tests.result_jobs import SCRIPT, check_results

from .conftest import leftovers, unpack, until

if TYPE_CHECKING:
    from .conftest import Bucket, Jobs

STEPS = ["Starting", "Downloading", "Training", "Uploading", "Completed"]


def steps(described: dict) -> list[str]:
    return [step["Status"] for step in described["SecondaryStatusTransitions"]]


@pytest.mark.slow
def test_a_job_goes_through_the_services_steps(jobs: Jobs, mode: str, bucket: Bucket, home: Path) -> None:
    script = """
open(BASE + '/model/weights', 'w').write('w')
os.mkdir(BASE + '/model/empty')
os.symlink('weights', BASE + '/model/link')
os.mkfifo(BASE + '/model/fifo')
open(BASE + '/output/data/plot', 'w').write('p')
for step in range(3):
    print(f'step {step} loss: {1 / (step + 1):.3f}', flush=True)
"""
    ended = jobs.run(
        script,
        OutputDataConfig={"S3OutputPath": bucket.uri("results")},
        AlgorithmSpecification={"MetricDefinitions": [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]},
        Tags=[{"Key": "team", "Value": "blue"}],
    )
    name = ended["TrainingJobName"]
    assert ended["TrainingJobStatus"] == ended["SecondaryStatus"] == "Completed"
    assert steps(ended) == STEPS
    times = [step["StartTime"] for step in ended["SecondaryStatusTransitions"]]
    assert times == sorted(times)
    assert ended["CreationTime"] <= ended["TrainingStartTime"] <= ended["TrainingEndTime"]
    assert [(m["MetricName"], round(m["Value"], 3)) for m in ended["FinalMetricDataList"]] == [
        ("loss", 0.333)
    ]
    uri = ended["ModelArtifacts"]["S3ModelArtifacts"]
    assert uri == bucket.uri(f"results/{name}/output/model.tar.gz")
    assert unpack(bucket.get(f"results/{name}/output/model.tar.gz")) == {"weights": b"w"}
    assert unpack(bucket.get(f"results/{name}/output/output.tar.gz")) == {"plot": b"p"}
    assert jobs.sagemaker.list_tags(ResourceArn=ended["TrainingJobArn"])["Tags"] == [
        {"Key": "team", "Value": "blue"}
    ]
    assert leftovers(home) == []
    assert not (home / "state/sagemaker" / name / "work").exists()


def test_results_are_kept_as_files_if_wanted(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    script = """
os.makedirs(BASE + '/model/deep')
open(BASE + '/model/deep/weights', 'w').write('w')
"""
    output = {"S3OutputPath": bucket.uri("results"), "CompressionType": "NONE"}
    ended = jobs.run(script, OutputDataConfig=output)
    name = ended["TrainingJobName"]
    assert ended["ModelArtifacts"]["S3ModelArtifacts"] == bucket.uri(f"results/{name}/output/model/")
    assert bucket.keys("results") == [f"results/{name}/output/model/deep/weights"]


@pytest.mark.slow
def test_models_of_several_hosts_are_merged_by_a_rule(jobs: Jobs, processes: str) -> None:
    """Nobody overwrites anybody: the first host's is at the path, the others' are below their names."""
    script = """
if HOST == 'algo-1':
    time.sleep(0.3)     # the first host writes last
open(BASE + '/model/same', 'w').write('same')
open(BASE + f'/model/own-{HOST}', 'w').write(HOST)
open(BASE + '/model/clash', 'w').write(HOST)
"""
    ended = jobs.run(script, hosts=3)
    assert jobs.artifact(ended["TrainingJobName"]) == {
        "same": b"same",
        "clash": b"algo-1",
        "algo-2/clash": b"algo-2",
        "algo-3/clash": b"algo-3",
        "own-algo-1": b"algo-1",
        "own-algo-2": b"algo-2",
        "own-algo-3": b"algo-3",
    }
    upload = next(s for s in ended["SecondaryStatusTransitions"] if s["Status"] == "Uploading")
    assert "hosts wrote different files to clash" in upload["StatusMessage"]


@pytest.mark.slow
def test_a_host_that_fails_late_fails_the_job(jobs: Jobs, processes: str) -> None:
    script = """
if HOST == 'algo-1':
    sys.exit(0)
time.sleep(1)
open(BASE + '/output/data/left', 'w').write('output of a failed job is kept')
open(BASE + '/model/weights', 'w').write('its model is not')
open(BASE + '/output/failure', 'w').write('the disk of ' + HOST + ' is full')
sys.exit(7)
"""
    ended = jobs.run(script, hosts=2)
    assert ended["TrainingJobStatus"] == "Failed"
    reason = "AlgorithmError: the disk of algo-2 is full, exit code: 7, host: algo-2"
    assert ended["FailureReason"] == reason
    assert ended["ModelArtifacts"]["S3ModelArtifacts"] == ""
    assert jobs.artifact(ended["TrainingJobName"], "output") == {"left": b"output of a failed job is kept"}
    assert not (jobs.out / ended["TrainingJobName"] / "output/model.tar.gz").exists()


@pytest.mark.slow
def test_the_first_failure_ends_the_other_hosts(jobs: Jobs, mode: str) -> None:
    script = """
if HOST == 'algo-2':
    print('Traceback\\nValueError: no such column', file=sys.stderr)
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: (print('told to stop', flush=True), sys.exit(0)))
print('ready', flush=True)
time.sleep(600)
"""
    ended = jobs.run(script, hosts=2)
    # without a failure file the last thing that the program said
    assert ended["FailureReason"] == "AlgorithmError: ValueError: no such column, exit code: 3, host: algo-2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "words", "code"),
    [
        ("os.kill(os.getpid(), 9)", "ended by SIGKILL", 137),
        ("sys.exit(130)", "", 130),
        ("open(BASE + '/output/failure', 'w').write('x' * 5000); sys.exit(1)", "xxxx", 1),
        ("os.mkfifo(BASE + '/output/failure'); sys.exit(1)", "", 1),
    ],
)
def test_exit_codes_are_reported_exactly(jobs: Jobs, mode: str, end: str, words: str, code: int) -> None:
    ended = jobs.run(end)
    assert ended["TrainingJobStatus"] == "Failed"
    reason = ended["FailureReason"]
    assert reason.startswith("AlgorithmError: ")
    assert words in reason
    assert reason.endswith(f", exit code: {code}")
    assert len(reason) <= 1024


@pytest.mark.slow
def test_what_cannot_be_started_says_so(jobs: Jobs, mode: str) -> None:
    request = jobs.request("")
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["/no/such/program"]
    jobs.sagemaker.create_training_job(**request)
    ended = jobs.end(request["TrainingJobName"])
    assert ended["TrainingJobStatus"] == "Failed"
    assert "/no/such/program" in ended["FailureReason"]
    assert ended["FailureReason"].endswith("exit code: 127")


def test_an_image_that_is_nowhere(jobs: Jobs, containers: str) -> None:
    ended = jobs.run("", AlgorithmSpecification={"TrainingImage": "127.0.0.1:1/no/such:image"})
    assert ended["TrainingJobStatus"] == "Failed"
    assert "127.0.0.1:1/no/such:image" in ended["FailureReason"]
    assert "cannot be pulled" in ended["FailureReason"]


@pytest.mark.slow
def test_stopping_takes_no_longer_than_the_script(jobs: Jobs, mode: str, home: Path) -> None:
    """A script without a handler, which as a first process would not hear SIGTERM at all."""
    name = jobs.start("open(BASE + '/model/w', 'w').write('w'); print('up', flush=True); time.sleep(600)")
    jobs.says(name, "up")
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    ended = jobs.end(name)
    assert (ended["TrainingJobStatus"], ended["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert steps(ended)[-3:] == ["Stopping", "Uploading", "Stopped"]
    stopping = ended["SecondaryStatusTransitions"][-3]
    seconds = (stopping["EndTime"] - stopping["StartTime"]).total_seconds()
    assert seconds < 40, "the script ends at once; the service would give it 120 s"
    assert jobs.artifact(name) == {"w": b"w"}
    assert leftovers(home) == []


@pytest.mark.slow
def test_a_script_may_take_its_time_to_stop(jobs: Jobs, mode: str) -> None:
    script = """
def stop(*_):
    open(BASE + '/model/saved', 'w').write('saved')
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print('up', flush=True)
time.sleep(600)
"""
    name = jobs.start(script, hosts=2)
    for host in ("algo-1", "algo-2"):
        jobs.says(name, "up", host)
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Stopped"
    assert jobs.artifact(name) == {"saved": b"saved"}
    with pytest.raises(botocore.exceptions.ClientError, match="in status Stopped"):
        jobs.sagemaker.stop_training_job(TrainingJobName=name)


def test_what_a_stopped_process_has_started_saves_its_state(jobs: Jobs, processes: str) -> None:
    saver = """
import signal, sys, time
def stop(*_):
    open(sys.argv[1], 'a').write('saving ')
    time.sleep(1)
    open(sys.argv[1], 'a').write('saved')
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print('up', flush=True)
time.sleep(600)
"""
    line = f"[sys.executable, '-c', {saver!r}, BASE + '/model/notes']"
    name = jobs.start(f"import subprocess; subprocess.run({line})")
    jobs.says(name, "up")
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    assert jobs.end(name)["TrainingJobStatus"] == "Stopped"
    assert jobs.artifact(name) == {"notes": b"saving saved"}


@pytest.mark.slow
def test_stopping_at_once(jobs: Jobs, processes: str) -> None:
    """Before the supervisor has done anything at all: stopped, not failed."""
    names = [jobs.start("time.sleep(600)") for _ in range(4)]
    for name in names:
        jobs.sagemaker.stop_training_job(TrainingJobName=name)
    late = jobs.start("time.sleep(600)")
    jobs.sagemaker.stop_training_job(TrainingJobName=late)
    for name in [*names, late]:
        assert jobs.end(name)["TrainingJobStatus"] == "Stopped"


@pytest.mark.slow
def test_who_does_not_stop_is_killed(jobs: Jobs, mode: str, endpoint: object) -> None:
    from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings

    assert Settings().grace == 120
    os.environ["SHUNTER_SAGEMAKER_GRACE_SECONDS"] = "0.5"
    try:
        name = jobs.start(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        )
    finally:
        del os.environ["SHUNTER_SAGEMAKER_GRACE_SECONDS"]
    jobs.says(name, "up")
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    assert jobs.end(name)["TrainingJobStatus"] == "Stopped"


@pytest.mark.slow
def test_the_time_limit(jobs: Jobs, processes: str) -> None:
    script = "open(BASE + '/model/w', 'w').write('w'); print('up', flush=True); time.sleep(600)"
    for limit in (2, 10, 40):  # it counts from before the start, which takes longer on a busy machine
        ended = jobs.run(script, StoppingCondition={"MaxRuntimeInSeconds": limit})
        if jobs.artifact(ended["TrainingJobName"]):
            break
    assert (ended["TrainingJobStatus"], ended["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert "FailureReason" not in ended
    assert ended["TrainingTimeInSeconds"] >= limit
    assert jobs.artifact(ended["TrainingJobName"]) == {"w": b"w"}


def test_what_a_process_leaves_running_ends_with_it(jobs: Jobs, processes: str, tmp_path: Path) -> None:
    script = f"""
import subprocess
child = subprocess.Popen(['sleep', '600'])
away = subprocess.Popen(['sleep', '600'], start_new_session=True)
open({str(tmp_path / "pids")!r}, 'w').write(f'{{child.pid}} {{away.pid}}')
"""
    jobs.run(script)
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        until(lambda pid=pid: not alive(pid))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("to", ["here", "bucket"])
def test_results_are_read_from_the_archives_that_were_sent(
    processes: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    options = {"output_path": bucket.uri("kept")} if to == "bucket" else {}
    with get_runner("test-results") as runner:
        handle = runner.run_component(
            "train.script", ["--script", "train.py"], "sagemaker_local", options, workspace="."
        )
        runner.wait(handle)
        check_results(runner, handle)
