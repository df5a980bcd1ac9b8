"""Metrics of jobs in real containers, on a real Slurm and on a real Ray, whose logs are their source."""

from __future__ import annotations

import pytest

from shunter.metrics import read
from shunter.runner import get_runner
from shunter.specs import AppDef, Resource, Role
from shunter.specs.status import AppState
from shunter.specs.submission import Submission
from tests.schedulers.docker.conftest import image  # noqa: F401
from tests.schedulers.ray.conftest import cluster  # noqa: F401
from tests.schedulers.slurm.conftest import slurm  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = """
for step in 0 10 20; do
    echo "{\\"step\\": $step, \\"loss\\": $((100 - step))}"
    echo "step $step acc=0.$step" >&2
done
"""


@pytest.mark.parametrize(
    ("scheduler", "place"), [("local_docker", "image"), ("slurm", "slurm"), ("ray", "cluster")]
)
def test_what_each_replica_reports(scheduler: str, place: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(place)
    role = Role(
        "trainer", made if place == "image" else "", entrypoint="sh", args=["-c", SCRIPT], num_replicas=2,
        resource=Resource(cpu=1, gpu=0, memMB=64),
    )  # fmt: skip
    expressions = {"acc": r"acc=(\S+)", "step": r"^step (\d+)"}
    with get_runner() as runner:
        handle = runner.submit(
            Submission(app=AppDef("train", [role]), scheduler=scheduler, metrics=expressions)
        )
        status = runner.wait(handle)
        assert status is not None
        assert status.state is AppState.SUCCEEDED, status
        found = read(runner, handle, ["loss", "acc"])
    for name, values in {"loss": [100, 90, 80], "acc": [0.0, 0.1, 0.2]}.items():
        assert [series.place for series in found[name]] == ["trainer/0", "trainer/1"]
        for series in found[name]:
            assert list(series.steps) == [0, 10, 20]
            assert list(series.values) == values
