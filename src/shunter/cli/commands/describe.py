"""Show a job's definition (roles, commands, images, variables, resources), and where its results are."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from shunter.cli.console import print_result
from shunter.cli.parser import Parser, add_handle_argument, add_json_option
from shunter.redaction import Redactor
from shunter.runner import get_runner
from shunter.runner.observation import unknown_job
from shunter.specs.serialize import to_json
from shunter.terminal import clean


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    add_json_option(parser)


def run(args: Namespace) -> None:
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        app = runner.describe(handle)
        status = runner.status(handle) if app is not None and app.roles else None
    if app is None:
        raise unknown_job(handle)
    data = Redactor().json(to_json(app))
    results = status.results if status is not None else None
    lines = [f"Job: {handle}", app_text(data), *([f"\nResults: {clean(results)}"] if results else [])]
    print_result(args.json, {"handle": handle, "app": data, "results": results}, lines)


def app_text(data: dict[str, Any]) -> str:
    """Return a job's definition, as JSON values, as text."""
    lines = [f"Name: {clean(data['name'])}", *_pairs("Metadata", data["metadata"])]
    for role in data["roles"]:
        lines += ["", f"Role {clean(role['name'])}:", *(f"  {line}" for line in _role_lines(role))]
    return "\n".join(lines)


def _role_lines(role: dict[str, Any]) -> Iterator[str]:
    least, resource = role["min_replicas"], role["resource"]
    facts = {
        "replicas": str(role["num_replicas"]) + (f" (at least {least})" if least is not None else ""),
        "image": role["image"],
        "command": shlex.join([role["entrypoint"], *role["args"]]),
        "resource": ", ".join(f"{name} {resource[name]}" for name in _AMOUNTS if resource[name] >= 0),
        "retries": f"{role['max_retries']} per {role['retry_policy'].lower()}" if role["max_retries"] else "",
        "ports": _list(role["port_map"]),
    }
    yield from (f"{name}: {clean(value)}" for name, value in facts.items() if value)
    yield from (f"mount: {clean(_list(mount))}" for mount in role["mounts"])
    for title in ("capabilities", "devices"):
        yield from _pairs(title, resource[title])
    for title in ("env", "metadata"):
        yield from _pairs(title, role[title])


_AMOUNTS = ("cpu", "gpu", "memMB")


def _list(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _pairs(title: str, values: dict[str, Any]) -> list[str]:
    if not values:
        return []
    return [f"{title}:", *(f"  {clean(name)}={clean(str(value))}" for name, value in values.items())]
