"""Runs each recipe's kernel at small sizes and in awkward layouts, for compute-sanitizer:

    compute-sanitizer --tool memcheck  python benchmarks/sanitize.py
    compute-sanitizer --tool racecheck python benchmarks/sanitize.py

Compiles first (or finds the kernels in the store), then makes a few calls per recipe and prints what it ran. Every tensor is an
allocation of its own, cut to size, so that a read beyond its end is a read beyond an allocation. Names of functions choose some.
`python -m benchmarks.receipts` does this for all recipes at their own sizes, without a compiler in the process, and keeps what was
said; here are sizes that divide by nothing.
"""
from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch  # noqa: E402

import fusec  # noqa: E402
from fusec.checker import cases  # noqa: E402
from fusec.checker.facts import facts  # noqa: E402
from fusec.checker.storage import clone  # noqa: E402
from fusec.cli_load import RECIPES, functions  # noqa: E402
from fusec.recipes.gla_decode import gla_decode  # noqa: E402
from fusec.recipes.kimi_k3_decode import kda_decode  # noqa: E402
from fusec.recipes.rmsnorm import add_rmsnorm_quant  # noqa: E402
from fusec.recipes.short_conv import short_conv  # noqa: E402

AWKWARD = (
    (kda_decode, dict(H=2, D=128)), (kda_decode, dict(H=1, D=128, state="bf16")), (kda_decode, dict(H=2, D=48)),
    (gla_decode, dict(H=2)), (gla_decode, dict(H=1, K=20, V=36)), (short_conv, {}), (short_conv, dict(C=37)),
    (add_rmsnorm_quant, {}), (add_rmsnorm_quant, dict(D=1000)),
)
FEWER = {"H": 2, "HQ": 4, "HK": 2, "HV": 4}
"""Sizes of the other recipes' examples, where they know them: their kernels at fewer heads."""
GROUPED = {"reduce_unrotate_quant": {"H": 8}}
"""Those whose heads come in groups."""


def chosen() -> list[tuple[Any, dict[str, Any]]]:
    """(function, sizes): those above, then every other function that is shipped; only those named on the command line, if any."""
    files = sorted(p.stem for p in RECIPES.glob("*.py") if p.stem != "__init__")
    known = {id(fn) for fn, _ in AWKWARD}
    others = [fn for file in files for fn in functions(file) if id(fn) not in known]
    found = [*AWKWARD, *((fn, GROUPED.get(fn.name) or {n: v for n, v in FEWER.items() if n in fn.sizes()}) for fn in others)]
    return [(fn, sizes) for fn, sizes in found if not sys.argv[1:] or fn.name in sys.argv[1:]]


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    failures = 0
    for fn, sizes in chosen():
        example = fn.inputs(4, **sizes)
        name = f"{fn.reference.__name__} {sizes or ''}".strip()
        try:
            artifact = fusec.compile(fn.reference, example)
        except fusec.FusecError as refusal:
            print(f"{name}: refused: {refusal.message}")
            failures += 1
            continue
        known = facts(artifact.graph)
        for case, make in cases.variants(known, example, (1, 2, 5)):
            inputs = clone(make(), "cuda")
            artifact(**inputs)
            torch.cuda.synchronize()
            print(f"{name}: {case}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
