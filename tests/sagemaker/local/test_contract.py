"""What a program finds under /opt/ml and around it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Bucket, Jobs

from tests.backends import need
from tests.toolkit.image import docker

from .conftest import file_channel, leftovers
from .test_distributed import hosts_of, path_without

SHOW = """
found = {}
for where, folders, names in os.walk(BASE, followlinks=True):
    if '/input/data/script' in where or '__pycache__' in where:
        continue
    found[os.path.relpath(where, BASE)] = sorted(names)
config = {n: json.load(open(f'{BASE}/input/config/{n}.json'))
          for n in ('hyperparameters', 'inputdataconfig', 'resourceconfig')}
json.dump({'tree': found, 'config': config, 'env': dict(os.environ), 'args': sys.argv[1:]},
          open(BASE + f'/model/{HOST}.json', 'w'))
"""


def test_the_tree_is_the_platforms(jobs: Jobs, mode: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "a.csv").write_text("1,2\n")
    (data / "deep/b.csv").write_text("3\n")
    ended = jobs.run(
        SHOW,
        HyperParameters={"epochs": "10", "sagemaker_program": '"train.py"', "odd": "it's $HOME `x`"},
        channels=[file_channel("training", data.as_uri(), ContentType="text/csv")],
        Environment={"PRICE": "a$HOME-$$x", "EMPTY": ""},
        AlgorithmSpecification={"ContainerArguments": ["--a b", "$HOME", "*"]},
    )
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    seen = json.loads(jobs.artifact(ended["TrainingJobName"])["algo-1.json"])
    assert seen["config"]["hyperparameters"] == {
        "epochs": "10",
        "sagemaker_program": '"train.py"',
        "odd": "it's $HOME `x`",
    }
    assert seen["config"]["inputdataconfig"]["training"] == {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
        "ContentType": "text/csv",
    }
    (host,) = hosts_of(ended["TrainingJobName"], 1, mode)
    assert seen["config"]["resourceconfig"] == {
        "current_host": host,
        "current_instance_type": "ml.m5.large",
        "current_group_name": "homogeneousCluster",
        "hosts": [host],
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.m5.large",
                "hosts": [host],
            }
        ],
        "network_interface_name": "eth0",
    }
    tree = seen["tree"]
    assert tree["input/data/training"] == ["a.csv"]
    assert tree["input/data/training/deep"] == ["b.csv"]
    assert {"model", "output", "output/data", "input/config"} <= set(tree)
    assert "output/intermediate" not in tree
    assert "checkpoints" not in tree
    assert seen["args"] == ["--a b", "$HOME", "*"]
    # a value's $ is nobody's to expand
    assert seen["env"]["PRICE"] == "a$HOME-$$x"
    assert seen["env"]["EMPTY"] == ""
    assert seen["env"]["TRAINING_JOB_NAME"] == ended["TrainingJobName"]
    assert seen["env"]["TRAINING_JOB_ARN"] == ended["TrainingJobArn"]
    assert seen["env"]["AWS_REGION"] == "us-west-2"


@pytest.mark.slow
def test_hosts_know_their_groups_and_each_other(jobs: Jobs, mode: str) -> None:
    script = """
import socket
json.dump({'config': CONFIG, 'peers': {h: socket.gethostbyname(h) for h in CONFIG['hosts']}},
          open(BASE + f'/model/{HOST}.json', 'w'))
