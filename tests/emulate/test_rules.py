"""Control flow as the DSL stages it, and the sources that it refuses."""
import math

import pytest
import torch

from fusec.emulate import EmulationError, check_subset, emulate

from .support import kernel, run


def result(body, n=64, **options):
    t = {"x": torch.arange(float(n)), "out": torch.full((n,), 777.0)}
    report, _ = run(body, t, threads=n, **options)
    assert report.ok, report
    return t["out"]


def test_assignments_under_a_condition_are_selects():
    out = result("v = Float32(1.0)\nif thread < 10:\n    v = x[thread]\n    if thread > 4:\n        v = v + 1.0\n"
                 "else:\n    v = -v\nout[thread] = v")
    t = torch.arange(64.0)
    assert torch.equal(out, torch.where(t < 10, torch.where(t > 4, t + 1, t), -1.0))


def test_a_name_of_one_arm_is_its_own():
    out = result("if thread < 10:\n    a = x[thread]\n    b = a * 2.0\n    a = b\n    out[thread] = a\n"
                 "else:\n    a = thread\n    out[thread] = Float32(a)")
    t = torch.arange(64.0)
    assert torch.equal(out, torch.where(t < 10, 2 * t, t))


def test_a_loop_with_a_trip_count_of_each_thread():
    out = result("total = Float32(0.0)\nfor i in cutlass.range(thread, unroll=1):\n    total = total + Float32(i)\n"
                 "out[thread] = total")
    assert torch.equal(out, torch.tensor([float(sum(range(i))) for i in range(64)]))


def test_a_loop_with_bounds_and_step():
    out = result("total = Int32(0)\nfor i in cutlass.range(thread, 64, 3):\n    total += i\nout[thread] = Float32(total)")
    assert torch.equal(out, torch.tensor([float(sum(range(i, 64, 3))) for i in range(64)]))


def test_a_while_loop():
    out = result("n = thread\nsteps = Int32(0)\nwhile n > 1:\n    n = n >> 1\n    steps = steps + 1\nout[thread] = Float32(steps)")
    assert torch.equal(out, torch.tensor([float(max(i, 1).bit_length() - 1) for i in range(64)]))


def test_no_short_cut_between_run_time_values():
    body = "v = Float32(0.0)\nif thread < 63 and x[thread + 1] > 5.0:\n    v = Float32(1.0)\nout[thread] = v"
    report, _ = run(body, {"x": torch.arange(64.0), "out": torch.zeros(64)})
    assert {f.kind for f in report.findings} == {"out-of-bounds"}


def test_a_conditional_expression_evaluates_its_arm_alone():
    out = result("out[thread] = x[thread + 1] if thread < 63 else Float32(-1.0)")
    assert torch.equal(out, torch.cat([torch.arange(1.0, 64.0), torch.tensor([-1.0])]))


def test_registers_of_an_untaken_branch_stay():
    out = result("r = cute.make_rmem_tensor((2,), Float32)\nr.fill(3.0)\nif thread < 5:\n    r[1] = x[thread]\n"
                 "out[thread] = r[0] + r[1]")
    t = torch.arange(64.0)
    assert torch.equal(out, torch.where(t < 5, 3 + t, 6.0))


def test_32_bit_integers_wrap():
    out = result("v = (thread + 1) * 2147483647\nout[thread] = Float32(v)")
    assert out[0] == 2147483648.0 and out[1] == -2.0
    out = result("v = Int64(thread + 1) * 2147483647\nout[thread] = Float32(v >> 31)")
    assert out[2] == 2.0


