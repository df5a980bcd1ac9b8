from shunter.runner import get_runner
from shunter.schedulers.hpc.meeting_ports import VARIABLES


def test_jobs_that_share_a_node_meet_at_different_ports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    own = {VARIABLES[0]: "7000"}
    words = {"script": "train.py", "num_replicas": 2, "env": own}
    with get_runner("test") as runner:
        apps = [runner.dryrun_component("train.script", words, "slurm").app for _ in range(3)]
        alone = runner.dryrun_component("train.script", {"script": "train.py"}, "slurm").app
    found = [tuple(app.roles[0].env[name] for name in VARIABLES) for app in apps]
    assert {ports[0] for ports in found} == {"7000"}
    assert len({port for ports in found for port in ports[1:]}) == 6
    assert not alone.roles[0].env.keys() & set(VARIABLES)
