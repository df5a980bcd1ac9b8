from __future__ import annotations

import inspect

import pytest

from shunter import errors


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.ShunterError, 1),
        (errors.UsageError, 2),
        (errors.MalformedAppHandleException, 2),
        (errors.MountParseError, 2),
        (errors.OptionParseError, 2),
        (errors.ConfigError, 3),
        (errors.ComponentNotFoundException, 3),
        (errors.ComponentValidationException, 3),
        (errors.ComponentArgumentError, 2),
        (errors.UnknownSchedulerException, 3),
        (errors.BackendError, 4),
        (errors.StateStoreError, 4),
        (errors.UnknownAppException, 5),
    ],
)
def test_exit_codes(cls: type[errors.ShunterError], code: int) -> None:
    error = cls("it broke", hint="fix it")
    assert error.exit_code == code
    assert str(error) == "it broke\nfix it"
    assert str(cls("it broke")) == "it broke"


def test_every_error_is_of_the_family() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert all(issubclass(c, errors.ShunterError) for c in classes)
    assert all(c.__name__ in (errors.__doc__ or "") for c in classes)


def test_invalid_run_config_names_the_option() -> None:
    error = errors.InvalidRunConfigException("bad", "queue", {"queue": 1}, hint="h")
    assert (error.cfg_key, error.cfg, error.exit_code) == ("queue", {"queue": 1}, 3)
    assert isinstance(error, ValueError)


def test_did_you_mean() -> None:
    names = ["priority", "queue", "image"]
    assert errors.did_you_mean("prioritty", names) == "Did you mean priority?"
    assert errors.did_you_mean("xyz", names) == "Known: image, priority, queue."
    assert errors.did_you_mean("xyz", []) == ""
