"""What the containers of a job run: commands, hyperparameters, variables, and the channels of the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.sagemaker.command import (
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
from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
from trainyard.schedulers.aws.sagemaker.resources import Instances
from trainyard.schedulers.aws.sagemaker.script import (
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
        self.hyperparameters: dict[str, str] = encode(self.opts.hyperparameters or {})
        values = macros.Values("", job.job_name, REPLICA if self.several else "0", RANK0)
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
        if self.opts.container_log_level is not None:
            self.hyperparameters |= encode({"sagemaker_container_log_level": self.opts.container_log_level})

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
        reserved = {
            "sagemaker_program": script.program,
            "sagemaker_container_log_level": DEFAULT_LOG_LEVEL
            if self.opts.container_log_level is None
            else self.opts.container_log_level,
            "sagemaker_job_name": self.job.job_name,
            "sagemaker_region": self.job.region,
        }
        reserved |= distribution_hyperparameters(script.distribution, self.job.instances.types[0])
        given = {**script.hyperparameters, **(self.opts.hyperparameters or {})}
        if self.opts.toolkit:
            self._with_toolkit(role, script, own, given)
        else:
            given |= self._with_image(role, script, own, reserved, given)
        self.hyperparameters = encode({**given, **reserved})

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
            reserved["sagemaker_submit_directory"] = self._submit_directory(self.code)
        return arguments

    def _submit_directory(self, code: Planned) -> str:
        """Return where ``train`` gets the code: from S3, or without network from a channel."""
        archive = code.archive or f"{self.job.needs.code_uri}{ARCHIVE_FILE}"
        if not self.opts.enable_network_isolation:
            return archive
        self.channels[ISOLATED_CHANNEL] = archive
        return f"/opt/ml/input/data/{ISOLATED_CHANNEL}/{archive.rpartition('/')[2]}"


def _shown(words: Sequence[str]) -> list[str]:
    return [word.replace(REPLICA, f"${REPLICA_INDEX}") for word in words]
