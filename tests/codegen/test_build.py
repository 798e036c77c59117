"""Emitted files through the kernel compiler: resources, the instructions meant and no others, exported objects, refusals."""
from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from fusec.codegen.render import render
from fusec.codegen.resources import disassembler, spilled_bytes, resources, sections
from fusec.codegen.toolchain import check_toolchain, numbers
from fusec.errors import BuildError, InternalError, TargetError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Assign, Compute, Copy, Declare, For, Global, KernelSpec, Launch, Less, Linear, Parameter, Term
from fusec.ir.plan import SmemPlan
from fusec.runtime.worker import builder
from fusec.target import TARGETS, of_capability, parse

from .specs import CASES, ap, conv, el, lin, products
from .zoo import ZOO

pytest.importorskip("cutlass")
BUILD = "fusec.codegen.build:build"
ARCHS = ("sm_90a", "sm_100a")


@pytest.fixture(scope="session")
def built() -> dict[tuple[str, str], object]:
    wanted = {(n, a): build(a) for n, (build, _, _) in CASES.items() for a in ARCHS}
    wanted |= {(n, "sm_90a"): build("sm_90a") for n, (build, _) in ZOO.items()}
    wanted |= {("products", a): products(a) for a in ARCHS}
    keys = list(wanted)
    jobs = [(BUILD, (render(wanted[k]), wanted[k], k[1], f"test_{k[0]}_{k[1]}", True)) for k in keys]
    return {keys[i]: result for i, result in builder.run(jobs)}


def instructions(ptx: str) -> Counter:
    return Counter(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]+)\s", ptx, re.M))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", CASES)
def test_no_spills(built, name: str, arch: str) -> None:
    found, spec = built[name, arch].resources, CASES[name][0](arch)
    assert found["spills"] == 0 and found["stack"] == 0 and 0 < found["registers"] <= parse(arch).registers(spec.launch.threads)
    assert found["threads"] == spec.launch.threads and found["smem"] == spec.smem.total
    assert found["barriers"] == (1 if name in ("norm", "delta") else 0)


@pytest.mark.parametrize("arch", ARCHS)
def test_accesses_are_wide(built, arch: str) -> None:
    norm, delta, conv_ = (instructions(built[n, arch].ptx) for n in ("norm", "delta", "conv"))
    assert norm["ld.global.v4.b32"] == 2 and norm["ld.global.L1::evict_first.v4.b32"] == 1  # 8 bf16 each.
    assert norm["st.global.v4.b32"] == 1 and norm["st.global.v4.b16"] == 1  # 8 bf16, 8 e4m3.
    assert delta["ld.global.L1::evict_first.v4.b32"] == delta["st.global.L1::evict_first.v4.b32"] == 4
    assert delta["ld.shared.v4.b32"] == 4 and not any(i.startswith(("ld.local", "st.local")) for i in delta)
    assert conv_["ld.global.v4.b32"] == 1 and conv_["ld.global.b16"] == conv_["st.global.b16"] == 4
    for ptx in (built[n, arch].ptx for n in CASES):
        assert "mul.lo.s32" not in ptx


@pytest.mark.parametrize("arch", ARCHS)
def test_products_are_contracted_where_said_and_nowhere_else(built, arch: str) -> None:
    found = built["products", arch]
    ptx = instructions(found.ptx)
    assert ptx["fma.rn.f32"] == 1 and ptx["mul.rn.f32"] == 2 and not ptx["mul.f32"], ptx
    if disassembler():
        code = dict(found.resources["opcodes"])
        assert code["FFMA"] == 1 and code["FMUL"] == 2 and code["FADD"] == 4, code  # p + c is one sum for `once` and `again`.


def test_products_in_kernels(built) -> None:
    delta = instructions(built["delta", "sm_90a"].ptx)
    assert delta["mul.rn.f32"] == 16 and delta["fma.rn.f32"] == 16 * 3 + 3  # The state's, and three inside exp.
    norm = instructions(built["norm", "sm_90a"].ptx)
    assert norm["fma.rn.f32"] == 9 and norm["mul.rn.f32"] == 16 and norm["rsqrt.approx.f32"] == 1 and norm["max.NaN.f32"] >= 8


