"""What schedulers can do: derived from their code, and compared with what a job needs."""

from __future__ import annotations

from contextlib import closing

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.api import Capabilities, Scheduler
from shunter.schedulers.capabilities import COLUMNS, capabilities_of, check_needs
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factory
from shunter.specs import AppDef, BindMount, DeviceMount, RetryPolicy, Role


class Bare(Scheduler[object]):
    """A scheduler with nothing but what it must have."""

    capabilities = Capabilities(notes={"exec": "by telephone", "detached": "always"})

    def _submit_dryrun(self, app, cfg):
        raise NotImplementedError

    def schedule(self, dryrun_info):
        raise NotImplementedError

    def describe(self, app_id):
        return None

    def list(self, cfg=None):
        return []


class WithExec(Bare):
    def execute(self, app_id, role_name, k, command, *, tty):
        return 0


def test_what_has_no_method_is_no_whatever_is_declared():
    found = capabilities_of(Bare("bare", "s"))
    assert list(found) == list(COLUMNS)
    assert found["exec"] is False
    assert found["streams"] is found["since_until"] is found["follow"] is False
    assert found["detached"] == "always"
    assert capabilities_of(WithExec("bare", "s"))["exec"] == "by telephone"


@pytest.mark.parametrize("name", DEFAULT_SCHEDULER_MODULES)
def test_every_scheduler_has_a_row(name):
    with closing(get_scheduler_factory(name)("test")) as scheduler:
        found = capabilities_of(scheduler)
        assert found["follow"]
        assert set(scheduler.capabilities.ignores) <= set(COLUMNS)
        assert set(scheduler.capabilities.notes) <= set(COLUMNS)
        assert found["chain"] == ("chain" in scheduler.run_opts())


def test_all_that_is_lacking_is_refused_at_once():
    mounted = Role("m", "i", entrypoint="x", mounts=[BindMount("/a", "/b"), DeviceMount("/d", "/d")])
    elastic = Role("e", "i", entrypoint="x", num_replicas=3, min_replicas=1)
    retried = Role("r", "i", entrypoint="x", max_retries=1, retry_policy=RetryPolicy.REPLICA)
    capabilities = Capabilities(mounts=("bind",), retries=("application",))
    with pytest.raises(ConfigError) as caught:
        check_needs("s", capabilities, AppDef("a", [mounted, elastic, retried]))
    assert caught.value.message == (
        "role 'm': s has no mounts of type device; role 'e': s has no min_replicas=1; "
        "role 'r': s has no retry policy REPLICA"
    )


def test_what_is_ignored_is_reported():
    app = AppDef("a", [Role("e", "i", entrypoint="x", num_replicas=3, min_replicas=1)])
    assert check_needs("s", Capabilities(ignores=("elastic",)), app) == ["role 'e': s ignores min_replicas=1"]
    assert check_needs("s", Capabilities(elastic=True), app) == []
