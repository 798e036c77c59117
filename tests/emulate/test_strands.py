"""Rendered kernels run warp by warp give the bits that they give in lockstep, and their dropped barriers are found there too."""
import pytest
import torch

from fusec.codegen.render import render
from fusec.emulate import emulate, launch
from fusec.emulate.mutants import mutants
from fusec.emulate.strands import Team

from ..codegen.specs import CASES
from .support import bits


@pytest.mark.parametrize("name", CASES)
def test_strands_and_lockstep_agree(name, monkeypatch):
    spec, inputs, _ = CASES[name]
    built = spec("sm_90a")
    lockstep, strands = inputs(2), inputs(2)
    assert emulate(built, lockstep).ok
    monkeypatch.setattr(launch, "way_of", lambda source: Team)
    report = emulate(built, strands, counting=False)
    assert report.ok, report
    assert all(torch.equal(bits(lockstep[n]), bits(strands[n])) for n in lockstep)
    for m in mutants(render(built)):
        if m.kind == "barrier":
            found = emulate(m.source, inputs(1), parameters=built.parameters, counting=False)
            assert "shared-race" in {f.kind for f in found.findings}, f"{m.line}: {found}"
