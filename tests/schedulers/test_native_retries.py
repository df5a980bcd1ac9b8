"""What each scheduler honours of retries by class, and what it refuses by name."""

from __future__ import annotations

import pytest

from shunter.errors import ConfigError
from shunter.limits import MOST_RETRIES
from shunter.schedulers.native_retries import BY_SHUNTER, BY_THE_BACKEND, backend_retries, words_of
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factory
from shunter.specs.retries import CLASSES


@pytest.mark.parametrize("name", DEFAULT_SCHEDULER_MODULES)
def test_the_table_has_every_scheduler_with_the_option(name: str) -> None:
    scheduler = get_scheduler_factory(name)("test")
    try:
        assert ("retry" in scheduler.run_opts()) == (name in BY_THE_BACKEND or name in BY_SHUNTER)
        assert ("retry" in scheduler.run_opts()) == bool(words_of(name))
    finally:
        scheduler.close()


@pytest.mark.parametrize("name", BY_THE_BACKEND)
def test_every_class_is_in_the_table(name: str) -> None:
    assert list(BY_THE_BACKEND[name]) == list(CLASSES)


@pytest.mark.parametrize(
    ("scheduler", "given", "said"),
    [
        ("kubernetes", {"oom": "2:64G"}, "kubernetes gives a retry no more memory than the first attempt"),
        ("aws_batch", {"oom": "2:64G"}, "aws_batch gives a retry no more memory than the first attempt"),
        ("kubernetes", {"node": "3", "preempted": "inf"}, "cannot tell node from preempted"),
        ("kubernetes", {"exception": "inf"}, "cannot honour exception=inf (supported: at most"),
        (
            "kubernetes",
            {"oom": "2", "other": "3"},
            "equal: oom=2, exception=1 (max_retries), other=3",
        ),
        ("aws_batch", {"preempted": "inf"}, "aws_batch cannot honour preempted=inf (supported: at most 9)"),
        ("aws_batch", {"node": "10"}, "aws_batch cannot honour node=10 (supported: at most 9)"),
        ("aws_sagemaker", {"preempted": "2"}, "(supported: inf): it restarts the job after every"),
        ("sagemaker_local", {"other": "1"}, "sagemaker_local cannot honour other=1 (supported: 0)"),
        ("kubernetes", {"ooom": "1"}, "no class of failures 'ooom'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(scheduler: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        backend_retries(scheduler, given, max_retries=1)
    assert said in caught.value.message


def test_what_is_not_named_is_as_without_the_option() -> None:
    found = backend_retries("kubernetes", {"exception": "0"}, max_retries=2)
    always = dict.fromkeys(("node", "preempted"), MOST_RETRIES)
    assert dict(found.times) == {**always, "oom": 2, "exception": 0, "other": 2}
    assert found.counted == 2
    assert "kubernetes knows exception by the exit codes" in found.warnings[0]


def test_a_number_for_all_classes_together_is_said() -> None:
    found = backend_retries("aws_batch", {"oom": "2", "node": "2"})
    assert found.warnings == ["aws_batch counts oom, node, preempted together: 2 retries in all, not each"]
