"""Commands on the hosts of training jobs: what they see is what the host's program sees."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from shunter.errors import ConfigError, UsageError
from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler

from .test_replicas import GROUPS

if TYPE_CHECKING:
    from .conftest import Jobs

SCRIPT = """
open(BASE + '/model/mine', 'w').write(HOST)
print('up', flush=True)
time.sleep(600)
"""
LOOK = 'cat "${SAGEMAKER_BASE_DIR:-/opt/ml}/model/mine"; hostname; exit 4'


@pytest.mark.slow
def test_a_command_on_each_host(jobs: Jobs, mode: str, capfd: Any) -> None:
    name = jobs.start(SCRIPT, ResourceConfig={"InstanceGroups": GROUPS, "VolumeSizeInGB": 5})
    for host in ("algo-1", "algo-2", "algo-3"):
        jobs.says(name, "up", host)
    with closing(create_scheduler("test")) as scheduler:
        for role, k, host in (("left", 0, "algo-1"), ("right", 1, "algo-3")):
            capfd.readouterr()
            assert scheduler.execute(name, role, k, ["sh", "-c", LOOK], tty=False) == 4
            seen = capfd.readouterr().out.split()
            assert seen[0].startswith(host), (mode, seen)
            assert host in seen[0]
        with pytest.raises(UsageError):
            scheduler.execute(name, "right", 2, ["true"], tty=False)
        scheduler.cancel(name)
        scheduler.wait(name, 60)
        with pytest.raises(ConfigError, match="is not running"):
            scheduler.execute(name, "left", 0, ["true"], tty=False)
