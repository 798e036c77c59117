"""Decorate a step of your own: the first call on a GPU compiles it; without one, compile ahead of time and read the kernel.

    python examples/gated_norm.py
"""
import torch

import fusec


def example(rows, device, D=256):
    return dict(x=torch.randn(rows, D, device=device).bfloat16(), gate=torch.randn(rows, D, device=device).bfloat16(),
                weight=torch.rand(D, device=device))


@fusec.fuse(example=example)
def gated_norm(x, gate, weight):
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight
    return (h * torch.sigmoid(gate.float())).to(x.dtype)


if __name__ == "__main__":
    kernel = gated_norm.compile(arch="sm_90a").kernels[0]
    print(kernel.source)
    print(kernel.resources["registers"], "registers,", kernel.resources["spills"], "bytes spilled")
    if torch.cuda.is_available():
        inputs = gated_norm.inputs(8, "cuda")
        torch.testing.assert_close(gated_norm(**inputs), gated_norm.reference(**inputs))
