"""The launcher's only way to import the toolkit's modules.

The launcher has the toolkit as a private package, ``shunter._toolkit``: a link in a clone, files in an
installed wheel. A ``shunter_toolkit`` installed alongside is a different package, and is not imported.
How jobs get the toolkit is in `workspace.toolkit_files`.
"""

from shunter._toolkit import archive as archive
from shunter._toolkit import channels as channels
from shunter._toolkit import end_notice as end_notice
from shunter._toolkit import host_ledger as host_ledger
from shunter._toolkit import hung_program as hung_program
from shunter._toolkit import metric_shapes as metric_shapes
from shunter._toolkit import notification as notification
from shunter._toolkit import outputs as outputs
from shunter._toolkit import retry_rule as retry_rule
from shunter._toolkit import script_text as script_text
from shunter._toolkit import secret_rules as secret_rules
from shunter._toolkit import stack_dump as stack_dump
from shunter._toolkit import store as store
from shunter._toolkit import sync as sync
from shunter._toolkit.apps import booth as booth
from shunter._toolkit.apps import copying as copying
from shunter._toolkit.apps import monitoring as monitoring
from shunter._toolkit.apps import registering as registering
from shunter._toolkit.tracking import fsspec_tracker as fsspec_tracker
from shunter._toolkit.tracking import mlflow_tracker as mlflow_tracker
from shunter._toolkit.tracking import results as results
from shunter._toolkit.tracking import runs as runs
