r"""The command of a container, where more has to happen than the request can say.

All instances of a training job get the same command and variables. Which replica one is, and where the
first one is, only ``resourceconfig.json`` tells, in the container. So a small shell script goes before the
program: it finds that out, sets ``TORCHX_REPLICA_IDX`` and ``TORCHX_RANK0_HOST``, unpacks the code, and
becomes the program.

The script travels in ``ContainerArguments``: it is cut into pieces of 256 characters, which `BOOTSTRAP` puts
together again. It needs ``sh``, and ``tar`` with gzip where there is code. Line ends, which the service's
pattern ``.*`` may not take, are made in the container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import ConfigError

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
_PYTHON = "y=python3;command -v $y >/dev/null 2>&1||y=python"


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
    script = _script(programs, code, several=several)
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


def _script(programs: Mapping[str, Program], code: Code | None, *, several: bool) -> str:
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
    steps.append(f"unset SAGEMAKER_TRAINING_MODULE;{_PYTHON}")
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
