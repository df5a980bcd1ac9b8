"""The scripts that are submitted, as files, and what is refused before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.api import Dependency
from shunter.schedulers.hpc.request import HpcRequest
from shunter.schedulers.sge_scheduler.request import with_check
from shunter.schedulers.sge_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, BindMount, Resource, Role
from tests.schedulers.golden import check

GOLDEN = Path(__file__).with_name("golden")


def role(
    name: str = "worker", count: int = 1, cpu: int = 1, gpu: int = 0, memory: int = -1, **more: Any
) -> Role:
    return Role(
        name, "", entrypoint="python", args=["train.py", "--note", "it's a b"], num_replicas=count,
        resource=Resource(cpu, gpu, memory), env={"API_TOKEN": "do-not-show", "A": "$HOME"}, **more,
    )  # fmt: skip


def request(*roles: Role, **cfg: Any) -> HpcRequest:
    options = {"shared_dir": "/shared", "copy_env": [], **cfg}
    found = create_scheduler("test").submit_dryrun(AppDef("job", list(roles)), options).request
    assert isinstance(found, HpcRequest)
    return found


CASES: dict[str, tuple[list[Role], dict[str, Any]]] = {
    "one": ([role()], {}),
    "limits": ([role(cpu=4, gpu=2, memory=9000, max_retries=2)], {"time": "12:00:00", "queue": "gpu.q@@new"}),
    "gang": ([role(count=2, cpu=4, memory=100), role("reader", 1, 2)], {"pe": "mpi", "mem_per": "job"}),
    "array": ([role(count=10)], {"array": True, "max_running": 3}),
    "chain": ([role()], {"chain": 3, "time": "3600", "grace_period": 120}),
    "site": (
        [role(cpu=8, gpu=8, memory=8000)],
        {
            "omit": ["-notify", "-l mem_free"],
            "native": ["#$ -l exclusive=true", "-ac a=b"],
            "gpu_per": "slot",
            "project": "p 1",
            "reserve": True,
            "mail": "me@example.org",
            "mail_on": "ea",
            "smp_pe": "openmp",
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_scripts(name: str) -> None:
    roles, cfg = CASES[name]
    made = request(*roles, **cfg)
    check(GOLDEN / f"{name}.txt", str(made), made.app_id)
    assert "do-not-show" not in made.script + str(made)


@pytest.mark.parametrize(
    ("roles", "cfg", "words"),
    [
        ([role(count=2)], {}, "need a parallel environment"),
        ([role(cpu=2)], {"smp_pe": ""}, "needs a parallel environment of one host"),
        ([role()], {"pe": "mpi -S /bin/x"}, "pe must be one word, not 'mpi -S /bin/x'"),
        ([role()], {"mem_per": "core"}, "mem_per must be one of slot, host, job, not 'core'"),
        ([role()], {"max_running": 2}, "set array=True"),
        ([role("a"), role("b", cpu=2)], {"array": True}, "replicas of an array are alike"),
        ([role(cpu=3, gpu=2)], {"gpu_per": "slot"}, "must be a multiple of its cpus"),
        ([role()], {"time": "soon"}, "is not a time limit"),
        ([role()], {"priority": 5000}, "priority=5000"),
        ([role()], {"native": ["-a\n-b"]}, "line break"),
        ([role(mounts=[BindMount("/a", "/b")])], {}, "no mounts of type bind"),
    ],
)
def test_what_cannot_run_is_refused(roles: list[Role], cfg: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        request(*roles, **cfg)


def test_what_has_no_effect_is_said() -> None:
    app = AppDef(
        "job", [Role("r", "python:3.12", entrypoint="x", resource=Resource(1, 0, -1, devices={"efa": 1}))]
    )
    info = create_scheduler("test").submit_dryrun(app, {"omit": ["-zz"]})
    assert info.warnings == [
        "role 'r': sge ignores the image python:3.12",
        "role 'r': sge ignores resource.devices efa",
        "omit: no option begins with '-zz'",
    ]


def test_success_is_checked_before_anything_else() -> None:
    made = request(role())
    script = with_check(made.script, made.folder, ["/shared/jobs/a b"])
    assert f"\nsh {made.folder}/run.sh require '/shared/jobs/a b' || exit 0\nexport SHUNTER" in script
    assert Dependency("a", True).any_end
