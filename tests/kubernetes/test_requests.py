"""The objects that jobs become: golden files, the published schemas, and what those do not hold."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import ConfigError
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.pods import _text, original_text, toleration
from shunter.schedulers.kubernetes_scheduler.rules import job_specs, pod_templates
from shunter.schedulers.kubernetes_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, Resource, RetryPolicy, parse_mounts
from shunter.specs.overlays import DEL, JOIN, PUT
from tests.backends import need
from tests.kubernetes.jobs import CASES, EVERYTHING, app, problems_of, request, role
from tests.kubernetes.stub import expand

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("1.34", "1.37")


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "random_id", lambda length=10: "x23456789b"[:length])
    monkeypatch.setattr("shunter.schedulers.kubernetes_scheduler.request.__version__", "1.2.3")
    monkeypatch.setattr("shunter.schedulers.kubernetes_scheduler.request.user_name", lambda: "me")


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    job, cfg = CASES[name]
    before = copy.deepcopy(job)
    made = request(job, **cfg)
    text = json.dumps(made.manifests, indent=2) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "UPDATE_GOLDEN=1 writes it again"
    assert job == before


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_published_schemas(name: str, version: str) -> None:
    """Strictly: no unknown field, no wrong type. JobSets and Volcano jobs by the Jobs and pods in them."""
    need("kubernetes_validate")
    import kubernetes_validate

    if name == "gang" and version < "1.37":
        pytest.skip("PodGroups have another version there")
    job, cfg = CASES[name]
    checked = 0
    for manifest in request(job, **cfg).manifests:
        parts = [manifest]
        if manifest["apiVersion"].startswith(("jobset", "batch.volcano")):
            metadata = {"name": "part"}
            parts = [
                {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
                for _, spec in job_specs(manifest)
            ]
            parts += [
                {"apiVersion": "v1", "kind": "Pod", **template} for _, template in pod_templates(manifest)
            ]
        for part in parts:
            kubernetes_validate.validate(part, version, strict=True)
            checked += 1
    assert checked


def test_custom_resources_have_the_form_that_is_defined() -> None:
    checked = 0
    for job, cfg in CASES.values():
        for manifest in request(job, **cfg).manifests:
            kind = {"jobset.x-k8s.io": "jobset", "batch.volcano.sh": "volcano_job"}.get(
                manifest["apiVersion"].partition("/")[0]
            )
            if kind is not None:
                assert problems_of(manifest, kind) == []
                checked += 1
    assert checked == 4


@pytest.mark.parametrize("name", CASES)
def test_no_object_holds_a_secret(name: str) -> None:
    job, cfg = CASES[name]
    made = request(job, **cfg)
    assert "hf_abcdefghijklmnop" not in str(made)
    assert "sk-1234567890abcdef" not in repr(made)
    for manifest in made.manifests:
        if manifest["kind"] != "Secret":
            assert "hf_abcdefghijklmnop" not in json.dumps(manifest)
            assert "sk-1234567890abcdef" not in json.dumps(manifest)


def test_what_is_shown_is_a_list_for_kubectl() -> None:
    shown = json.loads(str(request(app(EVERYTHING))))
    assert shown["kind"] == "List"
    assert [each["kind"] for each in shown["items"]] == ["Secret", "Service", "Job"]
    assert set(shown["items"][0]["stringData"].values()) == {"<redacted>"}


# ---- names


@pytest.mark.slow
@given(
    st.text(min_size=1, max_size=90),
    st.lists(st.text(min_size=1, max_size=70), min_size=1, max_size=4, unique=True),
    st.integers(1, 2000),
)
def test_the_longest_names_fit(name: str, roles: list[str], count: int) -> None:
    parts = names.role_parts(roles)
    assert len(set(parts)) == len(parts)
    for in_jobset in (False, True):
        made = names.make_name(name, parts, [count] * len(parts), in_jobset=in_jobset, per_role=True)
        assert made[0].isalpha()
        for part in parts:
            assert names.DNS_LABEL.fullmatch(part)
            longest = f"{made}-{part}-0-{count - 1}-abcde" if in_jobset else f"{made}-{part}-{count - 1}"
            assert names.DNS_LABEL.fullmatch(longest), longest


# ---- what the kubelet makes of it


@given(st.text(alphabet="$()aX{}\\ ", max_size=20), st.text(alphabet="$(a)", max_size=5))
def test_texts_reach_the_program_as_they_are(text: str, rest: str) -> None:
    from shunter.schedulers.kubernetes_scheduler.pods import _INDEX

    variables = {"TORCHX_REPLICA_IDX": "7", "X": "wrong", "a": "wrong", "aX": "wrong"}
    assert expand(_text(text), variables) == text
    assert expand(_text(text + _INDEX + rest), variables) == f"{text}7{rest}"
    assert original_text(_text(text + _INDEX + rest)) == f"{text}${{replica_id}}{rest}"


def container(job: AppDef, **cfg: Any) -> dict[str, Any]:
    [(_, template)] = pod_templates(request(job, **cfg).resource)
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def test_the_field_path_of_a_variable_is_taken_whole() -> None:
    env = {each["name"]: each for each in container(app(role(env={"IP": "[FIELD_PATH]status.podIP"})))["env"]}
    assert env["IP"] == {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    with pytest.raises(ConfigError, match=r"status\.pod"):
        request(app(role(env={"IP": "[FIELD_PATH]status.pod"})))


def test_requests_leave_room_for_the_system() -> None:
    needs = container(app(role(resource=Resource(4, 0, 8192))))["resources"]
    assert needs == {
        "limits": {"cpu": "4000m", "memory": "8192Mi"},
        "requests": {"cpu": "3900m", "memory": "7168Mi"},
    }
    small = container(app(role(resource=Resource(1, 0, 512))), reserved_millicpu=900)["resources"]
    assert small["requests"] == {"cpu": "500m", "memory": "256Mi"}


def test_gpus_of_other_makers() -> None:
    job = app(role(resource=Resource(1, 2, 512, devices={"aws.amazon.com/neurondevice": 1})))
    limits = container(job, gpu_resource="amd.com/gpu", efa_device_count=4)["resources"]["limits"]
    assert limits["amd.com/gpu"] == "2"
    assert limits["vpc.amazonaws.com/efa"] == "4"
    assert limits["aws.amazon.com/neurondevice"] == "1"
    assert "nvidia.com/gpu" not in limits


# ---- overlays


def test_overlays_with_operators(tmp_path: Path) -> None:
    """As a dict, as TorchX stores one, and as YAML, where operators are texts."""
    need("lightkube")  # which brings the reader of YAML
    overlay = {
        "spec": {
            JOIN("containers", on="name"): [
                {"name": "trainer", "tty": True, "env": [{"name": "A", "value": "1"}]},
                {"name": "proxy", "image": "envoy:1"},
            ],
            PUT("volumes"): [{"name": "dshm", "emptyDir": {}}],
            DEL("terminationGracePeriodSeconds"): None,
        }
    }
    path = tmp_path / "overlay.yaml"
    path.write_text(
        """
