"""The emulator against the DSL itself, where it is installed: it takes and refuses the same sources, and accesses are as wide."""
import ast
import importlib.util
import inspect
import re

import pytest

from fusec.codegen.render import render
from fusec.emulate import emulate

from ..codegen.specs import CASES
from . import test_findings, test_rules
from .support import kernel

pytestmark = pytest.mark.emulation
OURS_ALONE = {"local memory", "is Float64", "is not a name of|outside of the subset"}
"""Refused here though the DSL takes it: what fusec never emits."""


def accepted_bodies():
    """The kernel bodies that test_rules runs to a result, and both twins of each fault."""
    tree = ast.parse(inspect.getsource(test_rules))
    found = [c.args[0].value for c in ast.walk(tree) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)
             and c.func.id == "result" and isinstance(c.args[0], ast.Constant)]
    return found + [body for bad, _, good in test_findings.FAULTS.values() for body in (bad, good)]


def dsl(body, folder, number):
    """What the DSL says to a kernel body: '' where it compiles."""
    cutlass = pytest.importorskip("cutlass")
    cute = pytest.importorskip("cutlass.cute")
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
    path = folder / f"fidelity_{number}.py"
    path.write_text(kernel(body))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, out = (make_fake_compact_tensor(cutlass.Float32, (cute.sym_int32(),), assumed_align=16) for _ in range(2))
    try:
        cute.compile(module.launch, x, out, make_fake_stream(use_tvm_ffi_env_stream=True),
                     options="--enable-tvm-ffi --gpu-arch sm_90a")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_the_dsl_takes_what_runs_here(tmp_path):
    for number, body in enumerate(accepted_bodies()):
        assert dsl(body, tmp_path, number) == "", body


def test_the_dsl_refuses_what_is_refused_here(tmp_path):
    for number, (message, body) in enumerate(test_rules.REFUSED.items()):
        assert bool(dsl(body, tmp_path, 1000 + number)) == (message not in OURS_ALONE), body


def widths(ptx):
    """{(space, writes, bytes)} of the accesses in PTX."""
    found = set()
    for op, space, rest in re.findall(r"\b(ld|st)\.(global|shared)([\w:.]*)", ptx):
        vector, bits = re.search(r"\.v(\d)", rest), re.search(r"\.[bfsu](\d+)$", rest)
        found.add((space, op == "st", (int(vector[1]) if vector else 1) * int(bits[1]) // 8))
    return found


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", CASES)
def test_accesses_are_as_wide_as_in_ptx(name, arch):
    pytest.importorskip("cutlass")
    from fusec.codegen.build import build
    spec, inputs, _ = CASES[name]
    built = spec(arch)
    source = render(built)
    report = emulate(source, inputs(3), arch=arch, parameters=built.parameters)
    here = {(t.space, t.write, t.width) for t in report.traffic}
    there = widths(build(source, built, arch, f"fidelity_{name}_{arch}").ptx)
    assert {a for a in here if a[0] == "global"} == {a for a in there if a[0] == "global"}
    # The back end joins neighbouring shared loads further.
    assert {a for a in here if a[0] == "shared"} <= there
