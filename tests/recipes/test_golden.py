"""The emitted source of the first four recipes, compared with golden files: under 350 lines each, the same bytes everywhere."""
from __future__ import annotations

from pathlib import Path

import pytest

from fusec.api import capture_graph
from fusec.passes.pipeline import compile as run_passes
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes"
CASES = {
    "kda_decode_fp32": (kda_decode, {"state": "fp32"}),
    "kda_decode_bf16": (kda_decode, {"state": "bf16"}),
    "gla_decode": (gla_decode, {}),
    "short_conv": (short_conv, {}),
    "add_rmsnorm_quant": (add_rmsnorm_quant, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_emitted_source(name: str, update_golden: bool) -> None:
    fn, sizes = CASES[name]
    stages = capture_graph(fn.reference, fn.inputs(4, **sizes))
    for arch in ("sm_90a", "sm_100a"):
        source = run_passes(stages.for_arch(arch, {}), arch, until="source").need("source")
        path = GOLDEN / f"{name}_{arch}.py"
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        assert source == path.read_text(encoding="utf-8"), f"{path.name}: run pytest --update-golden and read the difference"
        assert source.count("\n") < 350
