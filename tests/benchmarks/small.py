"""Every function of the benchmark at small sizes, captured and not built."""
import functools
from dataclasses import replace

from benchmarks import cases, grid
from fusec.api import capture_graph, make_artifact
from fusec.runtime.artifact import Artifact

SIZES = {
    "kda_decode": dict(H=2, D=16, state="bf16"), "gdn_decode": dict(HK=1, HV=2, D=16), "gla_decode": dict(H=2, K=12, V=20),
    "mamba2_decode": dict(H=4, P=8, N=16, G=2), "lightning_decode": dict(H=2, D=16), "mlstm_decode": dict(H=2, K=8, V=16),
    "rwkv7_decode": dict(H=2, D=16), "kimi_linear_decode": dict(H=2, D=16), "short_conv": dict(C=8), "add_rmsnorm": dict(D=64),
    "add_rmsnorm_quant": dict(D=64), "swiglu": dict(D=128), "swiglu_quant": dict(D=128), "qk_norm_rope": dict(HQ=2, HK=1, D=16),
    "attention_residual": dict(N=2, D=64), "merge_states": dict(H=2, D=16, S=3), "reduce_natural": dict(H=2, S=20, D=64),
    "mla_reduce": dict(H=2, S=20, D=64), "reduce_base2": dict(H=2, S=20, D=64), "reduce_max_sum": dict(H=2, S=16, D=64),
    "reduce_grouped": dict(H=2, S=12, D=64), "reduce_unrotate_quant": dict(H=8, S=4, D=512),
}


@functools.cache
def subject(name: str) -> cases.Subject:
    """The function of that name in the grid, at small sizes."""
    found = next(c.subject for c in grid.cases(only=[name]))
    return replace(found, sizes=tuple(SIZES[name].items()))


@functools.cache
def artifact(name: str) -> Artifact:
    chosen = subject(name)
    fused = chosen.fused()
    example = fused.inputs(**dict(chosen.sizes))
    return make_artifact(fused.reference, capture_graph(fused.reference, example), example, None, (), None)


def case(name: str, rows: int, **more: bool) -> cases.Case:
    return cases.Case(subject(name), rows, next(c.group for c in grid.cases(only=[name])), **more)


def inputs(name: str, rows: int, sets: int, **more: bool) -> cases.Inputs:
    return cases.make_inputs(case(name, rows, **more), artifact(name), sets, "cpu")