spec:
  __join__:containers:name:
  - {name: trainer, tty: true, env: [{name: A, value: "1"}]}
  - {name: proxy, image: "envoy:1"}
  __put__:volumes: [{name: dshm, emptyDir: {}}]
  __del__:terminationGracePeriodSeconds:
"""
    )
    made = [
        request(app(role(metadata={"kubernetes": each}))).resource["spec"]["template"]
        for each in (overlay, {"V1Pod": overlay}, f"file://{path}")
    ]
    plain = request(app()).resource["spec"]["template"]["spec"]
    for template in made:
        spec = template["spec"]
        ours, proxy = spec["containers"]
        assert ours == {
            **plain["containers"][0],
            "tty": True,
            "env": [*plain["containers"][0]["env"], {"name": "A", "value": "1"}],
        }
        assert proxy == {"name": "proxy", "image": "envoy:1"}
        assert spec["volumes"] == [{"name": "dshm", "emptyDir": {}}]
        assert "terminationGracePeriodSeconds" not in spec
    assert made[1] == made[0] == made[2]


def test_an_overlay_from_a_file(tmp_path: Path) -> None:
    need("lightkube")  # which brings the reader of YAML
    path = tmp_path / "overlay.yaml"
    path.write_text(
        "spec:\n  nodeSelector: {pool: gpu}\n  volumes: !!python/tuple\n  - {name: dshm, emptyDir: {}}\n"
    )
    made = request(app(role(metadata={"kubernetes": f"file://{path}"}))).resource["spec"]["template"]["spec"]
    assert made["nodeSelector"] == {"pool": "gpu"}
    assert made["volumes"] == [{"name": "dshm", "emptyDir": {}}]  # a tuple replaces the list
    path.write_text("spec: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        request(app(role(metadata={"kubernetes": f"file://{path}"})))


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ({"nodeSelector": {}}, "'nodeSelector', which pods do not have"),
        (3, "must be a dict"),
        ("/tmp/x.yaml", "is not a URI"),
        ("file:///no/such/file", "cannot read the pod overlay file:///no/such/file"),
        ("nowhere://bucket/x.yaml", "reading nowhere|cannot read the pod overlay nowhere"),
        ({JOIN("spec", on="x"): []}, "the request needs a list of dicts there"),
        ({"spec": {"__join__:containers": []}}, "is not complete"),
        ({"spec": {"volumes": [], PUT("volumes"): []}}, "spec.volumes is there twice"),
        ({"spec": {JOIN("containers", on="name"): [{"image": "a"}]}}, "an item has no 'name'"),
        ({"spec": {JOIN("containers", on="name"): [{"name": "trainer-0"}]}}, "'trainer-0' has no image"),
    ],
)
def test_wrong_overlays(overlay: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        request(app(role(metadata={"kubernetes": overlay})))


# ---- refusals


@pytest.mark.parametrize(
    ("job", "cfg", "said"),
    [
        (app(role(image="")), {}, "has no image|no image"),
        (app(), {"kind": "cron"}, "no kind 'cron'"),
        (app(), {"namespace": "My_Team"}, "namespace 'My_Team'"),
        (app(), {"queue": "a", "local_queue": "b"}, "give one of them"),
        (app(), {"queue": "a", "kind": "job"}, "queue is Volcano's"),
        (app(), {"topology": "required:x"}, "topology is for Kueue"),
        (app(), {"local_queue": "a", "topology": "near"}, "must be required:LEVEL"),
        (app(), {"exclude": ["gpu_7"]}, "exclude: 'gpu_7' must be lower-case"),
        (app(), {"tolerations": ["a=b:Sometimes"]}, "cannot read the toleration"),
        (app(), {"secrets": {"TOKEN": "hf_abcdefghijklmnop"}}, "the secret 'TOKEN' is not a reference"),
        (app(), {"labels": {"a": "b c"}}, "the value 'b c'"),
        (app(), {"labels": {"shunter/job": "b"}}, "are ours"),
        (app(), {"final_exit_codes": [0]}, "not from 1 to 255"),
        (app(), {"gang": True, "queue": "q"}, "leave out queue"),
        (app(), {"timeout": 0}, "timeout must be at least 1"),
        (app(role(num_replicas=2, max_retries=1)), {}, "restarts replicas one by one"),
        (
            app(role(max_retries=1, retry_policy=RetryPolicy.ROLE, num_replicas=2), role("b")),
            {"kind": "jobset"},
            "restarts the job as a whole",
        ),
        (app(role(resource=Resource(1, 0, 1, devices={"efa": 1}))), {}, "'efa' is not the name of a device"),
        (
            app(role(mounts=parse_mounts(["type=volume", "src=My Claim", "dst=/a"]))),
            {},
            "PersistentVolumeClaim",
        ),
        (app(role(mounts=parse_mounts(["type=bind", "src=data", "dst=/a"]))), {}, "must be absolute"),
        (app(role(mounts=parse_mounts(["type=device", "src=/dev/x", "perm=r"]))), {}, "cannot limit them"),
        (app(role(env={"GRÖSSE": "1"})), {}, "accepts no variable named"),
        (app(role(args=["x" * 2_000_000])), {}, "bytes, at most"),
    ],
)
def test_refusals(job: AppDef, cfg: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        request(job, **cfg)


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("image_secret", "image_pull_secrets"),
        ("priority", "priority_class"),
        ("coscheduler_name", "gang=true"),
        ("network", "cncf.io/networks"),
        ("priority_class_name", "priority_class"),
    ],
)
def test_options_of_mcad_are_refused_with_what_replaces_them(name: str, replacement: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_scheduler("s").submit_dryrun(app(), {name: "x"})
    assert replacement in caught.value.hint


def test_fewer_replicas_than_wanted_are_warned_of() -> None:
    info = create_scheduler("s").submit_dryrun(app(role(num_replicas=2, min_replicas=1)), {})
    assert "min_replicas=1 is ignored" in info.warnings[0]
    info = create_scheduler("s").submit_dryrun(
        app(role(num_replicas=2, min_replicas=1)), {"queue": "default"}
    )
    assert info.warnings == []
    assert info.request.resource["spec"]["minAvailable"] == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("*", {"operator": "Exists"}),
        ("a", {"operator": "Exists", "key": "a"}),
        ("a:NoSchedule", {"operator": "Exists", "key": "a", "effect": "NoSchedule"}),
        ("a=b", {"operator": "Equal", "key": "a", "value": "b"}),
        ("x.io/a=b:NoExecute", {"operator": "Equal", "key": "x.io/a", "value": "b", "effect": "NoExecute"}),
    ],
)
def test_tolerations(text: str, found: dict[str, str]) -> None:
    assert toleration(text) == found


@pytest.mark.parametrize(
    ("output", "changes", "lost"),
    [
        ("", {}, "/opt/ml/model"),
        ("/out", {}, "/out"),
        ("s3://bucket/prefix", {}, ""),
        ("", {"mounts": parse_mounts(["type=volume", "src=claim", "dst=/opt/ml"])}, ""),
        ("", {"overlay": {"mountPath": "/opt/ml/model/", "name": "claim"}}, ""),
    ],
)
def test_results_that_a_pod_does_not_keep_are_warned_of(
    output: str, changes: dict[str, Any], lost: str
) -> None:
    metadata: dict[str, Any] = {"train": {"program": "train.py", "output": {"uri": output}}}
    if point := changes.get("overlay"):
        volume = {"name": point["name"], "persistentVolumeClaim": {"claimName": "results"}}
        mounted = {"name": "trainer", "volumeMounts": [point]}
        metadata["kubernetes"] = {"spec": {"volumes": [volume], JOIN("containers", on="name"): [mounted]}}
    made = request(app(role(num_replicas=2, metadata=metadata, mounts=changes.get("mounts", []))))
    assert [f"writes to {lost} is lost" in text for text in made.warnings] == [True] * bool(lost)
