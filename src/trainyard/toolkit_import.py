"""The launcher's only way to import the toolkit's modules, each on first use.

The launcher has the toolkit as a private package, ``trainyard._toolkit``: a link in a clone, files in an
installed wheel. A ``trainyard_toolkit`` installed alongside is a different package, and is not imported.
How jobs get the toolkit is in `workspace.toolkit_files`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard._toolkit import archive as archive
    from trainyard._toolkit import channels as channels
    from trainyard._toolkit import end_notice as end_notice
    from trainyard._toolkit import host_ledger as host_ledger
    from trainyard._toolkit import hung_program as hung_program
    from trainyard._toolkit import metric_shapes as metric_shapes
    from trainyard._toolkit import notification as notification
    from trainyard._toolkit import outputs as outputs
    from trainyard._toolkit import retry_rule as retry_rule
    from trainyard._toolkit import script_text as script_text
    from trainyard._toolkit import secret_rules as secret_rules
    from trainyard._toolkit import stack_dump as stack_dump
    from trainyard._toolkit import store as store
    from trainyard._toolkit import sync as sync
    from trainyard._toolkit.apps import booth as booth
    from trainyard._toolkit.apps import copying as copying
    from trainyard._toolkit.apps import monitoring as monitoring
    from trainyard._toolkit.apps import registering as registering
    from trainyard._toolkit.tracking import fsspec_tracker as fsspec_tracker
    from trainyard._toolkit.tracking import mlflow_tracker as mlflow_tracker
    from trainyard._toolkit.tracking import results as results
    from trainyard._toolkit.tracking import runs as runs

_MODULES = {
    **dict.fromkeys(("archive", "channels", "hung_program", "notification", "outputs"), ""),
    **dict.fromkeys(
        ("end_notice", "host_ledger", "metric_shapes", "retry_rule", "script_text", "secret_rules"), ""
    ),
    **dict.fromkeys(("stack_dump", "store", "sync"), ""),
    **dict.fromkeys(("booth", "copying", "monitoring", "registering"), ".apps"),
    **dict.fromkeys(("fsspec_tracker", "mlflow_tracker", "results", "runs"), ".tracking"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(f"trainyard._toolkit{_MODULES[name]}", fromlist=[name]), name)
