"""Show a job's definition (roles, commands, images, variables, resources), and where its results are."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from typing import Any

from shunter.cli.console import out, print_json
from shunter.cli.parser import add_handle_argument, add_json_option
from shunter.errors import EXIT_OK
from shunter.redaction import Redactor
from shunter.runner import get_runner
from shunter.runner.observation import unknown_job
from shunter.specs.serialize import to_json
from shunter.terminal import clean


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        app = runner.describe(handle)
        status = runner.status(handle) if app is not None and app.roles else None
    if app is None:
        raise unknown_job(handle)
    data = Redactor().json(to_json(app))
    results = status.results if status is not None else None
    if args.json:
        print_json({"handle": handle, "app": data, "results": results})
    else:
        said = f"\n\nResults: {clean(results)}" if results else ""
        out(f"Job: {handle}\n{app_text(data)}{said}")
    return EXIT_OK


def app_text(data: dict[str, Any]) -> str:
    """Return a job's definition, as JSON values, as text."""
    lines = [f"Name: {clean(data['name'])}"]
    lines += _pairs("Metadata", data["metadata"], "")
    for role in data["roles"]:
        lines += ["", *_role_lines(role)]
    return "\n".join(lines)


def _role_lines(role: dict[str, Any]) -> list[str]:
    resource = role["resource"]
    needs = [f"cpu {resource['cpu']}"] if resource["cpu"] >= 0 else []
    needs += [f"gpu {resource['gpu']}"] if resource["gpu"] >= 0 else []
    needs += [f"memMB {resource['memMB']}"] if resource["memMB"] >= 0 else []
    facts = {
        "replicas": _replicas(role),
        "image": role["image"],
        "command": shlex.join([role["entrypoint"], *role["args"]]),
        "resource": ", ".join(needs),
        "retries": f"{role['max_retries']} per {role['retry_policy'].lower()}" if role["max_retries"] else "",
        "ports": ", ".join(f"{name} {port}" for name, port in role["port_map"].items()),
    }
    lines = [f"Role {clean(role['name'])}:"]
    lines += [f"  {name}: {clean(str(value))}" for name, value in facts.items() if value]
    for mount in role["mounts"]:
        lines.append("  mount: " + ", ".join(f"{key} {clean(str(value))}" for key, value in mount.items()))
    for title, values in (("capabilities", resource["capabilities"]), ("devices", resource["devices"])):
        lines += _pairs(title, values, "  ")
    return lines + _pairs("env", role["env"], "  ") + _pairs("metadata", role["metadata"], "  ")


def _replicas(role: dict[str, Any]) -> str:
    least = role["min_replicas"]
    return str(role["num_replicas"]) + (f" (at least {least})" if least is not None else "")


def _pairs(title: str, values: dict[str, Any], indent: str) -> list[str]:
    if not values:
        return []
    return [f"{indent}{title}:", *(f"{indent}  {clean(k)}={clean(str(v))}" for k, v in values.items())]
