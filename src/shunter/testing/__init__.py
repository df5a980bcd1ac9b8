"""For authors of schedulers: the tests that every scheduler must pass, `SchedulerConformance`.

Needs pytest. The project's own tests are in ``tests/``.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("shunter.testing.conformance")

from shunter.testing.conformance import SchedulerConformance  # noqa: E402 - after the rewrite is registered

__all__ = ["SchedulerConformance"]
