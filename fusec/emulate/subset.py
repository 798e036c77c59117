"""The subset of `cutlass` that emitted files use, declared once: each name, what implements it here, and the keywords it takes.

`check_subset` holds a source against it. A name that is not in this table cannot be emulated, and the emitter must not use it.
"""
from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Name:
    """`implementation`: module:object inside this package, or a marker (`=text` stands for itself). keywords: of a call."""

    implementation: str
    keywords: tuple[str, ...] = ()


def _types() -> dict[str, Name]:
    names = ("Float32", "Float16", "BFloat16", "Float8E4M3FN", "Float8E5M2", "Int8", "Int16", "Int32", "Int64", "Uint8", "Uint16",
             "Uint32", "Uint64", "Boolean")
    return {f"cutlass.{n}": Name(f"numeric:{n}") for n in names}


def _math() -> dict[str, Name]:
    approximate = ("exp", "exp2", "log", "log2", "log10", "tanh", "rsqrt", "sqrt", "rcp")
    found = {f"cutlass.cute.math.{n}": Name(f"functions:{n}", ("approx", "fastmath", "ftz")) for n in approximate}
    plain = ("log1p", "expm1", "sin", "cos", "erf", "floor", "fma", "copysign")
    return {**found, **{f"cutlass.cute.math.{n}": Name(f"functions:{n}") for n in plain}}


NAMES: dict[str, Name] = {
    **_types(), **_math(),
    "cutlass.Constexpr": Name("=Constexpr"), "cutlass.const_expr": Name("control:const_expr"),
    "cutlass.range_constexpr": Name("control:range_constexpr"), "cutlass.range": Name("control:loop", ("unroll",)),
    "cutlass.max": Name("functions:largest"), "cutlass.min": Name("functions:smallest"),
    "cutlass.select_": Name("functions:select"),
    "cutlass.memory.SmemAllocator": Name("views:SmemAllocator"),
    "cutlass.cute.Tensor": Name("tensors:Tensor"), "cutlass.cute.jit": Name("launch:jit"),
    "cutlass.cute.kernel": Name("launch:Kernel"),
    "cutlass.cute.make_tensor": Name("views:make_tensor"), "cutlass.cute.make_layout": Name("views:make_layout", ("stride",)),
    "cutlass.cute.make_rmem_tensor": Name("views:make_rmem_tensor"),
    "cutlass.cute.recast_ptr": Name("views:recast_ptr", ("dtype",)),
    "cutlass.cute.assume": Name("views:assume", ("divby",)), "cutlass.cute.where": Name("views:where"),
    "cutlass.cute.autovec_copy": Name("views:autovec_copy", ("l1c_evict_priority",)),
    "cutlass.cute.size": Name("views:size"), "cutlass.cute.recast_tensor": Name("views:recast_tensor"),
    "cutlass.cute.copy": Name("views:copy", ("mbar_ptr",)),
    "cutlass.cute.make_copy_atom": Name("views:CopyAtom", ("num_bits_per_copy", "l1c_evict_priority")),
    "cutlass.cute.nvgpu.CacheEvictionPriority.EVICT_NORMAL": Name("=EVICT_NORMAL"),
    "cutlass.cute.nvgpu.CacheEvictionPriority.EVICT_FIRST": Name("=EVICT_FIRST"),
    "cutlass.cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE": Name("=NO_ALLOCATE"),
    "cutlass.cute.nvgpu.CopyG2ROp": Name("launch:Marker"), "cutlass.cute.nvgpu.CopyR2GOp": Name("launch:Marker"),
    "cutlass.cute.nvgpu.CopyUniversalOp": Name("launch:Marker"),
    "cutlass.cute.math.abs": Name("functions:absolute"), "cutlass.cute.math.mul": Name("functions:mul", ("rounding",)),
    "cutlass.cute.math.div": Name("functions:div", ("full",)),
    "cutlass.cute.math.RoundingMode.NEAREST_EVEN": Name("=NEAREST_EVEN"),
    "cutlass.cute.arch.thread_idx": Name("machine:thread_index"), "cutlass.cute.arch.block_idx": Name("machine:block_index"),
    "cutlass.cute.arch.lane_idx": Name("functions:lane_idx"), "cutlass.cute.arch.warp_idx": Name("functions:warp_idx"),
    "cutlass.cute.arch.sync_threads": Name("functions:sync_threads"),
    "cutlass.cute.arch.barrier": Name("strands:barrier", ("barrier_id", "number_of_threads")),
    "cutlass.cute.arch.barrier_arrive": Name("strands:barrier_arrive", ("barrier_id", "number_of_threads", "aligned")),
    "cutlass.cute.arch.make_warp_uniform": Name("strands:make_warp_uniform"),
    "cutlass.cute.arch.cp_async_commit_group": Name("asynchronous:cp_async_commit_group"),
    "cutlass.cute.arch.cp_async_wait_group": Name("asynchronous:cp_async_wait_group"),
    "cutlass.cute.nvgpu.cpasync.CopyBulkG2SOp": Name("mbarriers:CopyBulkG2SOp"),
    **{f"cutlass.cute.arch.{n}": Name(f"mbarriers:{n}") for n in (
        "mbarrier_init", "mbarrier_init_fence", "mbarrier_expect_tx", "mbarrier_arrive_and_expect_tx", "mbarrier_wait")},
    "cutlass.cute.arch.mbarrier_arrive": Name("mbarriers:mbarrier_arrive", ("arrive_count", "relaxed")),
    "cutlass.cute.nvgpu.cpasync.CopyG2SOp": Name("asynchronous:CopyG2SOp", ("cache_mode",)),
    **{f"cutlass.cute.nvgpu.cpasync.LoadCacheMode.{n}": Name(f"={n}")
       for n in ("ALWAYS", "GLOBAL", "STREAMING", "LAST_USE", "NONE")},
    "cutlass.cute.arch.griddepcontrol_wait": Name("asynchronous:griddepcontrol_wait"),
    "cutlass.cute.arch.griddepcontrol_launch_dependents": Name("asynchronous:griddepcontrol_launch_dependents"),
    "cutlass.cute.arch.cluster_arrive": Name("clusters:cluster_arrive", ("aligned",)),
    "cutlass.cute.arch.cluster_arrive_relaxed": Name("clusters:cluster_arrive_relaxed", ("aligned",)),
    "cutlass.cute.arch.cluster_wait": Name("clusters:cluster_wait"),
    **{f"cutlass.cute.arch.{n}": Name(f"clusters:{n}") for n in (
        "block_idx_in_cluster", "block_in_cluster_idx", "block_in_cluster_dim", "cluster_size", "cluster_idx", "cluster_dim")},
    "cutlass.cute.arch.map_dsmem_ptr": Name("clusters:map_dsmem_ptr", ("smem_ptr", "cta_rank_in_cluster")),
    "cutlass._mlir.dialects.llvm.load": Name("clusters:llvm_load", ("loc", "ip")),
    "cutlass._mlir.dialects.llvm.store": Name("clusters:llvm_store", ("loc", "ip")),
    "cutlass.cutlass_dsl.dsl_user_op": Name("launch:jit"),
    "cutlass.cute.arch.fmax": Name("functions:fmax", ("nan",)), "cutlass.cute.arch.fmin": Name("functions:fmin", ("nan",)),
    "cutlass.cute.arch.shuffle_sync": Name("functions:shuffle_sync", ("offset", "mask", "mask_and_clamp")),
    "cutlass.cute.arch.shuffle_sync_bfly": Name("functions:shuffle_sync_bfly", ("offset", "mask", "mask_and_clamp")),
    "cutlass.cute.arch.shuffle_sync_down": Name("functions:shuffle_sync_down", ("offset", "mask", "mask_and_clamp")),
    "cutlass.cute.arch.warp_reduction_sum": Name("functions:warp_reduction_sum", ("threads_in_group",)),
}
"""Full dotted name -> what it is."""

