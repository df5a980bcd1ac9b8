"""The command that writes the stacks of a container's processes to the container's standard error."""

from __future__ import annotations

import shlex

from shunter._toolkit import stack_dump

# Runs in the container as root, privileged if that is allowed, with what every image has, and py-spy if it
# has that.
_IN_CONTAINER = r"""
exec >>/proc/1/fd/2 2>/dev/null || exit 1
echo "shunter: $1; the stacks of its processes:"
for place in /proc/[0-9]*; do
    pid=${place#/proc/}
    [ "$pid" != 1 ] && [ "$pid" != "$$" ] || continue
    words=$(tr '\000\n' '  ' <"$place/cmdline")
    [ -n "$words" ] || continue
    echo "--- process $pid: $words"
    if command -v py-spy >/dev/null && py-spy dump --pid "$pid"; then continue; fi
    caught=$(sed -n 's/^SigCgt:[^0-9a-f]*//p' "$place/status")
    if tr '\000' '\n' <"$place/environ" | grep -qx "$3=$2"; then
        case $caught in [13579bdf]???????????????) kill -"$2" "$pid" && sleep 1 && continue ;; esac
    fi
    for task in "$place"/task/*; do
        state=$(sed -n 's/^State:[^A-Z]*//p' "$task/status")
        echo "  thread ${task##*/} ($(cat "$task/comm")): $state, waits in $(cat "$task/wchan")"
        sed 's/^/    /' "$task/stack"
    done
done
echo "shunter: end of the stacks"
"""
# Ends as `stack_dump` does.
_OUTSIDE = f"""
eval "$1" >/dev/null; [ $? != {stack_dump.GPU_AT_WORK} ] || exit {stack_dump.GPU_AT_WORK}
docker=$2; shift 2
"$docker" exec --privileged "$@" >/dev/null 2>&1 || exec "$docker" exec "$@"
"""


def stack_command(docker: str, container: str, headline: str, mode: str, program: list[str]) -> list[str]:
    """Return the command that examines a container, and writes stacks if ``mode`` says so.

    Args:
        docker: path of the ``docker`` command.
        container: the container's name or id.
        headline: why, in words.
        mode: ``stack_dump.GPU`` or ``stack_dump.DUMP``.
        program: runs `stack_dump`.
    """
    gpus = [*program, stack_dump.GPU, "0", "", ""]
    if mode == stack_dump.GPU:
        return gpus
    signum, variable = str(int(stack_dump.SIGNAL)), stack_dump.VARIABLE
    inside = [container, "sh", "-c", _IN_CONTAINER, "sh", headline, signum, variable]
    return ["/bin/sh", "-c", _OUTSIDE, "sh", shlex.join(gpus), docker, "--user", "0", *inside]
