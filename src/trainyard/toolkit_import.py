"""The one door from the launcher to the toolkit: a module of it is imported when it is first asked for.

The launcher has the toolkit as a private package, ``trainyard._toolkit``: a link in a clone, files in an
installed wheel. A ``trainyard_toolkit`` that is installed beside it is another package, and is not imported.
How jobs get the toolkit is in `workspace.toolkit_files`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard._toolkit import archive as archive
    from trainyard._toolkit import channels as channels
    from trainyard._toolkit import outputs as outputs
    from trainyard._toolkit import secret_rules as secret_rules
    from trainyard._toolkit import store as store
    from trainyard._toolkit import sync as sync

_MODULES = ("archive", "channels", "outputs", "secret_rules", "store", "sync")


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__("trainyard._toolkit", fromlist=[name]), name)
