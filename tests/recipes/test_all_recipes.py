"""Every decorated function in fusec/recipes, at small sizes: its kernel computes what it says, interpreted statement by statement
and as emitted source.

A recipe that is not listed here fails `test_every_recipe_is_listed`.
"""
import importlib
import pkgutil

import pytest
import torch

import fusec
from fusec import recipes
from fusec.checker.target import target
from fusec.ir.kernel import Barrier, walk
from fusec.target import TARGETS

HEADS = dict(H=2, D=32)
SPLITS = dict(H=2, S=3, D=32)
NORM = dict(D=256)
BF16 = dict(state="bf16")
CASES = {
    "attention_residual:attention_residual": [dict(N=3, D=256)],
    "deepseek_v4_decode:reduce_unrotate_quant": [dict(H=8, S=2, D=512, Q=2), dict(H=16, S=3, D=512, Q=1)],
    "gated_deltanet_decode:gdn_decode": [dict(HK=2, HV=4, D=32), dict(HK=1, HV=3, D=16, **BF16)],
    "gla_decode:gla_decode": [dict(H=2, K=32, V=64)],
    "kimi_k3_decode:kda_decode": [HEADS, HEADS | BF16],
    "kimi_k3_decode:kda_decode_padded": [HEADS, HEADS | BF16],
    "kimi_k3_decode:mla_reduce": [SPLITS, dict(H=3, S=7, D=100, partial="fp16")],
    "kimi_linear_decode:kda_decode": [HEADS, HEADS | BF16],
    "lightning_decode:lightning_decode": [HEADS],
    "lightning_decode:lightning_decode_normed": [HEADS],
    "mamba2_decode:mamba2_decode": [dict(H=4, P=16, N=32, G=2), *(dict(H=2, P=8, N=16, G=1, state=s) for s in ("bf16", "fp16"))],
    "merge_states:merge_attn_states": [HEADS],
    "merge_states:merge_state": [HEADS],
    "merge_states:merge_state_in_place": [HEADS],
    "merge_states:merge_states": [dict(H=2, D=32, S=3)],
    "mlstm_decode:mlstm_decode": [dict(H=2, K=16, V=32)],
    "qk_norm_rope:qk_norm_rope": [dict(HQ=4, HK=2, D=32), dict(HQ=3, HK=1, D=32, cache="fp8")],
    "rmsnorm:add_rmsnorm": [NORM],
    "rmsnorm:add_rmsnorm_quant": [NORM],
    "rmsnorm:add_rmsnorm_quant_blocks": [dict(D=512)],
    "rmsnorm:add_rmsnorm_quant_static": [NORM],
    "rwkv7_decode:rwkv7_decode": [HEADS],
    "short_conv:short_conv": [dict(C=40)],
    "short_conv:short_conv_ds": [dict(C=40), dict(C=12, W=3)],
    "short_conv:short_conv_sd": [dict(C=40), dict(C=64, W=5)],
    "split_kv_reduce:reduce_base2": [SPLITS, SPLITS | dict(partial="fp32")],
    "split_kv_reduce:reduce_grouped": [SPLITS],
    "split_kv_reduce:reduce_max_sum": [SPLITS, SPLITS | dict(partial="bf16")],
    "split_kv_reduce:reduce_natural": [SPLITS, SPLITS | dict(partial="fp32")],
    "swiglu:situ": [NORM],
    "swiglu:situ_quant": [NORM],
    "swiglu:swiglu": [NORM],
    "swiglu:swiglu_quant": [NORM],
}
OPTIONS = {name: [{}, *({n: v for n, v in sizes.items() if isinstance(v, str)} for sizes in every)]
           for name, every in CASES.items()}
VARIANTS = [pytest.param(name, variant, id=" ".join([name, *variant.values()]))
            for name, every in OPTIONS.items() for i, variant in enumerate(every) if variant not in every[:i]]
UNSPILLED = ("sm_90a", "sm_100a")  # Elsewhere spills are recorded.
QUICK = ("kimi_k3_decode:mla_reduce", "mlstm_decode:mlstm_decode", "merge_states:merge_attn_states", "swiglu:swiglu_quant")
EVERY = [pytest.param(name, sizes, id=f"{name} {i}", marks=() if name in QUICK and i == 0 else pytest.mark.recipes)
         for name, all_sizes in CASES.items() for i, sizes in enumerate(all_sizes)]


def found():
    """(module:function, decorated function) of every recipe."""
    for info in pkgutil.iter_modules(recipes.__path__):
        module = importlib.import_module(f"fusec.recipes.{info.name}")
        for value in vars(module).values():
            if isinstance(value, fusec.Fused) and value.reference.__module__ == module.__name__:
                yield f"{info.name}:{value.name}", value


def test_every_recipe_is_listed():
    assert sorted(name for name, _ in found()) == list(CASES)


@pytest.mark.parametrize("name, sizes", EVERY)
def test_its_kernel_computes_what_it_says(name, sizes):
    fused = dict(found())[name]
    torch.manual_seed(3)
    goal = target(fused, fused.inputs(3, **sizes), fused.inputs(3, **sizes))
    for rows, level in ((3, "kernel"), (1, "kernel"), (3, "emulate")):
        report = fusec.check(goal, fused.inputs(rows, **sizes), level=level)
        assert report.ok, str(report)
        assert not report.notes, report.notes


@pytest.mark.recipes
@pytest.mark.parametrize("name, variant", VARIANTS)
def test_it_is_one_kernel_on_every_architecture(name, variant, record_property):
    kernels = dict(found())[name].compile(list(TARGETS), **variant).kernels
    assert [k.arch for k in kernels] == list(TARGETS)
    for kernel in kernels:
        resources, target, spec = kernel.resources, TARGETS[kernel.arch], kernel.made.need("kernel")
        record_property(kernel.arch, {n: resources[n] for n in ("registers", "spills", "smem", "barriers")})
        assert 0 < resources["registers"] <= target.registers(kernel.threads, spec.launch.min_blocks)
        assert resources["smem"] == kernel.smem_bytes <= target.smem_per_block
        assert (resources["barriers"] > 0) == any(isinstance(s, Barrier) for s in walk(spec.body))
        assert resources["spills"] == 0 or kernel.arch not in UNSPILLED, (kernel.arch, resources)
