#!/bin/sh
# Runs a job's replicas on the nodes of a cluster. It lies in the job's folder; POSIX shell only.
#
#   sh run.sh job     [--link N] [--retries N] [--rank0 HOST] -- COMMAND...
#       around everything that one submission starts; COMMAND starts the replicas (srun, mpirun, blaunch, ...)
#   sh run.sh replica [--link N] [--retries N] [--rank0 HOST] [--attempt N] [--grace SECONDS] ROLE INDEX
#       around one replica. INDEX is a number, or a variable with its number: SLURM_PROCID, LSB_JOBINDEX-1.
#       --grace is for queues that kill all replicas once one has failed: it keeps this one until the others have ended.
#       ROLE may be "-": INDEX counts through all roles of the job then, in the order of the file "layout".
#       --link, --retries and --rank0 are for replicas that no "job" is around, such as tasks of an array.
#   sh run.sh enter NOTE ROLE K COMMAND...
#       runs a command beside a running replica, in its directory and with its variables. It ends with 0, and the
#       command's exit code is in state/.NOTE: what enters a job for a queue may lose it, or complain about it.
#   sh run.sh require FOLDER...
#       tells whether the jobs in these folders succeeded; if one did not, this job counts as cancelled
#   sh run.sh index --attempt N ROLE K WRAPPER PROGRAM
#       keeps the index of a replica, whose wrapper (this script) and program have these process ids
#
# What it leaves behind, each file written whole or not at all:
#   cancelled                                if another job has the lease of its race, which the file "lease" names
#   state/job.ATTEMPT.start, .exit           of the submission
#   state/ROLE-K.ATTEMPT.start, .exit        of replica K: KEY=VALUE lines
#   logs/ROLE-K/ATTEMPT.out, .err            what the program wrote
#   state/ROLE-K.ATTEMPT.hung                that the program hangs, or did, if the file "hang" asks for a watch
#   logs/ROLE-K/ATTEMPT.idx                  "NANOSECONDS SIZE_OF_OUT SIZE_OF_ERR" whenever they had grown
#
# "why" in an exit record: ended (the program ended by itself), time-limit (after the warning), stopped (SIGTERM).
# Exit codes of this script: the program's; 124 if it ended with 0 after the warning of the time limit.

job=$(cd "$(dirname "$0")" && pwd) || exit 70
mask=$(umask)
umask 077
mode=$1
shift
link=0 retries=0 rank0= grace=0 attempt=${SHUNTER_ATTEMPT:-}
while [ $# -gt 0 ]; do
    case $1 in
    --link) link=$2 && shift 2 ;;
    --retries) retries=$2 && shift 2 ;;
    --rank0) rank0=$2 && shift 2 ;;
    --attempt) attempt=$2 && shift 2 ;;
    --grace) grace=$2 && shift 2 ;;
    --) shift && break ;;
    *) break ;;
    esac
done

now() {
    seconds=$(date +%s.%N)
    case $seconds in
    *[!0-9.]*) seconds=${seconds%%.*}.000000000 ;; # busybox, in containers, has no %N
    esac
    printf '%s' "$seconds"
}

record() { # record FILE LINE...
    file=$1
    shift
    printf '%s\n' "$@" >"$file.$$.tmp" && mv -f "$file.$$.tmp" "$file"
}

value() { # value FILE KEY: prints what a record has for a key
    sed -n "s/^$2=//p" "$1" 2>/dev/null
}

attempts_of() { # attempts_of NAME: prints how many attempts have started
    number=0
    while [ -e "$job/state/$1.$number.start" ]; do number=$((number + 1)); done
    echo "$number"
}

next_attempt() { # next_attempt NAME: prints the number of the next attempt, which it claims
    number=$(attempts_of "$1")
    until mkdir "$job/state/.$1.$number" 2>/dev/null; do
        number=$((number + 1))
        [ "$number" -lt 100000 ] || exit 74
    done
    echo "$number"
}

exit_of() { # exit_of NAME: prints the path of the exit record of its last attempt; there is none if nothing has started
    echo "$job/state/$1.$(($(attempts_of "$1") - 1)).exit"
}

