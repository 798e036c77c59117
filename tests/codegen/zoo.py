"""Kernels that use every scalar primitive, every composite and every element type once: made from the registries themselves."""

from __future__ import annotations

import torch

from fusec.ir.dtype import BYTES, FLOATS, register
from fusec.ir.kernel import (
    Apply,
    Assign,
    Compute,
    Copy,
    Declare,
    Elem,
    For,
    Global,
    KernelSpec,
    LaneReduce,
    Launch,
    Linear,
    Parameter,
    Round,
    Term,
)
from fusec.ir.plan import SmemPlan
from fusec.ir.reference import TORCH_DTYPE
from fusec.ir.scalar import COMPOSITES, PRIMITIVES, Call, Lit, Param, Scalar, arity
from fusec.codegen.spell import BOOL, FLOAT, INTEGER, LANE_FOLDS, Spelling

from .specs import el, lin

THREADS = 128
OPERANDS = {"f32": "xyz", "i32": "abc", "i64": "def", "bool": "pqr"}
TABLES = {"f32": FLOAT, "i32": INTEGER, "i64": INTEGER, "bool": BOOL}
SHIFTS = frozenset({"shl", "shr"})


def result_kind(fn: str, kind: str, row: Spelling | None) -> str:
    return kind if row is None or row.kind == "same" else row.kind


LOGIC = frozenset({"and", "or", "not"})
BITS = frozenset({"bitand", "bitor", "bitxor", "shl", "shr", "floordiv", "mod"})


def takes_floats(e: Scalar) -> bool:
    """Whether a composite's parameters are used as floats: not as conditions and not as integers."""
    if not isinstance(e, Call):
        return True
    bare = [i for i, a in enumerate(e.args) if isinstance(a, Param)]
    wrong = (
        e.fn in LOGIC | BITS
        and bare
        or e.fn == "select"
        and 0 in bare
        or e.fn in COMPOSITES
        and not takes_floats(COMPOSITES[e.fn].body)
    )
    return not wrong and all(takes_floats(a) for a in e.args)


def logical(e: Scalar) -> bool:
    """Whether a composite gives a bool."""
    if not isinstance(e, Call):
        return isinstance(e, Lit) and isinstance(e.value, bool)
    inner = COMPOSITES[e.fn].body if e.fn in COMPOSITES else e
    return (
        isinstance(inner, Call)
        and inner.fn in LOGIC | {"lt", "le", "gt", "ge", "eq", "ne"}
        or e.fn == "select"
        and logical(e.args[1])
    )


def approximate(fn: str) -> bool:
    """Whether a scalar function, or one inside of a composite, is an approximation."""
    def inside(e: Scalar) -> bool:
        return isinstance(e, Call) and (approximate(e.fn) or any(map(inside, e.args)))
    return inside(COMPOSITES[fn].body) if fn in COMPOSITES else PRIMITIVES[fn].approximate > 0


def rows(kind: str, exact: bool = False) -> list[tuple[str, str]]:
    """(scalar function, kind of its result) for every one that takes operands of a kind; exact: without approximations."""
    found = [(fn, result_kind(fn, kind, row)) for fn, row in TABLES[kind].items() if not (fn in SHIFTS and kind == "i64")]
    if kind == "f32":
        plain = [fn for fn, row in COMPOSITES.items() if takes_floats(row.body) and not logical(row.body)]
        found += [(fn, "f32") for fn in plain if arity(fn) <= len(OPERANDS[kind])]
    assert all(fn in PRIMITIVES or fn in COMPOSITES for fn, _ in found)
    found = [(fn, k) for fn, k in found if not (exact and approximate(fn))]
    return [(fn, k) for fn, k in found if not (fn == "bitcast_f32" and kind == "i64")]


def one_block(name: str, title: str, arch: str, parameters: list, body: list) -> KernelSpec:
    return KernelSpec(name, title, arch, tuple(parameters), Launch(((1,), (), ()), THREADS), SmemPlan(), tuple(body))


def functions(kind: str, arch: str = "sm_90a", exact: bool = False) -> KernelSpec:
    """out_K[i, thread] = the i-th function with a result of kind K, of operands of one kind."""
    names = OPERANDS[kind]
    body: list = [s for n in names for s in (Declare(n, (), kind), Copy(Global(f"in_{n}", lin(thread=1)), el(n)))]
    seen: dict[str, int] = {}
    for fn, result in rows(kind, exact):
        args = tuple(el(n) for n in names[: arity(fn)])
        if fn == "select":
            args = (Apply("lt", args[:2]), *args[1:]) if kind != "bool" else args
        body.append(Compute((), (Assign(el(f"v_{fn}"), Apply(fn, args)),)))
        body.append(Copy(el(f"v_{fn}"), Global(f"out_{result}", lin(seen.get(result, 0) * THREADS, thread=1))))
        seen[result] = seen.get(result, 0) + 1
    parameters = [Parameter(f"in_{n}", kind, (THREADS,), (1,), BYTES[kind]) for n in names]
    parameters += [Parameter(f"out_{k}", k, (n, THREADS), (THREADS, 1), BYTES[k]) for k, n in seen.items()]
    return one_block(f"functions_{kind}", f"every function of {kind}", arch, parameters, body)


