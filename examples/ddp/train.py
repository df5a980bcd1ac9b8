"""Fit a line with PyTorch's DistributedDataParallel on the CPU: the smallest job of several workers.

Needs torch.  Two processes on this machine::

    shunter run dist.ddp -j 1x2 --script examples/ddp/train.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 101):
        x = torch.rand(64, 1)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"rank {rank} of {world} step {step} loss {loss.item():.4f}")
    weight, bias = model.module.weight.item(), model.module.bias.item()
    print(f"rank {rank} found y = {weight:.2f} x + {bias:.2f}")
    dist.barrier()  # none leaves while another still needs it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
