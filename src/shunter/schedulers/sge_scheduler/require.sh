#!/bin/sh
# Tells whether the jobs in some folders succeeded, for Grid Engine lets a job wait for the end of others, but not for
# their success. If one did not, the job in whose folder this script lies counts as cancelled. POSIX shell only.
#
#   sh require.sh FOLDER...

job=$(dirname "$0")

has_succeeded() { # has_succeeded FOLDER
    [ ! -e "$1/cancelled" ] || return 1
    ls "$1/state" >/dev/null 2>&1 # asks the server, so that new files are seen
    if [ -e "$1/state/job.0.start" ]; then
        ended_well "$1/state/job"
        return
    fi
    while read -r role count; do
        while [ "$count" -gt 0 ]; do
            count=$((count - 1))
            ended_well "$1/state/$role-$count" || return 1
        done
    done <"$1/layout"
}

ended_well() { # ended_well PREFIX: whether the last attempt ended with 0
    number=0
    while [ -e "$1.$((number + 1)).start" ]; do number=$((number + 1)); done
    [ "$(sed -n 's/^code=//p' "$1.$number.exit" 2>/dev/null)" = 0 ]
}

for other; do
    has_succeeded "$other" && continue
    printf 'the queue: %s, which it waits for, did not succeed' "${other##*/}" >"$job/.cancelled.$$" &&
        mv -f "$job/.cancelled.$$" "$job/cancelled"
    exit 1
done
