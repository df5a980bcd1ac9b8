"""Run by the Python of an installed TorchX: how it reads command lines, one a line on stdin, as JSON.

For each: the parsed arguments, and for `run` the job, without images. Run in a directory with the files that
the command lines name.
"""

import json
import multiprocessing
import os
import shlex
import sys

ROLE = ("name", "entrypoint", "args", "env", "num_replicas", "min_replicas", "max_retries", "port_map")


def as_json(app):
    roles = []
    for role in app.roles:
        found = {name: getattr(role, name) for name in ROLE}
        found["resource"] = [role.resource.cpu, role.resource.gpu, role.resource.memMB]
        found["mounts"] = [{k: str(v) for k, v in sorted(vars(mount).items())} for mount in role.mounts]
        roles.append(found)
    return {"name": app.name, "roles": roles}


def read(line):
    from torchx.cli.main import create_parser, get_sub_cmds
    from torchx.runner.config import load_sections
    from torchx.specs.builders import materialize_appdef
    from torchx.specs.finder import ComponentNotFoundException, get_component

    parser = create_parser(get_sub_cmds())
    words = shlex.split(line)[1:]
    if words[0].startswith("-") or "--help" in words[: words.index("--") if "--" in words else None]:
        return {"prints": True}
    try:
        given = vars(parser.parse_args(words))
    except SystemExit:
        return {"refused": True}
    found = {k: v for k, v in given.items() if k not in ("func", "log_level", "version", "cmd")}
    result = {"args": json.loads(json.dumps(found, default=str))}
    component = given.get("component_name_and_args")
    if component:
        defaults = load_sections(prefix="component").get(component[0], {})
        try:
            fn = get_component(component[0]).fn
        except ComponentNotFoundException:
            return {"refused": True}
        result["app"] = as_json(materialize_appdef(fn, component[1:], defaults))
    return result


def main():
    import torchx.cli.main  # once, before the processes are forked

    assert torchx.__version__ == "0.7.0"
    lines = [line.strip() for line in sys.stdin if line.strip()]
    # each in its own process: TorchX remembers which options it has seen
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        results = pool.map(read, lines, chunksize=1)
    text = json.dumps(dict(zip(lines, results, strict=True)), indent=1, default=str)
    print(text.replace(json.dumps(f"file://{os.getcwd()}"), "null"))  # the default workspace


if __name__ == "__main__":
    main()