def test_every_primitive_and_element_type(built) -> None:
    for name in ZOO:
        assert built[name, "sm_90a"].resources["spills"] == 0
    wide = instructions(built["dtypes", "sm_90a"].ptx)
    assert sum(n for i, n in wide.items() if re.fullmatch(r"ld\.global\.v[24]\.b(32|64)", i)) >= 10


def test_objects_load_and_check_their_arguments(built, tmp_path: Path) -> None:
    from fusec.codegen.load import load
    for name in ("conv", "delta"):
        path = tmp_path / f"{name}.o"
        path.write_bytes(built[name, "sm_90a"].object)
        call = load(path, f"test_{name}_sm_90a")
        tensors = list(CASES[name][1](3).values())
        with pytest.raises(ValueError, match="device_type=cuda"):
            call(*tensors)
        with pytest.raises(TypeError, match=f"Expects {len(tensors)} parameters"):
            call()


def test_objects_that_are_none(tmp_path: Path) -> None:
    from fusec.codegen.load import load
    path = tmp_path / "broken.o"
    path.write_bytes(b"not an object")
    with pytest.raises(BuildError, match="broken.o does not load as a kernel"):
        load(path, "f")


def run(source: str, spec: KernelSpec, arch: str = "sm_90a"):
    return list(builder.run([(BUILD, (source, spec, arch, "refused"))]))


def test_refusals_name_emitted_and_reference_line() -> None:
    spec = conv()
    source = render(spec).replace("acc = silu(acc)", "acc = silu(missing)")
    line = source[:source.index("silu(missing)")].count("\n") + 1
    with pytest.raises(BuildError) as info:
        run(source, spec)
    for words in ("refused short_conv for sm_90a", f"emitted line {line}: acc = silu(missing)", "from reference line short_conv+4"):
        assert words in str(info.value)


def test_the_worker_outlives_a_refusal() -> None:
    with pytest.raises(BuildError):
        run("import cutlass\nraise SystemExit('x')", conv())
    assert run(render(conv()), conv())[0][1].resources["registers"] > 0


