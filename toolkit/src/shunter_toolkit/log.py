"""Lines about the run, on stderr, in the predecessors' format."""

from __future__ import annotations

import logging
from collections.abc import Callable

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
_mask: Callable[[str], str] = str


class _MaskedFormatter(logging.Formatter):
    """Takes secrets out of every message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return _mask(super().format(record))


_logger = logging.getLogger(__name__)
_logger.propagate = False
_logger.setLevel(INFO)
_handler = logging.StreamHandler()
_handler.setFormatter(_MaskedFormatter("%(asctime)s shunter-toolkit %(levelname)-8s %(message)s"))
_logger.addHandler(_handler)

set_level = _logger.setLevel
shows = _logger.isEnabledFor
write = _logger.log
debug, info, warning, error = _logger.debug, _logger.info, _logger.warning, _logger.error


def set_mask(mask: Callable[[str], str]) -> None:
    """Pass every message through a function that takes secrets out of it."""
    global _mask
    _mask = mask
