"""How many times a class of failures is retried, and with how much memory."""

from __future__ import annotations

from dataclasses import dataclass

#: Stands for no limit.
MOST_RETRIES = 1_000_000
#: The class of failures whose retries get more memory: out of memory.
OOM = "oom"
#: The factor by which each retry increases the memory.
GROWTH = 2
_LONGEST_EVIDENCE = 120


@dataclass(unsafe_hash=True)
class RetryRule:
    """How many times a class of failures is retried.

    Args:
        times: how many times; `MOST_RETRIES` means no limit.
        most_mb: the most memory that a replica may get, in MB; each retry gets twice as much as the attempt
            before. 0: the memory stays the same.
    """

    times: int
    most_mb: int = 0

    @property
    def is_endless(self) -> bool:
        """Whether there is no limit."""
        return self.times >= MOST_RETRIES

    def more_memory(self, present_mb: int) -> int:
        """Return how much memory the next attempt gets; unchanged if it is not limited."""
        return max(present_mb, min(present_mb * GROWTH, self.most_mb)) if present_mb > 0 else present_mb

    def verdict(self, used: int, present_mb: int = 0) -> str:
        """Return why no further attempt is made; "" if one is.

        Args:
            used: how many times this class has been retried.
            present_mb: the memory that the attempt had; 0 if it is not limited.
        """
        if used >= self.times:
            return f"{used} of {self.times} retries are used up" if self.times else "it must not be retried"
        if self.most_mb and present_mb >= self.most_mb:
            return f"it had {present_mb} MB, the most that it may get"
        return ""

    def count(self, number: int) -> str:
        """Return which retry this is, in words."""
        return f"retry {number}" if self.is_endless else f"retry {number} of {self.times}"


def words(
    text: str, evidence: str, failure_class: str, rule: RetryRule, used: int, against: str, memory_mb: int = 0
) -> str:
    """Say in words whether a failure was retried.

    Args:
        text: of its cause.
        evidence: the line that shows it.
        failure_class: of the cause.
        rule: of this class.
        used: how many times this class had been retried.
        against: why it is not; "" if it is.
        memory_mb: the memory that the attempt had; 0 if it is not limited.
    """
    said = f" ({evidence.strip()[:_LONGEST_EVIDENCE]})" if evidence.strip() else ""
    if against:
        return f"it {text}{said}; not restarted: {failure_class}: {against}"
    more = ""
    if failure_class == OOM and rule.more_memory(memory_mb) > memory_mb:
        more = f" with {rule.more_memory(memory_mb)} MB of memory"
    return f"it {text}{said}; restarted{more}: {failure_class}: {rule.count(used + 1)}"
