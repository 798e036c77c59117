"""Declared shapes: what annotations say is checked, names the axes, and is enough to compile without tensors."""
from __future__ import annotations

import typing

import pytest
import torch

import fusec
from fusec.api import capture_graph
from fusec.capture.annotations import FreeNames, declared

if typing.TYPE_CHECKING:
    from jaxtyping import BFloat16, Complex64, Float, Float32, Int, Shaped
    from torch import Tensor

import jaxtyping

Weight = jaxtyping.Float32[torch.Tensor, "D"]


def step(x: BFloat16[Tensor, "batch 3*H*D"], pool: Float[Tensor, "slots H D D"], index: Int[Tensor, "batch"],
         w: Weight | None, scale: float = 0.5):
    q, k, v = x.float().view(x.shape[0], 3, pool.shape[1], pool.shape[2]).unbind(1)
    h = pool[index].float() * scale + k.unsqueeze(-2) * v.unsqueeze(-1)
    pool[index] = h.to(pool.dtype)
    return (h * q.unsqueeze(-2)).sum(-1) * w


def example(**changes):
    return dict(x=torch.randn(4, 48).bfloat16(), pool=torch.randn(6, 2, 8, 8), index=torch.randperm(6)[:4],
                w=torch.randn(8)) | changes


def axes(graph):
    return {str(a) for a in graph.axes}


def test_names_are_axes_and_sizes_at_the_call():
    stages = capture_graph(step, example())
    assert {"batch:batch", "H:2", "D:8"} <= axes(stages.graph)
    assert [str(a.shape[0]) for a in stages.graph.arguments[:3]] == ["batch", "slots", "batch"] and stages.graph.rows == "batch"


def test_annotations_that_are_objects_say_the_same():
    def late(x, w):
        return x * w
    late.__annotations__ = {"x": jaxtyping.BFloat16[torch.Tensor, "rows heads*D"], "w": typing.Optional[Weight]}
    found = declared(late)
    assert (found["x"].dtypes, str(found["x"]), found["w"].dtypes) == (("bf16",), "[rows, heads*D]", ("f32",))
    assert declared(step)["w"].dims[0].names == ("D",) and "scale" not in declared(step)


@pytest.mark.parametrize("changes, said", [
    (dict(w=torch.randn(9)), "argument w: dim 0: expected D = 8 as in pool, found 9 in shape [9]"),
    (dict(index=torch.arange(3)), "argument index: dim 0: expected batch = 4 as in x, found 3 in shape [3]"),
    (dict(x=torch.randn(4, 47).bfloat16()), "x: dim 1: expected 3*H*D = 48 (H = 2 as in pool, D = 8 as in pool), found 47"),
    (dict(w=torch.randn(1, 8)), "argument w: expected shape [D], found [1, 8]"),
    (dict(x=torch.randn(4, 48)), "argument x: expected dtype bfloat16, found float32"),
    (dict(pool=torch.zeros(6, 2, 8, 8, dtype=torch.int32)), "argument pool: expected dtype float32, bfloat16"),
])
def test_an_example_that_is_not_as_declared(changes, said):
    with pytest.raises(fusec.CaptureError) as error:
        capture_graph(step, example(**changes))
    assert said in str(error.value) and "test_annotations.py:" in str(error.value)


def test_a_product_tells_its_one_unknown():
    def f(x: Float32[Tensor, "rows 3*H"], y: Float32[Tensor, "H rows"]):
        return x.view(x.shape[0], 3, -1).sum(1) + y.t()
    capture_graph(f, dict(x=torch.randn(4, 12), y=torch.randn(4, 4)))
    with pytest.raises(fusec.CaptureError, match=r"argument y: dim 0: expected H = 4 as in x, found 5|3\*H = 15"):
        capture_graph(f, dict(x=torch.randn(4, 12), y=torch.randn(5, 4)))


@pytest.mark.parametrize("text, said", [("rows ...", "a dim '...' is not"), ("*rows D", "a dim '*rows'"), ("D^2", "a dim")])
def test_forms_that_are_not_supported(text, said):
    def f(x):
        return x + 1
    f.__annotations__ = {"x": f'Float32[Tensor, "{text}"]'}
    with pytest.raises(fusec.CaptureError, match=said.replace("*", r"\*")):
        declared(f)


def test_a_dtype_that_no_kernel_has():
    def f(x: Complex64[Tensor, "rows"], y: Shaped[Tensor, "_ 4"]):
        return x
    with pytest.raises(fusec.CaptureError, match="argument x: no kernel has Complex64 tensors"):
        declared(f)


