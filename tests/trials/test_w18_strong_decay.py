"""W18: several tokens in one step with a strong decay: never through exp of a positive sum, which overflows or loses all digits."""
import torch

from fusec.checker import compiled
from fusec.checker.storage import clone
from fusec.checker.target import target

from .steps import right


def tokens(q, k, v, g, state):
    """q, k [R, T, K], v [R, T, V] bf16, g [R, T, K] the decay's logarithm, state [R, V, K] in place -> [R, T, V]."""
    out = []
    h = state
    for t in range(q.shape[1]):
        h = h * g[:, t].exp().unsqueeze(-2) + v[:, t].float().unsqueeze(-1) * k[:, t].float().unsqueeze(-2)
        out.append((h * q[:, t].float().unsqueeze(-2)).sum(-1))
    state.copy_(h)
    return torch.stack(out, 1)


def inputs(rows, T, decay, K=4, V=2):
    bf16 = torch.bfloat16
    return dict(q=torch.randn(rows, T, K).to(bf16), k=torch.randn(rows, T, K).to(bf16), v=torch.randn(rows, T, V).to(bf16),
                g=torch.full((rows, T, K), decay), state=torch.randn(rows, V, K))


def test_eight_tokens_are_eight_steps(level, device):
    goal, one = target(tokens, inputs(2, 8, -20.0)), compiled(tokens, inputs(2, 1, -20.0), level)
    many = compiled(goal, goal.example, level)
    for decay in (-20.0, -1e-3):
        given = inputs(2, 8, decay)
        if decay == -20.0:
            right(goal, given, level)
        whole, single = clone(given, device), clone(given, device)
        out = many(**whole)[0]
        found = [one(**{n: t[:, i:i + 1] if n != "state" else t for n, t in single.items()})[0] for i in range(8)]
        torch.testing.assert_close(out, torch.cat(found, 1), rtol=2e-5, atol=1e-6)
        torch.testing.assert_close(whole["state"], single["state"], rtol=2e-5, atol=1e-6)
        assert torch.isfinite(out).all() and torch.isfinite(whole["state"]).all()
