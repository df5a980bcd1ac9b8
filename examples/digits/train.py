"""Train a small neural network on scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels).

Each replica trains with a seed of its own, its index; prints loss and accuracy per epoch; and saves its
model.  Run it alone (``python train.py``) or as a job::

    trainyard run train.script --script examples/digits/train.py --num_replicas 2 -- --epochs 10
"""

import argparse
import os
import pathlib

import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TORCHX_REPLICA_IDX", "0")))
    # As a job, wherever it runs, the model's place is SM_MODEL_DIR.
    model_dir = os.environ.get("SM_MODEL_DIR", "build/digits")
    parser.add_argument("--model-dir", type=pathlib.Path, default=pathlib.Path(model_dir))
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16.0, labels, test_size=0.2, random_state=0, stratify=labels
    )
    model = MLPClassifier((args.hidden,), learning_rate_init=args.lr, batch_size=64, random_state=args.seed)
    print(f"seed {args.seed}: {len(train_x)} images to train on, {len(test_x)} to test with")
    for epoch in range(1, args.epochs + 1):
        model.partial_fit(train_x, train_y, classes=range(10))
        print(f"epoch {epoch} loss {model.loss_:.4f} accuracy {model.score(test_x, test_y):.4f}")

    args.model_dir.mkdir(parents=True, exist_ok=True)
    path = args.model_dir / f"seed-{args.seed}.joblib"
    joblib.dump(model, path)
    print(f"model saved to {path}")


if __name__ == "__main__":
    main()
