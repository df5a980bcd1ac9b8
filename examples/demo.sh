#!/bin/sh
# The main job, for real: two replicas train a classifier of handwritten digits on this machine.
set -eu
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

say trainyard run --wait --log train.script --script examples/digits/train.py --num_replicas 2 -- --epochs 10
handle=$(trainyard run --wait --log train.script --script examples/digits/train.py --num_replicas 2 -- --epochs 10)

say trainyard status "$handle"
trainyard status "$handle"

say trainyard log "$handle" --regex accuracy --tail 1
trainyard log "$handle" --regex accuracy --tail 1

say trainyard list --limit 5
trainyard list --limit 5

if python -c 'import torch' 2>/dev/null; then
    say trainyard run --wait --log dist.ddp -j 1x2 --script examples/ddp/train.py
    trainyard run --wait --log dist.ddp -j 1x2 --script examples/ddp/train.py
else
    printf '\ntorch is not installed, so the example with dist.ddp is left out (pip install torch to see it)\n'
fi

printf '\nmodels:  %s\n' "$(trainyard status "$handle" | sed -n 's/^Results: //p')"
printf 'history: %s\n' "$(python -c 'from trainyard.paths import history_path; print(history_path())')"
printf 'next:    trainyard run utils.echo --msg hello; trainyard components; trainyard --help\n'
