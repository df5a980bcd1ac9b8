"""What the containers of a job run: their command, hyperparameters and variables, and how they get the code.

All instances of a training job get the same command and variables. Only ``resourceconfig.json``, in the
container, tells which replica one is and where the first one is. So a small shell script is put before the
program: it reads the file, sets ``TORCHX_REPLICA_IDX`` and ``TORCHX_RANK0_HOST``, unpacks the code, and
becomes the program.

The script travels in ``ContainerArguments``, cut into pieces of 256 characters that `BOOTSTRAP` puts together
again. It needs ``sh``, and ``tar`` with gzip where there is code. Line ends, which the service's pattern
``.*`` may not accept, are made in the container.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter._toolkit import environment_description
from shunter.errors import ConfigError
from shunter.redaction import Redactor
from shunter.schedulers.aws_sagemaker_scheduler import training_script
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.training_script import (
    TrainingScript,
    as_arguments,
    as_hyperparameters,
    encode,
    script_of,
)
from shunter.specs.app import AppDef, Role, macros
from shunter.specs.training import METADATA_KEY

LONGEST_VARIABLE = 512
LOG_LEVEL = "sagemaker_container_log_level"
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
DEFAULT_LOG_LEVEL = 20
#: Who sets reserved hyperparameters; those that are missing here are the distribution's.
_SET_BY = {
    "sagemaker_program": "the job's script",
    LOG_LEVEL: "the option container_log_level",
    "sagemaker_job_name": "the option base_job_name",
    "sagemaker_region": "the option region",
    SUBMIT_DIRECTORY: "the option source_dir",
}
ROLE_NAME = "TORCHX_ROLE_NAME"
RANK0 = "TORCHX_RANK0_HOST"
REPLICA_INDEX = "TORCHX_REPLICA_IDX"
#: Stands for the replica's index in texts, until the container knows it. No text of a user can contain it.
REPLICA = "\0"

CODE_CHANNEL = "shunter_code"
LONGEST_VARIABLE = 512  # characters that SageMaker accepts as the value of a variable
TOOLKIT_CHANNEL = "shunter_toolkit"
#: The SDK's channel for the code of a job without network.
ISOLATED_CHANNEL = "code"
TOOLKIT_FILE = "shunter-toolkit.pyz"
ARCHIVE_FILE = "sourcedir.tar.gz"


@dataclass(frozen=True)
class PlannedCode:
    """What the request needs to know of the code that travels with the job.

    Attributes:
        key: names its content; `names.CONTENT` where that is not known yet, "" if nothing is uploaded.
        archive: ``s3://`` URI of an archive that exists already; "" if the code is uploaded.
        has_code: False if the toolkit alone travels.
    """

    key: str = ""
    archive: str = ""
    has_code: bool = True

    @property
    def archive_name(self) -> str:
        """Name of the archive in the channel `CODE_CHANNEL`; "" if the code is in the image."""
        return self.archive.rpartition("/")[2] or (ARCHIVE_FILE if self.has_code else "")

    @property
    def toolkit_channel(self) -> str:
        """The channel with the toolkit."""
        return TOOLKIT_CHANNEL if self.archive else CODE_CHANNEL


@dataclass
class RoleCommand:
    """What the replicas of one role run.

    Attributes:
        words: the program and its arguments, with `REPLICA` for the replica's index.
        env: variables that the request cannot hold: with `REPLICA`, too long, or for this role alone.
        toolkit: whether the toolkit runs it; ``words`` are the script's arguments then, or None where the
            toolkit makes them from the hyperparameters.
    """

    words: Sequence[str] | None
    env: dict[str, str] = field(default_factory=dict)
    toolkit: bool = False


class Containers:
    """What the containers of a job run.

    Attributes:
        entrypoint: ``ContainerEntrypoint``; empty for the image's own.
        arguments: ``ContainerArguments``.
        hyperparameters: ``HyperParameters``.
        environment: ``Environment``.
        channels: the URIs of the channels that bring code and toolkit, by channel.
        runs: what each role runs, for display.
    """

    def __init__(
        self,
        app: AppDef,
        opts: AWSSageMakerOpts,
        script: TrainingScript | None,
        code: PlannedCode | None,
        *,
        job_name: str,
        app_id: str,
        region: str,
        code_uri: str,
        several: bool,
        types: Sequence[str],
        groups: Sequence[str],
    ) -> None:
        self._opts, self._code, self._code_uri = opts, code, code_uri
        self._job_name, self._region = job_name, region
        self._several, self._types, self._groups = several, types, groups
        self.entrypoint: list[str] = []
        self.arguments: list[str] = []
        self.channels: dict[str, str] = {}
        self.runs: dict[str, list[str]] = {}
        self._given = {key: _typed(key, value) for key, value in (opts.hyperparameters or {}).items()}
        self.hyperparameters: dict[str, str] = encode(self._given)
        values = macros.Values("", app_id, REPLICA if several else "0", RANK0)
        roles = [values.apply(role) for role in app.roles]
        self.environment, own = self._variables(roles)
        if script is not None:
            self._run_script(roles[0], own[roles[0].name])
        else:
            self._run_commands(roles, own)

    def _variables(self, roles: list[Role]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """Return the variables of all containers, and by role those that only its command can set."""
        all_env = {role.name: {**(self._opts.environment or {}), **role.env} for role in roles}
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
                # the command sets the index itself
                if key not in shared and not (key == REPLICA_INDEX and value == REPLICA)
            }
            for name, env in all_env.items()
        }
        if len(roles) == 1:
            shared.setdefault(ROLE_NAME, roles[0].name)  # `observe` reads it
        return shared, own

    # ---- any program

    def _run_commands(self, roles: list[Role], own: Mapping[str, dict[str, str]]) -> None:
        for role in roles:
            if METADATA_KEY in role.metadata:
                raise ConfigError(
                    f"role {role.name!r} is a training script, which cannot have other roles beside it",
                    hint="Run each role as a separate job.",
                )
        if len(roles) == 1 and not self._several:
            self.environment.setdefault(RANK0, "localhost")
        commands = {role.name: RoleCommand([role.entrypoint, *role.args], own[role.name]) for role in roles}
        self.runs = {name: _shown(command.words or ()) for name, command in commands.items()}
        self._add_code_channels(with_toolkit=False)
        self.entrypoint, self.arguments = container_command(commands, self._code, several=self._several)
        if self._opts.distribution:
            raise ConfigError(
                f"distribution starts scripts, but the job runs {' '.join(self.runs[roles[0].name])}",
                hint="Run the script with train.script, or leave distribution out.",
            )
        if self._opts.container_log_level is not None:
            reserved = {LOG_LEVEL: self._opts.container_log_level}
            self._check_reserved(reserved)
            self.hyperparameters |= encode(reserved)

    def _add_code_channels(self, *, with_toolkit: bool) -> None:
        if self._code is not None:
            self.channels[CODE_CHANNEL] = self._code.archive or self._code_uri
            if with_toolkit:
                self.channels.setdefault(self._code.toolkit_channel, self._code_uri)

    # ---- scripts

    def _run_script(self, role: Role, own: dict[str, str]) -> None:
        script = script_of(role)  # again, since macros have been substituted
        assert script is not None
        opts = self._opts
        if self._code is None and opts.toolkit:
            raise ConfigError(
                f"role {role.name!r} runs {script.program}, but neither code nor toolkit travels with it",
                hint="Give source_dir or git_config, or a workspace (--workspace .).",
            )
        self._check_environment(role)
        level = opts.container_log_level
        reserved: dict[str, Any] = {
            "sagemaker_program": script.program,
            LOG_LEVEL: DEFAULT_LOG_LEVEL if level is None else level,
            "sagemaker_job_name": self._job_name,
            "sagemaker_region": self._region,
            **self._distribution(script),
        }
        given = {**script.hyperparameters, **self._given}
        self._check_reserved(reserved)
        if opts.toolkit:
            self._start_by_toolkit(role, script, own, given)
        else:
            given |= self._start_by_image(role, script, own, reserved, given)
        self.hyperparameters = encode({**given, **reserved})

    def _check_environment(self, role: Role) -> None:
        """Refuse a Python environment of the role that would not reach its container."""
        description = role.env.get(environment_description.VARIABLE, "")
        if description and not self._opts.toolkit:
            raise ConfigError(
                f"role {role.name!r}: toolkit=false leaves out the toolkit, which installs its environment",
                hint="Leave toolkit=false out, or ask for no environment: --environment none.",
            )
        if len(description) > LONGEST_VARIABLE:
            raise ConfigError(
                f"role {role.name!r}: its environment takes {len(description)} characters to describe, and a "
                f"variable of a training job has at most {LONGEST_VARIABLE}",
                hint="Write the packages to a file in the workspace: --environment requirements.txt.",
            )

    def _distribution(self, script: TrainingScript) -> dict[str, Any]:
        """Return the hyperparameters that start the script's ranks."""
        wanted, types, groups = self._opts.distribution, self._types, self._groups
        # if there are several preferred types, only the container knows which one was chosen
        kind = None if self._opts.instance_preferences else types[0]
        if not wanted:
            return training_script.of_script(script.distribution, kind, toolkit=self._opts.toolkit)
        if script.distribution:
            raise ConfigError(
                f"the script asks for the distribution {script.distribution.get('kind')}, and the option "
                "distribution for another",
                hint="Give one of them.",
            )
        problems = list(training_script.distribution_problems(wanted, types, groups, script.program))
        if problems:
            raise ConfigError("\n  - ".join(["the script cannot be started like this:", *problems]))
        return training_script.of_option(wanted, None if groups else kind, groups)

    def _check_reserved(self, reserved: Mapping[str, Any]) -> None:
        """Refuse hyperparameters that the request sets itself."""
        names = [*reserved, *([SUBMIT_DIRECTORY] if self._code is not None else [])]
        for name in filter(self._given.__contains__, names):
            raise ConfigError(
                f"hyperparameters: {name} is set by {_SET_BY.get(name, 'the distribution')}",
                hint=f"Leave {name} out, and use {_SET_BY.get(name, 'the distribution alone')}.",
            )

    def _start_by_toolkit(
        self, role: Role, script: TrainingScript, own: dict[str, str], given: Mapping[str, Any]
    ) -> None:
        words: list[str] | None = [*as_arguments(given), *script.arguments]
        if given and not script.arguments:
            words = None  # the toolkit turns values of any kind into arguments
        self.runs[role.name] = ["train", script.program, *_shown(words or as_arguments(given))]
        self._add_code_channels(with_toolkit=True)
        command = {role.name: RoleCommand(words, own, toolkit=True)}
        self.entrypoint, self.arguments = container_command(command, self._code, several=self._several)

    def _start_by_image(
        self,
        role: Role,
        script: TrainingScript,
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
                f"role {role.name!r}: the request cannot hold {which}: it is longer than {LONGEST_VARIABLE} "
                "characters, or differs between replicas",
                hint="Leave toolkit=false out.",
            )
        self.runs[role.name] = ["train", script.program, *script.arguments]
        if self._code is not None:
            archive = self._code.archive or f"{self._code_uri}{ARCHIVE_FILE}"
            reserved[SUBMIT_DIRECTORY] = archive
            if self._opts.enable_network_isolation:  # `train` cannot fetch it, so it comes as a channel
                self.channels[ISOLATED_CHANNEL] = archive
                reserved[SUBMIT_DIRECTORY] = (
                    f"/opt/ml/input/data/{ISOLATED_CHANNEL}/{archive.rpartition('/')[2]}"
                )
        return arguments