go_on() { # go_on NAME: whether this link of a chain has anything to do; otherwise $over is how it ended
    over=0
    [ ! -e "$job/cancelled" ] && [ ! -e "$job/state/$1.cancelled" ] || return 1
    [ "$link" -gt 0 ] || return 0
    previous=$(exit_of "$1")
    [ "$(value "$previous" why)" = ended ] || return 0
    over=$(value "$previous" code)
    return 1
}

# ---- races: the lease belongs to the job, whatever its attempts, nodes and replicas

take_lease() { # takes the lease of the race that the job is in; ends if another job has it, or nobody can have it
    [ -e "$job/lease" ] || return 0
    { IFS= read -r lease && read -r handle; } <"$job/lease" || exit 74
    is_new=yes
    case $lease in
    "{"*) take_object ;;
    *) take_file ;;
    esac
    if [ "$holder" = "$handle" ]; then
        [ -z "$is_new" ] || cancel_rivals
        return 0
    fi
    rm -f "$job/notify.waiting.json"
    record "$job/cancelled" "race lost to $holder"
    exit 1 # what waits for its success must not start
}

take_object() { # takes a lease that is an object of S3, by presigned URLs; leaves in $holder who has it
    holder=$(cat "$job/lease.holder" 2>/dev/null)
    [ -z "$holder" ] || { is_new=; return 0; }
    interpreter=$(find_python) || { echo "run.sh: no Python on node $(uname -n) can take the lease of the race" >&2; exit 74; }
    holder=$(SHUNTER_LEASE_SECRET=$lease TORCHX_JOB_ID=$handle "$interpreter" -I "$job/lease.py") || exit 74
    record "$job/lease.holder" "$holder"
}

take_file() { # takes a lease that is a file; leaves in $holder who has it
    holder=$(cat "$lease" 2>/dev/null)
    [ "$holder" != "$handle" ] || { is_new=; return 0; }
    own="$lease.${job##*/}.$(uname -n).$$"
    # a hard link, since it makes the name with the content, and only one of many succeeds, also on NFS
    printf '%s\n' "$handle" >"$own" && ln "$own" "$lease" 2>/dev/null
    rm -f "$own"
    ls "${lease%/*}" >/dev/null 2>&1 # asks the server, so that a new file is seen
    holder=$(cat "$lease" 2>/dev/null)
    [ -n "$holder" ] || { echo "run.sh: the lease of the race, $lease, cannot be taken" >&2; exit 74; }
}

cancel_rivals() { # takes the others out of this queue; without that they find out at their own start
    sed -n '3,$p' "$job/lease" | while IFS= read -r rival && IFS= read -r command; do
        [ -s "$rival/native" ] || continue # it has not been submitted
        record "$rival/cancelled" "race lost to $handle"
        rm -f "$rival/notify.waiting.json"
        # shellcheck disable=SC2046,SC2086
        $command $(cat "$rival/native") </dev/null >/dev/null 2>&1 &
    done
}

# ---- signals: the first one says why the program has to stop
#
# None may get lost. A child that has just been forked still has the traps of this script, so a signal that reaches it
# then has no effect: `send` leaves a mark first, which the child looks for when its traps are gone. And bash may end with
# a syntax error if a trap runs while it reads "$(...)": there are traps only while a program runs or is to be restarted.

why= pid= mark= signals="TERM INT HUP USR1 USR2 XCPU"
stop() { # stop WHY: pass SIGTERM on, so that a checkpoint is written
    ignore_signals # once is enough, and what writes the records must not be killed
    why=$1
    signalled=yes
    [ -z "$pid" ] || send TERM
}

send() { # send SIGNAL: to the program with all that it started
    [ "$1" != TERM ] || : >"$mark"
    kill -s "$1" -- "-$pid" 2>/dev/null || kill -s "$1" "$pid" 2>/dev/null
}

ignore_signals() {
    # shellcheck disable=SC2086
    trap '' $signals
}

watch_signals() {
    [ -z "$why" ] || return
    # shellcheck disable=SC2086
    trap 'stop stopped' $signals
    for signal in USR1 ${SHUNTER_WARNING_SIGNALS:-USR2 XCPU}; do
        # shellcheck disable=SC2064
        trap 'stop time-limit' "$signal"
    done
}

