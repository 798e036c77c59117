"""Calls of an artifact on the CPU, with kernels that are Python functions: what is refused, what is launched, what is compiled."""
from dataclasses import replace

import pytest
import sympy
import torch

from fusec.api import flatten
from fusec.errors import ArgumentError, TargetError
from fusec.ir.axis import Axis
from fusec.ir.graph import Digit, Graph, Index, Node, Ref, Store
from fusec.ir.kernel import Parameter
from fusec.ir.tensor import Argument
from fusec.runtime import artifact as module
from fusec.runtime.artifact import Artifact
from fusec.runtime.contract import check_shapes
from fusec.runtime.kernel import Kernel

ROWS, SLOTS = sympy.Symbol("rows"), sympy.Symbol("slots")
AXES = (Axis("r", ROWS), Axis("c", 8))
ARGUMENTS = (Argument("x", "bf16", (ROWS, 8), (None, 1)), Argument("state", "f32", (SLOTS, 8), (None, 1), (0,)),
             Argument("idx", "i32", (ROWS,), (None,)))
FRESH = (Argument("y", "bf16", (ROWS, 8), (8, 1)),)
PLACE = ((Digit(Index("r")),), (Digit(Index("c")),))
STORES = tuple(Node(f"s_{t}", Store(t, PLACE, Ref("v")), AXES, "f32") for t in ("state", "y"))
GRAPH = Graph("step", AXES, ARGUMENTS, FRESH, STORES, ("y", "=state"), "tuple", "rows")


def step(x, state, idx, scale=2.0):
    """The plain function."""
    new = state[idx.long()] + x.float() * scale
    state[idx.long()] = new
    return new.to(x.dtype), state


class PythonKernel(Kernel):
    @property
    def loaded(self):
        def run(x, state, idx, y):
            LAUNCHES.append(x.shape[0])
            y.copy_(step(x, state, idx)[0])
        return run


LAUNCHES, COMPILED = [], []


