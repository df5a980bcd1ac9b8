"""What the containers of a job run: commands, hyperparameters, variables, and the channels of the code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.sagemaker import distribution
from trainyard.schedulers.aws.sagemaker.instances import Instances
from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
from trainyard.schedulers.aws.sagemaker.start_script import (
    ARCHIVE_FILE,
    CODE_CHANNEL,
    RANK0,
    REPLICA,
    REPLICA_INDEX,
    TOOLKIT_CHANNEL,
    Code,
    Program,
    container_command,
)
from trainyard.schedulers.aws.sagemaker.training_script import (
    Script,
    as_arguments,
    as_hyperparameters,
    distribution_hyperparameters,
    encode,
    script_of,
)
from trainyard.specs.app import AppDef, Role
from trainyard.specs.substitution import macros
from trainyard.specs.training import METADATA_KEY

LONGEST_VARIABLE = 512
LOG_LEVEL = "sagemaker_container_log_level"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
#: What says the values of reserved hyperparameters; those that are not here come of the distribution.
_SAID_BY = {
    "sagemaker_program": "the job's script",
    LOG_LEVEL: "the option container_log_level",
    "sagemaker_job_name": "the option base_job_name",
    "sagemaker_region": "the option region",
    SUBMIT_DIRECTORY: "the option source_dir",
}
DEFAULT_LOG_LEVEL = 20
ROLE_NAME = "TORCHX_ROLE_NAME"
#: The SDK's channel for the code of a job without network.
ISOLATED_CHANNEL = "code"


class Planned(Protocol):
    """What is known of the code; see `request.PlannedCode`."""

    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def archive(self) -> str: ...  # noqa: D102
    @property
    def has_code(self) -> bool: ...  # noqa: D102


class Building(Protocol):
    """The request that is being made; see `request`."""

    app: AppDef
    opts: AWSSageMakerOpts
    job_name: str
    app_id: str
    region: str
    script: Script | None
    instances: Instances

    @property
    def needs(self) -> Any: ...  # noqa: D102


class Programs:
    """What the containers run.

    Attributes:
        entrypoint: ``ContainerEntrypoint``; empty for the image's own.
        arguments: ``ContainerArguments``.
        hyperparameters: ``HyperParameters``.
        environment: ``Environment``.
        channels: channels by which code and toolkit come, with the URIs that they have.
        runs: what each role runs, for people.
    """

    def __init__(self, job: Building, code: Planned | None) -> None:
        self.opts = job.opts
        self.job = job
        self.code = code
        self.several = job.instances.count > 1
        self.entrypoint: list[str] = []
        self.arguments: list[str] = []
        self.channels: dict[str, str] = {}
        self.runs: dict[str, list[str]] = {}
        self.given = {key: _typed(key, value) for key, value in (self.opts.hyperparameters or {}).items()}
        self.hyperparameters: dict[str, str] = encode(self.given)
        values = macros.Values("", job.app_id, REPLICA if self.several else "0", RANK0)
        roles = [values.apply(role) for role in job.app.roles]
        self.environment, own = self._environment(roles)
        if len(roles) == 1:
            self.environment.setdefault(ROLE_NAME, roles[0].name)  # for those who describe the job
        if job.script is not None:
            self._script(roles[0], own[roles[0].name])
        else:
            for role in roles:
                if METADATA_KEY in role.metadata:
                    raise ConfigError(
                        f"role {role.name!r} is a training script, which cannot have other roles beside it",
                        hint="Run the roles as jobs of their own.",
                    )
            self._commands(roles, own)

    # ---- variables

    def _environment(self, roles: list[Role]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """Return the variables that the request can say, and by role those that only its command can."""
        all_env = {role.name: {**(self.opts.environment or {}), **role.env} for role in roles}
        first = next(iter(all_env.values()))
        shared = {
            key: value
            for key, value in first.items()
            if all(env.get(key) == value for env in all_env.values())
            and REPLICA not in value
            and len(value) <= LONGEST_VARIABLE
        }
        own = {
            name: {
                key: value
                for key, value in env.items()
                # the command finds these out for itself
                if key not in shared and not (key == REPLICA_INDEX and value == REPLICA)
            }
            for name, env in all_env.items()
        }
        return shared, own

    # ---- any program

    def _commands(self, roles: list[Role], own: Mapping[str, Mapping[str, str]]) -> None:
        programs = {role.name: Program([role.entrypoint, *role.args], own[role.name]) for role in roles}
        if len(roles) == 1 and not self.several:
            self.environment.setdefault(RANK0, "localhost")
        for name, program in programs.items():
            self.runs[name] = _shown(program.words or ())
        code = self._code_channels(with_toolkit=False)
        self.entrypoint, self.arguments = container_command(programs, code, several=self.several)
        if self.opts.distribution:
            raise ConfigError(
                f"distribution starts scripts, and the job runs {' '.join(self.runs[next(iter(programs))])}",
                hint="Run the script with train.script, or leave distribution out.",
            )
        if self.opts.container_log_level is not None:
            reserved = {LOG_LEVEL: self.opts.container_log_level}
            self._check_reserved(reserved)
            self.hyperparameters |= encode(reserved)

    def _code_channels(self, *, with_toolkit: bool) -> Code | None:
        if self.code is None:
            return None
        uploaded = self.job.needs.code_uri
        if not self.code.has_code:
            self.channels[CODE_CHANNEL] = uploaded
            return Code("")
        if not self.code.archive:
            self.channels[CODE_CHANNEL] = uploaded
            return Code()
        self.channels[CODE_CHANNEL] = self.code.archive
        name = self.code.archive.rpartition("/")[2]
        if not with_toolkit:
            return Code(name)
        self.channels[TOOLKIT_CHANNEL] = uploaded
        return Code(name, TOOLKIT_CHANNEL)

    # ---- scripts

    def _script(self, role: Role, own: Mapping[str, str]) -> None:
        script = script_of(role)  # again, since macros have been substituted
        assert script is not None
        if self.code is None and self.opts.toolkit:
            raise ConfigError(
                f"role {role.name!r} runs {script.program}, but not even the toolkit travels with it",
                hint="Give source_dir or git_config, or a workspace (--workspace .).",
            )
        reserved: dict[str, Any] = {
            "sagemaker_program": script.program,
            LOG_LEVEL: DEFAULT_LOG_LEVEL
            if self.opts.container_log_level is None
            else self.opts.container_log_level,
            "sagemaker_job_name": self.job.job_name,
            "sagemaker_region": self.job.region,
        }
        reserved |= self._distribution(script)
        given = {**script.hyperparameters, **self.given}
        self._check_reserved(reserved)
        if self.opts.toolkit:
            self._with_toolkit(role, script, own, given)
        else:
            given |= self._with_image(role, script, own, reserved, given)
        self.hyperparameters = encode({**given, **reserved})

    def _distribution(self, script: Script) -> dict[str, Any]:
        """Return the hyperparameters that start the script's ranks.

        Raises:
            ConfigError: they are asked for in two ways, or in one that is not.
        """
        instances = self.job.instances
        wanted = self.opts.distribution
        if not wanted:
            # of several types that there may be, only the container knows which one it became
            kind = None if self.opts.instance_preferences else instances.types[0]
            return distribution_hyperparameters(script.distribution, kind, toolkit=self.opts.toolkit)
        if script.distribution:
            raise ConfigError(
                f"the script asks for the distribution {script.distribution.get('kind')}, and the option "
                "distribution for another",
                hint="Give one of them.",
            )
        problems = list(distribution.problems_of(wanted, instances.types, instances.groups, script.program))
        if problems:
            raise ConfigError("\n  - ".join(["the script cannot be started like this:", *problems]))
        return distribution.hyperparameters_of(wanted, instances.type, instances.groups)

    def _check_reserved(self, reserved: Mapping[str, Any]) -> None:
        """Refuse hyperparameters that the request sets itself.

        Raises:
            ConfigError: there is one; the text names what to use instead.
        """
        names = [*reserved, *([SUBMIT_DIRECTORY] if self.code is not None else [])]
        for name in filter(self.given.__contains__, names):
            raise ConfigError(
                f"hyperparameters: {name} is set by {_SAID_BY.get(name, 'the distribution')}",
                hint=f"Leave {name} out, and use {_SAID_BY.get(name, 'the distribution alone')}.",
            )

    def _with_toolkit(
        self, role: Role, script: Script, own: Mapping[str, str], given: Mapping[str, Any]
    ) -> None:
        words: list[str] | None = list(script.arguments)
        if given and not words:
            words = None  # the toolkit makes the arguments of any values
        elif words is not None and given:
            words = [*as_arguments(given), *words]
        program = Program(words, own, toolkit=True)
        self.runs[role.name] = ["train", script.program, *_shown(words or as_arguments(given))]
        code = self._code_channels(with_toolkit=True)
        self.entrypoint, self.arguments = container_command({role.name: program}, code, several=self.several)

    def _with_image(
        self,
        role: Role,
        script: Script,
        own: Mapping[str, str],
        reserved: dict[str, Any],
        given: Mapping[str, Any],
    ) -> dict[str, str]:
        """Leave the start to the image's own ``train``; returns the arguments as hyperparameters."""
        arguments = as_hyperparameters(script.arguments, role=role.name)
        for key in sorted(set(arguments) & set(given)):
            raise ConfigError(f"role {role.name!r}: {key} is an argument and a hyperparameter")
        if own or any(REPLICA in value for value in arguments.values()):
            which = ", ".join(own) or "an argument"
            raise ConfigError(
                f"role {role.name!r}: {which} cannot be said in the request alone: it is longer than "
                f"{LONGEST_VARIABLE} characters, or differs between replicas",
                hint="Leave toolkit=false out.",
            )
        self.runs[role.name] = ["train", script.program, *script.arguments]
        if self.code is not None:
            reserved[SUBMIT_DIRECTORY] = self._submit_directory(self.code)
        return arguments

    def _submit_directory(self, code: Planned) -> str:
        """Return where ``train`` gets the code: from S3, or without network from a channel."""
        archive = code.archive or f"{self.job.needs.code_uri}{ARCHIVE_FILE}"
        if not self.opts.enable_network_isolation:
            return archive
        self.channels[ISOLATED_CHANNEL] = archive
        return f"/opt/ml/input/data/{ISOLATED_CHANNEL}/{archive.rpartition('/')[2]}"


def _typed(name: str, value: Any) -> Any:
    """Return a hyperparameter for what starts the script: a number or a switch, also if written as text."""
    if not name.startswith("sagemaker_") or not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, (bool, int, float)) else value


def _shown(words: Sequence[str]) -> list[str]:
    return [word.replace(REPLICA, f"${REPLICA_INDEX}") for word in words]
