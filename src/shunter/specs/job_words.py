"""The words that say what the job of a script needs: ``--gpu 1`` before it, ``gpu = 1`` in its header.

A word is a parameter of `shunter.components.train.script`, under a name that people type; only ``time`` is an
option of the scheduler, whatever that calls it. The command line, `[tool.shunter]` of a script's header and
the executor of functions use this table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shunter.errors import ConfigError, InvalidRunConfigException, UsageError, did_you_mean
from shunter.specs.conversion import (
    ConversionError,
    from_text,
    from_value,
    is_dict_type,
    is_list_type,
)
from shunter.specs.durations import parse_time_limit
from shunter.specs.options import CLOCK, HOURS_MINUTES, SECONDS, runopts
from shunter.specs.resources import parse_memory

TIME = "time"
_MEMORY = "memMB"


@dataclass(frozen=True)
class JobWord:
    """One word.

    Attributes:
        name: how it is written; on the command line with ``--`` before it.
        help: what it means.
        type: the type of its values.
        parameter: the parameter of ``train.script`` that it sets; "" for the scheduler's time limit.
        aliases: other names of it.
        metavar: what stands for its value in the help.
        least: the least number that it can be; None where it is not a number.
    """

    name: str
    help: str
    type: Any
    parameter: str
    aliases: tuple[str, ...] = ()
    metavar: str = "N"
    least: int | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether its option can stand several times, the values being joined."""
        return is_dict_type(self.type) or is_list_type(self.type)

    def of_texts(self, texts: Sequence[str]) -> Any:
        """Return the value that a command line gives, as its parameter takes it.

        Raises:
            ConversionError: a text does not fit, or the word is given twice and takes one value.
        """
        if len(texts) > 1 and not self.is_repeatable:
            raise ConversionError(f"is given twice ({texts[0]!r} and {texts[1]!r})")
        values = [self._of_text(text) for text in texts]
        if is_dict_type(self.type):
            return {key: item for value in values for key, item in value.items()}
        return [item for value in values for item in value] if is_list_type(self.type) else values[0]

    def of_value(self, value: Any) -> Any:
        """Return a value of TOML or Python as its parameter takes it; a text is read as on a command line.

        Raises:
            ConversionError: it does not fit the type.
        """
        if isinstance(value, str):
            return self._of_text(value)
        if self.name in (TIME, "mem"):
            raise ConversionError(f"{value!r} is not a text with a unit, such as {_EXAMPLES[self.name]!r}")
        if self.name in ("metric", "mounts") and isinstance(value, list):  # of such texts
            return self.of_texts([str(item) for item in value])
        return self._in_range(from_value(self.type, value))

    def _in_range(self, value: Any) -> Any:
        if self.least is not None and value < self.least:
            raise ConversionError(f"{value} is less than {self.least}")
        return value

    def _of_text(self, text: str) -> Any:
        try:
            if self.name == TIME:
                return parse_time_limit(text)
            return parse_memory(text) if self.name == "mem" else self._in_range(from_text(self.type, text))
        except UsageError as error:
            raise ConversionError(f"{error.message}. {error.hint}".strip()) from None
        except ConversionError:
            raise
        except ValueError as error:
            raise ConversionError(f"{error}. Examples: {_EXAMPLES[self.name]}, 512M.") from None


_EXAMPLES = {TIME: "1h", "mem": "16G"}
_DISTRIBUTIONS = Literal["none", "torchrun", "mpi"]

