"""What the containers of a job run: commands, hyperparameters, variables, and the channels of the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.sagemaker import training_script
from trainyard.schedulers.aws.sagemaker.instances import Instances
from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
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
        problems = list(
            training_script.problems_of(wanted, instances.types, instances.groups, script.program)
        )
        if problems:
            raise ConfigError("\n  - ".join(["the script cannot be started like this:", *problems]))
        return training_script.hyperparameters_of(wanted, instances.type, instances.groups)

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


# ---- The command of a container, where more has to happen than the request can say


#: Stands for the replica's index in texts, until the container knows it. No text of a user can hold it.
REPLICA = "\0"
LONGEST_ITEM = 256
MOST_ITEMS = 100
_LINE_ENDS = "\n\r\u0085\u2028\u2029"  # what a pattern's dot does not match
_SPECIAL = frozenset(f"{REPLICA}{_LINE_ENDS}")
BOOTSTRAP = ["/bin/sh", "-c", 's=;for p;do s="$s$p";done;eval "$s"', "sh"]

CODE_CHANNEL = "trainyard_code"
TOOLKIT_CHANNEL = "trainyard_toolkit"
TOOLKIT_FILE = "trainyard-toolkit.pyz"
ARCHIVE_FILE = "sourcedir.tar.gz"
RANK0 = "TORCHX_RANK0_HOST"
REPLICA_INDEX = "TORCHX_REPLICA_IDX"

_BASE = 'b="${SAGEMAKER_BASE_DIR:-/opt/ml}"'
_LINE_END = "n=$(printf '\\nx');n=${n%x}"
# Reads resourceconfig.json with the shell alone: $c is the document without white space, $h this host. Names
# of hosts end in their number (algo-10), which orders them: sorted as text, 10 would come before 2.
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
# $z: the first of the hosts in $o; $r: how many of them come before this one.
_ORDER = (
    "order(){ z=;r=0;q=;i=$IFS;IFS=,;for l in $o;do l=${l#'\"'};l=${l%'\"'};k=${l##*-};"
    'if [ -z "$z" ]||[ "$k" -lt "$q" ];then z=$l;q=$k;fi;'
    'if [ "$k" -lt "${h##*-}" ];then r=$((r+1));fi;done;IFS=$i;};'
)
_EXPORT = f'[ "$z" = "$h" ]&&z=localhost;set +f;export {RANK0}="$z" {REPLICA_INDEX}="$r"'
_FIND_PYTHON = "y=python3;command -v $y >/dev/null 2>&1||y=python"


@dataclass
class Program:
    """What the replicas of one role run.

    Attributes:
        words: the program and its arguments, `REPLICA` for the replica's index.
        env: variables that the request cannot hold: with `REPLICA`, too long, or of this role alone.
        toolkit: whether the toolkit runs it; ``words`` are the script's arguments then, or None where the
            toolkit makes them from the hyperparameters.
    """

    words: Sequence[str] | None
    env: Mapping[str, str] = field(default_factory=dict)
    toolkit: bool = False


@dataclass
class Code:
    """How a container finds the code.

    Attributes:
        archive: name of the archive in the channel `CODE_CHANNEL`; "" if the code is in the image.
        toolkit_channel: the channel that the toolkit is in.
    """

    archive: str = ARCHIVE_FILE
    toolkit_channel: str = CODE_CHANNEL


def container_command(
    programs: Mapping[str, Program], code: Code | None, *, several: bool
) -> tuple[list[str], list[str]]:
    """Return ``ContainerEntrypoint`` and ``ContainerArguments``.

    Args:
        programs: what each role runs, by its name, in the order of the job's roles.
        code: the code that travels with the job; None for none.
        several: whether there is more than one instance.

    Raises:
        ConfigError: the command is too long for a request.
    """
    only = next(iter(programs.values()))
    if len(programs) == 1 and code is None and not several and _fits(only):
        words = list(only.words or [])
        return words[:1], words[1:]
    script = _start_script(programs, code, several=several)
    pieces = _cut(script)
    room = MOST_ITEMS - len(BOOTSTRAP)
    if len(pieces) > MOST_ITEMS + room:
        raise ConfigError(
            f"the command has {len(script)} characters, SageMaker takes {(MOST_ITEMS + room) * LONGEST_ITEM}",
            hint="Put the arguments into a file that travels with the code.",
        )
    early = max(0, len(pieces) - MOST_ITEMS)
    return [*BOOTSTRAP, *pieces[:early]], pieces[early:]


def _cut(script: str) -> list[str]:
    return [script[at : at + LONGEST_ITEM] for at in range(0, len(script), LONGEST_ITEM)]


def without_secrets(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``CreateTrainingJob`` request without secrets, also those that the cut of a script divides."""
    from trainyard.redaction import Redactor

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


def _fits(program: Program) -> bool:
    """Tell whether the request can say the command as it is."""
    words = list(program.words or [])
    return (
        not program.toolkit
        and not program.env
        and len(words) <= MOST_ITEMS
        and not any(len(word) > LONGEST_ITEM or _SPECIAL & set(word) for word in words)
    )


def _start_script(programs: Mapping[str, Program], code: Code | None, *, several: bool) -> str:
    steps = [_BASE, _LINE_END]
    steps.append(_whereabouts(list(programs), several=several))
    if code is not None and not all(program.toolkit for program in programs.values()):
        archive = f'"$b/input/data/{CODE_CHANNEL}/{code.archive}"'
        steps.append(f'mkdir -p "$b/code"&&cd "$b/code"&&tar -xzf {archive}||exit 1')
    if len(programs) == 1:
        steps.append(_start(next(iter(programs.values())), code))
        return ";".join(steps)
    arms = "".join(f"{word(name)}){_start(program, code)};;" for name, program in programs.items())
    return ";".join([*steps, f'case "$g" in {arms}*)echo "no role is named $g">&2;exit 1;;esac'])


