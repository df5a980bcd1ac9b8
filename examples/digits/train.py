"""Train a small neural network on handwritten digits (1,797 images of 8 x 8 pixels), in plain Python.

Each replica trains with a seed of its own, its index; prints loss and accuracy per epoch, as JSON that
`shunter plot` reads; and saves its model.  Run it alone (``python train.py``) or as a job::

    shunter run train.script --script examples/digits/train.py --num_replicas 2 -- --epochs 6
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import pathlib
import random
from operator import mul

DIGITS = range(10)
#: Guessing has a loss of 2.3. Beyond this one, the weights only grow.
DIVERGED = 10.0


Sample = tuple[list[float], int]


class Network:
    """Two layers: tanh, then softmax; trained image by image."""

    def __init__(self, pixels: int, hidden: int, seed: int) -> None:
        gauss = random.Random(seed).gauss
        self.first = [[gauss(0, pixels**-0.5) for _ in range(pixels)] for _ in range(hidden)]
        self.second = [[gauss(0, hidden**-0.5) for _ in range(hidden)] for _ in DIGITS]

    def predict(self, image: list[float]) -> tuple[list[float], list[float]]:
        """Return the hidden layer, and the probability of each digit."""
        hidden = [math.tanh(sum(map(mul, weights, image))) for weights in self.first]
        scores = [sum(map(mul, weights, hidden)) for weights in self.second]
        highest = max(scores)
        powers = [math.exp(score - highest) for score in scores]
        total = sum(powers)
        return hidden, [power / total for power in powers]

    def learn(self, image: list[float], digit: int, rate: float) -> float:
        """Take one step of gradient descent; return the loss before it."""
        hidden, probabilities = self.predict(image)
        errors = [probability - (k == digit) for k, probability in enumerate(probabilities)]
        back = [
            (1 - value * value) * sum(map(mul, errors, column))
            for value, column in zip(hidden, zip(*self.second, strict=True), strict=True)
        ]
        self.second = [
            descended(row, error * rate, hidden) for row, error in zip(self.second, errors, strict=True)
        ]
        self.first = [
            descended(row, error * rate, image) for row, error in zip(self.first, back, strict=True)
        ]
        return -math.log(max(probabilities[digit], 1e-300))

    def accuracy(self, samples: list[Sample]) -> float:
        """Return the share of images whose most probable digit is the right one."""
        right = 0
        for image, digit in samples:
            _, probabilities = self.predict(image)
            right += probabilities.index(max(probabilities)) == digit
        return right / len(samples)


def descended(weights: list[float], step: float, inputs: list[float]) -> list[float]:
    return [weight - step * value for weight, value in zip(weights, inputs, strict=True)]


def read_samples(path: pathlib.Path) -> list[Sample]:
    """Return images, as lists of pixels from 0 to 1 and a constant, with their digits."""
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = [[int(value) for value in row] for row in csv.reader(file)]
    return [([value / 16 for value in row[:64]] + [1.0], row[64]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TORCHX_REPLICA_IDX", "0")))
    # As a job, wherever it runs, the data are in SM_CHANNEL_TRAINING and the model's place is SM_MODEL_DIR.
    beside = pathlib.Path(__file__).parent
    data_dir = os.environ.get("SM_CHANNEL_TRAINING", beside)
    parser.add_argument("--data-dir", type=pathlib.Path, default=pathlib.Path(data_dir))
    model_dir = os.environ.get("SM_MODEL_DIR", "build/digits")
    parser.add_argument("--model-dir", type=pathlib.Path, default=pathlib.Path(model_dir))
    args = parser.parse_args()

    samples = read_samples(args.data_dir / "digits.csv.gz")
    random.Random(0).shuffle(samples)
    train, test = samples[:1437], samples[1437:]
    print(f"seed {args.seed}: {len(train)} images to train on, {len(test)} to test with", flush=True)

    network = Network(len(train[0][0]), args.hidden, args.seed)
    order = random.Random(args.seed)
    for epoch in range(1, args.epochs + 1):
        order.shuffle(train)
        loss = sum(network.learn(image, digit, args.lr) for image, digit in train) / len(train)
        metrics = {"epoch": epoch, "loss": round(loss, 4), "accuracy": round(network.accuracy(test), 4)}
        print(json.dumps(metrics), flush=True)
        if loss > DIVERGED:
            raise FloatingPointError(f"the loss is {loss:.1f}: the learning rate {args.lr:g} is too high")

    args.model_dir.mkdir(parents=True, exist_ok=True)
    path = args.model_dir / f"seed-{args.seed}.json"
    path.write_text(json.dumps({"first": network.first, "second": network.second}))
    print(f"model saved to {path}")


if __name__ == "__main__":
    main()
