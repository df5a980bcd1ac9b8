"""Writes docs/reference/*.md and docs/llms.txt: what is declared once is not written down again by hand.

``python docs/generate.py`` writes the files; with ``--check`` it only tells which of them are out of date.
Nothing of installed plugins gets into them.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import shunter.errors
from shunter._toolkit import errors as toolkit_errors
from shunter.cli.command_line import COMMANDS, load_command
from shunter.cli.commands.schedulers import shown
from shunter.cli.parser import Parser, add_common_options
from shunter.components.component import Component
from shunter.components.component_help import read_docstring
from shunter.components.finder import BUILTINS, get_component
from shunter.components.parameters import Parameter
from shunter.diagnosis.causes import CAUSES
from shunter.diagnosis.waiting import KINDS
from shunter.runner.project_trust import SENSITIVE_PARAMETERS
from shunter.schedulers.capabilities import COLUMNS, capabilities_of
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factory
from shunter.specs import NULL_RESOURCE, Resource, named_resources_aws, named_resources_generic
from shunter.specs.conversion import type_name
from shunter.specs.options import PLUGIN
from shunter.system.identity import user_name

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
LLMS = DOCS / "llms.txt"
LINKED_ROW = re.compile(r"\| \[[^\]]+\]\((?P<page>[^)]+)\) \| (?P<text>.+) \|")
NOTE = "<!-- Made by docs/generate.py from the code (`make docs`). Do not edit. -->"


def schedulers() -> Iterator[str]:
    """Yield the lines of the page on scheduler options."""
    yield from heading("Options of schedulers")
    yield "Given with `-cfg NAME=VALUE,...`, in the configuration as `[scheduler.NAME]`, or in Python as"
    yield "`cfg`. `shunter runopts` shows the same, and the options of plugins' schedulers too."
    yield from matrix()
    for name in DEFAULT_SCHEDULER_MODULES:
        with closing(get_scheduler_factory(name)("docs")) as scheduler:
            options = list(scheduler.run_opts())
        yield from ("", f"## {name}", "")
        rows = []
        for key, option in options:
            default = "required" if option.is_required else shown_default(option.default)
            rows.append((code(key), code(option.opt_type_name), default, option.help))
        yield from table(("option", "type", "default", "meaning"), rows)


def matrix() -> Iterator[str]:
    """Yield the table of what each scheduler can do."""
    found = {}
    for name in DEFAULT_SCHEDULER_MODULES:
        with closing(get_scheduler_factory(name)("docs")) as scheduler:
            found[name] = capabilities_of(scheduler)
    yield from ("", "## What each can do", "")
    yield "`shunter schedulers` prints this table. A job that needs what its scheduler lacks is refused, or"
    yield "warned of, before it is submitted."
    yield ""
    rows = [
        (code(column), meaning, *(shown(found[name][column]) for name in found))
        for column, meaning in COLUMNS.items()
    ]
    yield from table(("", "meaning", *map(code, found)), rows)


def trust() -> Iterator[str]:
    """Yield the lines of the page on what a project's files may set."""
    yield from heading("What a project's files may set")
    yield "Without your [trust](../configuration.md#trust) a project's files may set what is listed here as"
    yield "*free*; all else counts only once you have trusted them. *Outside of the project* means: paths"
    yield "within the project, or in the current directory, are free. So is a value that equals the option's"
    yield "default, unless it replaces a value of your own configuration."
    yield from ("", "## Tables that are no scheduler's", "")
    rows = [
        ("`run.component`", "a file, or a module's function; the name of an installed component is free"),
        ("`run.workspace`", "code outside of the project, at a URL, or of an earlier job"),
        ("`tracker.NAME`", f"{PLUGIN}, and where its data go"),
    ]
    for name, kind in sorted(SENSITIVE_PARAMETERS.items()):
        component, _, parameter = name.rpartition(".")
        rows.append(
            (code(f'component."{component}".{parameter}' if component else f"component.*.{name}"), kind)
        )
    yield from table(("key", "what it names"), rows)
    yield ""
    yield "Free: the other keys of `[run]`, `[cli.list]`, and the other arguments of components."
    for name in DEFAULT_SCHEDULER_MODULES:
        with closing(get_scheduler_factory(name)("docs")) as scheduler:
            options = dict(scheduler.run_opts())
        yield from ("", f"## {name}", "")
        sensitive = {key: opt.needs_trust for key, opt in options.items() if opt.needs_trust}
        yield from table(("option", "what it names"), [(code(key), kind) for key, kind in sensitive.items()])
        yield from ("", f"Free: {', '.join(code(key) for key in options if key not in sensitive)}.")