def _whereabouts(roles: list[str], *, several: bool) -> str:
    if not several:
        return f"r=0;export {RANK0}=localhost {REPLICA_INDEX}=0"
    if len(roles) == 1:
        return f"{_READ}{_ORDER}{_ALL_HOSTS}order;{_EXPORT}"
    # the first of the first role's hosts, after this host's index among its own role's
    return f'{_READ}{_ORDER}{_GROUP_HOSTS}group "$g";order;m=$r;group {word(roles[0])};order;r=$m;{_EXPORT}'


def _start(program: Program, code: Code | None) -> str:
    steps = [f"export {name}={word(value)}" for name, value in program.env.items()]
    words = None if program.words is None else " ".join(word(text) for text in program.words)
    if not program.toolkit:
        return ";".join([*steps, f'set -- {words};exec "$@"'])
    assert code is not None
    # The image may name a framework's function, which would run in place of the script.
    steps.append(f"unset SAGEMAKER_TRAINING_MODULE;{_FIND_PYTHON}")
    if code.archive:
        steps.append(f'export SAGEMAKER_SUBMIT_DIRECTORY="$b/input/data/{CODE_CHANNEL}/{code.archive}"')
    archive = f'"$b/input/data/{code.toolkit_channel}/{TOOLKIT_FILE}"'
    arguments = "" if words is None else f" -- {words}".rstrip()
    return ";".join([*steps, f"exec $y {archive} train{arguments}"])


def word(text: str) -> str:
    """Return a text as one word of the script, on one line."""
    parts = re.split(f"([\0{_LINE_ENDS}])", text)
    return "".join(_special(part) if part in _SPECIAL else _quoted(part) for part in parts if part) or "''"


def _special(char: str) -> str:
    if char == REPLICA:
        return '"$r"'
    if char == "\n":
        return '"$n"'
    octal = "".join(f"\\{byte:03o}" for byte in char.encode())
    return f"\"$(printf '{octal}')\""


def _quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_@%+:,./-]+", text):
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


# ---- What a container's command runs, read from the shell script that `command` has made of it


_ARMS = 'case "$g" in '
_WORDS = "set -- "
_TRAIN = f'{TOOLKIT_FILE}" train'
_OCTAL = re.compile(r"\$\(printf '((?:\\[0-7]{3})+)'\)")


@dataclass
class Recovered:
    """What the replicas of a role run.

    Attributes:
        words: the program and its arguments; of the toolkit those of the script.
        env: variables of this role alone.
        toolkit: whether the toolkit runs it.
    """

    words: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    toolkit: bool = False


def read_command(items: Sequence[str]) -> dict[str, Recovered]:
    """Return what is run, by role; the name is "" where the script serves one role alone.

    Args:
        items: ``ContainerEntrypoint`` and ``ContainerArguments``, together.

    Returns:
        Nothing if the command is none of ours.
    """
    if list(items[: len(BOOTSTRAP)]) != BOOTSTRAP:
        return {}
    found: dict[str, Recovered] = {}
    role, current = "", Recovered()
    for given in _after_prologue("".join(items[len(BOOTSTRAP) :])):
        name, statement = _arm(given)
        if name is not None:
            role, current = name, Recovered()
        if statement.startswith("export "):
            key, _, value = statement.removeprefix("export ").partition("=")
            current.env[key] = _unquoted(value)
        elif statement.startswith(_WORDS):
            current.words = _words_of(statement.removeprefix(_WORDS))
            found[role] = current
        elif statement.startswith("exec ") and _TRAIN in statement:
            current.words = _words_of(statement.partition(_TRAIN)[2])[1:]  # after the "--"
            current.env.pop("SAGEMAKER_SUBMIT_DIRECTORY", None)
            current.toolkit = True
            found[role] = current
    return found


def _after_prologue(script: str) -> Iterator[str]:
    """Return the statements after those that find out which replica this is."""
    statements = _split(script, ";")
    for statement in statements:
        if statement.startswith("export ") and f" {REPLICA_INDEX}=" in statement:
            break
    yield from statements


def _arm(statement: str) -> tuple[str | None, str]:
    """Return the role whose part of the script begins here, if one does, and the statement."""
    is_first = statement.startswith(_ARMS)
    pattern, *rest = _split(statement.removeprefix(_ARMS), ")")
    is_plain = " " not in pattern and "=" not in pattern and pattern != "*"
    if not rest or not (is_first or is_plain):
        return None, statement
    return _unquoted(pattern), ")".join(rest)


def _words_of(text: str) -> list[str]:
    return [_unquoted(part) for part in _split(text, " ") if part]


def _split(text: str, separator: str) -> Iterator[str]:
    quote, start = "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == separator:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _unquoted(word: str) -> str:
    """Return what `command.word` was given."""
    parts = re.findall(r"'[^']*'|\"[^\"]*\"|[^'\"]+", word)
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    if part[0] not in "'\"":
        return part
    inner = part[1:-1]
    if part[0] == "'":
        return inner
    octal = _OCTAL.fullmatch(inner)
    if octal is not None:
        return bytes(int(digits, 8) for digits in octal[1].split("\\")[1:]).decode()
    return {"$r": macros.replica_id, "$n": "\n"}.get(inner, inner)
