"""On a device: every scalar primitive, composite, element type and fold over lanes as emitted, against its meaning on the CPU."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusec.codegen.render import render
from fusec.ir.interpret_kernel import run_kernel
from fusec.runtime.worker import BUILD, builder
from fusec.target import of_capability

from ..codegen.specs import CASES
from ..codegen.zoo import ZOO

pytestmark = pytest.mark.gpu
ULP = 2.0 ** -23


def arch() -> str:
    return of_capability(*torch.cuda.get_device_capability())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict:
    from fusec.codegen.load import load
    wanted = {**{n: build(arch()) for n, (build, _) in ZOO.items()}, **{n: build(arch()) for n, (build, _, _) in CASES.items()}}
    names, folder, found = list(wanted), tmp_path_factory.mktemp("objects"), {}
    jobs = [(BUILD, (render(wanted[n]), wanted[n], arch(), f"gpu_{n}")) for n in names]
    for i, result in builder.run(jobs):
        path = Path(folder, f"{names[i]}.o")
        path.write_bytes(result.object)
        found[names[i]] = (load(path, f"gpu_{names[i]}"), wanted[names[i]])
    return found


def both(entry: tuple, tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors after the kernel on the device, and after the interpreter."""
    call, spec = entry
    there = {k: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda").copy_(t) for k, t in tensors.items()}
    call(*(there[p.name] for p in spec.parameters))
    torch.cuda.synchronize()
    run_kernel(spec, tensors)
    return {k: t.cpu() for k, t in there.items()}, tensors


@pytest.mark.parametrize("name", ZOO)
def test_meaning(name: str, loaded: dict) -> None:
    device, host = both(loaded[name], ZOO[name][1]())
    for key, want in host.items():
        if want.dtype == torch.float32 and name == "functions_f32":
            torch.testing.assert_close(device[key], want, rtol=8 * ULP, atol=4 * ULP, equal_nan=True)
        else:
            a, b = device[key].double(), want.double()
            same = (a.isnan() & b.isnan()) | ((a == b) & (a.signbit() == b.signbit()))
            assert same.all(), f"{key}: {device[key][~same][:4]} where {want[~same][:4]} is meant"


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, rows: int, loaded: dict) -> None:
    device, host = both(loaded[name], CASES[name][1](rows))
    for key, want in host.items():
        rtol = {torch.bfloat16: 2 ** -7, torch.float8_e4m3fn: 2 ** -3}.get(want.dtype, 2e-5)
        torch.testing.assert_close(device[key].double(), want.double(), rtol=rtol, atol=1e-6)
