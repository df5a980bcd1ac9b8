"""The option ``distribution``: the SageMaker SDK's dictionary, as the hyperparameters that start the ranks.

Images with AWS's framework toolkits decide by these hyperparameters what starts the script: torchrun, MPI, a
parameter server, SMDDP, Neuron's XLA. They are those that the SDK's estimators of the frameworks send, that
of PyTorch where these differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.errors import did_you_mean

#: Ways to start ranks, with the settings of each.
KINDS: dict[str, set[str]] = {
    "torch_distributed": {"enabled"},
    "pytorchddp": {"enabled", "custom_mpi_options"},
    "smdistributed": {"dataparallel", "modelparallel"},
    "mpi": {"enabled", "processes_per_host", "custom_mpi_options"},
    "parameter_server": {"enabled"},
    "multi_worker_mirrored_strategy": {"enabled"},
    "pytorchxla": {"enabled"},
}
_STRATEGIES = {
    "dataparallel": {"enabled", "custom_mpi_options"},
    "modelparallel": {"enabled", "parameters"},
}
_SWITCHES = {
    "pytorchxla": "sagemaker_pytorch_xla_multi_worker_enabled",
    "parameter_server": "sagemaker_parameter_server_enabled",
    "multi_worker_mirrored_strategy": "sagemaker_multi_worker_mirrored_strategy_enabled",
}
GROUPS = "instance_groups"
INSTANCE_TYPE = "sagemaker_instance_type"


def hyperparameters_of(
    distribution: Mapping[str, Any], instance_type: str | None, groups: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the hyperparameters of a distribution that is in order.

    Args:
        distribution: the SDK's dictionary.
        instance_type: the type of all instances; None where there are groups, or it is not known yet.
        groups: names of the job's instance groups.
    """
    given = _as_smdistributed(distribution)
    torch = _is_enabled(given, "torch_distributed")
    values = {} if torch and "smdistributed" not in given else _common(given, instance_type, groups)
    if torch:
        values["sagemaker_torch_distributed_enabled"] = True
        if instance_type is not None:
            values[INSTANCE_TYPE] = instance_type
    return values


def _as_smdistributed(distribution: Mapping[str, Any]) -> dict[str, Any]:
    """Return a distribution with ``pytorchddp`` by its other name, as the SDK sends it."""
    given = dict(distribution)
    if "pytorchddp" in given:
        given["smdistributed"] = {"dataparallel": given.pop("pytorchddp")}
    return given


def _common(given: Mapping[str, Any], instance_type: str | None, groups: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: _is_enabled(given, kind) for kind, name in _SWITCHES.items() if kind in given
    }
    if "mpi" in given:
        mpi = given["mpi"]
        values["sagemaker_mpi_enabled"] = mpi.get("enabled", False)
        if mpi.get("processes_per_host"):
            values["sagemaker_mpi_num_of_processes_per_host"] = mpi["processes_per_host"]
        values["sagemaker_mpi_custom_mpi_options"] = mpi.get("custom_mpi_options", "")
    strategies = given.get("smdistributed", {})
    data, model = strategies.get("dataparallel", {}), strategies.get("modelparallel", {})
    if strategies:
        if model.get("enabled") and model.get("parameters"):
            values["mp_parameters"] = model["parameters"]
        values["sagemaker_distributed_dataparallel_enabled"] = data.get("enabled", False)
        values[INSTANCE_TYPE] = instance_type
        if data.get("enabled"):
            values["sagemaker_distributed_dataparallel_custom_mpi_options"] = data.get(
                "custom_mpi_options", ""
            )
    chosen = list(given.get(GROUPS) or (groups if len(groups) == 1 else []))
    if chosen and (_is_enabled(given, "mpi") or data.get("enabled")):
        values["sagemaker_distribution_instance_groups"] = chosen
    return values


def _is_enabled(given: Mapping[str, Any], kind: str) -> bool:
    return bool(given.get(kind, {}).get("enabled", False))


# ---- what is wrong


def problems_of(
    distribution: Mapping[str, Any], types: Sequence[str], groups: Sequence[str], program: str
) -> Iterator[str]:
    """Find what is wrong with a distribution; each text begins with the option's name.

    Args:
        distribution: the option.
        types: the types of the job's instances.
        groups: names of the job's instance groups.
        program: the script.
    """
    found = list(_shape_problems(distribution))
    yield from (f"distribution: {problem}" for problem in found)
    if not found:
        yield from (f"distribution: {problem}" for problem in _rule_problems(distribution, types, groups))
        if _is_enabled(distribution, "torch_distributed") and not program.endswith(".py"):
            yield f"distribution: torch_distributed starts Python scripts, not {program}"