def _typed(name: str, value: Any) -> Any:
    """Return a hyperparameter's value; reserved ones may have numbers and booleans written as text."""
    if not name.startswith("sagemaker_") or not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, (bool, int, float)) else value


def _shown(words: Iterable[str]) -> list[str]:
    return [word.replace(REPLICA, f"${REPLICA_INDEX}") for word in words]


# ---- the shell script

LONGEST_ITEM = 256
MOST_ITEMS = 100
_LINE_ENDS = "\n\r\u0085\u2028\u2029"  # what a pattern's dot does not match
_SPECIAL = frozenset(f"{REPLICA}{_LINE_ENDS}")
BOOTSTRAP = ["/bin/sh", "-c", 's=;for p;do s="$s$p";done;eval "$s"', "sh"]

_BASE = 'b="${SAGEMAKER_BASE_DIR:-/opt/ml}"'
_LINE_END = "n=$(printf '\\nx');n=${n%x}"
# Reads resourceconfig.json with the shell alone: $c is the document without white space, $h this host. Names
# of hosts end in their number (algo-10, or 127.128.0.10), which orders them: sorted as text, 10 would come
# before 2.
_READ = (
    'set -f;c=;while read -r l||[ -n "$l" ];do c="$c $l";done<"$b/input/config/resourceconfig.json";'
    'set -- $c;c=;for l;do c="$c$l";done;'
    "h=${c#*'\"current_host\":\"'};h=${h%%'\"'*};g=${c#*'\"current_group_name\":\"'};g=${g%%'\"'*};"
)
# All hosts: those outside of the groups, wherever in the document these stand.
_ALL_HOSTS = (
    "o=${c%%'\"instance_groups\":['*}${c#*'\"instance_groups\":['*'}]'};o=${o#*'\"hosts\":['};o=${o%%']'*};"
)
# The hosts of the group $1, in $o.
_GROUP_HOSTS = (
    "group(){ o=${c#*'\"instance_groups\":['};while :;do "
    "case ${o%%'}'*} in *'\"instance_group_name\":\"'\"$1\"'\"'*)break;;esac;"
    "case $o in *'}'*)o=${o#*'}'};;*)break;;esac;done;"
    "o=${o%%'}'*};o=${o#*'\"hosts\":['};o=${o%%']'*};};"
)
# $z: the first of the hosts in $o; $r: the number of them that come before this one.
_ORDER = (
    "order(){ z=;r=0;q=;i=$IFS;IFS=,;for l in $o;do l=${l#'\"'};l=${l%'\"'};k=${l##*[-.]};"
    'if [ -z "$z" ]||[ "$k" -lt "$q" ];then z=$l;q=$k;fi;'
    'if [ "$k" -lt "${h##*[-.]}" ];then r=$((r+1));fi;done;IFS=$i;};'
)
_EXPORT = f'[ "$z" = "$h" ]&&z=localhost;set +f;export {RANK0}="$z" {REPLICA_INDEX}="$r"'
_FIND_PYTHON = "y=python3;command -v $y >/dev/null 2>&1||y=python"


