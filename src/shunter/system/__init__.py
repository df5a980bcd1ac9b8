"""The operating system: processes, file events, files, the network, users. Nothing here knows about jobs."""

from shunter.system.file_events import open_file_events
from shunter.system.files import copy_content, has_writer, is_pipe_path, memory_directory, reserve_space
from shunter.system.kernel_calls import (
    become_subreaper,
    die_with_parent,
    open_process,
    set_title,
    signal_process,
)
from shunter.system.network import network_bytes, routes, user_of_peer
from shunter.system.platform_choice import (
    HAS_SUBREAPER,
    IS_LINUX,
    SWITCH,
)
from shunter.system.process_table import (
    all_processes,
    boot_id,
    children_of,
    has_mark,
    process_facts,
    process_place,
    process_usage,
    start_of,
)

__all__ = [
    "HAS_SUBREAPER",
    "IS_LINUX",
    "SWITCH",
    "all_processes",
    "become_subreaper",
    "boot_id",
    "children_of",
    "copy_content",
    "die_with_parent",
    "has_mark",
    "has_writer",
    "is_pipe_path",
    "memory_directory",
    "network_bytes",
    "open_file_events",
    "open_process",
    "process_facts",
    "process_place",
    "process_usage",
    "reserve_space",
    "routes",
    "set_title",
    "signal_process",
    "start_of",
    "user_of_peer",
]