stops_first() { # whether the program must not be started, because a signal came before
    [ -n "$why" ] || [ -s "$mark" ] || { [ "$mode" = replica ] && [ -e "$mark" ]; }
}

await() { # await: waits for $pid, through a signal; leaves its exit code in $code
    while :; do
        signalled=
        wait "$pid"
        code=$?
        [ -n "$signalled" ] || return
        kill -0 "$pid" 2>/dev/null && continue
        # A signal and the end came together. Bash may have collected the program and forgotten it: another `wait` would
        # never return, and how it ended is not known.
        case " $(jobs -rp 2>/dev/null | tr '\n' ' ')" in
        *" $pid "*) code=143 && return ;;
        esac
        wait "$pid" 2>/dev/null
        again=$?
        [ "$again" = 127 ] || code=$again
        return
    done
}

# ---- one submission

run_job() {
    go_on job || exit "${over:-0}"
    take_lease
    while :; do
        attempt=$(next_attempt job)
        mark="$job/state/stop.$attempt"
        export SHUNTER_ATTEMPT="$attempt"
        [ -z "$rank0" ] || export SHUNTER_RANK0="$rank0"
        : >"$mark"
        record "$job/state/job.$attempt.start" "host=$(uname -n)" "pid=$$" "time=$(now)" "link=$link"
        send() { # what started the replicas must not be stopped before they are: they see the file
            printf '%s\n' "$why" >"$mark"
            [ "$why" = time-limit ] || kill -s "$1" "$pid" 2>/dev/null
        }
        watch_signals
        (
            stops_first && exit 143
            umask "$mask" && exec "$@"
        ) &
        pid=$!
        [ -z "$why" ] || send TERM
        await
        pid=
        [ "$retries" -gt 0 ] || ignore_signals
        record "$job/state/job.$attempt.exit" "code=$code" "why=${why:-ended}" "time=$(now)"
        [ "$code" != 0 ] && [ -z "$why" ] && [ "$retries" -gt 0 ] || break
        retries=$((retries - 1))
    done
    [ -n "$why" ] || follow_up "$code"
    [ "$code" = 0 ] && [ "$why" = time-limit ] && code=124
    exit "$code"
}

# ---- one replica

run_replica() {
    role=$1
    index=$(index_of "$2") || exit 64
    if [ "$role" = - ]; then
        while read -r name count; do
            [ "$index" -lt "$count" ] && role=$name && break
            index=$((index - count))
        done <"$job/layout"
        [ "$role" != - ] || exit 64
    fi
    name="$role-$index"
    given=$attempt
    [ -n "$given" ] || go_on "$name" || exit "${over:-0}"
    [ -n "$given" ] || take_lease
    [ -d "$job/logs/$name" ] || mkdir "$job/logs/$name" # without -p: a job that was removed stays removed
    while :; do
        attempt=${given:-$(next_attempt "$name")}
        run_attempt
        [ "$code" != 0 ] && [ -z "$why" ] && [ -z "$given" ] && [ "$retries" -gt 0 ] || break
        retries=$((retries - 1))
        kill -s KILL -- "-$last" 2>/dev/null # what the last attempt has left running
    done
    [ "$code" = 0 ] && [ "$why" = time-limit ] && code=124
    [ "$code" = 0 ] || [ "$grace" = 0 ] || await_others
    exit "$code"
}

await_others() { # asks the other replicas to stop, and waits until they have ended, at most for the grace period
    [ -n "$why" ] || [ -s "$job/state/stop.$attempt" ] || printf 'peer\n' >"$job/state/stop.$attempt"
    all=0 pause=1 until=$(($(date +%s) + grace))
    while read -r _ count; do all=$((all + count)); done <"$job/layout"
    while [ "$(ls "$job/state" | grep -c -e "-[0-9]*\.$attempt\.exit\$")" -lt "$all" ]; do
        left=$((until - $(date +%s)))
        [ "$left" -gt 0 ] || return
        [ "$pause" -lt "$left" ] || pause=$left
        sleep "$pause"
        pause=$((pause + 1)) # thousands of replicas may look at this folder
    done
}

