"""Map Slurm's states to ours, and its reasons to sentences.

States: the sections JOB STATE CODES of squeue(1) and sacct(1), 22.05 to 26.05. A state that is not known
here is open and keeps its own name: it does not end a job. Reasons: JOB REASON CODES of squeue(1), and the
resource limits page.
"""

from __future__ import annotations

import re

from shunter.specs.status import AppState

#: Base states.
STATE_OF: dict[str, AppState] = {
    "PENDING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUSPENDED": AppState.SUSPENDED,
    "COMPLETED": AppState.SUCCEEDED,
    "CANCELLED": AppState.CANCELLED,
    "FAILED": AppState.FAILED,
    "TIMEOUT": AppState.FAILED,
    "NODE_FAIL": AppState.FAILED,
    "PREEMPTED": AppState.FAILED,
    "BOOT_FAIL": AppState.FAILED,
    "DEADLINE": AppState.FAILED,
    "OUT_OF_MEMORY": AppState.FAILED,
}
#: Flags, which stand in place of a base state: none is an end.
FLAG_STATE: dict[str, AppState] = {
    "COMPLETING": AppState.RUNNING,
    "CONFIGURING": AppState.PENDING,
    "POWER_UP_NODE": AppState.PENDING,
    "STAGE_OUT": AppState.RUNNING,
    "SIGNALING": AppState.RUNNING,
    "STOPPED": AppState.SUSPENDED,
    "RESIZING": AppState.RUNNING,
    "REQUEUED": AppState.PENDING,
    "REQUEUE_FED": AppState.PENDING,
    "REQUEUE_HOLD": AppState.PENDING,
    "SPECIAL_EXIT": AppState.PENDING,
    "RESV_DEL_HOLD": AppState.PENDING,
    "EXPEDITING": AppState.PENDING,
}
#: What some states mean, in words.
STATE_TEXTS = {
    "SUSPENDED": "suspended by Slurm",
    "CONFIGURING": "its nodes are being started",
    "POWER_UP_NODE": "its nodes are being started",
    "COMPLETING": "ending",
    "REQUEUED": "requeued",
    "REQUEUE_HOLD": "requeued and held: scontrol release restarts it",
    "SPECIAL_EXIT": "requeued and held after a special exit: scontrol release restarts it",
    "RESV_DEL_HOLD": "held, since its reservation was deleted",
    "STOPPED": "stopped by a signal, its nodes are kept",
    "TIMEOUT": "the time limit was reached",
    "DEADLINE": "its deadline has passed",
    "NODE_FAIL": "a node failed",
    "PREEMPTED": "preempted by another job",
    "BOOT_FAIL": "its nodes could not be started",
    "OUT_OF_MEMORY": "out of memory",
}

#: What keeps a job waiting that will never start by itself.
_NEVER = {
    "PartitionNodeLimit": "it asks for more nodes than the partition has or allows",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "BadConstraints": "no nodes have what it asks for",
    "DependencyNeverSatisfied": "a job that it waits for did not end as required",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QoS may not be used in the partition",
    "ReservationDeleted": "its reservation was deleted",
    "AssocMaxWallDurationPerJobLimit": "its time limit is longer than its account may ask for",
    "QOSMaxWallDurationPerJobLimit": "its time limit is longer than its QoS allows",
    "PartitionConfig": "it asks for what the partition does not allow",
    "JobHeldUser": "held by its user: scontrol release JOB starts it",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "held, since it was requeued too often",
}
_WAITING = {
    "None": "the scheduler has not looked at it yet",
    "Resources": "the nodes that it needs are busy",
    "Priority": "jobs of higher priority come first",
    "Dependency": "it waits for other jobs",
    "BeginTime": "its start time has not come",
    "JobArrayTaskLimit": "the array's throttle is reached",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "Licenses": "a licence is not free",
    "Reservation": "its reservation has not begun",
    "Cleaning": "its last run is still being cleaned up",
    "NodeDown": "a node that it needs is down",
    "ReqNodeNotAvail": "nodes that it needs are not available",
    "Nodes required for job are DOWN": "nodes that it needs are down, drained or reserved",
    "launch failed requeued held": "it could not be started, and is held: scontrol release JOB restarts it",
    "JobLaunchFailure": "it could not be started",
    "WaitingForScheduling": "the scheduler has not looked at it yet",
}
#: Families of limits: QOSMaxGRESPerUser, AssocGrpCpuLimit, MaxMemPerLimit, ...
_LIMITS = re.compile(r"(QOS|Assoc\w*?|Association)(Grp|Max|Min|Job|Resource|Usage)\w*|Max\w*(Per|Limit)\w*")
_ENDS = {
    "NonZeroExitCode": "",
    "RaisedSignal": "",
    "TimeLimit": "the time limit was reached",
    "OutOfMemory": "out of memory",
    "JobLaunchFailure": "its script was killed, or not started: does its node see the shared folder?",
    "SystemFailure": "Slurm itself failed",
    "NodeDown": "a node failed",
    "InactiveLimit": "the job was inactive for too long",
    "BadConstraints": "no nodes have what it asks for",
    "DependencyNeverSatisfied": "never started: a job that it waited for did not end as required",
}
_NOTHING = frozenset({"", "None", "(null)", "N/A", "None assigned"})


def state_of(said: str) -> tuple[AppState, str]:
    """Return our state, and Slurm's own word for it, which may have more behind it ("CANCELLED by 1001")."""
    name = said.strip().split(" ")[0]
    return FLAG_STATE.get(name) or STATE_OF.get(name, AppState.UNKNOWN), name


def reason_of(native_state: str, reason: str) -> str:
    """Return why a job is in its state, as a sentence; "" if the state says it all.

    Args:
        native_state: Slurm's state.
        reason: Slurm's reason, which may have spaces and commas.
    """
    said = reason.strip().removeprefix("(").removesuffix(")") if reason.startswith("(") else reason.strip()
    state, _ = state_of(native_state)
    if state == AppState.PENDING and native_state not in STATE_TEXTS:
        return _why_waiting(said)
    text = STATE_TEXTS.get(native_state, "")
    if state == AppState.UNKNOWN:
        text = f"Slurm's state {native_state}"
    if said in _NOTHING:
        return text
    more = _ENDS.get(said, said) if state != AppState.RUNNING else ""
    if native_state in ("REQUEUED", "CONFIGURING", "SUSPENDED"):
        more = "" if said in _WAITING else said
    if not more or more == text:
        return text
    return f"{text}: {more}" if text else more


def _why_waiting(said: str) -> str:
    if said in _NOTHING:
        return f"waiting: {_WAITING['None']}"
    code = re.split(r"[,(:]", said)[0].strip()
    for name in (said, code):
        if name in _NEVER:
            return f"cannot start: {said} ({_NEVER[name]})"
        if name in _WAITING:
            return f"waiting: {said} ({_WAITING[name]})"
    for name, text in _WAITING.items():
        if said.startswith(name) and name != "None":
            return f"waiting: {said} ({text})"
    if _LIMITS.fullmatch(code):
        return f"waiting: {said} (a limit of its account or QoS is reached)"
    return f"waiting: {said}"