def container_command(
    commands: Mapping[str, RoleCommand], code: PlannedCode | None, *, several: bool
) -> tuple[list[str], list[str]]:
    """Return ``ContainerEntrypoint`` and ``ContainerArguments``."""
    only = next(iter(commands.values()))
    if len(commands) == 1 and code is None and not several and _fits(only):
        words = list(only.words or [])
        return words[:1], words[1:]
    script = _start_script(commands, code, several=several)
    pieces = _cut(script)
    most = 2 * MOST_ITEMS - len(BOOTSTRAP)
    if len(pieces) > most:
        raise ConfigError(
            f"the command has {len(script)} characters, but SageMaker accepts {most * LONGEST_ITEM}",
            hint="Put the arguments into a file that travels with the code.",
        )
    early = max(0, len(pieces) - MOST_ITEMS)
    return [*BOOTSTRAP, *pieces[:early]], pieces[early:]


def _cut(script: str) -> list[str]:
    return [script[at : at + LONGEST_ITEM] for at in range(0, len(script), LONGEST_ITEM)]


def without_secrets(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``CreateTrainingJob`` request without secrets, even those split between pieces of it."""
    redactor = Redactor()
    shown: dict[str, Any] = redactor.json(dict(request))
    algorithm = request.get("AlgorithmSpecification") or {}
    entrypoint = list(algorithm.get("ContainerEntrypoint") or ())
    arguments = list(algorithm.get("ContainerArguments") or ())
    if entrypoint[: len(BOOTSTRAP)] == BOOTSTRAP:
        early = len(entrypoint) - len(BOOTSTRAP)
        pieces = _cut(redactor.text("".join([*entrypoint[len(BOOTSTRAP) :], *arguments])))
        shown["AlgorithmSpecification"]["ContainerEntrypoint"] = [*BOOTSTRAP, *pieces[:early]]
        shown["AlgorithmSpecification"]["ContainerArguments"] = pieces[early:]
    return shown


def _fits(command: RoleCommand) -> bool:
    """Tell whether the request can hold the command without a script."""
    words = list(command.words or [])
    return (
        not command.toolkit
        and not command.env
        and len(words) <= MOST_ITEMS
        and not any(len(word) > LONGEST_ITEM or _SPECIAL & set(word) for word in words)
    )


def _start_script(commands: Mapping[str, RoleCommand], code: PlannedCode | None, *, several: bool) -> str:
    steps = [_BASE, _LINE_END, _find_place(list(commands), several=several)]
    if code is not None and not all(command.toolkit for command in commands.values()):
        archive = f'"$b/input/data/{CODE_CHANNEL}/{code.archive_name}"'
        steps.append(f'mkdir -p "$b/code"&&cd "$b/code"&&tar -xzf {archive}||exit 1')
    if len(commands) == 1:
        steps.append(_start(next(iter(commands.values())), code))
        return ";".join(steps)
    arms = "".join(f"{_quote(name)}){_start(command, code)};;" for name, command in commands.items())
    return ";".join([*steps, f'case "$g" in {arms}*)echo "no role is named $g">&2;exit 1;;esac'])


def _find_place(roles: list[str], *, several: bool) -> str:
    if not several:
        return f"r=0;export {RANK0}=localhost {REPLICA_INDEX}=0"
    if len(roles) == 1:
        return f"{_READ}{_ORDER}{_ALL_HOSTS}order;{_EXPORT}"
    # the first of the first role's hosts, after this host's index among its own role's
    return f'{_READ}{_ORDER}{_GROUP_HOSTS}group "$g";order;m=$r;group {_quote(roles[0])};order;r=$m;{_EXPORT}'


def _start(command: RoleCommand, code: PlannedCode | None) -> str:
    steps = [f"export {name}={_quote(value)}" for name, value in command.env.items()]
    words = None if command.words is None else " ".join(map(_quote, command.words))
    if not command.toolkit:
        return ";".join([*steps, f'set -- {words};exec "$@"'])
    assert code is not None
    # The image may name a framework's function, which would run in place of the script.
    steps.append(f"unset SAGEMAKER_TRAINING_MODULE;{_FIND_PYTHON}")
    if code.archive_name:
        steps.append(f'export SAGEMAKER_SUBMIT_DIRECTORY="$b/input/data/{CODE_CHANNEL}/{code.archive_name}"')
    archive = f'"$b/input/data/{code.toolkit_channel}/{TOOLKIT_FILE}"'
    arguments = "" if words is None else f" -- {words}".rstrip()
    return ";".join([*steps, f"exec $y {archive} train{arguments}"])


def _quote(text: str) -> str:
    """Return a text as one word of the script, on one line."""
    parts = filter(None, re.split(f"([\0{_LINE_ENDS}])", text))
    words = [_quote_special(part) if part in _SPECIAL else _quote_plain(part) for part in parts]
    return "".join(words) or "''"


def _quote_special(char: str) -> str:
    if char == REPLICA:
        return '"$r"'
    if char == "\n":
        return '"$n"'
    octal = "".join(f"\\{byte:03o}" for byte in char.encode())
    return f"\"$(printf '{octal}')\""


def _quote_plain(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_@%+:,./-]+", text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"
