"""Which replicas start when: all at once, or, in an array, as many as CPUs, GPUs and `max_running` allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shunter.schedulers.supervisor.process_plan import ProcessPlan
from shunter.schedulers.supervisor.replica import Replica
from shunter.schedulers.supervisor.slots import SlotQueue, Ticket

#: Seconds until a queue of slots that cannot be used is tried again.
SLOTS_PAUSE = 1.0
CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"


class StartQueue:
    """The replicas of a job that are still to be started, and the slots of those that run.

    Args:
        plan: the job's.
        has_ended: tells whether a replica needs nothing any more.

    Attributes:
        groups: what is still to be started, each as a whole; in an array, a group is one replica.

    Raises:
        OSError: the directory of slots cannot be made, or is another user's.
    """

    def __init__(self, plan: ProcessPlan, has_ended: Callable[[Replica], bool]) -> None:
        self.groups: list[list[Replica]] = []
        self._plan = plan
        self._has_ended = has_ended
        self._started: list[Replica] = []
        self._slots: SlotQueue | None = None
        self._place: Ticket | None = None
        self._problem = ""
        self._held: list[tuple[Ticket, list[Replica]]] = []
        slots = plan.slots
        if slots is not None:
            self._slots = SlotQueue(
                slots["folder"], slots["cpus"], slots["gpus"], plan.app_id, plan.job_dir, slots["within"]
            )

    def fill(self, replicas: Sequence[Replica]) -> None:
        """Put all replicas into the queue."""
        self.groups = [[replica] for replica in replicas] if self._plan.array else [list(replicas)]

    def is_active(self) -> bool:
        """Tell whether replicas wait, or hold slots."""
        return bool(self.groups or self._held or self._place is not None)

    def take(self) -> list[Replica]:
        """Give back the slots of what has ended; return a group that starts now, [] if none does."""
        for held in [held for held in self._held if all(map(self._has_ended, held[1]))]:
            self._held.remove(held)
            self._give_back(held[0])
        first = self.groups[:1]
        self.groups = [group for group in self.groups if not all(map(self._has_ended, group))]
        if self._place is not None and self.groups[:1] != first:  # what it is for was cancelled
            self._give_back(self._place)
            self._place = None
        if self.groups and self._has_room(self.groups[0]):
            self._started += self.groups[0]
            return self.groups.pop(0)
        return []

    @property
    def waits_for(self) -> str:
        """Why the next group cannot start yet, in words; "" if it can, or there is none."""
        return self._problem or ("" if self._place is None else self._place.waits_for)

    def close(self) -> None:
        """Give all slots back."""
        for place in [place for place, _ in self._held] + ([] if self._place is None else [self._place]):
            self._give_back(place)

    # ---- waiting

    def descriptors(self) -> list[int]:
        """Return descriptors that become readable when there may be room; then call `seen` and `take`."""
        return [] if self._slots is None or self._place is None else self._slots.descriptors()

    def seen(self) -> None:
        """Take note of the events of `descriptors`."""
        if self._slots is not None and self._place is not None:
            self._slots.seen()

    def seconds_to_wait(self) -> float | None:
        """Return the seconds after which to try in any case; None where every change is notified."""
        if self._problem:
            return SLOTS_PAUSE
        return None if self._slots is None or self._place is None else self._slots.seconds_to_wait()

    # ---- room

    def _has_room(self, group: list[Replica]) -> bool:
        """Tell whether a group may start; it has its slots then."""
        limit = self._plan.max_running
        if limit is not None and sum(not self._has_ended(replica) for replica in self._started) >= limit:
            return False
        if self._slots is None or self._plan.slots is None:
            return True
        try:
            return self._take_slots(self._slots, self._plan.slots["needs"], group)
        except OSError as error:  # the user may repair it
            folder = error.filename or self._slots.folder
            self._problem = f"waits for slots: cannot use {folder}: {error.strerror or error}"
            return False

    def _take_slots(self, slots: SlotQueue, needs: dict[str, list[int]], group: list[Replica]) -> bool:
        """Tell whether there are slots for a group, which has them then."""
        if self._place is None:
            cpus, gpus = (sum(max(needs[replica.role][kind], 0) for replica in group) for kind in (0, 1))
            self._place = slots.join(cpus, gpus)
        granted, self._problem = slots.claim(self._place), ""
        if not granted:
            return False
        place, self._place = self._place, None
        self._held.append((place, group))
        first = 0
        for replica in group:
            count = needs[replica.role][1]
            if count >= 0:
                replica.env[CUDA_VARIABLE] = ",".join((place.granted or [])[first : first + count])
                first += count
        return True

    def _give_back(self, place: Ticket) -> None:
        try:
            if self._slots is not None:
                self._slots.give_back(place)
        except OSError:  # the end of this process gives them back
            pass
