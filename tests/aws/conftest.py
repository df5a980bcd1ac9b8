from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import backends
from tests.aws.fake import FakeAws
from tests.aws.fake.wire import REGION
from tests.aws_services import read_models_once

read_models_once()

#: What a developer's own environment may hold, and a test must not see.
_FOREIGN = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches an account: the credentials of this machine are out of sight."""
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """A fake of AWS that this process and its children talk to; its answers must all be valid."""
    backends.need("botocore")
    with FakeAws() as fake:
        for name, value in fake.environ().items():
            monkeypatch.setenv(name, value)
        yield fake
        assert fake.defects == []