def test_signed_division_rounds_down_and_unsigned_shifts_in_zeros():
    out = result("a = thread - 8\nout[thread] = Float32(a // 3) + Float32(a % 3) * 0.25")
    assert torch.equal(out, torch.tensor([(i - 8) // 3 + math.fmod(i - 8, 3) * 0.25 for i in range(64)]))  # % as the device has it.
    assert result("out[thread] = Float32((thread - 8) >> 2)")[0] == -2.0
    assert result("out[thread] = Float32(Uint32(thread - 8) >> 28)")[0] == 15.0


def test_memory_does_not_know_that_bytes_have_no_sign():
    base = "base = SmemAllocator().allocate(1024)\nsA = shared(base, 0, Uint8, 64)\nsA[thread] = Uint8(thread + 192)\n"
    t = torch.arange(64.0)
    assert torch.equal(result(base + "out[thread] = Float32(sA[thread])"), t - 64)
    assert torch.equal(result(base + "out[thread] = Float32(Uint8(sA[thread]))"), t + 192)
    held = "r = cute.make_rmem_tensor((1,), Uint8)\ncute.autovec_copy(tile(sA, thread, 1, (1,), (1,)), r)\n"
    assert torch.equal(result(base + held + "out[thread] = Float32(r[0])"), t + 192)


def test_bf16_products_are_rounded():
    x = torch.rand(64)
    t = {"x": x, "out": torch.zeros(64)}
    assert run("v = BFloat16(x[thread])\nout[thread] = Float32(v * v)", t)[0].ok
    assert torch.equal(t["out"], (x.bfloat16() * x.bfloat16()).float())


@pytest.mark.parametrize("limit, expected", [(10, 1.0), (70, 2.0)])
def test_a_branch_of_the_launching_function_is_of_python(limit, expected):
    source = kernel("out[thread] = Float32(2.0) if cutlass.const_expr(WAY) else Float32(1.0)", "x, out, WAY: cutlass.Constexpr")
    head, _ = source.split("@cute.jit\ndef launch")
    launch = "@cute.jit\ndef launch(x, out, stream):\n    n = x.shape[0]\n    if n < {}:\n" \
             "        body_kernel(x, out, True).launch({})\n    else:\n        body_kernel(x, out, False).launch({})\n"
    sizes = "grid=(1, 1, 1), block=(64, 1, 1), stream=stream"
    t = {"x": torch.zeros(64), "out": torch.zeros(64)}
    assert emulate(head + launch.format(limit, sizes, sizes), t).ok
    assert t["out"].eq(expected).all()


REFUSED = {
    "early exit": "if thread > 5:\n    return\nout[thread] = x[thread]",
    "'v' is not defined": "if thread < 5:\n    v = x[thread]\nout[thread] = v",
    "Int32 on one path|Float32 on one path": "v = Int32(0)\nif thread < 5:\n    v = x[thread]\nout[thread] = Float32(v)",
    "PHASE_REQUIRES_CONSTANT": "if cutlass.const_expr(thread < 5):\n    out[thread] = x[thread]",
    "ARG_NON_CONSTANT": "for i in cutlass.range_constexpr(thread):\n    out[i] = x[i]",
    "type mismatch": "out[thread] = thread",
    "Int32 on one path|on the other": "out[thread] = x[thread] if thread < 5 else thread",
    "local memory": "r = cute.make_rmem_tensor((4,), Float32)\nr.fill(0.0)\nout[thread] = r[thread & 3]",
    "needs an index|needs a bool": "names = (1.0, 2.0)\nfor i in range(2):\n    out[thread] = names[i]",
    "is Float64": "out[thread] = Float32(x[thread] + Int64(thread))",
    "is not a name of|outside of the subset": "out[thread] = cute.math.tan(x[thread])",
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_dsl_refuses_is_refused(message):
    with pytest.raises(EmulationError, match=message):
        run(REFUSED[message], {"x": torch.arange(64.0), "out": torch.zeros(64)})


def test_the_line_of_a_refusal():
    with pytest.raises(EmulationError, match=r"line 2[0-9]: "):
        run("y = x[thread]\nout[thread] = cute.math.tan(y)", {"x": torch.arange(64.0), "out": torch.zeros(64)})


@pytest.mark.parametrize("body, what", [
    ("out[thread] = cute.math.tan(x[thread])", "cutlass.cute.math.tan"), ("out.zero_()", "attribute .zero_"),
    ("v = cute.arch.fmax(x[0], x[1], ftz=True)", "keyword ftz of cutlass.cute.arch.fmax"), ("f = lambda: 1", "Lambda expression"),
    ("with x:\n    pass", "With statement"), ("cute.arch.sync_warp()", "cutlass.cute.arch.sync_warp"),
])
def test_what_lies_outside_of_the_subset_is_listed(body, what):
    found = check_subset(kernel(body))
    assert any(what in line for line in found), found


def test_only_cutlass_is_imported():
    found = check_subset("import torch\nfrom cutlass.cute import nowhere\n")
    assert found == ["line 1: import of torch", "line 2: import of cutlass.cute.nowhere"]
    assert check_subset(kernel("out[thread] = x[thread]")) == []


def test_device_functions_lie_in_the_subset():
    from importlib import resources

    from fusec.codegen.device_library import MODULES
    for module in MODULES:
        text = resources.files("fusec.codegen.device").joinpath(f"{module}.py").read_text(encoding="utf-8")
        own = "\n".join(line if not line.startswith("from .") else "" for line in text.splitlines())
        assert check_subset(own) == [], module


def test_every_name_of_the_subset_is_implemented():
    from fusec.emulate.launch import namespace
    assert namespace().cute.math.exp.__name__ == "exp"
