"""The base of unit tests of components (``torchx.components.component_test_base``)."""

from __future__ import annotations

import inspect
import os
import tempfile
import unittest
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from shunter.compat.runner.api import get_runner
from shunter.components.file_linter import validate
from shunter.specs.app import AppDef
from shunter.specs.status import AppStatus


class ComponentTestCase(unittest.TestCase):
    """Checks components, and runs them. Each test runs in an empty folder, ``tmpdir``."""

    def setUp(self) -> None:
        """Go to an empty folder."""
        self._before = os.getcwd()
        self._folder = tempfile.TemporaryDirectory(prefix="torchx-test-")
        self.tmpdir = self._folder.name
        os.chdir(self.tmpdir)

    def tearDown(self) -> None:
        """Go back, and remove the folder."""
        os.chdir(self._before)
        self._folder.cleanup()

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Fail if a component has errors."""
        function = getattr(module, function_name)
        path = inspect.getsourcefile(inspect.unwrap(function)) or ""
        messages = validate(path, function_name)
        problems = [f"{path}:{each.line}: {each.description}" for each in messages]
        self.assertEqual([], problems)  # noqa: PT009 - a test case of unittest

    def run_component(
        self,
        component: Callable[..., AppDef],
        args: Mapping[str, Any] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        scheduler: str = "local_cwd",
        interval: float = 0.1,
        timeout: float = 1,
    ) -> AppStatus | None:
        """Run a component, and return its state when it has ended, or after ``timeout`` minutes."""
        with get_runner("test-runner", **(scheduler_params or {})) as runner:
            handle = runner.run(component(**(args or {})), scheduler)
            return runner.wait(handle, interval, timeout * 60)
