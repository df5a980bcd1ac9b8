"""The scripts that are submitted, as files, and what is refused before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.hpc.request import HpcRequest
from shunter.schedulers.lsf_scheduler.reasons import judge
from shunter.schedulers.lsf_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, AppState, Resource, Role
from tests.schedulers.golden import check

GOLDEN = Path(__file__).with_name("golden")


def role(
    name: str = "worker", count: int = 1, cpu: int = 1, gpu: int = 0, memory: int = -1, **more: Any
) -> Role:
    return Role(
        name, "", entrypoint="python", args=["train.py", "--note", "it's a b"], num_replicas=count,
        resource=Resource(cpu, gpu, memory), env={"API_TOKEN": "do-not-show"}, **more,
    )  # fmt: skip


def request(*roles: Role, **cfg: Any) -> HpcRequest:
    options = {"shared_dir": None if "jobdir" in cfg else "/shared", "copy_env": [], **cfg}
    found = create_scheduler("test").submit_dryrun(AppDef("job", list(roles)), options).request
    assert isinstance(found, HpcRequest)
    return found


CASES: dict[str, tuple[list[Role], dict[str, Any]]] = {
    "one": ([role()], {}),
    "limits": ([role(cpu=4, gpu=2, memory=8000, max_retries=2)], {"time": "12:00", "queue": "gpu"}),
    "gang": (
        [role(count=2, cpu=4, gpu=4, memory=8001)],
        {"mem_per": "core", "gpu_mode": "mode=exclusive_process"},
    ),
    "unequal": ([role(count=2, cpu=4, memory=100), role("reader", memory=50)], {"mem_per": "job"}),
    "array": ([role(count=10)], {"array": True, "max_running": 3}),
    "chain": ([role()], {"chain": 3, "time": "60", "grace_period": 150}),
    "site": (
        [role(memory=100)],
        {
            "omit": ["-M", "-R span"],
            "native": ["#BSUB -x", "-sla gold"],
            "requeue": "all ~0 ~1",
            "app": "py",
            "project": "p 1",
            "group": "/team",
            "resources": "select[type==X86_64]",
            "mem_limit": True,
        },
    ),
    "torchx": (
        [role()],
        {"lsf_queue": "q", "jobdir": "/jobs", "container_workdir": "/w", "host_network": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_scripts(name: str) -> None:
    roles, cfg = CASES[name]
    made = request(*roles, **cfg)
    check(GOLDEN / f"{name}.txt", str(made), made.app_id)
    assert "do-not-show" not in made.script + str(made)


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({"mem_per": "slot"}, "mem_per must be one of job, core, host, not 'slot'"),
        ({"max_running": 2}, "set array=True"),
        ({"time": "1:00:00"}, "is not a time limit of LSF"),
        ({"shm_size": "8g"}, "all of its /dev/shm"),
        ({"queue": "a", "lsf_queue": "b"}, "contradict each other"),
        ({"queue": 'a"b'}, "quotation mark"),
    ],
)
def test_what_cannot_run_is_refused(cfg: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        request(role(), **cfg)


def test_torchx_default_of_shared_memory_is_accepted() -> None:
    assert "shm" not in request(role(), shm_size="64m").script


def test_a_follow_up_takes_an_end_for_what_status_takes_it_for() -> None:
    words = json.loads(request(role(), notify=["https://example.org/end"]).files["follow-up.json"])
    assert {"EXIT", "POST_ERR", "DONE"}.isdisjoint(words["live"])
    for name in ("TERM_OWNER", "TERM_ORPHAN_SYSTEM", "TERM_CPULIMIT", "TERM_SWAP", "TERM_REMOVE_HUNG_JOB"):
        state, said = judge({"STAT": "EXIT", "EXIT_CODE": "140", "EXIT_REASON": f"{name}: killed"})
        found, reason = words["states"][name]
        assert found == state.name
        assert state == AppState.CANCELLED or said.startswith(f"{reason}: {name}")