METHODS: dict[str, tuple[str, ...]] = {
    "shape": (), "stride": (), "iterator": (), "element_type": (), "load": (), "store": (), "fill": (), "to": (), "bitcast": (),
    "width": (), "inf": (), "nan": (), "dtype": (), "allocate": ("byte_alignment",), "allocate_tensor": ("byte_alignment",),
    "launch": ("grid", "block", "cluster", "smem", "stream", "min_blocks_per_mp", "preferred_smem_carveout", "use_pdl"),
    "ir_value": ("loc", "ip"), "to_llvm_ptr": ("loc", "ip"), "mlir_type": (),
    "set_name_prefix": ("remove_cutlass_symbol",),
}
"""Attributes of values, and the keywords that a call of them may give."""

BUILTINS = ("range", "len", "list", "tuple", "float", "int", "bool", "abs", "min", "max", "enumerate", "zip")

STATEMENTS = (ast.FunctionDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For,
              ast.While, ast.Return, ast.Pass, ast.Assert)


def check_subset(source: str) -> list[str]:
    """`line n: what` for everything in a source that is outside of the subset; empty where it can be emulated."""
    checker = _Checker()
    try:
        checker.visit(ast.parse(source))
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    return [f"line {line}: {what}" for line, what in sorted(checker.found)]


def _prefixes() -> frozenset[str]:
    return frozenset(".".join(name.split(".")[:n]) for name in NAMES for n in range(1, name.count(".") + 1))


class _Checker(ast.NodeVisitor):
    """Resolves dotted names through the file's imports."""

    def __init__(self) -> None:
        self.found: set[tuple[int, str]] = set()
        self.bound: dict[str, str] = {}
        self.modules = _prefixes()

    def refuse(self, node: ast.AST, what: str) -> None:
        self.found.add((getattr(node, "lineno", 0), what))

    def visit_Import(self, node: ast.Import) -> None:
        for a in node.names:
            self._bind(node, a.name, a.asname or a.name.split(".")[0], a.name if a.asname else a.name.split(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for a in node.names:
            full = f"{node.module}.{a.name}"
            self._bind(node, full, a.asname or a.name, full)

    def _bind(self, node: ast.AST, asked: str, local: str, full: str) -> None:
        if asked not in NAMES and asked not in self.modules:
            self.refuse(node, f"import of {asked}")
        self.bound[local] = full

    def _full(self, node: ast.expr) -> str | None:
        """The dotted name of an expression that starts at an import."""
        if isinstance(node, ast.Name):
            return self.bound.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._full(node.value)
            return f"{base}.{node.attr}" if base and (base in self.modules or base not in NAMES) else None
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self._full(node)
        if full is None:
            if node.attr not in METHODS:
                self.refuse(node, f"attribute .{node.attr}")
            self.visit(node.value)
        elif full not in NAMES and full not in self.modules:
            self.refuse(node, full)

    def visit_Call(self, node: ast.Call) -> None:
        full = self._full(node.func)
        known: tuple[str, ...] | None = None
        if full in NAMES:
            known = NAMES[full].keywords
        elif full is None and isinstance(node.func, ast.Attribute):
            known = METHODS.get(node.func.attr)
        for k in node.keywords:
            if known is not None and k.arg not in known:
                self.refuse(node, f"keyword {k.arg} of {full or ast.unparse(node.func)}")
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and not isinstance(node, STATEMENTS):
            self.refuse(node, f"{type(node).__name__} statement")
        if isinstance(node, (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            self.refuse(node, f"{type(node).__name__} expression")
        super().generic_visit(node)
