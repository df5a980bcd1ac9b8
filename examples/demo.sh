#!/bin/sh
# The demo: jobs that train a classifier of handwritten digits on this machine, and what shunter shows of them.
# `make demo` gives it an environment. Every command is shown as it can be typed.
set -eu
cd "$(dirname "$0")/.."
venv=${1:-.venv-demo}
export SHUNTER_SCHEDULER=local_cwd

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
explain() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
show() {
    printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"
    "$@"
}

explain 'The environment, in which `shunter` is this one:'
show . "$venv/bin/activate"

explain 'A job of two replicas. Each trains with a seed of its own.'
show shunter run train.script --script examples/digits/train.py --num_replicas 2 -- --epochs 6
show shunter plot loss --height 12
show shunter status
results=$(shunter status | sed -n 's/^Results: //p')

explain 'The same script with a learning rate that is too high: the job fails.'
if show shunter run ./examples/digits/train.py --lr 10; then
    printf 'This job should have failed.\n' >&2
    exit 1
fi
show shunter why

explain 'A sweep: four learning rates, as one job with a replica for each.'
show shunter sweep --wait ./examples/digits/train.py --epochs 3 --lr 0.003,0.01,0.03,0.1
show shunter points --best max:accuracy
show shunter plot accuracy --best max --height 12

explain 'What the first job has left, its models:'
show ls "${results#"$PWD"/}"/*/model

cat <<END

${bold}Now you: these commands can be typed as they are.${plain}

    . $venv/bin/activate
    shunter run ./examples/digits/train.py --hidden 32
    shunter plot loss
    shunter log --tail 3
    shunter list
    shunter ui

The jobs, their logs and their results are in $(python -c 'import shunter.paths as p; print(p.state_dir())').
README.md goes on from here.
END
