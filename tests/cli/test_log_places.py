"""Every option of `shunter log`, for one program on this machine, in containers and on a real Slurm."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.schedulers.slurm.conftest import slurm  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: Four replicas say the same, then something of themselves; the third fails after the others have ended,
#: where it can see that.
SCRIPT = """
for step in 1 2 3; do echo "step $step loss 0.3"; done
echo "noise of $0" >&2
[ $0 = 2 ] || { [ ! -d "$1" ] || touch "$1/$0"; exit 0; }
[ ! -d "$1" ] || while [ $(ls "$1" | wc -l) -lt 3 ]; do sleep 0.1; done
sleep 1
echo "ValueError: bad batch" >&2
exit 3
"""
SAME = [f"step {step} loss 0.3" for step in (1, 2, 3)]


@pytest.mark.parametrize("scheduler", ["local_cwd", "local_docker", "slurm"])
def test_every_option(cli: Cli, request: pytest.FixtureRequest, tmp_path: Path, scheduler: str) -> None:
    place: list[str] = []
    if scheduler == "local_docker":
        place = ["--image", request.getfixturevalue("image")]
    elif scheduler == "slurm":
        cli.environ["SLURM_CONF"] = request.getfixturevalue("slurm").environment["SLURM_CONF"]
    ended = tmp_path / "ended"  # no container sees it, nor needs to: nothing ends the other three
    ended.mkdir()
    program = ["sh", "-c", SCRIPT, "${replica_id}", str(ended)]
    words = ["--num-replicas", "4", "--mem-mb", "64", *place, "--", *program]
    before = datetime.now(UTC) - timedelta(seconds=2)
    handle = cli("run", "-s", scheduler, "--wait", "utils.sh", *words, code=1).out.strip()
    after = datetime.now(UTC) + timedelta(seconds=2)

    def lines(*options: str) -> list[str]:
        return cli("log", handle, *options).out.splitlines()

    expected = {f"sh/{k} {line}" for k in range(4) for line in [*SAME, f"noise of {k}"]}
    assert sorted(lines()) == sorted([*expected, "sh/2 ValueError: bad batch"])
    assert sorted(lines("-f")) == sorted(lines())
    assert set(lines("--collapse")) == {
        *(f"sh[0-3] {line}" for line in SAME), *(f"sh/{k} noise of {k}" for k in range(4)),
        "sh/2 ValueError: bad batch",
    }  # fmt: skip
    first = lines("--first-error")
    assert first[-1] == "sh/2 ValueError: bad batch"
    assert all(line.startswith("sh/2 ") for line in first)
    assert lines("--rank", "1", "--streams", "stdout") == [f"sh/1 {line}" for line in SAME]
    assert sorted(lines("--streams", "stderr")) == sorted(
        [*(f"sh/{k} noise of {k}" for k in range(4)), "sh/2 ValueError: bad batch"]
    )
    assert sorted(lines("sh/0,3", "--regex", "^noise")) == ["sh/0 noise of 0", "sh/3 noise of 3"]
    assert lines("sh/2", "--tail", "1") == ["sh/2 ValueError: bad batch"]
    assert lines("sh/1", "--no-prefix", "--streams", "stdout") == SAME
    other = cli("run", "-s", "local_cwd", "--wait", "utils.echo", "--msg", "Values").out.strip()
    found = cli("log", handle, other, "--grep", "^Value").out.splitlines()
    ids = [each.rpartition("/")[2] for each in (handle, other)]
    assert sorted(found) == sorted([f"{ids[0]}/sh/2 ValueError: bad batch", f"{ids[1]}/echo/0 Values"])
    for line in lines("sh/0", "--utc"):
        time = re.match(r"sh/0 (\S+)Z ", line)
        assert time is not None, line
        assert before <= datetime.fromisoformat(f"{time[1]}+00:00") <= after
    rows = [json.loads(line) for line in lines("sh/2", "--json", "--streams", "stdout")]
    assert [(row["role"], row["replica"], row["line"]) for row in rows] == [("sh", 2, line) for line in SAME]
    assert lines("--until", "1h") == lines("--since", "now") == []
    assert sorted(lines("--since", "1h")) == sorted(lines())
