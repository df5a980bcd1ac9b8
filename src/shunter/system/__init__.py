"""The operating system: processes, file events, users and machines.

Nothing here knows about jobs. Only `linux` uses what only Linux has; `portable` is its counterpart.
"""

import os
import sys

#: If this variable is 1, `portable` is used on Linux too, to test it.
SWITCH = "SHUNTER_PORTABLE"

if sys.platform == "linux" and os.environ.get(SWITCH, "") in ("", "0"):
    from shunter.system.linux import *
else:
    from shunter.system.portable import *

__all__ = [
    "HAS_NAMESPACES",
    "HAS_SUBREAPER",
    "SEES_CONTAINER_PROCESSES",
    "SWITCH",
    "all_processes",
    "become_subreaper",
    "boot_id",
    "children_of",
    "data_ranges",
    "die_with_parent",
    "handles_sigterm",
    "has_mark",
    "has_writer",
    "is_pipe_path",
    "kernel_log_has",
    "memory_directory",
    "network_bytes",
    "open_file_events",
    "open_process",
    "out_of_memory_counters",
    "path_of_open_file",
    "process_facts",
    "process_place",
    "process_usage",
    "reserve_space",
    "routes",
    "send_file",
    "set_title",
    "share_blocks",
    "signal_process",
    "start_of",
    "unnamed_file",
    "user_of_peer",
    "wait_without_reaping",
]
