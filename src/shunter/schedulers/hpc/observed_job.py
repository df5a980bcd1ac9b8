"""Where a job of a cluster is, and what was seen of it: the queue's answer and the job's folder together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shunter.schedulers.hpc.observe import describe
from shunter.schedulers.hpc.queries import NativeJob
from shunter.schedulers.hpc.shared_folder import SharedJob
from shunter.schedulers.responses import DescribeAppResponse
from shunter.specs.status import is_terminal


@dataclass
class Place:
    """Where a job is: the login node, the folder on shared storage, and the native ids as far as known."""

    host: str = ""
    shared: str = ""
    native_ids: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{','.join(self.native_ids)} {self.host or '-'} {self.shared}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Rebuild what ``str`` made, as the history has it."""
        ids, _, rest = text.partition(" ")
        host, _, shared = rest.partition(" ")
        return cls("" if host == "-" else host, shared, [word for word in ids.split(",") if word])


@dataclass
class Observed:
    """What was seen of a job; ``problem`` tells why the queue did not answer."""

    place: Place
    native: list[NativeJob] = field(default_factory=list)
    job: SharedJob | None = None
    problem: str = ""
    follow_ups: list[NativeJob] = field(default_factory=list)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe the job; None if neither the queue nor the storage knows it."""
        return describe(app_id, self.native, self.job, self.problem, time.time())

    def waiting_follow_up(self) -> list[str]:
        """Return the follow-up that may still decide what becomes of the job."""
        return self.job.follow_ups[-1:] if self.job is not None and self.job.may_start_again else []

    def take(self, answer: Sequence[NativeJob]) -> None:
        """Store what the queue says about the submissions and about the follow-up."""
        waiting = self.waiting_follow_up()
        self.native = [item for item in answer if item.native_id not in waiting]
        self.follow_ups = [item for item in answer if item.native_id in waiting]
        if self.job is not None and self.job.document.get("retry") and self.job.native_ids:
            self.native = [item for item in self.native if item.native_id == self.job.native_ids[-1]]

    def take_folder(self, job: SharedJob) -> bool:
        """Take what the job's folder tells by now; returns whether the job has been started again since."""
        before, was_undecided = self.job, self.has_lost_follow_up()
        self.job = job
        if not was_undecided or before is None:
            return False
        if len(job.follow_ups) > len(before.follow_ups):
            self.native = []
            return True
        job.is_settled = True
        return False

    def has_lost_follow_up(self) -> bool:
        """Tell whether it is undecided what becomes of the job, and no follow-up is left to decide it."""
        if self.problem or self.job is None or not self.job.may_start_again:
            return False
        return all(is_terminal(item.state) for item in [*self.native, *self.follow_ups])

    def is_behind(self) -> bool:
        """Tell whether the queue says that the job has ended, and its folder does not say how yet."""
        if self.job is None or not all(is_terminal(item.state) for item in self.native):
            return False
        ended = [record for record in self.job.replicas.values() if record.code is not None]
        return len(ended) < self.job.count