index_of() { # index_of EXPRESSION
    variable=${1%%[-+]*}
    case $variable in
    *[!0-9]*) eval "[ -n \"\${$variable:-}\" ]" || { echo "run.sh: $variable, which numbers replicas, is not set" >&2; return 1; } ;;
    esac
    echo $(($1))
}

run_attempt() {
    log="$job/logs/$name/$attempt"
    mark="$job/state/.stop.$name.$attempt"
    record "$job/state/$name.$attempt.start" \
        "host=$(uname -n)" "pid=$$" "time=$(now)" "native=${SLURM_JOB_ID:-${LSB_JOBID:-${JOB_ID:-}}}" "link=$link"
    : >>"$log.out"
    : >>"$log.err"
    watch_signals
    (
        stops_first && exit 143
        umask "$mask"
        export_names 2>/dev/null # a shell may report in the program's log that a signal ended one of its tools
        . "$job/roles/$role.sh" # sets variables, changes the directory, and sets $@ to the command
        if [ "$1" = python ] && ! command -v python >/dev/null 2>&1; then # many systems call it python3 alone
            shift
            set -- python3 "$@"
        fi
        exec setsid "$@"
    ) >>"$log.out" 2>>"$log.err" </dev/null &
    pid=$!
    # it outlives a script that is killed with its process group
    setsid sh "$job/run.sh" index --attempt "$attempt" "$role" "$index" "$$" "$pid" </dev/null >/dev/null 2>&1 &
    indexer=$!
    watcher=
    [ ! -e "$job/hang" ] || watch_for_hanging
    [ -z "$why" ] || send TERM
    await
    last=$pid pid=
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null
    [ "$retries" -gt 0 ] || ignore_signals
    kill "$indexer" 2>/dev/null # if it comes too early to be seen, the exit record ends it
    note_sizes
    reason=$(cat "$log.reason" 2>/dev/null)
    record "$job/state/$name.$attempt.exit" "code=$code" "why=${why:-ended}" "time=$(now)" "host=$(uname -n)" \
        "reason=$reason"
}

find_python() {
    command -v python3 || command -v python
}

watch_for_hanging() { # has the toolkit look after the program; its process is $watcher
    read -r seconds on_hang grace toolkit <"$job/hang"
    interpreter=$(find_python) || {
        printf 'note=%s\n' "no Python on node $(uname -n) looks whether it hangs" >"$job/state/$name.$attempt.hung"
        return
    }
    "$interpreter" -S "$toolkit" watch --log "$log.out" --log "$log.err" --results "$job/ml/$name/output" \
        --mark "$job/state/$name.$attempt.hung" --reason "$log.reason" --on-hang "$on_hang" --grace "$grace" \
        "$seconds" "$pid" </dev/null >/dev/null 2>&1 &
    watcher=$!
}

follow_up() { # follow_up CODE: what follows on the end of the job, as far as it is known now; the queue does the rest
    [ -e "$job/follow-up.json" ] && [ "$1" -lt 128 ] || return
    read -r toolkit <"$job/follow-up.toolkit"
    interpreter=$(find_python) || return
    "$interpreter" -S "$toolkit" follow-up "$job" "$link" "$1" </dev/null >>"$job/logs/follow-up.out" 2>&1
}

enter() { # enter NOTE COMMAND...
    note=$1
    shift
    umask "$mask"
    export_names
    entered() { . "$job/roles/$role.sh"; } # its own "set" stays within the function
    trap ':' TERM INT HUP QUIT USR1 USR2
    (
        entered
        exec "$@"
    )
    record "$job/state/.$note" "$?"
}

no_folder() { # no_folder PATH: says why the program cannot be started; it was to run in that folder
    why_not="the folder $1 does not exist on node $(uname -n)"
    [ ! -e "$1" ] || why_not="the folder $1 cannot be entered on node $(uname -n)"
    echo "shunter: $why_not" >&2
    [ "$mode" != replica ] || printf '%s' "$why_not" | tr '\n' ' ' >"$log.reason"
    exit 72
}