def test_names_that_no_size_is_given_for_are_free():
    """A second free axis beside the rows, which the rule alone would take for a constant."""
    def f(x: Float32[Tensor, "rows blocks D"]):
        return x * 2
    rule = capture_graph(f, dict(x=torch.randn(4, 3, 8))).graph
    assert axes(rule) >= {"rows:rows"} and not any(a.extent == rule.axis("rows").extent for a in rule.axes if a.name != "rows")
    free = capture_graph(f, dict(x=torch.randn(4, 3, 8)), FreeNames(frozenset({"rows", "blocks"}), (("D", 8),))).graph
    assert {"rows:rows", "blocks:blocks"} <= axes(free) and free.rows == "rows"
    with pytest.raises(fusec.CaptureError, match=r"dim 2: expected D = 16 fixed, found 8"):
        capture_graph(f, dict(x=torch.randn(4, 3, 8)), FreeNames(frozenset({"rows"}), (("D", 16),)))


def test_declared_rows_need_no_example_of_two():
    def f(x: Float32[Tensor, "rows D"], w: Float32[Tensor, "1 rows"]):
        return x * w.t()
    graph = capture_graph(f, dict(x=torch.randn(1, 8), w=torch.randn(1, 1))).graph
    assert graph.rows == "rows" and [str(e) for a in graph.arguments for e in a.shape] == ["rows", "8", "1", "rows"]
    assert fusec.check(f, dict(x=torch.randn(1, 8), w=torch.randn(1, 1)), level="kernel").ok


def test_inputs_are_made_of_declarations():
    fused = fusec.fuse(step, example=dict(H=2, D=8))
    assert fused.has_example and fused.sizes() == ("batch", "H", "D", "slots", "pool", "index", "scale")
    made = fused.inputs(5, pool="bf16", index="i32", H=3)
    assert made["x"].shape == (5, 72) and made["pool"].shape[1:] == (3, 8, 8) and made["pool"].dtype == torch.bfloat16
    assert made["index"].dtype == torch.int32 and len(set(made["index"].tolist())) == 5
    assert made["index"].max() < made["pool"].shape[0]
    assert all(torch.equal(a, b) for a, b in zip(made.values(), fused.inputs(5, pool="bf16", index="i32", H=3).values())
               if isinstance(a, torch.Tensor))
    for wrong, said in ((dict(Q=1), "the sizes that can be set are"), (dict(H=0), "expected a size"),
                        (dict(pool="i32"), "expected one of")):
        with pytest.raises(fusec.FusecError, match=said):
            fused.inputs(5, **wrong)
    report = fusec.check(fused.bound(H=2, D=8), fused.inputs(3), level="kernel")
    assert report.ok, str(report)


def appended(key: Float32[Tensor, "rows D"], cache: Float32[Tensor, "slots D"], table: Int[Tensor, "rows columns"],
             at: Int[Tensor, "rows"]):
    cache[table.gather(1, at[:, None])[:, 0]] = key
    return cache[table].sum(1)


def test_slots_that_are_written_are_distinct():
    fused = fusec.fuse(appended, example=dict(D=8, columns=6))
    made = fused.inputs(5)
    assert made["table"].unique().numel() == 30 and int(made["table"].max()) < made["cache"].shape[0]
    assert fused.inputs(5, slots=7)["cache"].shape[0] == 7
    assert fusec.check(fused.bound(D=8, columns=6), made, level="kernel").ok


def test_inputs_are_captured_for_once(monkeypatch):
    fused = fusec.fuse(step, example=dict(H=2, D=8))
    seen = []
    whole = fusec.api.capture_graph
    monkeypatch.setattr(fusec.api, "capture_graph", lambda *given: seen.append(1) or whole(*given))
    first = fused.inputs(5)
    count = len(seen)
    assert torch.equal(fused.inputs(5)["index"], first["index"]) and len(seen) == count
    fused.inputs(6)
    assert len(seen) > count

    def plain(x: Float32[Tensor, "rows D"]):
        return x * 2
    count = len(seen)
    assert fusec.fuse(plain).inputs(3)["x"].shape[0] == 3 and len(seen) == count


def test_what_is_missing_is_named():
    fused = fusec.fuse(step)
    with pytest.raises(fusec.FusecError) as error:
        fused.compile("sm_90a")
    assert "the sizes of D, H, batch, slots are free here" in str(error.value)

    def f(x: Float32[Tensor, "rows D"], eps):
        return x + eps
    with pytest.raises(fusec.FusecError, match="parameter eps has neither a declared shape nor a value"):
        fusec.fuse(f).inputs(3)
    assert "eps" in fusec.fuse(f, static=dict(eps=0.5)).inputs(3)
    with pytest.raises(fusec.FusecError, match="its annotations declare no shapes"):
        fusec.compile(lambda x: x, arch="sm_90a")


def test_compile_needs_no_tensors():
    artifact = fusec.compile(step, arch="sm_90a", static=dict(H=2, D=8, pool="bf16"))
    source = artifact.kernels[0].source
    assert "batch, _, _ = cute.arch.block_idx()" in source and artifact.kernels[0].spec.parameters[1].dtype == "bf16"
