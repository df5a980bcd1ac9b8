"""Notifications and hang detection by the toolkit inside the job, where nothing else of ours keeps running.

What the toolkit has to know goes into variables of the containers; its modules `end_notice` and
`script_watch` read them. Which ends of the program are the job's end depends on the backend's retries, so
each backend says that as an `EndRules`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter.diagnosis.causes import causes_table
from shunter.errors import ConfigError
from shunter.schedulers.supervision import IN_VARIABLE, check_supervision
from shunter.specs.app import AppDef, Role
from shunter.specs.training import DOCUMENT, specification

#: Variables of the toolkit.
HANG, NOTIFY, CAUSES = "SHUNTER_HANG", "SHUNTER_NOTIFY", "SHUNTER_CAUSES"
SIGNING_SECRET = "SHUNTER_NOTIFY_SECRET"
#: Those that go where secrets go, if there is such a place; the causes go with them, since they are long.
SECRET_VARIABLES = frozenset({NOTIFY, CAUSES, SIGNING_SECRET})


@dataclass
class EndRules:
    """What a backend does after a program has ended.

    Args:
        attempts: how often it starts the program at most.
        variable: where the program finds the number of its attempt.
        first: the number of the first attempt.
        codes: rules that apply before the attempts are used up: an exit code, or its first digits and ``*``,
            and whether the program may be restarted; the first match counts.
        stopped: the state of a job whose program was asked to stop; "" if the backend may restart it.
    """

    attempts: int = 1
    variable: str = ""
    first: int = 0
    codes: Sequence[tuple[str, bool]] = field(default_factory=list)
    stopped: str = "CANCELLED"


def is_asked_for(opts: Any) -> bool:
    """Tell whether options ask for notifications or hang detection."""
    return bool(opts.notify) or opts.hang_timeout is not None


def check_roles(backend: str, app: AppDef, opts: Any, under_toolkit: Mapping[str, bool]) -> None:
    """Check that the toolkit can do what is asked for.

    Args:
        backend: the scheduler.
        app: the job.
        opts: its options.
        under_toolkit: by role, whether it runs under the toolkit.

    Raises:
        ConfigError: an option is wrong, or a role runs without the toolkit.
    """
    check_supervision(opts, in_job=True)
    if not is_asked_for(opts):
        return
    options = " and ".join(name for name in ("notify", "hang_timeout") if getattr(opts, name))
    for name, has_toolkit in under_toolkit.items():
        if not has_toolkit:
            raise ConfigError(
                f"{options}: on {backend} this needs the toolkit inside the job, but role {name!r} runs "
                "without it",
                hint="Run a script with train.script; other jobs have it on local_cwd, local_docker, "
                "slurm, lsf and sge.",
            )
    if not opts.notify:
        return
    if len(app.roles) > 1:
        raise ConfigError(
            f"notify: {backend} supports it only for jobs with one role, and this job has several"
        )
    role = app.roles[0]
    if role.num_replicas > 1 and not _ends_together(role):
        raise ConfigError(
            f"notify: on {backend} the first of the {role.num_replicas} replicas sends it, and it does not "
            "know how the others end",
            hint="With --distribution torchrun or mpi all replicas of a script end together.",
        )


def _ends_together(role: Role) -> bool:
    document = role.env.get(DOCUMENT, "")
    try:
        document_values = json.loads(document) if document.startswith("{") else specification(role.metadata)
    except ValueError:
        return False
    return (document_values.get("distribution") or {}).get("kind") in ("torchrun", "mpi")


def with_variables(app: AppDef, opts: Any, rules: EndRules, secret: str) -> AppDef:
    """Return a job whose containers have what the toolkit needs for this; the given one is not changed.

    The rules say which ends of the program are the job's. The secret signs notifications; "" if it is not to
    be in a variable.
    """
    if not is_asked_for(opts):
        return app
    variables: dict[str, str] = {}
    if opts.hang_timeout is not None:
        variables[HANG] = f"{opts.hang_timeout:g} {opts.on_hang}"
    if opts.notify:
        retries = {
            "attempts": rules.attempts,
            "variable": rules.variable,
            "first": rules.first,
            "codes": [list(rule) for rule in rules.codes],
        }
        notice = {"targets": list(opts.notify), "again": retries, "stopped": rules.stopped}
        variables[NOTIFY] = json.dumps(notice)
        variables[CAUSES] = packed_causes()
        if secret:
            variables[SIGNING_SECRET] = secret
    roles = [dataclasses.replace(role, env={**role.env, **variables}) for role in app.roles]
    return dataclasses.replace(app, roles=roles)


def packed_causes() -> str:
    """Return the causes of failures as a variable can hold them."""
    text = json.dumps(causes_table(), separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def secret_of(opts: Any) -> str:
    """Return the secret that signs notifications: the option, or else the environment variable."""
    return opts.notify_secret or os.environ.get(SIGNING_SECRET) or ""


def warnings_of(backend: str, opts: Any, rules: EndRules, *, hidden: bool, is_signed: bool) -> list[str]:
    """Return warnings about how notifications differ from what the user may expect.

    Args:
        backend: the scheduler.
        opts: the options.
        rules: which ends of the program are the job's.
        hidden: whether targets are where only the job reads them.
        is_signed: whether the job has what signs notifications.
    """
    if not opts.notify:
        return []
    unseen = "" if rules.stopped else ", is stopped from outside (the backend may restart it)"
    first = (
        "lets the job's first container send it, so nothing is sent if that container is killed for its "
        "memory"
    )
    warnings = [f"notify: {backend} {first}{unseen}, loses its machine or never starts"]
    if not hidden and any(not target.startswith(IN_VARIABLE) for target in opts.notify):
        warnings.append(
            "notify: anyone who may describe the job can read the URL or command in its variables; give "
            "env:NAME instead, with the name of a variable of the job that holds it"
        )
    if not is_signed and secret_of(opts):
        warnings.append(
            "notify: notifications are not signed, since SHUNTER_NOTIFY_SECRET does not travel with the job"
        )
    return warnings


def check_variables(opts: Any, known: Mapping[str, object]) -> None:
    """Check that the job has the variables that targets refer to.

    Raises:
        ConfigError: the job lacks one of them.
    """
    for target in opts.notify or ():
        name = target.removeprefix(IN_VARIABLE)
        if target.startswith(IN_VARIABLE) and name not in known:
            raise ConfigError(f"notify: the job has no variable {name!r}")
