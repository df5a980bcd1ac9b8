"""Options at random: what is valid makes requests that the model accepts, what is not makes no call."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.schedulers.aws.service_model import problems_of
from shunter.schedulers.aws_batch_scheduler.rules import FARGATE_SIZES
from shunter.specs import AppDef, Resource, macros
from shunter.specs.mounts import BindMount, DeviceMount, VolumeMount
from tests.aws.batch.jobs import ROLE, request, role

_WORD = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
_TEXT = st.text(st.characters(exclude_categories=["Cs", "Co"], exclude_characters="\0"), max_size=12)
_TAG = st.text("abcXYZ 019_.:/=+-@", min_size=1, max_size=20).filter(lambda text: not text.startswith("aws:"))
_QUEUE = _WORD | st.builds("arn:aws:batch:us-east-1:123456789012:job-queue/{}".format, _WORD)
_RULE = st.builds(
    "{}:{}".format,
    st.sampled_from(["exit:1", "exit:13*", "reason:Cannot*", "status:Host EC2*"]),
    st.sampled_from(["retry", "final"]),
)
_REFERENCE = st.sampled_from(
    ["arn:aws:secretsmanager:us-east-1:123456789012:secret:a-b", "ssm:/prod/key", "ssm:key"]
)
_LIMIT = st.builds(
    "{}:{}:{}".format, st.sampled_from(["nofile", "memlock"]), st.integers(0, 9), st.integers(9, 99)
)

_COMMON: dict[str, st.SearchStrategy[Any]] = {
    "user": _WORD,
    "quiet": st.booleans(),
    "image_repo": _WORD,
    "job_role_arn": st.just(ROLE),
    "timeout": st.integers(60, 10**6),
    "retry_on": st.sampled_from(["any", "spot"]),
    "retry_rules": st.lists(_RULE, max_size=2),
    "region": st.just("us-east-1"),
    "profile": _WORD,
    "log_group": st.builds("/jobs/{}".format, _WORD),
    "tags": st.dictionaries(_TAG, _TAG, max_size=10),
}


def _options(draw: st.DrawFn, platform: str) -> dict[str, Any]:
    cfg = {key: draw(value) for key, value in _COMMON.items() if draw(st.booleans())}
    cfg["queue"] = draw(_QUEUE)
    if draw(st.booleans()):
        cfg["share_id"] = draw(st.from_regex(r"[A-Za-z0-9]{1,20}", fullmatch=True))
        if draw(st.booleans()):
            cfg["priority"] = draw(st.integers(0, 9999))
    if platform == "FARGATE" or draw(st.booleans()):
        cfg["execution_role_arn"] = ROLE
        if draw(st.booleans()):
            cfg["secrets"] = draw(st.dictionaries(_WORD.map(str.upper), _REFERENCE, max_size=3))
    if platform == "FARGATE":
        cfg["platform"] = platform
        cfg["public_ip"] = draw(st.booleans())
        if draw(st.booleans()):
            cfg["ephemeral_storage"] = draw(st.integers(21, 200))
    else:
        cfg["privileged"] = draw(st.booleans())
        cfg["ulimits"] = draw(st.lists(_LIMIT, max_size=3))
    return cfg


def _resource(draw: st.DrawFn, platform: str) -> Resource:
    if platform == "FARGATE":
        cpu = draw(st.sampled_from(sorted(FARGATE_SIZES)))
        least, most, step = FARGATE_SIZES[cpu]
        return Resource(cpu, 0, draw(st.sampled_from(range(least, most + 1, step))))
    devices = {"vpc.amazonaws.com/efa": draw(st.integers(1, 4))} if draw(st.booleans()) else {}
    return Resource(
        draw(st.integers(-1, 192)), draw(st.integers(-1, 8)), draw(st.integers(4, 10**6)), {}, devices
    )


@st.composite
def valid(draw: st.DrawFn) -> tuple[AppDef, dict[str, Any]]:
    """A job and options that go together."""
    platform = draw(st.sampled_from(["EC2", "EC2", "FARGATE"]))
    cfg = _options(draw, platform)
    array = draw(st.booleans())
    several = draw(st.booleans()) and (array or platform == "EC2")
    cfg["array"] = array
    words = st.lists(_TEXT | st.sampled_from([macros.app_id, f"x{macros.replica_id}y", "$$HOME"]), max_size=4)
    roles = [
        role(
            name,
            args=draw(words),
            env=draw(st.dictionaries(_WORD, _TEXT | st.just(macros.replica_id), max_size=3)),
            num_replicas=draw(st.integers(2, 50)) if several else 1,
            max_retries=draw(st.integers(0, 9)),
            resource=_resource(draw, platform),
            mounts=_mounts(draw, platform),
        )
        for name in (
            draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]])) if several and not array else ["a"]
        )
    ]
    return AppDef(draw(_TEXT.filter(bool)), roles), cfg


def _mounts(draw: st.DrawFn, platform: str) -> list[Any]:
    mounts: list[Any] = (
        [VolumeMount("fs-12345678", "/efs", draw(st.booleans()))] if draw(st.booleans()) else []
    )
    if platform == "EC2" and draw(st.booleans()):
        mounts += [BindMount("/a", "/b"), DeviceMount("/dev/fuse", "/dev/fuse", "r")]
    return mounts


@pytest.mark.slow
@given(valid())
@settings(max_examples=200)
def test_valid_options_make_requests_that_the_model_accepts(job: tuple[AppDef, dict[str, Any]]) -> None:
    definition, cfg = job
    before = copy.deepcopy(definition)
    made = request(definition, **cfg)
    assert definition == before
    assert problems_of("batch", "RegisterJobDefinition", made.job_def) == []
    assert problems_of("batch", "SubmitJob", made.submission) == []
    nodes = made.job_def.get("nodeProperties")
    total = sum(each.num_replicas for each in definition.roles)
    if nodes:
        assert nodes["numNodes"] == total
    else:
        assert made.submission.get("arrayProperties", {}).get("size", 1) == total