"""
    groups = [
        {"InstanceGroupName": "cpu", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
        {"InstanceGroupName": "mem", "InstanceType": "ml.r5.large", "InstanceCount": 2},
    ]
    ended = jobs.run(script, ResourceConfig={"InstanceGroups": groups, "VolumeSizeInGB": 5})
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    seen = {name: json.loads(data) for name, data in jobs.artifact(ended["TrainingJobName"]).items()}
    assert sorted(seen) == ["algo-1.json", "algo-2.json", "algo-3.json"]
    config = seen["algo-3.json"]["config"]
    first, second, third = hosts_of(ended["TrainingJobName"], 3, mode)
    assert config["current_host"] == third
    assert config["current_group_name"] == "mem"
    assert config["current_instance_type"] == "ml.r5.large"
    assert config["instance_groups"] == [
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": [first]},
        {"instance_group_name": "mem", "instance_type": "ml.r5.large", "hosts": [second, third]},
    ]
    assert len(set(seen["algo-1.json"]["peers"].values())) == 3


@pytest.mark.slow
def test_hosts_talk_to_each_other(jobs: Jobs, containers: str) -> None:
    script = """
import socket
if HOST == 'algo-1':
    server = socket.create_server(('', 7777))
    for _ in range(2):
        connection, _ = server.accept()
        print('got', connection.recv(99).decode(), flush=True)
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(('algo-1', 7777)).sendall(socket.gethostname().encode())
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
"""
    ended = jobs.run(script, hosts=3)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert sorted(jobs.lines(ended["TrainingJobName"])) == ["got algo-2", "got algo-3"]


@pytest.mark.slow
def test_containers_have_shared_memory_and_init(jobs: Jobs, containers: str) -> None:
    script = """
facts = os.statvfs('/dev/shm')
print(facts.f_blocks * facts.f_frsize > 1 << 30, os.getpid() != 1)
"""
    ended = jobs.run(script)
    assert jobs.lines(ended["TrainingJobName"]) == ["True True"]


@pytest.mark.slow
def test_isolated_hosts_reach_each_other_and_are_on_a_network_that_leads_nowhere(
    jobs: Jobs, containers: str, home: Path
) -> None:
    script = """
import socket
print(socket.gethostbyname('algo-2') != '', flush=True)
while not os.path.exists(BASE + '/output/go'):
    time.sleep(0.05)
"""
    for isolated in (True, False):
        name = jobs.start(script, hosts=2, EnableNetworkIsolation=isolated)
        jobs.says(name, "True")
        job = home / "state/sagemaker" / name
        label = f"label=shunter.sagemaker.job={job}"
        networks = docker("network", "ls", "-q", "--filter", label).stdout.split()
        facts = json.loads(docker("network", "inspect", *networks).stdout)
        assert [network["Internal"] for network in facts] == [isolated]
        for host in ("algo-1", "algo-2"):
            (job / "work" / host / "output/go").touch()
        assert jobs.end(name)["TrainingJobStatus"] == "Completed"


@pytest.mark.slow
def test_the_images_own_program_and_code_are_seen(jobs: Jobs, containers: str, tmp_path: Path) -> None:
    """Without an entry point the image's own gets the word `train`; what it has in /opt/ml/code stays."""
    tag = f"{jobs.image}-own"
    (tmp_path / "Dockerfile").write_text(
        f"FROM {jobs.image}\n"
        "RUN mkdir -p /opt/ml/code && echo baked > /opt/ml/code/file\n"
        'ENTRYPOINT ["sh", "-c", "echo $0; cat /opt/ml/code/file"]\n'
    )
    docker("build", "-q", "--network", "none", "-t", tag, str(tmp_path))
    try:
        request = jobs.request("", AlgorithmSpecification={"TrainingImage": tag})
        del request["AlgorithmSpecification"]["ContainerEntrypoint"]
        jobs.sagemaker.create_training_job(**request)
        ended = jobs.end(request["TrainingJobName"])
        assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
        assert jobs.lines(request["TrainingJobName"]) == ["train", "baked"]
    finally:
        docker("rmi", "-f", tag, check=False)


