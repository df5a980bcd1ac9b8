"""Metrics forwarded to TensorBoard's files and to MLflow."""

from __future__ import annotations

import math
import sys

import pytest

from trainyard.errors import ConfigError
from trainyard.metrics.forwarding import ForwardedMetrics, make_forwarder
from trainyard.metrics.result_files import ResultFiles
from trainyard.metrics.series import MetricTable, Series

HANDLE = "local_cwd://trainyard/train-abc"


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


def test_tensorboard_itself_reads_the_files(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    forwarded = ForwardedMetrics(make_forwarder(f"tensorboard={tmp_path}"))
    forwarded.send(HANDLE, [loss()])
    forwarded.close()
    accumulator = accumulators.EventAccumulator(str(tmp_path / "train-abc" / "trainer-0"))
    accumulator.Reload()
    assert [(event.step, event.value) for event in accumulator.Scalars("loss")][:2] == [(0, 1.0), (1, 0.5)]


@pytest.mark.slow
def test_mlflow_has_the_metrics_of_the_job(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    forwarded = ForwardedMetrics(make_forwarder(f"mlflow={uri}"))
    forwarded.send(HANDLE, [loss(), loss(1)])
    forwarded.close()
    client = MlflowClient(uri)
    [run] = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.run_name == HANDLE
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert history[1].timestamp == 1700000001500
    assert len(client.get_metric_history(run.info.run_id, "loss/trainer-1")) == 3


def test_names_of_forwarders(monkeypatch):
    with pytest.raises(ConfigError, match=r"no metrics forwarder 'tensorbord', only tensorboard, mlflow"):
        make_forwarder("tensorbord")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match="mlflow"):
        make_forwarder("mlflow")
