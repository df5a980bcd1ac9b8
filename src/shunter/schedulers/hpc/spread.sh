#!/bin/sh
# Starts a job's replicas on the hosts of its submission, where the cluster has no program that does (Grid Engine,
# LSF). It lies beside run.sh in the job's folder, and `run.sh job` runs it. POSIX shell and awk only.
#
#   sh spread.sh --needs ROLE=SLOTS,... --grace SECONDS [--lost PATTERN] [-- START...]
#       SHUNTER_HOSTS has lines "HOST SLOTS"; START HOST COMMAND runs a line of shell on another host (qrsh -inherit, blaunch).
#       PATTERN is what START writes when it has lost the host; state/lost.ATTEMPT is left then.
#       A replica goes to the first host that has as many slots left as it needs.
#
# When a replica fails, the others are asked to stop, and left to the queue after SECONDS. Its exit code is the
# first one that is not 0; 71 if the hosts do not hold the replicas, 69 for one whose host was lost.

job=$(cd "$(dirname "$0")" && pwd) || exit 70
needs= grace=60 lost=
while [ $# -gt 0 ]; do
    case $1 in
    --needs) needs=$2 && shift 2 ;;
    --grace) grace=$2 && shift 2 ;;
    --lost) lost=$2 && shift 2 ;;
    --) shift && break ;;
    *) break ;;
    esac
done
attempt=${SHUNTER_ATTEMPT:-0}

# A stop of the job reaches all its processes: the replicas end by themselves, and this script waits for them.
trap ':' TERM INT HUP USR1 USR2 XCPU

quote() { # quote TEXT: for the shell that reads a command on another host
    printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"
}

place() { # prints "HOST ROLE INDEX" for each replica, in order
    printf '%s\n' "$SHUNTER_HOSTS" | awk -v needs="$needs" -v layout="$job/layout" '
        NF >= 2 { if (!($1 in left)) hosts[++count] = $1; left[$1] += $2; got = got " " $1 ":" $2 }
        END {
            parts = split(needs, pairs, ",")
            for (i = 1; i <= parts; i++) { cut = match(pairs[i], /=[^=]*$/); want[substr(pairs[i], 1, cut - 1)] = substr(pairs[i], cut + 1) + 0 }
            while ((getline line < layout) > 0) {
                split(line, field, " ")
                for (k = 0; k < field[2]; k++) {
                    slots = want[field[1]] > 0 ? want[field[1]] : 1
                    for (h = 1; h <= count; h++) if (left[hosts[h]] >= slots) break
                    if (h > count) {
                        print "shunter: the hosts of this job (" substr(got, 2) ") have no " slots " slots left for " field[1] "/" k > "/dev/stderr"
                        exit 1
                    }
                    left[hosts[h]] -= slots
                    print hosts[h], field[1], k
                }
            }
        }'
}

is_here() { # is_here HOST
    here=$(hostname)
    [ "$1" = "$here" ] || [ "${1%%.*}" = "${here%%.*}" ]
}

scratch=$(mktemp -d) || exit 70
trap 'rm -rf "$scratch"' EXIT
place >"$scratch/places" || exit 71
mkfifo "$scratch/ends" || exit 70
exec 3<>"$scratch/ends"

left=0
while read -r host role index <&4; do
    rank0=$(awk -v role="$role" '$2 == role && $3 == 0 { print $1; exit }' "$scratch/places")
    if is_here "$host"; then
        (
            trap ':' TERM INT HUP USR1 USR2 XCPU
            sh "$job/run.sh" replica --attempt "$attempt" --rank0 "$rank0" "$role" "$index" 3>&- 4<&- </dev/null
            echo "$? $role/$index" >&3
        ) &
    else
        (
            trap '' TERM INT HUP USR1 USR2 XCPU
            errors="$scratch/$role-$index"
            watcher=
            "$@" "$host" "SHUNTER_WARNING_SIGNALS=$(quote "${SHUNTER_WARNING_SIGNALS:-}") sh $(quote "$job/run.sh") replica --attempt $attempt --rank0 $(quote "$rank0") $(quote "$role") $index" 3>&- 4<&- </dev/null 2>"$errors" &
            start=$!
            if [ -n "$lost" ]; then
                while sleep 2; do
                    grep -q "$lost" "$errors" && kill -s KILL "$start"
                done >/dev/null 2>&1 3>&- 4<&- &
                watcher=$!
            fi
            wait "$start"
            code=$?
            [ -z "$watcher" ] || kill -s KILL "$watcher" 2>/dev/null
            cat "$errors" >&2
            # how the program ended is in its record; START may have lost it
            record="$job/state/$role-$index.$attempt.exit"
            for _ in 1 2 3 4 5; do
                ls "$job/state" >/dev/null
                [ -e "$record" ] && break
                sleep 1
            done
            if [ -n "$lost" ] && [ ! -e "$record" ] && grep -q "$lost" "$errors"; then # qrsh ends with 0 then
                code=69
                echo "$host" >"$job/state/lost.$attempt"
                printf '%s\n' code=69 why=ended "time=$(date +%s)" "host=$host" "reason=its host $host was lost" >"$record"
            fi
            said=$(sed -n 's/^code=//p' "$record" 2>/dev/null)
            echo "${said:-$code} $role/$index" >&3
        ) &
    fi
    left=$((left + 1))
done 4<"$scratch/places"

code=0
while [ "$left" -gt 0 ]; do
    read -r ended name <&3 || continue # a signal came
    [ "$ended" != late ] || break
    left=$((left - 1))
    if [ "$ended" != 0 ] && [ "$code" = 0 ]; then
        code=$ended
        [ "$left" -gt 0 ] || break
        echo "shunter: $name ended with $ended, so the other replicas are stopped" >&2
        [ -s "$job/state/stop.$attempt" ] || printf 'peer\n' >"$job/state/stop.$attempt"
        (sleep "$grace"; echo "late -" >&3) &
    fi
done
exit "$code"