def test_no_credential_is_ever_on_disk(
    jobs: Jobs, containers: str, home: Path, bucket: Bucket, monkeypatch: object
) -> None:
    """The container gets credentials; neither the job's directory nor Docker's own files hold them."""
    script = """
import configparser
parser = configparser.ConfigParser()
parser.read(os.environ['AWS_SHARED_CREDENTIALS_FILE'])
print(parser['default']['aws_access_key_id'] == 'AKIDEXAMPLE',
      parser['default']['aws_secret_access_key'][:4], flush=True)
print('127.0.0.1' in os.environ['AWS_ENDPOINT_URL_S3'], flush=True)
while not os.path.exists(BASE + '/output/go'):
    time.sleep(0.05)
"""
    secret = "correct-horse-battery"
    name = jobs.start(
        script,
        HyperParameters={"api_key": '"' + secret + '"'},
        Environment={"DB_PASSWORD": secret, "PLAIN": "kept"},
    )
    jobs.says(name, "True wJal")
    jobs.says(name, "False")
    job = home / "state/sagemaker" / name
    for path in job.rglob("*"):
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes()
            assert b"wJalrXUtnFEMI" not in text, path
            assert secret.encode() not in text, path
    ids = docker("ps", "-q", "--filter", f"label=shunter.sagemaker.job={job}").stdout.split()
    assert len(ids) == 1
    assert "wJalrXUtnFEMI" not in docker("inspect", *ids).stdout
    (job / "work/algo-1/output/go").touch()
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed"
    assert ended["Environment"]["PLAIN"] == "kept"
    assert secret not in json.dumps(ended, default=str)
    assert leftovers(home) == []


BY_NAME = """
import socket
OWN = CONFIG['current_host']
assert all(socket.gethostbyname(host) for host in CONFIG['hosts']), CONFIG
assert socket.gethostbyname(OWN) != '127.0.0.1' and OWN in (socket.gethostname(), socket.gethostbyname(OWN))
assert json.load(open('/opt/ml/input/config/resourceconfig.json')) == CONFIG
KEPT = os.environ['KEPT']
print('from', sorted(os.listdir(KEPT)), flush=True)
for place in ('/opt/ml/model/', '/opt/ml/output/data/', KEPT + '/'):
    with open(place + HOST, 'w') as file:
        file.write(HOST)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
def test_what_scripts_know_by_heart(jobs: Jobs, mode: str, hosts: int, tmp_path: Path) -> None:
    """Paths below /opt/ml, if processes ask for it, and every host's name."""
    if mode == "processes":
        need("namespaces")
    place = "/kept/checkpoints" if mode == "containers" else "/opt/ml/kept"
    config = {"S3Uri": (tmp_path / "kept").as_uri(), "LocalPath": place}
    environment = {"KEPT": place, "SHUNTER_OPT_ML": "1"}
    names = [f"algo-{number + 1}" for number in range(hosts)]
    for found in ([], names):
        ended = jobs.run(BY_NAME, hosts=hosts, CheckpointConfig=config, Environment=environment)
        assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
        assert jobs.artifact(ended["TrainingJobName"]) == {name: name.encode() for name in names}
        assert jobs.lines(ended["TrainingJobName"]) == [f"from {found}"]
    assert not os.path.exists(place)


@pytest.mark.slow
def test_what_processes_cannot_have_is_said(
    jobs: Jobs, processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path_without(tmp_path, "unshare"))
    assert jobs.lines(jobs.run("print('started')")["TrainingJobName"]) == ["started"]
    ended = jobs.run("print('started')", Environment={"SHUNTER_OPT_ML": "1"})
    assert ended["TrainingJobStatus"] == "Failed"
    assert "at /opt/ml, as SHUNTER_OPT_ML asks: unshare: No such file" in ended["FailureReason"]
    config = {"S3Uri": (tmp_path / "kept").as_uri(), "LocalPath": "/kept/checkpoints"}
    ended = jobs.run("print('started')", CheckpointConfig=config)
    assert ended["TrainingJobStatus"] == "Failed"
    assert "cannot show the checkpoints at /kept/checkpoints" in ended["FailureReason"]
