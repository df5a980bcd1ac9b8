"""Metrics forwarded to TensorBoard's files and to MLflow."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shunter
from shunter.errors import ConfigError
from shunter.metrics.forwarding import ForwardedMetrics, make_forwarder
from shunter.metrics.result_files import ResultFiles
from shunter.metrics.series import MetricTable, Series
from tests.backends import torchx_python

SOURCE = str(Path(shunter.__file__).parents[1])
HANDLE = "local_cwd://shunter/train-abc"


def loss(replica=0):
    series = Series("loss", "trainer", replica)
    for step in range(3):
        series.add(1 / (step + 1), step, 1700000000.5 + step)
    return series


def test_event_files_are_read_back(tmp_path):
    series = loss()
    forwarded = ForwardedMetrics(make_forwarder(f"tensorboard={tmp_path}"))
    assert forwarded.send(HANDLE, [series]) == 3
    assert forwarded.send(HANDLE, [series]) == 0
    series.add(math.inf, 7, math.nan)
    assert forwarded.send(HANDLE, [series]) == 1
    forwarded.close()
    table = MetricTable()
    ResultFiles(str(tmp_path / "train-abc"), [("trainer", 0)]).add_to(table)
    [found] = table
    assert (found.name, found.place) == ("loss", "trainer/0")
    assert list(found.steps) == [0, 1, 2, 7]
    assert list(found.values)[:2] == [1, 0.5]
    assert found.times[1] == 1700000001.5
    assert found.last == math.inf


#: Forwards the losses of two replicas to a target; run by the Python that has MLflow and TensorBoard.
FORWARDS = """
import json, sys
from shunter.metrics.forwarding import ForwardedMetrics, make_forwarder
from shunter.metrics.series import Series

def loss(replica):
    series = Series("loss", "trainer", replica)
    for step in range(3):
        series.add(1 / (step + 1), step, 1700000000.5 + step)
    return series

target = sys.argv[1]
forwarded = ForwardedMetrics(make_forwarder(target))
forwarded.send("local_cwd://shunter/train-abc", [loss(0), loss(1)])
forwarded.close()
"""
READS_EVENTS = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
accumulator = EventAccumulator(target.partition("=")[2] + "/train-abc/trainer-0")
accumulator.Reload()
print(json.dumps([(event.step, event.value) for event in accumulator.Scalars("loss")]))
"""
READS_MLFLOW = """
from mlflow import MlflowClient
client = MlflowClient(target.partition("=")[2])
[run] = client.search_runs([each.experiment_id for each in client.search_experiments()])
history = [
    [(each.step, each.value, each.timestamp) for each in client.get_metric_history(run.info.run_id, name)]
    for name in ("loss", "loss/trainer-1")
]
print(json.dumps([run.info.run_name, history]))
"""


def read_back(target: str, reads: str) -> Any:
    done = subprocess.run(
        [torchx_python(), "-W", "ignore", "-c", FORWARDS + reads, target],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_tensorboard_itself_reads_the_files(tmp_path):
    found = read_back(f"tensorboard={tmp_path}", READS_EVENTS)
    assert found == [[0, 1.0], [1, 0.5], [2, pytest.approx(1 / 3)]]


@pytest.mark.slow
def test_mlflow_has_the_metrics_of_the_job(tmp_path):
    name, (first, second) = read_back(f"mlflow=sqlite:///{tmp_path}/mlflow.db", READS_MLFLOW)
    assert name == HANDLE
    assert first == second
    assert [(step, value) for step, value, _ in first] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert first[1][2] == 1700000001500


def test_names_of_forwarders(monkeypatch):
    with pytest.raises(ConfigError, match=r"no metrics forwarder 'tensorbord', only tensorboard, mlflow"):
        make_forwarder("tensorbord")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match="mlflow"):
        make_forwarder("mlflow")
