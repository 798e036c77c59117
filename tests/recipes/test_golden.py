"""The emitted source of some recipes of every kind, compared with golden files: under 350 lines each, the same bytes everywhere."""
from __future__ import annotations

from pathlib import Path

import pytest

from fusec.api import capture_graph
from fusec.passes.pipeline import compile as run_passes
from fusec.recipes.deepseek_v4_decode import reduce_unrotate_quant
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode, mla_reduce
from fusec.recipes.merge_states import merge_states
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv
from fusec.recipes.split_kv_reduce import reduce_base2, reduce_grouped, reduce_max_sum

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes"
CASES = {
    "kda_decode_fp32": (kda_decode, {"state": "fp32"}),
    "kda_decode_bf16": (kda_decode, {"state": "bf16"}),
    "gla_decode": (gla_decode, {}),
    "short_conv": (short_conv, {}),
    "add_rmsnorm_quant": (add_rmsnorm_quant, {}),
}
"""These have also run on a device beside the emulator (tests/emulate/agreement.py)."""
SPLITS = {
    "mla_reduce": (mla_reduce, {}),
    "reduce_base2": (reduce_base2, {}),
    "reduce_max_sum": (reduce_max_sum, {}),
    "reduce_grouped": (reduce_grouped, {}),
    "reduce_unrotate_quant": (reduce_unrotate_quant, {}),
    "merge_states": (merge_states, {}),
}


@pytest.mark.parametrize("name", [*CASES, *SPLITS])
def test_emitted_source(name: str, update_golden: bool) -> None:
    fn, sizes = {**CASES, **SPLITS}[name]
    stages = capture_graph(fn.reference, fn.inputs(4, **sizes))
    for arch in ("sm_90a", "sm_100a"):
        source = run_passes(stages.for_arch(arch, {}), arch, until="source").need("source")
        path = GOLDEN / f"{name}_{arch}.py"
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        assert source == path.read_text(encoding="utf-8"), f"{path.name}: run pytest --update-golden and read the difference"
        assert source.count("\n") < 350