def test_unknown_architectures() -> None:
    for name in ("sm_107", "sm_75", "hopper", "sm_100f"):
        with pytest.raises(TargetError, match="known: sm_90a, sm_100a, sm_103a, sm_120a"):
            run(render(conv()), conv(), name)
    assert of_capability(9, 0) == "sm_90a" and of_capability(10, 3) == "sm_103a" and parse("sm_120").name == "sm_120a"
    with pytest.raises(TargetError, match=r"8\.0 \(A100\)"):
        of_capability(8, 0, "A100")
    for target in TARGETS.values():
        assert target.registers(256, 2) == 128 and target.registers(64) == 255 and 0 < target.bandwidth_tb_s <= target.peak_tb_s
        assert target.carveout(2, target.smem_per_block // 2) <= 100


@pytest.mark.parametrize(("found", "words"), [
    ({"nvidia-cutlass-dsl": "4.7.0"}, "nvidia-cutlass-dsl 4.7.0 found; needed: >=4.8, <4.9"),
    ({"nvidia-cutlass-dsl": "4.9.0"}, "nvidia-cutlass-dsl 4.9.0 found"),
    ({"nvidia-cutlass-dsl": None}, "nvidia-cutlass-dsl is missing"),
    ({"apache-tvm-ffi": None}, "apache-tvm-ffi is missing"), ({"apache-tvm-ffi": "0.1.10"}, "apache-tvm-ffi 0.1.10 found"),
    ({"libs": {"nvidia-cutlass-dsl-libs-cu13": "4.8.0"}}, "beside nvidia-cutlass-dsl-libs-cu13 4.8.0; needed: one version of all")])
def test_toolchain(found: dict, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError
    known = {"nvidia-cutlass-dsl": "4.8.1", "apache-tvm-ffi": "0.1.15.post2", **found}

    def version(name: str) -> str:
        if known[name] is None:
            raise PackageNotFoundError(name)
        return known[name]
    monkeypatch.setattr("fusec.codegen.toolchain.version", version)
    monkeypatch.setattr("fusec.codegen.toolchain.libraries", lambda: found.get("libs", {}))
    with pytest.raises(BuildError, match=re.escape(words)):
        check_toolchain()
    assert numbers("0.1.15.post2") == (0, 1, 15) and numbers("4.8.1rc1") == (4, 8, 1)


def test_resources_of_remarks_and_cubin(built) -> None:
    found = built["norm", "sm_90a"]
    assert ".text.fusec_norm_quant" in next(n for n in sections(found.cubin) if n.startswith(".text.fusec")), "named for profilers"
    assert resources(found.cubin, "16 bytes spill\n stores, 8 bytes spill loads", 56, False).spills == 24
    assert spilled_bytes("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") == 0


def test_rows_bind_one_size(built, tmp_path: Path) -> None:
    """Symbols shared by parameters are checked by the compiled entry: the message comes before any launch."""
    from fusec.codegen.load import load
    (tmp_path / "n.o").write_bytes(built["norm", "sm_90a"].object)
    call = load(tmp_path / "n.o", "test_norm_sm_90a")
    with pytest.raises(TypeError) as info:
        call()
    for words in ("x: Tensor([n0, 1536], bfloat16)", "output: Tensor([n0, 1536], float8_e4m3fn)", "scale: Tensor([n0], float32)"):
        assert words in str(info.value)


def halves(arch: str = "sm_90a") -> KernelSpec:
    """A tensor of 2·rows rows, a grid of rows, and a bool read where a condition holds."""
    pair = (Parameter("x", "f32", ("2*rows", 64), (None, 1), 4), Parameter("keep", "bool", ("rows",), (1,), 1))
    body = (Declare("kept", (), "bool", False), Declare("a", (), "f32", 0.0), Declare("some", (4,), "bool", True),
            Copy(Global("keep", lin(block_x=1)), el("kept"), when=(Less(lin(thread=1), 40),)),
            Copy(Global("x", Linear((Term("block_x", 2, ("x", 0)), Term("thread")))), el("a")),
            Compute((For("j", 4),), (Assign(el("some", "j"), ap("and", el("kept"), el("some", "j"))),)),
            Compute((), (Assign(el("a"), ap("select", el("some", 1), el("a"), 0.5)),)),
            Copy(el("a"), Global("x", Linear((Term("block_x", 2, ("x", 0)), Term("thread"))))))
    return KernelSpec("halves", "halves", arch, pair, Launch((("rows",), (), ()), 64), SmemPlan(), body)


def test_products_as_sizes_and_bools_as_bytes(tmp_path: Path) -> None:
    from fusec.codegen.load import load
    spec, only = halves(), halves()
    body = (only.body[1], only.body[4], only.body[7])
    only = KernelSpec(only.name, "", only.arch, only.parameters[:1], only.launch, only.smem, body)
    assert "grid=((x.shape[0] // 2), 1, 1)" in render(only) and "grid=(keep.shape[0], 1, 1)" in render(spec)
    (tmp_path / "h.o").write_bytes(run(render(spec), spec)[0][1].object)
    with pytest.raises(TypeError, match=r"x: Tensor\(\[2 ?\* ?n0|x: Tensor\(\[n0 ?\* ?2|x: Tensor"):
        load(tmp_path / "h.o", "refused")()
    x, keep = torch.arange(6 * 64.0).view(6, 64), torch.tensor([True, False, True])
    want = x.clone()
    want[::2][:, 40:], want[2] = 0.5, 0.5
    run_kernel(spec, {"x": x, "keep": keep})
    assert torch.equal(x, want)
    with pytest.raises(InternalError, match="not agree"):
        run_kernel(spec, {"x": x[:4], "keep": keep})