def _shape_problems(distribution: Mapping[str, Any]) -> Iterator[str]:
    for kind, settings in distribution.items():
        if kind == GROUPS:
            if not isinstance(settings, list) or not all(isinstance(name, str) for name in settings):
                yield f"{GROUPS} is {settings!r}, it must be a list of the groups' names"
        elif kind not in KINDS:
            yield f"there is no {kind!r}. {did_you_mean(str(kind), [*KINDS, GROUPS])}"
        else:
            yield from _settings_problems(kind, settings, KINDS[kind])
    strategies = distribution.get("smdistributed")
    if isinstance(strategies, dict):
        for name in strategies.keys() & _STRATEGIES.keys():
            yield from _settings_problems(f"smdistributed.{name}", strategies[name], _STRATEGIES[name])


def _settings_problems(kind: str, settings: Any, known: set[str]) -> Iterator[str]:
    if not isinstance(settings, dict):
        example = '{"dataparallel": {"enabled": true}}' if kind == "smdistributed" else '{"enabled": true}'
        yield f"{kind} is {settings!r}, it must be an object such as {example}"
        return
    for key, value in settings.items():
        if key not in known:
            yield f"{kind} has no {key!r}. {did_you_mean(str(key), known)}"
        elif key == "enabled" and not isinstance(value, bool):
            yield f"{kind}.enabled is {value!r}, it must be true or false"
        elif key == "processes_per_host" and (not isinstance(value, int) or value < 1):
            yield f"{kind}.processes_per_host is {value!r}, it must be a whole number of at least 1"
        elif key == "custom_mpi_options" and not isinstance(value, str):
            yield f"{kind}.custom_mpi_options is {value!r}, it must be text: the options of mpirun"
        elif key == "parameters" and not isinstance(value, dict):
            yield f"{kind}.parameters is {value!r}, it must be an object"


def _rule_problems(
    distribution: Mapping[str, Any], types: Sequence[str], groups: Sequence[str]
) -> Iterator[str]:
    """Check the rules that the SDK and the developer guide have."""
    if "pytorchddp" in distribution and "smdistributed" in distribution:
        yield "pytorchddp and smdistributed are both given: they are two names of one"
    given = _as_smdistributed(distribution)
    kinds = [kind for kind in given if kind != GROUPS]
    strategies = given.get("smdistributed", {})
    if len(strategies) > 1:
        yield f"smdistributed has {' and '.join(sorted(strategies))}; it takes one strategy"
    torch = _is_enabled(given, "torch_distributed")
    unused = [kind for kind in kinds if kind not in ("torch_distributed", "smdistributed")]
    if torch and unused:
        yield f"torch_distributed is enabled, so {' and '.join(unused)} would not be used; give one of them"
    if _is_enabled(given, "multi_worker_mirrored_strategy"):
        others = [kind for kind in ("smdistributed", "parameter_server") if kind in given]
        if others:
            yield f"multi_worker_mirrored_strategy does not go together with {' and '.join(others)}"
    for kind in types:
        # developer guide: on Trainium torchrun starts the workers
        if kind.startswith("ml.trn") and kinds not in ([], ["torch_distributed"]):
            yield f"{kind} is a Trainium instance, on which only torch_distributed can be used"
        if kind == "ml.p5.48xlarge" and strategies and not torch:
            yield f"smdistributed on {kind} needs torch_distributed too"
    yield from _group_problems(given, strategies, groups)


def _group_problems(
    given: Mapping[str, Any], strategies: Mapping[str, Any], groups: Sequence[str]
) -> Iterator[str]:
    chosen = given.get(GROUPS) or []
    unknown = [name for name in chosen if name not in groups]
    by_group = _is_enabled(given, "mpi") or _is_enabled(strategies, "dataparallel")
    if unknown:
        said = f"known: {', '.join(groups)}" if groups else "the job has no instance groups"
        yield f"{GROUPS} has {', '.join(unknown)}, which the job does not have; {said}"
    elif chosen and not by_group:
        yield f"{GROUPS} is given, which is for mpi and smdistributed.dataparallel alone"
    elif len(groups) > 1 and by_group and len(chosen) != 1:
        yield f"{GROUPS} must name one of {', '.join(groups)}, on which the ranks run"