JOB_WORDS: dict[str, JobWord] = {
    word.name: word
    for word in (
        JobWord("name", "name of the job; the script's by default", str, "name", metavar="NAME"),
        JobWord("image", "image to run in, such as python:3.12", str, "image", metavar="IMAGE"),
        JobWord("cpu", "cpus of each node", int, "cpu", least=1),
        JobWord("gpu", "gpus of each node", int, "gpu", least=0),
        JobWord("mem", "memory of each node, such as 16G or 512M", str, _MEMORY, metavar="SIZE"),
        JobWord("h", "named resource, instead of cpu, gpu and mem", str, "h", metavar="NAME"),
        JobWord(
            TIME,
            "time limit, such as 90s, 30m, 1h30m, 1d or 1:30:00, on every scheduler",
            str,
            "",
            metavar="DURATION",
        ),
        JobWord("nodes", "number of nodes (replicas)", int, "num_replicas", ("num_replicas",), least=1),
        JobWord(
            "distribution",
            "how the nodes work together: none, torchrun or mpi",
            _DISTRIBUTIONS,
            "distribution",
            metavar="KIND",
        ),
        JobWord(
            "processes", "processes on each node, with a distribution", int, "nproc", ("nproc",), least=1
        ),
        JobWord("mpi_options", "more options of mpirun", str, "mpi_options", metavar="TEXT"),
        JobWord(
            "environment",
            "packages that it runs with: a requirements.txt, a project with a uv.lock, or none",
            str,
            "environment",
            metavar="PATH",
        ),
        JobWord("env", "environment variables", dict[str, str], "env", metavar="NAME=VALUE"),
        JobWord(
            "retries", "number of restarts after a failure", int, "max_retries", ("max_retries",), least=0
        ),
        JobWord(
            "mounts",
            "a mount, such as type=bind,src=/data,dst=/data,readonly",
            list[str],
            "mounts",
            metavar="MOUNT",
        ),
        JobWord(
            "channel",
            "input data, such as training=s3://bucket/prefix",
            dict[str, str],
            "channel",
            metavar="NAME=URI",
        ),
        JobWord("output", "where the model and other results go", str, "output", metavar="URI"),
        JobWord(
            "checkpoints",
            "where checkpoints go, and come back from",
            str,
            "checkpoints",
            metavar="URI",
        ),
        JobWord(
            "metric",
            "metrics to read from the output: a name such as loss, or NAME=REGEX",
            dict[str, str | None],
            "metric",
            metavar="NAME[=REGEX]",
        ),
        JobWord("toolkit", "whether the script runs under the toolkit", bool, "toolkit", metavar="BOOL"),
    )
}
_BY_ANY_NAME = {name: word for word in JOB_WORDS.values() for name in (word.name, *word.aliases)}


def job_word(name: str) -> JobWord | None:
    """Return the word of a name, which may have ``-`` for ``_``; None if there is none."""
    return _BY_ANY_NAME.get(name.replace("-", "_"))


def job_of_words(
    values: Mapping[str, Any], scheduler: str, opts: runopts
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into parameters of ``train.script`` and options of a scheduler.

    Args:
        values: words and options by name, such as ``{"gpu": 1, "mem": "16G", "partition": "gpu"}``. An option
            of the scheduler that has the name of a word is not reached, except the time limit.
        scheduler: its name, for messages.
        opts: its options.

    Raises:
        ConfigError: a name is neither a word nor an option, a value does not fit its word, or the scheduler
            has no time limit.
    """
    parameters: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in values.items():
        word = job_word(name)
        try:
            if word is None:
                if opts.get(name) is None:
                    known = {*JOB_WORDS, *(option for option, _ in opts)}
                    raise InvalidRunConfigException(
                        f"{scheduler} has no option {name!r}", hint=did_you_mean(name, known)
                    )
                options[name] = value
            elif word.name == TIME:
                options |= dict([time_option(word.of_value(value), scheduler, opts)])
            else:
                parameters[word.parameter] = word.of_value(value)
        except ConversionError as error:
            raise ConfigError(f"{name}: {error}") from None
    return parameters, options


def time_limit_in(options: Mapping[str, Any], opts: runopts) -> float | None:
    """Return the time limit of a job that options set, in seconds; None without one that we can read."""
    for name, opt in opts:
        value = options.get(name)
        if not opt.time_limit or value is None:
            continue
        if opt.time_limit == SECONDS:
            return float(value)
        try:
            return parse_time_limit(str(value) if str(value).count(":") == 2 else f"{value}:00")
        except UsageError:
            return None
    return None


def time_option(seconds: float, scheduler: str, opts: runopts) -> tuple[str, Any]:
    """Return the scheduler's option for the time limit of a job, and its value. Fractions are rounded up.

    Raises:
        ConfigError: the scheduler has no such option.
    """
    whole = math.ceil(seconds)
    for name, opt in opts:
        if opt.time_limit == SECONDS:
            return name, whole
        if opt.time_limit == CLOCK:
            return name, f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
        if opt.time_limit == HOURS_MINUTES:
            minutes = math.ceil(whole / 60)
            return name, f"{minutes // 60}:{minutes % 60:02}"
    raise ConfigError(
        f"{scheduler} has no time limit for jobs, so time has no meaning there",
        hint=f"Leave time out, or choose another scheduler. `shunter runopts {scheduler}` shows the options.",
    )
