"""From an app id to a job: by the id that the history or this process knows, or else by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from trainyard.schedulers.aws.batch import listing, names, observe
from trainyard.schedulers.aws.batch.names import JobRef
from trainyard.schedulers.aws.session import AwsSession

Job = dict[str, Any]

#: How long Batch may take until it shows a job that it has accepted.
SETTLING_SECONDS = 60.0


class JobFinder:
    """Knows where jobs are, and the sessions by which they are reached.

    Args:
        clients: clients to use instead of making them, by service.
        recall: gives what the history keeps of a job of ours.
        configured: gives the options that are configured for this directory.
    """

    def __init__(
        self,
        clients: Mapping[str, Any],
        recall: Callable[[str], str | None],
        configured: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._given = dict(clients)
        self._recall = recall
        self._configured = configured
        self._sessions: dict[tuple[str, str], AwsSession] = {}
        self._defaults: tuple[str, str] | None = None
        self._known: dict[str, JobRef] = {}
        self._submitted_at: dict[str, float] = {}

    def close(self) -> None:
        """Close the connections; clients that were handed in stay open."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            if not self._given:
                session.close()

    def session(self, region: str | None, profile: str | None) -> AwsSession:
        """Return the session of a region and profile; where one is not known, that of the configuration."""
        if self._defaults is None:
            configured = self._configured()
            self._defaults = (configured.get("region") or "", configured.get("profile") or "")
        key = (region or self._defaults[0], profile or self._defaults[1])
        if key not in self._sessions:
            self._sessions[key] = AwsSession(key[0] or None, key[1] or None, self._given)
        return self._sessions[key]

    def session_of(self, cfg: Mapping[str, Any]) -> AwsSession:
        """Return the session that options ask for."""
        region = cfg.get("region") or names.region_of_arn(cfg.get("queue") or "")
        return self.session(region, cfg.get("profile"))

    def _ref(self, app_id: str) -> JobRef | None:
        if app_id not in self._known:
            text = self._recall(app_id)
            if not text:
                return None
            self._known[app_id] = JobRef.from_text(text)
        return self._known[app_id]

    def remember(self, app_id: str, ref: JobRef) -> None:
        """Keep where a job is that was submitted just now."""
        self._known[app_id] = ref
        self._submitted_at[app_id] = time.monotonic()

    def session_and_id(self, app_id: str) -> tuple[AwsSession, str]:
        """Return the session of a job that was found or submitted before, and Batch's id of it."""
        ref = self._known[app_id]
        return self.session(ref.region, ref.profile), ref.job_id

    def find(self, app_id: str) -> tuple[AwsSession, Job] | None:
        """Find a job; None if there is none, or it was deleted."""
        job = self.find_many([app_id])[app_id]
        if job is None:
            return None
        return self.session_and_id(app_id)[0], job

    def find_many(self, app_ids: list[str]) -> dict[str, Job | None]:
        """Find jobs by the ids that are known, with a call for each hundred, and the others by name."""
        refs = {app_id: ref for app_id in app_ids if (ref := self._ref(app_id)) is not None}
        groups: dict[tuple[str, str], dict[str, str]] = {}
        for app_id, ref in refs.items():
            groups.setdefault((ref.region, ref.profile), {})[ref.job_id] = app_id
        found: dict[str, Job | None] = dict.fromkeys(app_ids)
        for (region, profile), ids in groups.items():
            for job_id, job in observe.describe_jobs(self.session(region, profile), ids).items():
                found[ids[job_id]] = job
        for app_id in app_ids:
            if found[app_id] is None and not self.is_fresh(app_id):
                found[app_id] = self._find_by_name(app_id, refs.get(app_id))
        for app_id in [app_id for app_id in found if found[app_id] is not None]:
            self._submitted_at.pop(app_id, None)
        return {app_id: None if _is_deleted(job) else job for app_id, job in found.items()}

    def _find_by_name(self, app_id: str, ref: JobRef | None) -> Job | None:
        parts = names.split_app_id(app_id)
        if parts is None:
            return None
        session = self.session(ref.region, ref.profile) if ref else self.session(None, None)
        summaries = listing.find_by_name(session, *parts)
        if not summaries:
            return None
        job_id = summaries[0]["jobId"]
        job = observe.describe_jobs(session, [job_id]).get(job_id)
        if job is not None:
            arn = job.get("jobArn") or job_id
            region, profile = (ref.region, ref.profile) if ref else ("", "")
            self._known[app_id] = JobRef(job_id, region, profile, arn)
        return job

    def is_fresh(self, app_id: str) -> bool:
        """Tell whether this process submitted the job so lately that Batch may not show it yet."""
        submitted = self._submitted_at.get(app_id)
        return submitted is not None and time.monotonic() - submitted < SETTLING_SECONDS


def _is_deleted(job: Job | None) -> bool:
    return job is not None and names.TAG_DELETED in (job.get("tags") or {})
