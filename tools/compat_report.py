"""Compare the public API of TorchX with what shunter serves under its name.

    compat_report.py                       with the TorchX that is recorded in tests/compat/recorded
    compat_report.py --python PYTHON       with the one that this Python has installed
    compat_report.py --record PYTHON NAME  record that one as tests/compat/recorded/NAME.json
    compat_report.py --write               write the result into docs/migrating-from-torchx.md

A name is *equal*, *more* (ours takes all that theirs does), *differing* or *absent*. Each that differs has
its reason in compat_reasons.py, and each that may be absent in EXEMPT.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "compat" / "recorded"
DOCUMENT = ROOT / "docs" / "migrating-from-torchx.md"
BEGIN, END = "<!-- api: written by `make compat-report` -->", "<!-- end of api -->"
API = Path(__file__).with_name("torchx_api.py")

#: Names that need not exist: pattern of ``module.name`` -> why.
EXEMPT = {
    r"torchx\.apps\..*": "what TorchX's programs for jobs consist of; the programs exist",
    r"torchx\.cli\.(?!cmd_base|cmd_log\.(?!CmdLog|get|print)|main|colors|argparse_util).*": (
        "what TorchX's own commands consist of"
    ),
    r"torchx\.cli\.main\.(?!main).*": "what TorchX's own commands consist of",
    r"torchx\.schedulers\.(gcp_batch|kubernetes_mcad)_scheduler.*": "GCP Batch, MCAD: gone from TorchX",
    r"torchx\.schedulers\.\w+_scheduler\.(?!\w+(Scheduler|Opts|Job)$|create_scheduler).*": (
        "helpers of TorchX's own schedulers"
    ),
    r"torchx\.schedulers\.(docker_scheduler\.DockerJob|ray_scheduler\.RayJob)": (
        "helpers of TorchX's own schedulers"
    ),
    r"torchx\.schedulers\.(ray|streams)(\..*)?": "helpers of TorchX's own schedulers",
    r"torchx\.schedulers\.(api\.DAYS_IN_2_WEEKS|load_group)": "helpers of TorchX's own schedulers",
    r"torchx\.schedulers\.(ids|devices)\.(?!make_unique|random_id|get_device_mounts).*": (
        "parts of `make_unique` and `get_device_mounts`"
    ),
    r"torchx\.specs\.file_linter\.(?!validate|LinterMessage|get_fn_docstring).*": "the rules for components",
    r"torchx\.specs\.finder\.(?!get_|Component\w+Exception).*": "how components are found",
    r"torchx\.specs\.builders\.parse_args": "how arguments of components are parsed",
    r"torchx\.components\.(train|interpret)": "modules without components",
    r"torchx\.runner\.config\.DEFAULT_CONFIG_DIRS": "what tests replace",
    r"torchx\.(.*\.)?(logger|log|[A-Z]|PackageType|WorkspaceConfigType|KeyType|ResultType)": (
        "loggers and type variables"
    ),
    r"torchx\.(deprecations|util\.log_tee_helpers).*": "small helpers",
    r"torchx\.util\.(io\.(COMPONENTS_DIR|get_abspath)|modules\.import_attr)": "small helpers",
    r"torchx\.util\.types\.(get_|is_).*": "small helpers",
    r"torchx\.specs\.(api\.)?(RESET|YELLOW_BOLD|TORCHX_HOME|FB_NAMED_RESOURCES)": "small helpers",
    r"torchx\.specs\.(api\.)?(cases|get_type_name|import_attr|load_group|overlays\.validate_overlay)": (
        "small helpers"
    ),
    r"torchx\.(runner\.api\.NONE|(schedulers|specs)\.plugins)": "names that happen to be imported there",
    r"torchx\.workspace\.(api|docker_workspace)\.(?!\w*Mixin|Workspace$|walk_workspace).*": (
        "deprecated builders, and parts of the Docker workspace"
    ),
}


def main() -> int:
    """Print the comparison, or write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", help="a Python with TorchX")
    parser.add_argument("--record", nargs=2, metavar=("PYTHON", "NAME"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.record:
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / f"{args.record[1]}.json").write_text(as_text(described(args.record[0])))
        return 0
    versions = {"installed": described(args.python)} if args.python else recorded()
    if args.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{as_markdown(versions)}\n{END}{rest.partition(END)[2]}")
    failed = False
    for version, theirs in versions.items():
        result = compared(theirs, served(theirs))
        print(f"TorchX {version}: " + ", ".join(f"{len(names)} {what}" for what, names in result.items()))
        for name, note in result["differing"].items():
            print(f"  differing: {name}: {note} ({reason(name) or 'no reason is given'})")
            failed = failed or not reason(name)
        for name, note in result["absent"].items():
            print(f"  absent: {name}: {note}")
        failed = failed or bool(result["absent"])
    return int(failed)


def recorded() -> dict[str, dict[str, Any]]:
    """Return the versions of TorchX that are recorded, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RECORDED.glob("*.json"))}


def described(python: str, names: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """Return the API that a Python has under the name `torchx`."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        if names is not None:
            path = Path(folder, "names.json")
            path.write_text(json.dumps(names))
            arguments = [str(path)]
        # the home directory of what is recorded, since it is among the default values
        environ = {**os.environ, "HOME": "/root", "SHUNTER_TORCHX": "instead" if names is not None else "0"}
        start = "import shunter.compat.torchx; " if names is not None else ""
        code = (
            f"{start}import runpy, sys; sys.argv = sys.argv[1:]; "
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        done = subprocess.run(
            [os.path.abspath(python), "-c", code, str(API), *arguments],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def served(theirs: dict[str, Any]) -> dict[str, Any]:
    """Return what shunter serves of an API."""
    return described(
        sys.executable, {module: [name for name in names if name] for module, names in theirs.items()}
    )


def compared(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the names by result, each with what there is to say of it."""
    result: dict[str, dict[str, str]] = {"equal": {}, "more": {}, "differing": {}, "absent": {}, "exempt": {}}
    for module, names in theirs.items():
        broken = ours[module].get("", {}).get("why", "")
        if re.search("No module named '(torchx|shunter)", broken):
            why = exemption(module)
            result["exempt" if why else "absent"][module] = why or "the module is not served"
            continue
        for name, their in names.items():
            if not name:
                continue
            full = f"{module}.{name}"
            our = ours[module].get(name)
            exempt = exemption(full)
            if exempt:
                result["exempt"][full] = exempt
            elif our is None or "No module named 'shunter" in our.get("why", ""):
                result["absent"][full] = "not served"
            else:
                notes = differences(their, our)
                what = "differing" if notes else "equal" if their == our else "more"
                result[what][full] = "; ".join(notes)
    return result


def exemption(name: str) -> str:
    """Return why a name may be absent; "" if it may not."""
    return next((why for pattern, why in EXEMPT.items() if re.fullmatch(pattern, name)), "")


def differences(their: dict[str, Any], our: dict[str, Any]) -> list[str]:
    """Return in what ours would not do for a user of theirs."""
    if "unknown" in (their["kind"], our["kind"]) or "broken" in (their["kind"], our["kind"]):
        return []
    if their["kind"] == "value" or our["kind"] == "value":
        if their.get("type") in {"_UnionGenericAlias", "UnionType", "TypeVar", "_GenericAlias", "PosixPath"}:
            return []
        if "Callable" in str(their.get("value")):
            return []
        return value_notes(their.get("value"), our.get("value"))
    if their["kind"] != our["kind"]:
        return [f"a {our['kind']}, there a {their['kind']}"]
    notes = (
        parameter_notes("", their.get("parameters"), our.get("parameters")) if "members" not in their else []
    )
    for name, value in their.get("members", {}).items():
        if our.get("members", {}).get(name) != value:
            notes.append(f"the member {name} is missing")
    missing = [name for name in their.get("catches", []) if name not in our.get("catches", [])]
    notes += [f"is no {name}" for name in missing]
    if their.get("dataclass") and not our.get("dataclass"):
        notes.append("is no dataclass")
    notes += [
        f"the field {name} is missing"
        for name in their.get("fields", [])
        if name not in our.get("fields", [])
    ]
    for name, parameters in their.get("methods", {}).items():
        if name not in our.get("methods", {}) and name not in our.get("fields", []):
            notes.append(f"{name} is missing")
        elif parameters is not None:
            notes += parameter_notes(f"{name}: ", parameters, our["methods"].get(name))
    return notes


def value_notes(their: Any, our: Any) -> list[str]:
    """Return how a constant differs; more entries of a mapping or a set do not count."""
    if isinstance(their, dict) and isinstance(our, dict):
        return [
            f"{key} is {our.get(key, 'missing')}, there {value}"
            for key, value in their.items()
            if key not in our or (value != our[key] and "<" not in value)
        ]
    if isinstance(their, list) and isinstance(our, list):
        return [f"{item} is missing" for item in their if item not in our]
    same = normal(str(their)) == normal(str(our)) or " object" in str(their)
    return [] if same else [f"{their} is {our}"]


def parameter_notes(where: str, theirs: list[list[Any]] | None, ours: list[list[Any]] | None) -> list[str]:
    """Return how a call that fits theirs could fail, or mean something else, with ours."""
    if theirs is None or ours is None:
        return []
    notes = []
    our = {name: (kind, default) for name, kind, default in ours}
    takes_any = any(kind == "VAR_KEYWORD" for _, kind, _ in ours)
    takes_more = any(kind == "VAR_POSITIONAL" for _, kind, _ in ours)
    positional = [name for name, kind, _ in ours if kind.startswith("POSITIONAL")]
    for index, (name, kind, default) in enumerate(theirs):
        if kind.startswith("VAR_"):
            if not (takes_any if kind == "VAR_KEYWORD" else takes_more):
                notes.append(f"{where}takes no further {'names' if kind == 'VAR_KEYWORD' else 'values'}")
            continue
        if name not in our:
            if not takes_any or (
                kind.startswith("POSITIONAL") and not takes_more and index >= len(positional)
            ):
                notes.append(f"{where}{name} is missing")
            continue
        if kind == "POSITIONAL_OR_KEYWORD" and (index >= len(positional) or positional[index] != name):
            notes.append(f"{where}{name} is at another place")
        if default is not None and normal(default) != normal(our[name][1]):
            notes.append(f"{where}{name} is {our[name][1]} by default, there {default}")
    known = {name for name, _, _ in theirs}
    notes += [
        f"{where}{name} has to be given too"
        for name, kind, default in ours
        if name not in known and default is None and not kind.startswith("VAR_")
    ]
    return notes


def normal(default: str | None) -> str:
    """Return a default without what does not count: images of other versions, how an empty value is made."""
    text = re.sub(r"(?<=ghcr\.io/pytorch/torchx:)[\w.]+|(?<=/tmp/)tmp\w+|, tags=\{\}", "", default or "")
    return (
        "<made>"
        if re.search(r"factory|MISSING|<made>|object object", text) or text in ("()", "{}", "[]")
        else text
    )


def as_text(api: dict[str, Any]) -> str:
    """Return an API as JSON, a name on each line."""
    lines = []
    for module, names in sorted(api.items()):
        body = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(names.items())
        )
        lines.append(f"{json.dumps(module)}: {{\n{body}\n}}" if names else f"{json.dumps(module)}: {{}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_markdown(versions: dict[str, dict[str, Any]]) -> str:
    """Return the tables of the document."""
    parts = ["| TorchX | equal | more | differing | absent | exempt |", "|---|--:|--:|--:|--:|--:|"]
    differing: set[str] = set()
    for version, theirs in versions.items():
        result = compared(theirs, served(theirs))
        parts.append(f"| {version} | " + " | ".join(str(len(names)) for names in result.values()) + " |")
        differing |= set(result["differing"])
    parts += ["", "The names that differ, and why:", "", "| names | why |", "|---|---|"]
    by_reason: dict[str, list[str]] = {}
    for name in sorted(differing):
        by_reason.setdefault(reason(name), []).append(f"`{name.removeprefix('torchx.')}`")
    parts += [f"| {', '.join(names)} | {why} |" for why, names in by_reason.items()]
    return "\n".join(parts)


def reasonless(versions: dict[str, dict[str, Any]]) -> list[str]:
    """Return the names that differ without a reason."""
    found = [name for theirs in versions.values() for name in compared(theirs, served(theirs))["differing"]]
    return sorted({name for name in found if not reason(name)})


def reason(name: str) -> str:
    """Return why a name differs; "" if nobody has said."""
    from compat_reasons import REASONS

    return next(
        (why for pattern, why in REASONS.items() if re.fullmatch(pattern, name.removeprefix("torchx."))), ""
    )


if __name__ == "__main__":
    sys.exit(main())
