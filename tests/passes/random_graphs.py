"""Random tensor graphs: chains of maps, folds, contractions, views, joins, gathers and updates over small shapes.

With rows, the first dim of every argument has a size known at the call only; no op takes that dim apart.
"""
from __future__ import annotations

import math
import random

import sympy
import torch

from fusec.ir.tensor import Shape, TensorGraph

from .tensor_graphs import Builder

SIZES = (1, 2, 3, 4, 6)
ROWS, COUNT = sympy.Symbol("R"), 5


class Random:
    """Grows one graph; values are fp32 and stay of moderate size."""

    def __init__(self, seed: int, rows: bool = False) -> None:
        self.r, self.rows = random.Random(seed), rows
        self.b = Builder("random", ROWS if rows else None)
        self.tensors: dict[str, torch.Tensor] = {}
        self.values: list[str] = []
        torch.manual_seed(seed)
        for i in range(self.r.randint(1, 3)):
            self.argument(f"arg{i}", tuple(self.r.choice(SIZES) for _ in range(self.r.randint(1, 4))))
        self.tensors["index"] = torch.randint(2, (3,))
        self.index = self.b.arg("index", (3,), "i64")

    def argument(self, name: str, shape: Shape) -> str:
        if self.rows:
            shape = (ROWS, *shape)
        self.tensors[name] = torch.randn(tuple(COUNT if n == ROWS else n for n in shape))
        self.values.append(self.b.arg(name, shape))
        return self.values[-1]

    def fixed(self, name: str) -> list[int]:
        """The dims of constant size."""
        return [d for d, n in enumerate(self.b.shape(name)) if isinstance(n, int)]

    def wide(self, name: str) -> list[int]:
        return [d for d in self.fixed(name) if self.b.shape(name)[d] != 1]

    def pick(self) -> str:
        return self.r.choice(self.values[-6:])

    def graph(self, ops: int) -> TensorGraph:
        kinds = [self.unary, self.binary, self.binary, self.outer, self.reduce, self.merge, self.split, self.permute, self.slice,
                 self.chunk, self.expand, self.cat, self.contract, self.gather, self.repeat]
        for _ in range(ops):
            self.r.choice(kinds)()
        self.update()
        outputs = [v for v in self.r.sample(self.values, min(2, len(self.values)))]
        return self.b.graph(*outputs, structure="tuple")

    def add(self, name: str | None) -> None:
        shape = self.b.shape(name) if name is not None else ()
        if name is not None and len(shape) <= 6 and math.prod(n if isinstance(n, int) else COUNT for n in shape) <= 2000:
            self.values.append(name)

    # ---- ops --------------------------------------------------------------------------------------------------------------------

    def unary(self) -> None:
        self.add(self.b.map(self.r.choice(["tanh", "neg", "sigmoid"]), self.pick()))

    def binary(self) -> None:
        a = self.pick()
        sa = self.b.shape(a)
        fits = [v for v in self.values if all(x == y or 1 in (x, y) for x, y in zip(self.b.shape(v)[::-1], sa[::-1]))]
        self.add(self.b.map(self.r.choice(["add", "sub", "mul", "max"]), a, self.r.choice(fits)))

    def outer(self) -> None:
        a, c = self.pick(), self.pick()
        if self.rows:
            return
        if len(self.b.shape(a)) < 4 and len(self.b.shape(c)) < 3 and self.b.shape(a) and self.b.shape(c):
            wide = self.b.reshape(a, self.b.shape(a) + (1,) * len(self.b.shape(c)))
            self.add(self.b.map("mul", wide, c))

    def dims(self, name: str) -> list[int]:
        return list(range(len(self.b.shape(name))))

    def reduce(self) -> None:
        a = self.pick()
        if self.fixed(a):
            dims = tuple(self.r.sample(self.fixed(a), self.r.randint(1, min(2, len(self.fixed(a))))))
            self.add(self.b.reduce(self.r.choice(["sum", "max"]), a, dims=tuple(sorted(dims)), keep=self.r.random() < 0.5))

    def merge(self) -> None:
        a = self.pick()
        s = self.b.shape(a)
        if len(s) > 1:
            d = self.r.randrange(len(s) - 1)
            self.add(self.b.reshape(a, s[:d] + (s[d] * s[d + 1],) + s[d + 2:]))

    def split(self) -> None:
        a = self.pick()
        s = self.b.shape(a)
        choices = [(d, f) for d in self.fixed(a) for f in range(2, s[d]) if s[d] % f == 0]
        if choices:
            d, f = self.r.choice(choices)
            self.add(self.b.reshape(a, s[:d] + (s[d] // f, f) + s[d + 1:]))

    def permute(self) -> None:
        a = self.pick()
        self.add(self.b.permute(a, tuple(self.r.sample(self.dims(a), len(self.dims(a))))))

    def slice(self) -> None:
        a = self.pick()
        if self.wide(a):
            d = self.r.choice(self.wide(a))
            length = self.r.randint(1, self.b.shape(a)[d] - 1)
            piece = self.b.slice(a, d, self.r.randint(0, self.b.shape(a)[d] - length), length)
            shape = self.b.shape(piece)
            self.add(self.b.reshape(piece, shape[:d] + shape[d + 1:]) if length == 1 and self.r.random() < 0.7 else piece)

    def chunk(self) -> None:
        a = self.pick()
        s = self.b.shape(a)
        choices = [(d, f) for d in self.fixed(a) for f in range(2, s[d] + 1) if s[d] % f == 0]
        if choices:
            d, f = self.r.choice(choices)
            for i in range(f):
                self.add(self.b.slice(a, d, i * s[d] // f, s[d] // f))

    def expand(self) -> None:
        a = self.pick()
        s = self.b.shape(a)
        ones = [d for d, n in enumerate(s) if n == 1]
        if ones:
            d = self.r.choice(ones)
            self.add(self.b.expand(a, s[:d] + (self.r.choice((2, 3)),) + s[d + 1:]))

    def repeat(self) -> None:
        a = self.pick()
        s = self.b.shape(a)
        if s:
            d, n = self.r.randrange(len(s)), self.r.choice((2, 3))
            wide = self.b.expand(self.b.reshape(a, s[:d + 1] + (1,) + s[d + 1:]), s[:d + 1] + (n,) + s[d + 1:])
            self.add(self.b.reshape(wide, s[:d] + (s[d] * n,) + s[d + 1:]))

    def cat(self) -> None:
        a = self.pick()
        s = self.b.shape(a)
        if self.fixed(a):
            d = self.r.choice(self.fixed(a))
            fits = [v for v in self.values if len(self.b.shape(v)) == len(s) and all(
                x == y or i == d and isinstance(x, int) for i, (x, y) in enumerate(zip(self.b.shape(v), s)))]
            self.add(self.b.join(d, a, *self.r.choices(fits, k=self.r.randint(1, 2))))

    def contract(self) -> None:
        a, c = self.pick(), self.pick()
        sa, sc = self.b.shape(a), self.b.shape(c)
        left = "abcdef"[:len(sa)]
        right = ""
        for n in sc:
            same = [x for x, m in zip(left, sa) if m == n and x not in right]
            right += self.r.choice(same) if same and (self.r.random() < 0.8 or n == ROWS) else "uvwxyz"[len(right)]
        letters = left + "".join(x for x in right if x not in left)
        free = {x for x, n in zip(left + right, sa + sc) if not isinstance(n, int)}
        out = [x for x in letters if self.r.random() < 0.7 or x in "uvwxyz" or x in free]
        self.r.shuffle(out)
        self.add(self.b.einsum(f"{left},{right}->{''.join(out)}", a, c))

    def gather(self) -> None:
        arguments = [v for v in self.values if v in self._inputs() and self.b.shape(v)]
        a = self.r.choice(arguments)
        if self.wide(a):
            self.add(self.b.gather(a, self.r.choice(self.wide(a)), self.index))

    def _inputs(self) -> set[str]:
        return {n.name for n in self.b.nodes if type(n.op).__name__ == "Input"}

    def update(self) -> None:
        """The first argument ends as something of its shape: a value, an update of a slice, or a scatter."""
        name, shape = "arg0", self.b.shape("v0")
        fits = [v for v in self.values if v != "v0" and self.b.shape(v) == shape]
        if fits and self.r.random() < 0.6:
            self.b.mutations.append((name, self.r.choice(fits)))
        elif self.wide("v0"):
            d = self.wide("v0")[0]
            value = self.b.map("tanh", self.b.slice("v0", d, 0, 1))
            self.b.mutations.append((name, self.b.join(d, self.b.slice("v0", d, 0, shape[d] - 1), value)))