def function_inputs(kind: str, seed: int = 0, exact: bool = False) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    dtype, tensors = TORCH_DTYPE[kind], {}
    for n in OPERANDS[kind]:
        if kind == "f32":
            tensors[f"in_{n}"] = torch.randn(THREADS, generator=g).abs() * 3 + 0.01
        elif kind == "bool":
            tensors[f"in_{n}"] = torch.rand(THREADS, generator=g) < 0.5
        else:
            tensors[f"in_{n}"] = torch.randint(1, 20, (THREADS,), generator=g).to(dtype)
    for p in functions(kind, exact=exact).parameters:
        if p.name.startswith("out_"):
            tensors[p.name] = torch.full(p.shape, 1).to(TORCH_DTYPE[p.dtype])
    return tensors


def dtypes(arch: str = "sm_90a") -> KernelSpec:
    """Each element type through registers: 16 bytes a thread in one access, then an element each; fp32 rounded to each."""
    body, parameters = [], []
    for dtype, size in BYTES.items():
        width = 16 // size
        wide, one = f"{dtype}_wide", f"{dtype}_one"
        at = Global(f"in_{dtype}", lin(thread=width))
        body += [
            Declare(wide, (width,), register(dtype)),
            Declare(one, (), register(dtype)),
            Copy(at, el(wide, 0), width=width),
            Copy(at, el(one)),
            Copy(el(wide, 0), Global(f"out_{dtype}", lin(thread=width)), width=width),
            Copy(el(one), Global(f"one_{dtype}", lin(thread=1))),
        ]
        parameters += [Parameter(f"{side}_{dtype}", dtype, (THREADS * width,), (1,), 16) for side in ("in", "out")]
        parameters.append(Parameter(f"one_{dtype}", dtype, (THREADS,), (1,), size))
        if dtype in FLOATS:
            body += [
                Declare(f"{dtype}_from", (4,), "f32"),
                Copy(Global("in_f32", lin(thread=4)), el(f"{dtype}_from", 0), width=4),
                Compute((For("j", 4),), (Assign(el(f"{dtype}_from", "j"), Round(el(f"{dtype}_from", "j"), dtype)),)),
                Copy(
                    el(f"{dtype}_from", "j"), Global(f"rounded_{dtype}", Linear((Term("thread", 4), Term("j", 1)))), (For("j", 4),)
                ),
                Copy(el(f"{dtype}_from", 0), Global(f"narrow_{dtype}", lin(thread=4)), width=4),
            ]
            parameters += [
                Parameter(f"rounded_{dtype}", "f32", (THREADS * 4,), (1,), 16),
                Parameter(f"narrow_{dtype}", dtype, (THREADS * 4,), (1,), 16),
            ]
    return one_block("dtypes", "every element type", arch, parameters, body)


def dtype_inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for p in dtypes().parameters:
        dtype = TORCH_DTYPE[p.dtype]
        if p.name == "in_f32":
            value = torch.randn(p.shape, generator=g) * torch.logspace(-9, 4, p.shape[0])
            value[:4] = torch.tensor([float("inf"), -0.0, float("nan"), 1e-45])
        elif p.dtype == "bool":
            value = torch.rand(p.shape, generator=g) < 0.5
        elif p.dtype in FLOATS:
            value = torch.randn(p.shape, generator=g)
        else:
            value = torch.randint(-100 if p.dtype != "u8" else 0, 100, p.shape, generator=g)
        tensors[p.name] = value.to(dtype)
    return tensors


def lanes(arch: str = "sm_90a") -> KernelSpec:
    """Every fold over lanes, 8 lanes 2 apart."""
    body: list = []
    parameters, known = [], set()
    for (fn, kind), _ in LANE_FOLDS.items():
        name = f"{fn}_{kind}"
        body += [
            Declare(name, (), kind),
            Copy(Global(f"in_{kind}", lin(thread=1)), el(name)),
            LaneReduce((name,), fn, 2, 8, ()),
            Copy(Elem(name), Global(f"out_{name}", lin(thread=1))),
        ]
        if kind not in known:
            parameters.append(Parameter(f"in_{kind}", kind, (THREADS,), (1,), BYTES[kind]))
            known.add(kind)
        parameters.append(Parameter(f"out_{name}", kind, (THREADS,), (1,), BYTES[kind]))
    return one_block("lanes", "every fold over lanes", arch, parameters, body)


def lane_inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        p.name: (torch.rand(THREADS, generator=g) < 0.8)
        if p.dtype == "bool"
        else (torch.randn(THREADS, generator=g) * 9).to(TORCH_DTYPE[p.dtype])
        for p in lanes().parameters
    }


ZOO = {
    **{
        f"functions_{k}": (lambda arch="sm_90a", k=k: functions(k, arch), lambda seed=0, k=k: function_inputs(k, seed))
        for k in OPERANDS
    },
    "functions_exact": (lambda arch="sm_90a": functions("f32", arch, True), lambda seed=0: function_inputs("f32", seed, True)),
    "dtypes": (dtypes, dtype_inputs),
    "lanes": (lanes, lane_inputs),
}
