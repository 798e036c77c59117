"""W35: every dtype is read as what it is, in any order of calls within one process."""
import random

import torch

from fusec.checker import compiled
from fusec.checker.storage import clone

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
CASES = [(F16, F32, F32), (BF16, F32, BF16), (F32, BF16, F32), (F16, BF16, BF16)]
"""Of query, key, value and output; of the state; of what makes the gate."""


def step(q, k, v, a, A_log, dt_bias, pool, slots):
    """q, k [R, K], v [R, V], a [R], A_log and dt_bias [1], pool [S, V, K] in place at slots -> [R, V] of q's dtype."""
    g = -A_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    h = pool[slots].float() * g.exp().view(-1, 1, 1) + v.float().unsqueeze(-1) * k.float().unsqueeze(-2)
    pool[slots] = h.to(pool.dtype)
    return (h * q.float().unsqueeze(-2)).sum(-1).to(q.dtype)


def inputs(operand, state, gate):
    def normal(*shape, dtype=operand):
        return torch.randn(*shape).to(dtype)
    return dict(q=normal(3, 8), k=normal(3, 8), v=normal(3, 4), a=normal(3), A_log=normal(1, dtype=gate),
                dt_bias=normal(1, dtype=gate), pool=normal(5, 4, 8, dtype=state), slots=torch.randperm(5)[:3])


def test_calls_of_all_dtypes_in_mixed_order(level, device):
    steps = {case: compiled(step, inputs(*case), level) for case in CASES}
    order = random.Random(5).sample(CASES * 3, 3 * len(CASES))
    for case in order:
        given = inputs(*case)
        mine, eager = clone(given, device), clone(given)
        out, wanted = steps[case](**mine)[0].cpu(), step(**eager)
        assert out.dtype == wanted.dtype
        rough = 2 ** -7 if BF16 in case[:2] else 2 ** -10 if F16 in case else 1e-5
        torch.testing.assert_close(out.float(), wanted.float(), rtol=rough, atol=rough)
        torch.testing.assert_close(mine["pool"].cpu().float(), eager["pool"].float(), rtol=2 ** -7 if case[1] == BF16 else 1e-5,
                                   atol=1e-5)