def resources() -> Iterator[str]:
    """Yield the lines of the page on named resources."""
    yield from heading("Named resources")
    yield "Given to components as `-h NAME` (or `--h NAME`), in Python as `resource(h=NAME)`. Each is what"
    yield "one replica needs. Memory is in MiB."
    for title, group in (
        ("Sizes", named_resources_generic.NAMED_RESOURCES),
        ("AWS instance types", named_resources_aws.NAMED_RESOURCES),
    ):
        found = {name: factory() for name, factory in group.items()}
        yield from ("", f"## {title}", "")
        has_devices = any(resource.devices for resource in found.values())
        rows = [resource_row(name, resource, has_devices) for name, resource in found.items()]
        headers = (
            ["name", "cpus", "gpus", "memory", "devices"]
            if has_devices
            else ["name", "cpus", "gpus", "memory"]
        )
        yield from table(headers, rows)
    yield from ("", "`NULL` and `MISSING` leave everything open.")


def resource_row(name: str, resource: Resource, has_devices: bool) -> list[str]:
    """Return the table's row of one named resource."""
    figures = (resource.cpu, resource.gpu, resource.memMB)
    row = [code(name), *("open" if n == NULL_RESOURCE.cpu else str(n) for n in figures)]
    devices = ", ".join(f"{count} {code(device)}" for device, count in resource.devices.items())
    return [*row, devices] if has_devices else row


def components() -> Iterator[str]:
    """Yield the lines of the page on builtin components."""
    yield from heading("Builtin components")
    yield "`shunter run NAME --help` shows the same. How to write arguments:"
    yield "[components](../components.md)."
    for module, functions in sorted(BUILTINS.items()):
        for function in sorted(functions):
            component = get_component(f"{module}.{function}")
            yield from ("", f"## {component.name}", "", markup(component.summary), "")
            yield from component_table(component)


def component_table(component: Component) -> Iterator[str]:
    """Yield the table of a component's parameters."""
    _, docs = read_docstring(component.fn.__doc__)
    rows = []
    for parameter in component.parameters:
        names = (
            [code(f"*{parameter.name}")] if parameter.is_varargs else [code(o) for o in spellings(parameter)]
        )
        default = (
            "required"
            if parameter.required
            else ""
            if parameter.is_varargs
            else shown_default(parameter.default)
        )
        rows.append(
            (
                ", ".join(names),
                code(type_name(parameter.type)),
                default,
                docs.get(parameter.name, parameter.note),
            )
        )
    return table(("argument", "type", "default", "meaning"), rows)


def spellings(parameter: Parameter) -> Sequence[str]:
    """Return the option to show, and what is more than another spelling of it."""
    return (parameter.options[0], *parameter.aliases)


def commands() -> Iterator[str]:
    """Yield the lines of the page on the command line."""
    yield from heading("Commands")
    yield "`shunter COMMAND --help` shows the same. Every command also takes `--debug` (show the traceback"
    yield "of an error) and `--log_level LEVEL`. Exit codes: 0 ok, 1 the job failed, 2 usage,"
    yield "3 configuration, 4 backend, 5 no such job, 6 a lab's budget is spent, 124 `wait --timeout`"
    yield "expired, 130 interrupted."
    common = Parser("")
    add_common_options(common)
    known = {option for action in common._actions for option in action.option_strings}
    for name in COMMANDS:
        command = load_command(name)
        parser = Parser(f"shunter {name}", command.__doc__ or "")
        command.add_arguments(parser)
        yield from ("", f"## {name}", "", *described(parser.description or ""), "")
        actions = [
            a for a in parser._actions if not known & {*a.option_strings} and a.help != argparse.SUPPRESS
        ]
        yield from table(
            ("argument", "meaning"), [(spelled(action), action.help or "") for action in actions]
        )


def described(text: str) -> Iterator[str]:
    """Yield a description; indented or aligned lines stay as they are."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ""
        if "   " in paragraph:
            yield from ("```text", paragraph, "```")
        else:
            yield paragraph


def spelled(action: argparse.Action) -> str:
    """Return how an argument is written."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if not metavar and action.choices:
        metavar = "|".join(map(str, action.choices))
    if not action.option_strings:
        return code(metavar or action.dest)
    # --exit_code_from is --exit-code-from, and needs no second mention
    names = {option.replace("_", "-"): option for option in reversed(action.option_strings)}
    shown = [option for option in action.option_strings if option in names.values()]
    return ", ".join(code(f"{option} {metavar}" if action.nargs != 0 else option) for option in shown)