def compile_variant(graph, arch, alignment, announce):
    announce(f"for {arch}")
    COMPILED.append((tuple(a.strides for a in graph.arguments), dict(alignment)))
    width = min(alignment.get("x", 16), 16)
    parameters = (Parameter("x", "bf16", ("rows", 8), (None, 1), width, (width // 2, 1)),
                  *(Parameter(a.name, a.dtype, tuple(map(str, a.shape)), a.strides, 4, (1,) * len(a.shape)) for a in ARGUMENTS[1:]),
                  Parameter("y", "bf16", ("rows", 8), (8, 1), 16))
    return PythonKernel("step", "step", arch, "k", "default", parameters, (("rows",), (), ()), 32, 0, {}, 0.1, "step", None, None)


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr(module, "device_arch", lambda device: "sm_90a")
    LAUNCHES.clear()
    COMPILED.clear()
    spread = Argument("state", "f32", (SLOTS, 8), (None, 2), (0,))
    recaptured = replace(GRAPH, arguments=(ARGUMENTS[0], spread, ARGUMENTS[2]))

    def recapture(named):
        if named["state"].stride(1) != 2:
            raise RuntimeError("view size is not compatible")
        return recaptured

    example = inputs()
    first = compile_variant(GRAPH, "sm_90a", {}, lambda t: None)
    found = Artifact(step, GRAPH, {**example, "scale": 2.0}, [first], compile_variant, recapture, ("sm_90a",), flatten)
    found.device_type = "cpu"
    COMPILED.clear()
    return found


def inputs(rows=3, slots=5):
    g = torch.Generator().manual_seed(rows)
    return dict(x=torch.randn(rows, 8, generator=g).bfloat16(), state=torch.randn(slots, 8, generator=g),
                idx=torch.randperm(slots, generator=g)[:rows].int())


def matches(call, given, **more):
    mine = {n: t.clone() for n, t in given.items()}
    expected = step(**mine)
    result = call(**given, **more)
    assert torch.equal(result[0], expected[0]) and torch.equal(given["state"], expected[1]) and result[1] is given["state"]
    return result


def refused(call, message, *args, **kwargs):
    plain = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.layout == torch.strided and not t.is_meta]
    before, count = [t.clone() for t in plain], len(LAUNCHES)
    with pytest.raises(ArgumentError, match=message):
        call(*args, **kwargs)
    assert len(LAUNCHES) == count and all(map(torch.equal, before, plain))


def test_a_call_writes_in_place_and_returns_fresh_outputs(call):
    a, b = matches(call, inputs()), matches(call, inputs())
    assert a[0].data_ptr() != b[0].data_ptr() and LAUNCHES == [3, 3] and not COMPILED


def test_positional_arguments_and_other_rows_and_pools(call):
    for rows, slots in ((1, 2), (2, 9), (3, 5)):
        given = inputs(rows, slots)
        expected = step(*[t.clone() for t in given.values()])
        assert torch.equal(call(*given.values(), 2.0)[0], expected[0])


def test_no_rows_launch_nothing(call):
    y, state = call(**inputs(0))
    assert y.shape == (0, 8) and y.dtype == torch.bfloat16 and not LAUNCHES


@pytest.mark.parametrize("change, message", [
    (dict(x=torch.zeros(3, 8)), r"argument x: expected dtype bfloat16, given float32"),
    (dict(x=torch.zeros(3, 7).bfloat16()), r"argument x: expected shape \[rows, 8\], given \[3, 7\]"),
    (dict(x=torch.zeros(24).bfloat16()), r"argument x: expected shape \[rows, 8\], given \[24\]"),
    (dict(idx=torch.zeros(2).int()), r"argument idx: expected shape \[rows=3\] \(rows as in x\), given \[2\]"),
    (dict(idx=torch.zeros(3)), r"argument idx: expected dtype int32, given float32"),
    (dict(idx=torch.zeros(3, 1).int()), r"argument idx: expected shape \[rows=3\] .*, given \[3, 1\]"),
    (dict(state=torch.zeros(0, 8)), r"argument state: an index picks from it, given shape \[0, 8\]"),
    (dict(x=None), r"argument x: expected a tensor, given None"),
    (dict(x=3.0), r"argument x: expected a tensor, given 3.0"),
    (dict(scale=3.0), r"argument scale: expected 2.0, which it was compiled for, given 3.0"),
    (dict(scale=2), r"argument scale: expected 2.0, .*given 2\n"),
    (dict(state=torch.zeros(5, 8, requires_grad=True)), r"argument state: expected a tensor without gradient"),
    (dict(state=torch.zeros(8).expand(5, 8)), r"argument state is written, and expected to hold each element once"),
    (dict(state=torch.zeros(8, 5).t()), r"argument state: expected strides \[any, 1\], given \[1, 5\]"),
    (dict(x=torch.zeros(3, 8).bfloat16().to_sparse()), r"argument x: expected a strided tensor"),
    (dict(x=torch.empty(3, 8, dtype=torch.bfloat16, device="meta")), r"argument x: expected a tensor on a cpu device"),
])
def test_what_does_not_fit_is_refused_before_anything_changes(call, change, message):
    refused(call, message, **{**inputs(), **change})


def test_missing_and_unknown_arguments_are_refused(call):
    with pytest.raises(ArgumentError, match="missing a required argument: 'idx'"):
        call(torch.zeros(3, 8).bfloat16(), torch.zeros(5, 8))
    with pytest.raises(ArgumentError, match="unexpected keyword argument 'y'"):
        call(**inputs(), y=1)


def test_gradients_are_refused_only_where_they_would_be_recorded(call):
    given = inputs()
    given["state"].requires_grad_()
    with torch.no_grad():
        call(**given)
    refused(call, "requires_grad", **given)


def test_what_is_written_may_lie_between_but_not_on_other_arguments(call):
    page = torch.zeros(5 * 64, dtype=torch.uint8)
    state = page.view(torch.float32).as_strided((5, 8), (16, 1))
    x = page.view(torch.bfloat16).as_strided((3, 8), (32, 1), 16)  # In the second half of each page.
    assert call(x, state, inputs()["idx"], 2.0)[0].shape == (3, 8) and len(LAUNCHES) == 1
    refused(call, "arguments state and x alias|arguments x and state alias",
            page.view(torch.bfloat16).as_strided((3, 8), (32, 1), 8), state, inputs()["idx"], 2.0)
    given = inputs()
    refused(call, "alias", given["x"], given["state"], given["state"].view(torch.int32)[:3, 0], 2.0)


def test_out_is_written_and_returned(call):
    given, y = inputs(), torch.full((3, 8), 777.0).bfloat16()
    result = matches(call, given, out=(y, given["state"]))
    assert result[0] is y
    matches(call, given, out=[y, given["state"]])


@pytest.mark.parametrize("make, message", [
    (lambda g: torch.zeros(3, 8).bfloat16(), r"out: expected a tuple of 2 tensors, given a Tensor"),
    (lambda g: (torch.zeros(3, 8), g["state"]), r"argument y: expected dtype bfloat16, given float32"),
    (lambda g: (torch.zeros(2, 8).bfloat16(), g["state"]), r"argument y: expected shape \[rows=3, 8\].*given \[2, 8\]"),
    (lambda g: (torch.zeros(8).bfloat16().expand(3, 8), g["state"]), r"argument y"),
    (lambda g: (torch.zeros(8, 3).bfloat16().t(), g["state"]), r"argument y: expected strides"),
    (lambda g: (torch.zeros(3, 8).bfloat16(), torch.zeros(5, 8)), r"out: the function returns its argument state there"),
    (lambda g: (g["x"], g["state"]), r"arguments (y and x|x and y) alias"),
])
def test_outputs_that_do_not_fit_are_refused(call, make, message):
    given = inputs()
    refused(call, message, **given, out=make(given))


def test_poor_alignment_gets_a_narrower_variant_once(call, caplog):
    wide = torch.randn(3, 13).bfloat16()
    given = inputs() | dict(x=wide[:, 1:9])
    matches(call, given)
    matches(call, given)
    assert COMPILED == [(((None, 1), (None, 1), (None,)), {"x": 2})] and "x is aligned to 2 bytes" in caplog.text
    matches(call, inputs())
    assert len(COMPILED) == 1


def test_other_strides_are_captured_anew_where_the_function_takes_them(call):
    matches(call, inputs() | dict(state=torch.randn(5, 16)[:, ::2]))
    assert COMPILED == [(((None, 1), (None, 2), (None,)), {})]


def test_strict_mode_refuses_to_compile(call, monkeypatch):
    monkeypatch.setenv("FUSEC_STRICT", "1")
    refused(call, "FUSEC_STRICT forbids", **inputs() | dict(x=torch.randn(3, 13).bfloat16()[:, 1:9]))
    matches(call, inputs())


def test_another_architecture_is_an_error(call, monkeypatch):
    monkeypatch.setattr(module, "device_arch", lambda device: "sm_100a")
    with pytest.raises(TargetError, match="expected a kernel for sm_100a .* found kernels for sm_90a"):
        call(**inputs())


def test_without_a_device_the_error_says_so(call, monkeypatch):
    monkeypatch.undo()
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    call.device_type = "cuda"
    with pytest.raises(TargetError, match="no CUDA device"):
        call(**inputs())


def test_a_warm_call_looks_up_its_plan(call, monkeypatch):
    given = inputs()
    call(**given)
    monkeypatch.setattr(call, "_plan", lambda *a: pytest.fail("planned again"))
    call(**given)
    call(*given.values(), 2.0)
    assert LAUNCHES == [3, 3, 3]


def test_constants_that_compare_equal_are_told_apart(call):
    given = inputs()
    call(**given, scale=2.0)
    with pytest.raises(ArgumentError):
        call(**given, scale=2)
    with pytest.raises(ArgumentError):
        call(**given, scale=torch.tensor(2.0))


def test_offsets_alone_say_how_many_rows_there_are():
    sizes = {}
    check_shapes([Argument("offsets", "i32", (ROWS + 1,), (None,))], dict(offsets=torch.zeros(6, dtype=torch.int32)), sizes)
    assert sizes["rows"] == 5
