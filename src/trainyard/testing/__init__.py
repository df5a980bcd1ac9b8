"""For people who write schedulers: the suite of tests that every scheduler passes.

Needs pytest. See `trainyard.testing.SchedulerConformance`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("trainyard.testing.conformance", "trainyard.testing.conformance_logs")

from trainyard.testing.conformance import SchedulerConformance  # noqa: E402 - after the rewrite is registered

__all__ = ["SchedulerConformance"]