export_names() { # what every program of the attempt finds in its environment
    export SHUNTER_ATTEMPT="$attempt" SHUNTER_JOB_DIR="$job" SHUNTER_REPLICA="$index"
    TORCHX_RANK0_HOST=$(find_rank0)
    log="$job/logs/$name/$attempt"
    export TORCHX_RANK0_HOST TORCHELASTIC_ERROR_FILE="$log.error.json" PET_LOG_DIR="$job/logs/$name/torchelastic"
}

find_rank0() { # prints where the first replica of the role runs
    first=${rank0:-${SHUNTER_RANK0:-}}
    if [ -z "$first" ] && [ "$index" = 0 ]; then first=$(uname -n); fi
    if [ -z "$first" ] && [ -z "$given" ]; then first=localhost; fi # it does not work with the others
    tries=0
    while [ -z "$first" ] && [ "$tries" -lt 600 ]; do
        ls "$job/state" >/dev/null # asks the server, so that a new file is seen
        first=$(value "$job/state/$role-0.$attempt.start" host)
        tries=$((tries + 1))
        [ -n "$first" ] || sleep 0.5
    done
    printf '%s' "${first:-localhost}"
}

note_sizes() { # appends the sizes of both logs to the index, if they have changed
    sizes=$(stat -c %s "$log.out" "$log.err" 2>/dev/null | tr '\n' ' ')
    [ "$sizes" != "$noted" ] || return 0
    noted=$sizes
    echo "$(now | tr -d .) ${noted% }" >>"$log.idx"
}

# keep_index WRAPPER PROGRAM: keeps the index until the program has ended. It also sends the wrapper the
# signal that the file "stop" asks for, and kills the program, which runs in a separate session, when a queue
# has killed only the wrapper and its process group.
keep_index() {
    trap '' HUP INT USR1 USR2 XCPU # TERM ends it
    noted= asked= waited=0
    while is_alive "$1" && [ ! -e "$job/state/$name.$attempt.exit" ]; do
        note_sizes
        if [ -z "$asked" ] && [ -e "$job/state/stop.$attempt" ] && read -r asked <"$job/state/stop.$attempt"; then
            case $asked in
            time-limit) kill -s USR1 "$1" ;;
            *) kill -s TERM "$1" ;;
            esac
        fi
        waited=$((waited + 1)) # often at first, since most jobs are short; after ten minutes every 5 s
        if [ "$waited" -lt 80 ]; then sleep 0.25; elif [ "$waited" -lt 680 ]; then sleep 1; else sleep 5; fi
    done
    [ -e "$job/state/$name.$attempt.exit" ] || kill -s KILL -- "-$2" 2>/dev/null
}

require() { # for queues that let a job wait for the end of others, but not for their success
    own=$job
    for job; do
        ls "$job/state" >/dev/null 2>&1 # asks the server, so that new files are seen
        has_succeeded && continue
        record "$own/cancelled" "the queue: ${job##*/}, which it waits for, did not succeed"
        exit 1
    done
}

has_succeeded() {
    [ ! -e "$job/cancelled" ] || return 1
    if [ -e "$job/state/job.0.start" ]; then
        [ "$(value "$(exit_of job)" code)" = 0 ]
        return
    fi
    while read -r role count; do
        while [ "$count" -gt 0 ]; do
            count=$((count - 1))
            [ "$(value "$(exit_of "$role-$count")" code)" = 0 ] || return 1
        done
    done <"$job/layout"
}

is_alive() { # is_alive PID: a zombie is not; it may stay for ever where the first process is not an init
    kill -0 "$1" 2>/dev/null || return
    { read -r _ _ process_state _ <"/proc/$1/stat"; } 2>/dev/null || return 0
    [ "$process_state" != Z ]
}

case $mode in
job) run_job "$@" ;;
replica) run_replica "$@" ;;
require) require "$@" ;;
index)
    name="$1-$2" log="$job/logs/$1-$2/$attempt"
    keep_index "$3" "$4"
    ;;
enter)
    note=$1 role=$2 index=$3 name="$2-$3"
    shift 3
    attempt=$(($(attempts_of "$name") - 1)) given=
    [ ! -e "$job/state/job.$attempt.start" ] || rank0=$(value "$job/state/$role-0.$attempt.start" host)
    enter "$note" "$@"
    ;;
*)
    echo "run.sh: there is no mode '$mode'" >&2
    exit 64
    ;;
esac
