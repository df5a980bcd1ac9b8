"""Scheduler options: declared once, as a dataclass; checked, converted and documented from there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from shunter.errors import InvalidRunConfigException, OptionParseError, did_you_mean
from shunter.specs.conversion import (
    ConversionError,
    bare_type,
    default_of,
    from_text,
    from_value,
    has_default,
    holds_pairs,
    is_container_type,
    is_dict_type,
    is_list_type,
    list_item_type,
    parse_pairs,
    snake_case,
    type_name,
    unquote,
)
from shunter.specs.durations import has_units, parse_duration

CfgVal = str | int | float | bool | list[str] | dict[str, str] | None

# What an option may name that the files of a project may not choose until the user has trusted them.
PROGRAM = "a program to run"
CREDENTIALS = "credentials"
ADDRESS = "an address to contact"
DESTINATION = "a destination of code or data"
ACCESS = "access to this machine or a network"
PLUGIN = "a plug-in"
#: Only if they are outside of the project: files that are read, and places that are written to.
FILES_OUTSIDE = "files outside of the project"
PLACE_OUTSIDE = "a destination outside of the project"
#: An option of a plug-in that was declared without a word on it, as with TorchX's ``runopts.add``.
UNDECLARED = "something that its plug-in does not declare"

# How an option for the time limit of a job is written: 5400, 1:30:00, 1:30.
SECONDS = "seconds"
CLOCK = "hours:minutes:seconds"
HOURS_MINUTES = "hours:minutes"


@dataclass(frozen=True)
class runopt:
    """One option.

    Attributes:
        default: its value when none is given.
        opt_type: its type.
        is_required: whether it has to be given.
        help: what it does, in a sentence.
        secret: whether its value is kept out of logs, dry runs and the history.
        needs_trust: what it names that the files of a project may not choose until the user has trusted
            them, such as `PROGRAM`; "" if it is a mere default of the job.
        time_limit: how the option writes the time limit of a job, if it is that: `SECONDS`, `CLOCK` or
            `HOURS_MINUTES`; otherwise "".
    """

    default: CfgVal
    opt_type: Any
    is_required: bool
    help: str
    secret: bool = False
    needs_trust: str = ""
    time_limit: str = ""

    @property
    def opt_type_name(self) -> str:
        """The type as people write it: ``str``, ``list[str]``."""
        return type_name(self.opt_type)

    def convert(self, value: Any) -> Any:
        """Check a value, or convert a text given for it. None is accepted unless the option is required.

        Raises:
            ConversionError: it does not fit the type.
        """
        if value is None or (value == "None" and bare_type(self.opt_type) is not str):
            return None
        if isinstance(value, str) and bare_type(self.opt_type) is not str:
            if self.time_limit == SECONDS and has_units(value):
                value = str(math.ceil(parse_duration(value)))
            return from_text(self.opt_type, value)
        return from_value(self.opt_type, value)

    #: The name of `convert` in TorchX.
    cast_to_type = convert

    @property
    def is_type_list_of_str(self) -> bool:
        """Whether its values are lists of texts."""
        return is_list_type(self.opt_type) and list_item_type(self.opt_type) is str

    @property
    def is_type_dict_of_str(self) -> bool:
        """Whether its values are dicts from texts to texts."""
        return is_dict_type(self.opt_type)


def option(
    help: str,
    *,
    default: Any = MISSING,
    factory: Any = MISSING,
    secret: bool = False,
    needs_trust: str = "",
    time_limit: str = "",
    **metadata: Any,
) -> Any:
    """Declare a field of an options dataclass; see `runopt`. Without a default the option is required.

    A scheduler may keep more about the option in ``metadata``, such as the member of its request.
    """
    return field(  # type: ignore[call-overload,unused-ignore]
        default=default,
        default_factory=factory,
        metadata={
            "help": help,
            "secret": secret,
            "needs_trust": needs_trust,
            "time_limit": time_limit,
            **metadata,
        },
    )


class runopts:
    """The options of a scheduler, by name."""

    def __init__(self, **options: runopt) -> None:
        #: Under TorchX's name, which tests of schedulers read.
        self._opts = dict(options)

    @classmethod
    def from_dataclass(cls, opts: type[Any]) -> runopts:
        """Derive the options from a dataclass whose fields are made by `option`."""
        hints = get_type_hints(opts)
        return cls(
            **{
                item.name: runopt(
                    default_of(item),
                    bare_type(hints[item.name]),
                    not has_default(item),
                    item.metadata.get("help", ""),
                    item.metadata.get("secret", False),
                    item.metadata.get("needs_trust", ""),
                    item.metadata.get("time_limit", ""),
                )
                for item in fields(opts)
            }
        )

    def add(
        self, cfg_key: str, type_: Any, help: str, default: CfgVal = None, required: bool = False
    ) -> None:
        """Add an option.

        Raises:
            ValueError: it is required and has a default.
            TypeError: the default is not of the type.
        """
        if required and default is not None:
            raise ValueError(f"option {cfg_key!r} is required, so it cannot have the default {default!r}")
        if default is not None and default != []:  # TorchX's plugins write that for dicts too
            try:
                from_value(type_, default)
            except ConversionError as error:
                raise TypeError(f"option {cfg_key!r}: default {default!r}: {error}") from None
        self._opts[cfg_key] = runopt(default, type_, required, help, needs_trust=UNDECLARED)

    @staticmethod
    def is_type(obj: Any, tp: Any) -> bool:
        """Tell whether a value is of an option's type, as Python has it: True is an int, 1 is not a float."""
        try:
            return isinstance(obj, tp)
        except TypeError:  # such as list[str]: its items count too
            pass
        try:
            from_value(tp, obj)
        except ConversionError:
            return False
        return True

    def get(self, name: str) -> runopt | None:
        """Return the option of this name, which may be written in camelCase; None if it does not exist."""
        return self._opts.get(self.name_of(name))

    def name_of(self, name: str) -> str:
        """Return the name under which an option was declared, such as ``job_queue`` for ``jobQueue``."""
        declared = snake_case(name)
        return declared if name not in self._opts and declared in self._opts else name

    def _by_declared_name(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by the names under which their options were declared.

        Raises:
            InvalidRunConfigException: one stands there in two spellings, with different values.
        """
        values: dict[str, Any] = {}
        for key, value in cfg.items():
            name = self.name_of(key)
            if name in values and values[name] != value:
                raise InvalidRunConfigException(
                    f"option {name!r} is given in two spellings, with different values", name, cfg
                )
            values[name] = value
        return values

    def update(self, other: runopts) -> None:
        """Take over the options of another set."""
        self._opts.update(other._opts)

    def __or__(self, other: runopts) -> runopts:
        return type(self)(**{**self._opts, **other._opts})

    def __iter__(self) -> Iterator[tuple[str, runopt]]:
        return iter(self._opts.items())

    def __len__(self) -> int:
        return len(self._opts)

    def __contains__(self, name: object) -> bool:
        return name in self._opts

    def resolve(self, cfg: Mapping[str, Any] | Any, ignore_unknown: bool = False) -> dict[str, Any]:
        """Check a configuration and complete it with the defaults.

        Args:
            cfg: values by option name, or an instance of the options dataclass. Texts are converted.
            ignore_unknown: whether to keep values of unknown options instead of refusing them.

        Raises:
            InvalidRunConfigException: an option is unknown, missing, or does not fit its type. All that
                is wrong is reported at once.
        """
        values = self._by_declared_name(as_mapping(cfg))
        unknown = [] if ignore_unknown else [key for key in values if key not in self._opts]
        problems = {key: f"there is no option {key!r}. {hint_for(key, self._opts)}" for key in unknown}
        resolved = self._converted(values, problems)
        for name, opt in self._opts.items():
            if resolved.get(name) is None:
                resolved[name] = deepcopy(opt.default)
            if opt.is_required and resolved[name] is None:
                missing = f"option {name!r} ({opt.opt_type_name}) is required: {opt.help} (-cfg {name}=...)"
                problems.setdefault(name, missing)
        _refuse(problems, values)
        return resolved

    def _converted(self, values: Mapping[str, Any], problems: dict[str, str]) -> dict[str, Any]:
        """Return values converted to the types of their options; adds what does not fit to the problems."""
        converted = dict(values)
        for name, value in values.items():
            opt = self._opts.get(name)
            try:
                converted[name] = value if opt is None else opt.convert(value)
            except ConversionError as error:
                problems[name] = f"option {name!r} ({type_name(opt and opt.opt_type)}): {error}"
                converted[name] = None
        return converted

    def cfg_from_str(self, cfg_str: str) -> dict[str, Any]:
        """Read ``key=value,key2=value2``, each value converted to its option's type.

        Unknown keys are kept as text, for `resolve` to refuse.

        Raises:
            OptionParseError: the text does not parse.
            InvalidRunConfigException: a value does not fit its option's type.
        """
        pairs = self._by_declared_name(parse_pairs(cfg_str))
        for (before, value), key in zip(pairs.items(), list(pairs)[1:], strict=False):
            opt = self._opts.get(before)
            is_bare_pair = "=" in value and value[0] not in "[{'\""
            if key not in self._opts and opt is not None and is_bare_pair and holds_pairs(opt.opt_type):
                raise OptionParseError(
                    f"there is no option {key!r}",
                    hint=f"If it belongs to {before}, write the pairs as JSON or in quotes: "
                    f"{before}='{value},{key}={pairs[key]}'.",
                )
        for key, value in pairs.items():
            opt = self._opts.get(key)
            if opt is None or not is_container_type(opt.opt_type):  # those unquote their items
                pairs[key] = unquote(value)
        return self._all_converted(pairs)

    def cfg_from_json_repr(self, json_repr: str) -> dict[str, Any]:
        """Read a JSON object of option values.

        Raises:
            InvalidRunConfigException: it is not a JSON object, or a value does not fit.
        """
        try:
            data = json.loads(json_repr)
        except (ValueError, RecursionError) as error:
            raise InvalidRunConfigException(f"scheduler options are not JSON: {error}") from None
        if not isinstance(data, dict):
            raise InvalidRunConfigException("scheduler options must be a JSON object of name to value")
        return self._all_converted(self._by_declared_name(data))

    def _all_converted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        problems: dict[str, str] = {}
        converted = self._converted(values, problems)
        _refuse(problems, values)
        return converted

    def __repr__(self) -> str:
        required = [(name, opt) for name, opt in self if opt.is_required]
        optional = [(name, opt) for name, opt in self if not opt.is_required]
        usage = [f"{name}={name.upper()}" for name, _ in required]
        usage += [f"[{name}={name.upper()}]" for name, _ in optional]
        lines = ["usage:", "    " + ",".join(usage)]
        for title, options in (("required", required), ("optional", optional)):
            if options:
                lines += ["", f"{title} arguments:"]
            for name, opt in options:
                default = "" if opt.is_required else f", {opt.default}"
                lines.append(f"    {name}={name.upper()} ({opt.opt_type_name}{default})")
                lines.append(f"        {opt.help}")
        return "\n".join(lines)


def _refuse(problems: Mapping[str, str], cfg: Mapping[str, Any]) -> None:
    """Raise one error with all problems, which are given by option; does nothing if there are none."""
    if problems:
        text = "; ".join(problem.rstrip(".") for problem in problems.values())
        raise InvalidRunConfigException(text, next(iter(problems)), cfg)


def hint_for(key: str, known: Iterable[str]) -> str:
    """Return what to do about an option that a scheduler does not have."""
    if key == "chain":
        return "It cannot continue jobs after their time limit; `shunter schedulers` shows which can."
    return did_you_mean(key, known)


def as_mapping(cfg: Any) -> dict[str, Any]:
    """Return a configuration as a new dict, whether it is a mapping or an options dataclass."""
    if cfg is None:
        return {}
    if is_dataclass(cfg) and not isinstance(cfg, type):
        return {field.name: getattr(cfg, field.name) for field in fields(cfg)}
    if not isinstance(cfg, Mapping):
        raise InvalidRunConfigException(f"options={cfg!r}: expected a dict, such as {{'timeout': 60}}")
    return dict(cfg)
