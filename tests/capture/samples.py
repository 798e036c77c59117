"""Sample arguments of registry rows, in words: variables by name, `; n` at the end for the n-th of several results.

x y: normal; p: positive; n: with NaN and infinities; h: bf16; s: one number (all float, in the dtype under test, h excepted);
i j: small integers; d: positive ones; k: a permutation of 0, 1, 2; m m2: bools. All are [3, 4] but k [3], s [], c [2, 4, 6] and
taps [8, 4, 3].
"""

import ast

import torch

from fusec.capture import bind, trace
from fusec.capture.importer import Importer
from fusec.errors import Loc
from fusec.ir.interpret_tensor import run_tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def variables(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
    n = normal(3, 4)
    n[0, 1], n[1, 2], n[2, 0] = float("nan"), float("inf"), float("-inf")
    floats = dict(
        x=normal(3, 4),
        y=normal(3, 4),
        p=normal(3, 4).abs() + 0.1,
        n=n,
        s=torch.tensor(0.7),
        c=normal(2, 4, 6),
        taps=normal(8, 4, 3),
    )
    ints = torch.randint(0, 7, (3, 4), generator=g), torch.randint(0, 7, (3, 4), generator=g)
    return {
        **{k: v.to(dtype) for k, v in floats.items()},
        "h": normal(3, 4).bfloat16(),
        "i": ints[0],
        "j": ints[1],
        "d": ints[1] % 4 + 1,
        "k": torch.tensor([2, 0, 1]),
        "m": normal(3, 4) > 0,
        "m2": normal(3, 4) > 0,
    }


def function(target: str, sample: str):
    """(a function that calls the op on the sample, the names it takes)"""
    words, _, pick = sample.partition(";")
    names = sorted({n.id for n in ast.walk(ast.parse(f"f({words})")) if isinstance(n, ast.Name)} & set(variables(torch.float32)))
    call = f"torch.ops.{target}({words})" + (f"[{pick.strip()}]" if pick else "")
    return eval(f"lambda {', '.join(names)}: {call}", {"torch": torch}), names


def static_graph(fn, example):
    """The graph of one static capture."""
    call = bind.bind(fn, example)
    program = trace.trace(fn, call, {n: trace.like(t) for n, t in call.tensors.items()}, {})
    return Importer(program, "step", {}, {}, Loc()).run()


def captured(samples, dtype):
    """{(target, sample): (what the graph gives, what eager gives)}, from one capture of them all."""
    given = variables(dtype)
    fns = [function(t, s) for t, s in samples]
    used = sorted({n for _, names in fns for n in names})
    scope = {"fns": fns}
    step = eval(
        f"lambda {', '.join(used)}: [fn(*[locals_[n] for n in names]) for locals_ in [dict({', '.join(f'{n}={n}' for n in used)})]"
        " for fn, names in fns]",
        scope,
    )
    example = {n: given[n] for n in used}
    torch.manual_seed(3)
    graph = static_graph(step, example)
    got = run_tensor(graph, {n: t.clone() for n, t in example.items()})
    want = step(**{n: t.clone() for n, t in example.items()})
    return {key: (a, b) for key, a, b in zip(samples, got, want)}
