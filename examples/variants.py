"""One function, many kernels: what changes the code has its own key, what does not shares one.

    python examples/variants.py
"""
import torch

import fusec


def decay_step(x, state, rate=0.5):
    state.mul_(rate).add_(x)
    return state.to(torch.bfloat16)


def key(x, state, rate=0.5, numerics="default"):
    return fusec.compile(decay_step, (x, state, rate), arch="sm_90a", numerics=numerics).kernels[0].key


if __name__ == "__main__":
    x, state = torch.randn(4, 64), torch.randn(4, 64)
    keys = {
        "as written": key(x, state),
        "more rows": key(torch.randn(9, 64), torch.randn(9, 64)),
        "another constant": key(x, state, 0.25),
        "strict numerics": key(x, state, numerics="strict"),
        "columns first": key(x, torch.randn(64, 4).t()),
    }
    for what, found in keys.items():
        print(f"{what:18} {found}")
    assert keys["as written"] == keys["more rows"] and len(set(keys.values())) == 4
