"""Captured functions against eager, at other sizes than the example's, mutations included."""

import copy
import dataclasses
import functools
import typing

import pytest
import torch

import fusec
from fusec.api import capture_graph
from fusec.capture import bind, capture
from fusec.errors import CaptureError, UnsupportedOp
from fusec.ir import structure
from fusec.ir.interpret_tensor import run_tensor
from fusec.ir.print_tensor import format_tensor
from fusec.ir.scalar import PRIMITIVES
from fusec.ir.tensor import Gather, Map, Size, Update
from fusec.runtime import launch

from .steps import STEPS, Config, linear_attention, linear_attention_example, normal, unit


THREE = Config(heads=3)


@functools.cache
def graph_of(name):
    fn, make = STEPS[name]
    torch.manual_seed(0)
    return capture(fn, make(4))


@pytest.mark.parametrize("rows", (1, 4, 6))
@pytest.mark.parametrize("name", STEPS)
def test_step_equals_eager_at_any_number_of_rows(name, rows):
    fn, make = STEPS[name]
    torch.manual_seed(rows)
    mine = make(rows)
    theirs = copy.deepcopy(mine)
    want = [x for x in structure.leaves(fn(**theirs)) if isinstance(x, torch.Tensor)]
    tensors = bind.bind(fn, mine).tensors
    got = run_tensor(graph_of(name), tensors)
    pairs = list(zip(got, want, strict=True)) + [(t, bind.bind(fn, theirs).tensors[n]) for n, t in tensors.items()]
    for a, b in pairs:
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        exact = b.dtype not in (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
        rtol, atol = (0, 0) if exact else (1e-5, 2e-6) if b.dtype == torch.float32 else (2**-6, 2**-6)
        torch.testing.assert_close(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", STEPS)
def test_rows_are_found(name):
    assert graph_of(name).rows == "rows"


def test_argument_shapes_strides_and_indexed_dims():
    by_name = {a.name: a for a in graph_of("delta_rule").arguments}
    conv, gate = by_name["conv_state"], by_name["gate"]
    assert (str(conv.shape[0]), conv.shape[1:]) == ("conv_state_0", (48, 3))
    assert conv.strides == (None, 1, 48) and conv.indexed == (0,)
    assert (str(gate.shape[0]), gate.shape[1:], gate.strides, gate.dtype) == ("rows", (2, 8), (None, 8, 1), "bf16")
    assert {str(a.shape[0]) for a in by_name.values() if a.indexed} == {"conv_state_0", "state_0"}
    assert [str(n) for n in {a.name: a for a in graph_of("flat_rows").arguments}["x"].shape] == ["2*rows", "6"]


def test_stride_of_a_static_dim_outside_a_free_one_is_free():
    graph = capture(
        lambda x, idx, pool: pool[idx] + x, dict(x=normal(2, 3, 4).transpose(0, 1), idx=torch.arange(3), pool=normal(5, 2, 4))
    )
    assert {a.name: a.strides for a in graph.arguments}["x"] == (None, None, 1)


def test_plain_indexing_wraps_negative_indices_and_index_select_does_not():
    sizes = [a for n in graph_of("linear_attention").nodes for a in getattr(n.op, "args", ()) if isinstance(a, Size)]
    assert sizes == [Size("pool", 0)]
    assert not [a for n in graph_of("delta_rule").nodes for a in getattr(n.op, "args", ()) if isinstance(a, Size)]


def test_reads_and_writes_share_one_index_value():
    graph = graph_of("linear_attention")
    gather = next(n.op for n in graph.nodes if isinstance(n.op, Gather))
    update = next(n.op for n in graph.nodes if isinstance(n.op, Update))
    assert gather.index == update.index
    assert graph.mutations == (("pool", next(n.name for n in graph.nodes if isinstance(n.op, Update))),)


def test_writes_through_one_index_are_one_update_of_the_argument():
    graph = graph_of("written_again")
    (update,) = [n for n in graph.nodes if isinstance(n.op, Update)]
    assert update.op.target == "s" and graph.mutations == (("s", update.name),)
    assert len([n for n in graph.nodes if isinstance(n.op, Gather)]) == 1


def test_returned_arguments_constants_and_containers():
    def step(x, y):
        x.add_(1)
        return x, y, None, 3, [y * 2]

    graph = capture(step, dict(x=normal(3, 4), y=normal(3, 4)))
    assert graph.outputs[:4] == ("=x", "=y", "!None", "!3") and graph.structure == "nested:('*', '*', '*', '*', ['*'])"
    assert structure.rebuild(graph.structure, [1, 2, None, 3, 4]) == (1, 2, None, 3, [4])
    assert graph_of("nested").structure == "nested:{'y': '*', 's': ('*', '*')}"
    assert capture(lambda x: {"a": x + 1}, dict(x=normal(3, 4))).structure == "dict:a"
    for text, values in (("tensor", [1]), ("tuple", [1, 2]), ("list", [1]), ("none", []), ("dict:a,b", [1, 2])):
        assert structure.leaves(structure.rebuild(text, values)) == values or text == "none"


class Pair(typing.NamedTuple):
    y: object
    more: object


@dataclasses.dataclass
class Result:
    y: object
    rest: object


PACKED = {
    "a tuple in a tuple": lambda x: (x * 2, (x + 1, x.exp())),
    "lists and dicts": lambda x: [(x * 2,), {"b": x + 1, "a": 7}],
    "a namedtuple": lambda x: Pair(x * 2, None),
    "a dataclass of a namedtuple": lambda x: Result(x * 2, Pair(x + 1, [x])),
    "constants in a dict": lambda x: {"y": x * 2, "aux": None, "n": 3},
}


@pytest.mark.parametrize("name", PACKED)
def test_results_are_packed_as_the_function_packs_them(name):
    x = normal(3, 4)
    graph = capture_graph(PACKED[name], dict(x=x)).need("graph")
    want = PACKED[name](x)
    tensors = [t for t in structure.leaves(want) if isinstance(t, torch.Tensor)]
    numbers = launch.returned(graph, ["x", *(a.name for a in graph.fresh)])
    assert len(numbers) == len(tensors)
    made = launch.packer(graph)(tensors)
    assert type(made) is type(want) and repr(made) == repr(want)
    given = launch.unpack_outputs(graph, want, {"x": x})
    assert list(given) == [a.name for a in graph.fresh]
    assert fusec.check(PACKED[name], dict(x=x), level="kernel").ok


def test_a_class_that_cannot_be_found_again_is_refused():
    class Inner(Pair):
        pass

    with pytest.raises(CaptureError, match="returns a Inner, a class that is not found"):
        capture(lambda x: Inner(x * 2, x), dict(x=normal(3, 4)))


def test_an_unused_result_does_not_take_a_state_write_with_it():
    def step(x, pool, i):
        x * 2
        pool[i] = x

    graph = capture(step, dict(x=normal(3, 4), pool=normal(5, 4), i=torch.arange(3)))
    assert graph.outputs == () and graph.structure == "none" and [a for a, _ in graph.mutations] == ["pool"]
    assert not [n for n in graph.nodes if n.source == "aten.mul.Tensor"]


def test_constants_are_folded_and_part_of_the_graph():
    scale = 0.25

    def helper(n: int):
        return 1 << (5 - n)

    def step(x, *, config=THREE, shift=(1, 2)):
        return x * scale * helper(3) + config.heads + sum(shift)

    text = format_tensor(capture(step, dict(x=normal(3, 4))))
    assert all(part in text for part in ("mul(x, 0.25)", "mul(mul, 4.0)", "add(mul_1, 3.0)", "3.0) : f32[rows, 4]"))
    assert "add(mul_1, 5.0)" in format_tensor(capture(step, dict(x=normal(3, 4)), static={"config": Config(heads=5)}))


def test_odd_float_constants_keep_their_bits():
    def step(x, m):
        return torch.stack([x.masked_fill(m, v) for v in (float("-inf"), -0.0, 1e-45, 3.4e38, float("nan"))]), x.clamp(
            max=float("inf")
        )

    example = dict(x=normal(3, 4), m=normal(3, 4) > 0)
    for got, want in zip(run_tensor(capture(step, example), example), step(**example), strict=True):
        assert torch.equal(got.view(torch.int32), want.view(torch.int32))


def test_huge_integers_stay_integers():
    step = lambda i: i * 2**40 + (2**62 - 1)  # noqa: E731
    example = dict(i=torch.arange(3))
    assert torch.equal(run_tensor(capture(step, example), example)[0], step(**example))


def test_a_written_rounding_stays():
    def step(x, w, b):
        return (x * w).to(torch.bfloat16) + b

    example = dict(x=torch.full((3, 2), 1.0), w=torch.full((3, 2), 1 + 2**-9), b=torch.zeros(3, 2))
    (out,) = run_tensor(capture(step, example), example)
    assert out.dtype == torch.float32 and torch.equal(out, torch.ones(3, 2))


def test_the_state_that_is_read_back_is_the_rounded_one():
    def step(state, x):
        state.copy_(x * 1.001)
        return state.float() * 3

    example = dict(state=normal(3, 4, dtype=torch.bfloat16), x=normal(3, 4))
    want = (example["x"] * 1.001).bfloat16()
    (out,) = run_tensor(capture(step, example), example)
    assert torch.equal(out, want.float() * 3) and torch.equal(example["state"], want)


PROMOTIONS = {
    "number": lambda b, f, i: b * 0.1,
    "zero_dim": lambda b, f, i: b * f[0, 0],
    "fp32": lambda b, f, i: b * f[:1, :1],
    "int": lambda b, f, i: i + b,
    "equal": lambda b, f, i: b == 3.14,
    "matmul": lambda b, f, i: b @ b.mT,
    "bool": lambda b, f, i: (b > 0) * f,
    "int_div": lambda b, f, i: i / 3,
    "int_mul": lambda b, f, i: i * 2.5,
    "mean": lambda b, f, i: b.mean(-1),
    "sum_int": lambda b, f, i: i.sum(-1),
}


@pytest.mark.parametrize("name", PROMOTIONS)
def test_promotion_follows_eager(name):
    fn = PROMOTIONS[name]
    b = normal(3, 4, dtype=torch.bfloat16)
    b[0, 0] = torch.tensor(3.14).bfloat16()
    example = dict(b=b, f=normal(3, 4), i=torch.randint(-300, 300, (3, 4), dtype=torch.int32))
    (got,), want = run_tensor(capture(fn, example, {}), example), fn(**example)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.double(), want.double(), rtol=2**-7 if want.dtype == torch.bfloat16 else 1e-6, atol=1e-6)


def test_no_data_is_looked_at_and_nothing_is_written():
    example = linear_attention_example(4)
    before = copy.deepcopy(example)
    huge = torch.empty(1, device="meta").expand(1 << 20, 1 << 12)
    capture(linear_attention, example)
    capture(lambda x: x + 1, dict(x=huge))
    assert all(torch.equal(example[n], before[n]) for n in example)


def test_capture_runs_in_inference_mode_and_of_inference_tensors():
    with torch.inference_mode():
        assert capture(unit, dict(x=normal(3, 4))).rows == "rows"


def test_parameters_without_gradients_enabled():
    with torch.no_grad():
        capture(lambda x, w: x * w, dict(x=normal(3, 4), w=torch.nn.Parameter(normal(4))))


def test_text_is_stable():
    fn, make = STEPS["merge"]
    assert format_tensor(graph_of("merge")) == format_tensor(capture(fn, make(7)))


def test_printed_graph():
    text = format_tensor(
        capture(lambda x, y, i: (torch.einsum("rk,rk->r", x[i], y), x), dict(x=normal(5, 4), y=normal(3, 4), i=torch.arange(3)))
    )
    assert text.splitlines()[1:4] == [
        "  argument x : f32[x_0, 4] strides (free, 1) indexed 0",
        "  argument y : f32[rows, 4] strides (free, 1)",
        "  argument i : i64[rows] strides (free)",
    ]
    assert "add = add(i, size(x, 0)) : i64[rows]" in text and "dot = contract(picked, y; ab,ab->a)" not in text
    assert text.splitlines()[-1] == "  return dot, =x (tuple)"


@dataclasses.dataclass
class Derived:
    x: torch.Tensor
    y: object = dataclasses.field(init=False, default=None)


def test_a_container_that_cannot_be_made_again_is_refused():
    assert capture(lambda x: {"a": x + 1, "": x * 2}, dict(x=normal(3, 4))).structure == "nested:{'a': '*', '': '*'}"
    for step in (lambda x: {torch.float32: x + 1}, lambda x: {float("inf"): x + 1}, lambda x: Derived(x + 1)):
        with pytest.raises(CaptureError, match="cannot be made again"):
            capture(step, dict(x=normal(3, 4)))


def test_functions_of_integers_are_taken_apart():
    def whole(i, d):
        quotient = torch.div(i, d, rounding_mode="trunc")
        return i.clamp(-(2**30), 2**30), quotient, torch.addcmul(i, d, d), i.relu(), i.floor(), (i > d) ^ (d > 0)

    graph = capture(whole, dict(i=torch.arange(6).view(3, 2), d=torch.ones(3, 2, dtype=torch.int64)))
    functions = {n.op.fn for n in graph.nodes if isinstance(n.op, Map)}
    assert functions <= set(PRIMITIVES) and {n.dtype for n in graph.nodes} <= {"i64", "bool"}
    for product in (lambda i: i.prod(-1), lambda i: i.cumprod(-1)):
        with pytest.raises(UnsupportedOp, match="a product of integers"):
            capture(product, dict(i=torch.arange(240).view(3, 80)))


def test_arguments_of_every_kind() -> None:
    def step(x, /, *factors, scale=2.0):
        return sum(x * f for f in factors) * scale

    report = fusec.check(step, (torch.randn(3, 8), torch.randn(8), torch.randn(8)), level="kernel")
    assert report.ok, str(report)
