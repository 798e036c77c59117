"""Compile a function that you may not touch: example tensors say what it takes; one artifact holds kernels for several GPUs.

    python examples/somebody_elses_step.py
"""
import torch

import fusec


def leaky_step(x, decay, state, slots):
    """As it stands in somebody's test file: a leaky integrator over paged state, updated in place."""
    h = state[slots] * torch.exp(decay) + x
    state[slots] = h
    return h.sum(-1)


if __name__ == "__main__":
    inputs = dict(x=torch.randn(4, 8, 64), decay=-torch.rand(8, 64), state=torch.randn(10, 8, 64), slots=torch.tensor([7, 2, 5, 1]))
    artifact = fusec.compile(leaky_step, inputs, arch=["sm_90a", "sm_100a"])
    for kernel in artifact.kernels:
        print(kernel.name, kernel.arch, kernel.grid, kernel.threads, "threads", kernel.resources["registers"], "registers")
    print(fusec.check(leaky_step, inputs, level="kernel"))
