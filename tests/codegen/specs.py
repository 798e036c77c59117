"""Kernels written by hand as KernelSpecs, with their torch meaning: what the tests of codegen and of the interpreter run on."""
from __future__ import annotations

import torch

from fusec.ir.kernel import (
    Apply, Assign, Barrier, Compute, Copy, Declare, Digit, Elem, For, Global, Guard, KernelSpec, LaneReduce, Launch, Less,
    Let, Linear, Origin, Parameter, Repeat, Round, Shared, Term)
from fusec.ir.plan import Buffer, SmemPlan
from fusec.ir.scalar import Lit


def lin(const: int = 0, **coefs: int) -> Linear:
    return Linear(tuple(Term(v, c) for v, c in coefs.items()), const)


def row_of(tensor: str, dim: int = 0, var: str = "row") -> Linear:
    return Linear((Term(var, 1, (tensor, dim)),))


def el(name: str, *index: Linear | str | int) -> Elem:
    return Elem(name, tuple(i if isinstance(i, Linear) else lin(i) if isinstance(i, int) else lin(**{i: 1}) for i in index))


def ap(fn: str, *args: object) -> Apply:
    return Apply(fn, tuple(a if not isinstance(a, (int, float)) else Lit(a) for a in args))


# ---- a width-4 depthwise convolution over a window that shifts in place: no vectors, one channel a thread

CHANNELS = 200


def conv(arch: str = "sm_90a") -> KernelSpec:
    body = (
        Let("row", lin(block_x=1)),
        Guard((Less(lin(thread=1), CHANNELS),), (
            Declare("taps", (4,), "f32"),
            Copy(Global("window", row_of("window") + lin(thread=3, i=1)), el("taps", "i"), (For("i", 3),),
                 origin=Origin(("short_conv+2",), "window")),
            Copy(Global("x", row_of("x") + lin(thread=1)), el("taps", 3)),
            Declare("weights", (4,), "f32"),
            Copy(Global("weight", lin(thread=4)), el("weights", 0), width=4),
            Declare("acc", (), "f32"),
            Compute((), (Assign(el("acc"), ap("mul_rn", el("taps", 0), el("weights", 0)), Origin(("short_conv+3",), "y = …")),)),
            Compute((For("i", 3),), (
                Assign(el("acc"), ap("fma", el("taps", lin(1, i=1)), el("weights", lin(1, i=1)), el("acc"))),)),
            Compute((), (Assign(el("acc"), ap("silu", el("acc")), Origin(("short_conv+4",))),)),
            Copy(el("acc"), Global("output", lin(row=CHANNELS, thread=1))),
            Copy(el("taps", lin(1, i=1)), Global("window", row_of("window") + lin(thread=3, i=1)), (For("i", 3),)),
        )),
    )
    return KernelSpec("short_conv", "width-4 depthwise convolution, SiLU", arch, (
        Parameter("x", "bf16", ("rows", CHANNELS), (None, 1), 2, (1, 1)),
        Parameter("window", "bf16", ("rows", CHANNELS, 3), (None, 3, 1), 2, (1, 1, 1)),
        Parameter("weight", "f32", (CHANNELS, 4), (4, 1), 16),
        Parameter("output", "bf16", ("rows", CHANNELS), (CHANNELS, 1), 2),
    ), Launch((("rows",), (), ()), 224), SmemPlan(), body, ("grid rows, one channel a thread",))