def errors() -> Iterator[str]:
    """Yield the lines of the page on exceptions, exit codes and causes of failure."""
    yield from heading("Errors")
    yield "## Exceptions of the launcher"
    yield ""
    yield "All are in `shunter.errors`. `message` says what was attempted and what is wrong, `hint`"
    yield "what to do; the exit code is that of the command."
    yield ""
    yield from table(("exception", "is a", "exit code", "raised when"), exception_rows(shunter.errors, True))
    yield from ("", "## Exceptions of the toolkit", "")
    yield "All are in `shunter_toolkit.errors`. The class is what `output/failure.json` has"
    yield "([how a run ends](../contract.md#how-a-run-ends))."
    yield ""
    rows = exception_rows(toolkit_errors, False)
    yield from table(("exception", "is a", "class", "raised when"), rows)
    yield from ("", "## Causes of failure", "")
    yield "What `shunter why` finds, by the name that `--json` gives."
    yield ""
    rows = [(code(cause.name), cause.text, markup(cause.advice)) for cause in CAUSES.values()]
    yield from table(("cause", "the replica ...", "what helps most often"), rows)
    yield from ("", "## Kinds of waiting", "")
    rows = [(code(kind), text, markup(advice)) for kind, (text, advice) in KINDS.items()]
    yield from table(("kind", "why the job waits", "what would start it"), rows)


def exception_rows(module: Any, has_exit_code: bool) -> Iterator[Sequence[str]]:
    """Yield the rows of a table of a module's exceptions, in the order of their declaration."""
    for name, value in vars(module).items():
        if name.startswith("_") or not inspect.isclass(value) or not issubclass(value, Exception):
            continue
        if (value.__module__, value.__name__) != (module.__name__, name):  # of another module, or an alias
            continue
        bases = [base for base in value.__mro__[1:] if not base.__name__.startswith("_")]
        what = value.exit_code if has_exit_code else code(getattr(value, "failure_class", ""))
        summary = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
        yield (code(name), code(bases[0].__name__), str(what), markup(" ".join(summary.split())))


def llms() -> Iterator[str]:
    """Yield the lines of llms.txt: the pages by subject, a line each (https://llmstxt.org)."""
    yield "# shunter"
    yield ""
    yield "> Run machine-learning and batch jobs on any scheduler (processes on this machine, Docker, Slurm,"
    yield "> Kubernetes, AWS Batch, SageMaker, Ray, LSF, Grid Engine) from one job description, and give the"
    yield "> script the same contract everywhere. Command line `shunter`, Python `shunter.runner`,"
    yield "> in jobs `shunter_toolkit`."
    for line in (DOCS / "index.md").read_text().splitlines():
        if line.startswith("## "):
            title = ["", line, ""]
        elif row := LINKED_ROW.fullmatch(line):
            yield from title
            title = []
            yield f"- [{title_of(DOCS / row['page'])}]({row['page']}): {row['text']}"


def title_of(path: Path) -> str:
    """Return the title of a page; of one that is not written yet, its name."""
    return path.read_text().partition("# ")[2].partition("\n")[0] if path.exists() else path.stem


def heading(title: str) -> Iterable[str]:
    """Return the beginning of a page."""
    return (NOTE, "", f"# {title}", "")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table."""
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |"


def shown_default(value: Any) -> str:
    """Return a default as a cell; empty where there is none, or where it is the name of the current user."""
    if value is None or value == user_name():
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(str(value)) if value != "" else code('""')


def markup(text: str) -> str:
    """Return reStructuredText's literals as Markdown's."""
    return text.replace("``", "`")


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "schedulers.md": schedulers,
    "trust.md": trust,
    "resources.md": resources,
    "components.md": components,
    "commands.md": commands,
    "errors.md": errors,
}


def page(name: str) -> str:
    """Return what a page of the reference should hold."""
    return "\n".join(PAGES[name]()) + "\n"


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file and what it should hold."""
    for name in PAGES:
        yield REFERENCE / name, page(name)
    yield LLMS, "\n".join(llms()) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or check them; returns 1 if one is out of date and was to be checked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is out of date")
    args = parser.parse_args(argv)
    stale = 0
    for path, text in files():
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if not args.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        sys.stdout.write(f"{path}: {'out of date' if args.check else 'written'}\n")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