def conv_inputs(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    wide = torch.randn(rows, CHANNELS + 13, generator=g).bfloat16()
    return {"x": wide[:, 5:5 + CHANNELS], "window": torch.randn(rows, CHANNELS, 3, generator=g).bfloat16(),
            "weight": torch.randn(CHANNELS, 4, generator=g), "output": torch.full((rows, CHANNELS), 777.0).bfloat16()}


def conv_reference(t: dict[str, torch.Tensor]) -> None:
    window = torch.cat([t["window"], t["x"].unsqueeze(-1)], -1)
    y = (window.double() * t["weight"].double()).sum(-1)
    t["output"].copy_(torch.nn.functional.silu(y).float())
    t["window"].copy_(window[:, :, 1:])


# ---- a row wider than a warp: residual add in place, two dependent block reductions, e4m3 output

COLUMNS, THREADS = 1536, 192
WARPS, REG = THREADS // 32, COLUMNS // (THREADS * 8)


def _across_warps(name: str, buffer: str, fn: str) -> tuple:
    return (
        LaneReduce((name,), fn, 1, 32, ()),
        Guard((Less(lin(lane=1), 1),), (Copy(el(name), Shared(buffer, lin(warp=1))),)),
        Barrier((f"{buffer}: partial of each warp, write → read",)),
        Declare(f"{name}_parts", (WARPS,), "f32"),
        Copy(Shared(buffer, lin(w=1)), el(f"{name}_parts", "w"), (For("w", WARPS),)),
        Compute((), (Assign(el(name), el(f"{name}_parts", 0)),)),
        Compute((For("w", WARPS - 1),), (Assign(el(name), ap(fn, el(name), el(f"{name}_parts", lin(1, w=1)))),)),
    )


def norm(arch: str = "sm_90a") -> KernelSpec:
    loops, at = (For("c", REG),), lin(thread=8, c=THREADS * 8)
    both = (For("c", REG), For("j", 8))
    x, r, w, y = (el(n, "c", "j") for n in ("x", "res", "wt", "y"))
    body = (
        Let("row", lin(block_x=1)), Let("lane", Digit("thread", 1, 32)), Let("warp", Digit("thread", 32, 0)),
        *(d for n in ("x", "res", "wt") for d in (Declare(n, (REG, 8), "f32"),)),
        Copy(Global("x", row_of("x") + at), el("x", "c", 0), loops, 8, hint="evict_first"),
        Copy(Global("residual", row_of("residual") + at), el("res", "c", 0), loops, 8),
        Copy(Global("weight", at), el("wt", "c", 0), loops, 8),
        Declare("squares", (), "f32", 0.0),
        Compute(both, (Assign(r, Round(ap("add", r, x), "bf16"), Origin(("norm+1",), "residual += x")),
                       Assign(el("squares"), ap("fma", r, r, el("squares")), Origin(("norm+2",), "variance")))),
        Copy(el("res", "c", 0), Global("residual", row_of("residual") + at), loops, 8),
        *_across_warps("squares", "sum", "add"),
        Declare("scale", (), "f32"),
        Compute((), (Assign(el("scale"), ap("rsqrt", ap("fma", el("squares"), 1 / COLUMNS, 1e-6))),)),
        Declare("y", (REG, 8), "f32"), Declare("peak", (), "f32", 0.0),
        Compute(both, (Assign(y, Round(ap("mul_rn", Round(ap("mul_rn", r, el("scale")), "bf16"), el("wt", "c", "j")), "bf16")),
                       Assign(el("peak"), ap("max", el("peak"), ap("abs", y))))),
        *_across_warps("peak", "top", "max"),
        Declare("step", (), "f32"),
        Compute((), (Assign(el("step"), ap("div", ap("max", el("peak"), 1e-10), 448.0), Origin(("norm+5",))),)),
        Compute(both, (Assign(y, ap("div", y, el("step"))),)),
        Copy(el("y", "c", 0), Global("output", lin(row=COLUMNS) + at), loops, 8),
        Guard((Less(lin(thread=1), 1),), (Copy(el("step"), Global("scale", lin(row=1))),)),
    )
    plan = SmemPlan((Buffer("sum", "f32", WARPS, 0, 6, 15), Buffer("top", "f32", WARPS, 32, 18, 24)), 32 + 4 * WARPS)
    return KernelSpec("norm_quant", "residual add in place, RMSNorm, e4m3 and scale", arch, (
        Parameter("x", "bf16", ("rows", COLUMNS), (None, 1), 16, (8, 1)),
        Parameter("residual", "bf16", ("rows", COLUMNS), (None, 1), 16, (8, 1)),
        Parameter("weight", "bf16", (COLUMNS,), (1,), 16),
        Parameter("output", "f8e4m3", ("rows", COLUMNS), (COLUMNS, 1), 16),
        Parameter("scale", "f32", ("rows",), (1,), 4),
    ), Launch((("rows",), (), ()), THREADS), plan, body)


def norm_inputs(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(rows, COLUMNS + 8, generator=g).bfloat16()[:, 8:],
            "residual": torch.randn(rows, COLUMNS, generator=g).bfloat16(), "weight": torch.randn(COLUMNS, generator=g).bfloat16(),
            "output": torch.zeros(rows, COLUMNS).to(torch.float8_e4m3fn), "scale": torch.full((rows,), 777.0)}


def norm_reference(t: dict[str, torch.Tensor]) -> None:
    t["residual"].add_(t["x"])
    r = t["residual"].double()
    y = (r * torch.rsqrt(r.square().mean(-1, keepdim=True) + 1e-6)).bfloat16() * t["weight"]
    step = y.float().abs().amax(-1).clamp(min=1e-10) / 448
    t["output"].copy_((y.float() / step[:, None]).to(torch.float8_e4m3fn))
    t["scale"].copy_(step)


# ---- one step of a delta rule on a paged state [slots, heads, v, k]: guards, an exchange, joint lane reductions

HEADS, V, K = 3, 32, 64
LANE_K, VEC = 8, 4
REG_K, REG_V = K // (LANE_K * VEC), V // (4 * (32 // LANE_K))


def delta(arch: str = "sm_90a") -> KernelSpec:
    """128 threads: k = REG_K × LANE_K × VEC, v = WARP × REG_V × LANE_V. The key and the decay are exchanged."""
    state = Linear((Term("slot", 1, ("state", 0)),)) + lin(head=V * K, own_v=K, r=K * (32 // LANE_K), lane_k=VEC, c=LANE_K * VEC)
    token = lin(row=HEADS * K, head=K, thread=1)
    tile, flat = (For("r", REG_V), For("c", REG_K)), (For("r", REG_V), For("c", REG_K), For("j", VEC))
    h, key = el("h", "r", "c", "j"), el("key", "c", "j")
    body = (
        Let("row", lin(block_x=1)), Let("head", lin(block_y=1)), Let("warp", Digit("thread", 32, 0)),
        Let("lane_k", Digit("thread", 1, LANE_K)), Let("lane_v", Digit("thread", LANE_K, 32 // LANE_K)),
        Let("own_v", lin(warp=V // 4, lane_v=1)),
        Declare("index", (), "i64"),
        Copy(Global("slots", lin(row=1)), el("index"), origin=Origin(("step+3",), "pool[slots]")),
        Declare("live", (), "bool"),
        Compute((), (Assign(el("live"), ap("ge", el("index"), 0)),)),
        Compute((), (Assign(el("index"), ap("max", el("index"), 0)),)),
        Let("slot", el("index")),
        Declare("h", (REG_V, REG_K, VEC), "f32", 0.0),
        Copy(Global("state", state), el("h", "r", "c", 0), tile, VEC, (el("live"),), "evict_first", Origin(("step+3",))),
        Guard((Less(lin(thread=1), K),), (
            Declare("k_own", (), "f32"), Declare("g_own", (), "f32"),
            Copy(Global("k", token), el("k_own")), Copy(Global("g", token), el("g_own")),
            Compute((), (Assign(el("g_own"), ap("exp", el("g_own")), Origin(("step+4",), "decay = exp(g)")),)),
            Copy(el("k_own"), Shared("key", lin(thread=1))), Copy(el("g_own"), Shared("decay", lin(thread=1))),
        )),
        Declare("value", (REG_V,), "f32"),
        Copy(Global("v", lin(row=HEADS * V, head=V, own_v=1, r=32 // LANE_K)), el("value", "r"), (For("r", REG_V),)),
        Barrier(("key, decay: write → read",)),
        Declare("key", (REG_K, VEC), "f32"), Declare("decay", (REG_K, VEC), "f32"),
        Copy(Shared("key", lin(lane_k=VEC, c=LANE_K * VEC)), el("key", "c", 0), (For("c", REG_K),), VEC),
        Copy(Shared("decay", lin(lane_k=VEC, c=LANE_K * VEC)), el("decay", "c", 0), (For("c", REG_K),), VEC),
        Declare("dot", (REG_V,), "f32", 0.0),
        Compute(flat, (Assign(h, ap("mul_rn", h, el("decay", "c", "j")), Origin(("step+5",), "h = h * decay")),
                       Assign(el("dot", "r"), ap("fma", h, key, el("dot", "r")), Origin(("step+6",))))),
        LaneReduce(("dot",), "add", 1, LANE_K, (REG_V,), Origin(("step+6",))),
        Declare("out", (REG_V,), "f32", 0.0),
        Compute((For("r", REG_V),), (Assign(el("dot", "r"), ap("sub", el("value", "r"), el("dot", "r"))),)),
        Compute(flat, (Assign(h, ap("fma", el("dot", "r"), key, h), Origin(("step+7",))),
                       Assign(el("out", "r"), ap("fma", h, key, el("out", "r"))))),
        Copy(el("h", "r", "c", 0), Global("state", state), tile, VEC, (el("live"),), "evict_first", Origin(("step+8",))),
        LaneReduce(("out",), "add", 1, LANE_K, (REG_V,)),
        Guard((Less(lin(lane_k=1), 1),), (
            Copy(el("out", "r"), Global("output", lin(row=HEADS * V, head=V, own_v=1, r=32 // LANE_K)), (For("r", REG_V),)),)),
    )
    plan = SmemPlan((Buffer("key", "f32", K, 0, 15, 20), Buffer("decay", "f32", K, 4 * K, 15, 21)), 8 * K)
    return KernelSpec("delta_step", "one step of a delta rule on a paged state", arch, (
        Parameter("k", "bf16", ("rows", HEADS, K), (HEADS * K, K, 1), 2),
        Parameter("g", "f32", ("rows", HEADS, K), (HEADS * K, K, 1), 4),
        Parameter("v", "bf16", ("rows", HEADS, V), (HEADS * V, V, 1), 2),
        Parameter("slots", "i64", ("rows",), (1,), 8),
        Parameter("state", "f32", ("pool", HEADS, V, K), (None, V * K, K, 1), 16, (4, 1, 1, 1)),
        Parameter("output", "bf16", ("rows", HEADS, V), (HEADS * V, V, 1), 2),
    ), Launch((("rows",), (HEADS,), ()), 128, 2), plan, body, ("k = REG2 × LANE8 × VEC4, v = WARP4 × REG2 × LANE4",))


def delta_inputs(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    pages = torch.randn(rows + 2, HEADS * V * K + 12, generator=g)
    slots = torch.randperm(rows + 2, generator=g)[:rows]
    slots[rows // 2] = -1
    return {"k": torch.randn(rows, HEADS, K, generator=g).bfloat16() * 0.2, "g": -torch.rand(rows, HEADS, K, generator=g),
            "v": torch.randn(rows, HEADS, V, generator=g).bfloat16(), "slots": slots,
            "state": pages.as_strided((rows + 2, HEADS, V, K), (HEADS * V * K + 12, V * K, K, 1)),
            "output": torch.full((rows, HEADS, V), 777.0).bfloat16()}


def delta_reference(t: dict[str, torch.Tensor]) -> None:
    live = t["slots"] >= 0
    slot = t["slots"].clamp(min=0)
    h = torch.where(live[:, None, None, None], t["state"][slot].double(), 0.0) * t["g"].double().exp()[:, :, None, :]
    k = t["k"].double()
    u = t["v"].double() - torch.einsum("bhvk,bhk->bhv", h, k)
    h = h + u[..., None] * k[:, :, None, :]
    t["state"][slot[live]] = h[live].float()
    t["output"].copy_(torch.einsum("bhvk,bhk->bhv", h, k))


# ---- merging a run-time number of parts by their log-sum-exp: a loop that is not unrolled, narrow fragments, a ragged row

WIDE = 500


def merge(arch: str = "sm_90a") -> KernelSpec:
    """64 threads with 8 of 500 channels each; a turn of the loop per part, masked per element at the ragged end."""
    part = Linear((Term("row", 1, ("partial", 0)), Term("t", 1, ("partial", 1)))) + lin(thread=8, j=1)
    inside = Less(lin(thread=8, j=1), WIDE)
    body = (
        Let("row", lin(block_x=1)),
        Declare("count", (), "i32"), Copy(Global("counts", lin(row=1)), el("count")),
        Declare("peak", (), "f32", float("-inf")), Declare("weight", (), "f32", 0.0), Declare("acc", (8,), "f32", 0.0),
        Repeat("t", el("count"), (
            Declare("score", (), "f32"), Declare("part", (8,), "bf16", 0.0),
            Copy(Global("lse", Linear((Term("row", 1, ("lse", 0)), Term("t")))), el("score")),
            Copy(Global("partial", part), el("part", "j"), (For("j", 8),), when=(inside,), origin=Origin(("merge+4",), "part t")),
            Compute((), (
                Assign(el("top"), ap("max", el("peak"), el("score"))),
                Assign(el("shrink"), ap("select", ap("eq", el("peak"), float("-inf")), 0.0,
                                        ap("exp", ap("sub", el("peak"), el("top"))))),
                Assign(el("share"), ap("select", ap("eq", el("score"), float("-inf")), 0.0,
                                       ap("exp", ap("sub", el("score"), el("top"))))),
                Assign(el("weight"), ap("fma", el("weight"), el("shrink"), el("share"))), Assign(el("peak"), el("top")))),
            Compute((For("j", 8),), (
                Assign(el("acc", "j"), ap("fma", el("part", "j"), el("share"), ap("mul_rn", el("acc", "j"), el("shrink")))),)),
        ), ("peak", "weight", "acc")),
        Compute((For("j", 8),), (
            Assign(el("acc", "j"), ap("select", ap("gt", el("weight"), 0.0), ap("div", el("acc", "j"), el("weight")), 0.0)),)),
        Copy(el("acc", "j"), Global("output", lin(row=WIDE, thread=8, j=1)), (For("j", 8),), when=(inside,)),
        Guard((Less(lin(thread=1), 1),), (
            Compute((), (Assign(el("weight"), ap("add", ap("log", el("weight")), el("peak"))),)),
            Copy(el("weight"), Global("merged", lin(row=1))),)),
    )
    return KernelSpec("merge", "parts merged by their log-sum-exp", arch, (
        Parameter("partial", "bf16", ("rows", "parts", WIDE), (None, None, 1), 2, (1, 1, 1)),
        Parameter("lse", "f32", ("rows", "parts"), (None, 1), 4), Parameter("counts", "i32", ("rows",), (1,), 4),
        Parameter("output", "f32", ("rows", WIDE), (WIDE, 1), 4), Parameter("merged", "f32", ("rows",), (1,), 4),
    ), Launch((("rows",), (), ()), 64), SmemPlan(), body)


def merge_inputs(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {"partial": torch.randn(rows, 6, WIDE, generator=g).bfloat16(), "lse": torch.randn(rows, 6, generator=g) * 5,
            "counts": (torch.arange(rows) % 7).int(), "output": torch.full((rows, WIDE), 777.0),
            "merged": torch.full((rows,), 777.0)}


def merge_reference(t: dict[str, torch.Tensor]) -> None:
    live = torch.arange(6) < t["counts"][:, None]
    lse = torch.where(live, t["lse"].double(), float("-inf"))
    t["merged"].copy_(torch.logsumexp(lse, 1))
    share = torch.where(live, torch.softmax(lse, 1), 0.0)
    t["output"].copy_((share[:, :, None] * t["partial"].double()).sum(1))


# ---- sums and products of three numbers: what is contracted and what is not

def products(arch: str = "sm_90a") -> KernelSpec:
    """Sums and differences of products that are not to be contracted, used once and twice."""
    ins = ("a", "b", "c")
    body = [s for i, n in enumerate(ins) for s in (Declare(n, (), "f32"), Copy(Global("x", lin(128 * i, thread=1)), el(n)))]
    p = ap("mul_rn", el("a"), el("b"))
    outs = {"once": ap("add", p, el("c")), "minus": ap("sub", el("c"), p), "both": ap("add", p, ap("mul_rn", el("b"), el("c"))),
            "fused": ap("fma", el("a"), el("b"), el("c"))}
    body.append(Compute((), (Assign(el("twice"), p), Assign(el("again"), ap("add", ap("add", el("twice"), el("c")), el("twice"))))))
    body += [Compute((), (Assign(el(n), v),)) for n, v in outs.items()]
    body += [Copy(el(n), Global("y", lin(128 * i, thread=1))) for i, n in enumerate((*outs, "again"))]
    parameters = (Parameter("x", "f32", (384,), (1,), 4), Parameter("y", "f32", (640,), (1,), 4))
    return KernelSpec("products", "products", arch, parameters, Launch(((1,), (), ()), 128), SmemPlan(), tuple(body))


CASES = {"conv": (conv, conv_inputs, conv_reference), "norm": (norm, norm_inputs, norm_reference),
         "delta": (delta, delta_inputs, delta_reference), "merge": (merge, merge_inputs, merge_reference)}
