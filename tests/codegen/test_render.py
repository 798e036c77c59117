"""Emitted files: golden text, that they stand alone, that they are the same in every process, and how expressions are written."""
from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import nodes

from fusec.codegen.express import Expressions, Uses
from fusec.codegen.layout_text import WIDTH, wrap
from fusec.codegen.regroup import regroup
from fusec.codegen.render import environment, late_scalars, render
from fusec.codegen.scope import Scope, analyse
from fusec.errors import InternalError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import (
    Apply, Assign, Barrier, Compute, Copy, Declare, Digit, Elem, For, Global, Guard, KernelSpec, Launch, Less, Let, Linear, Origin,
    Parameter, Term, walk)
from fusec.ir.plan import SmemPlan
from fusec.ir.print_kernel import format_kernel
from fusec.ir.scalar import Lit

from .specs import CASES, ap, conv, conv_inputs, delta, el, lin
from .zoo import ZOO

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "codegen"
SPECS = {**{name: build for name, (build, _, _) in CASES.items()}, **{name: build for name, (build, _) in ZOO.items()}}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["source", "kernel"])
def test_golden(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    text = render(SPECS[name]()) if kind == "source" else format_kernel(SPECS[name]())
    path = GOLDEN / f"{name}.{'py' if kind == 'source' else 'txt'}"
    if os.environ.get("UPDATE_GOLDEN") or request.config.getoption("--update-golden", default=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs: look at it, then run with --update-golden"


@pytest.mark.parametrize("name", SPECS)
def test_stands_alone(name: str) -> None:
    source = render(SPECS[name]())
    tree = ast.parse(source)
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    modules |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {m.partition(".")[0] for m in modules} == {"cutlass"}
    bound = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    imports = [a for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    imported = {a.asname or a.name.partition(".")[0] for a in imports}
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert imported <= used, f"imported in vain: {imported - used}"
    assert bound - {"launch"} <= used, f"defined in vain: {bound - used}"
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in source.splitlines())
    assert [n.name for n in tree.body if isinstance(n, ast.FunctionDef)][-1] == "launch"


@pytest.mark.parametrize("name", CASES)
def test_is_tidy(name: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "-q", "--select", "E,F,W", "--line-length", str(WIDTH), "-"],
                          input=render(SPECS[name]()), capture_output=True, text=True, check=False)
    if "No module named ruff" in done.stderr:
        pytest.skip("ruff is not installed")
    assert done.returncode == 0, done.stdout


def test_same_bytes_in_every_process(tmp_path: Path) -> None:
    code = ("import hashlib, sys; sys.path[:0] = sys.argv[1:]\n"
            "from codegen.test_render import SPECS\nfrom fusec.codegen.render import render\n"
            "print(hashlib.sha256(''.join(render(b()) for b in SPECS.values()).encode()).hexdigest())")
    paths = [str(HERE.parent), str(HERE.parent.parent)]
    found = {subprocess.run([sys.executable, "-c", code, *paths], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=where,
                            capture_output=True, text=True, check=True).stdout for seed, where in (("1", tmp_path), ("77", HERE))}
    assert len(found) == 1


def test_templates_only_place_text() -> None:
    allowed = (nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.For, nodes.If)
    for name in environment().list_templates():
        tree = environment().parse(environment().loader.get_source(environment(), name)[0])  # type: ignore[union-attr]
        for node in tree.find_all(nodes.Node):
            assert isinstance(node, allowed), f"{name}: {type(node).__name__} at line {node.lineno}"
        assert all(isinstance(n.test, nodes.Name) for n in tree.find_all(nodes.If)), name


def test_statements_cite_the_reference() -> None:
    source = render(delta())
    for line in ("step+3: pool[slots]", "step+4: decay = exp(g)", "step+8"):
        assert f"# {line}\n" in source
    body = source[source.index("_kernel("):]
    assert body.index("# step+5: h = h * decay; step+6") < body.index("rH[j, c, r] = mul(rH[j, c, r], rDecay[j, c])")
    assert "cute.arch.sync_threads()  # key, decay: write → read" in source


# ---- expressions

NAMES = ("a", "b", "c")


def scope_of(kind: str) -> Scope:
    return Scope({("register", n): n for n in NAMES} | {("int", n): f"i_{n}" for n in NAMES},
                 {("register", n): kind for n in NAMES} | {("int", n): "i32" for n in NAMES},
                 bounds={n: (0, 8) for n in NAMES})


def trees(operators: list[str], leaf: st.SearchStrategy) -> st.SearchStrategy:
    return st.recursive(st.sampled_from([Elem(n) for n in NAMES]) | leaf,
                        lambda inner: st.builds(lambda fn, x, y: Apply(fn, (x, y)), st.sampled_from(operators), inner, inner),
                        max_leaves=8)


INTEGER_MEANING = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "bitand": int.__and__, "bitor": int.__or__,
                   "bitxor": int.__xor__, "floordiv": lambda x, y: x // y if y else 0, "lt": int.__lt__, "eq": int.__eq__}


def meaning(value, known: dict[str, int]) -> int:
    if isinstance(value, Lit):
        return value.value
    if isinstance(value, Elem):
        return known[value.name]
    return INTEGER_MEANING[value.fn](*(meaning(a, known) for a in value.args))


@settings(max_examples=150, deadline=None)
@given(trees(["add", "sub", "mul", "bitand", "bitor", "bitxor"], st.integers(-5, 5).map(Lit)),
       st.lists(st.integers(-9, 9), min_size=3, max_size=3))
def test_parentheses_keep_the_tree(value, numbers) -> None:
    known = dict(zip(NAMES, numbers, strict=True))
    text = Expressions(scope_of("i32"), Uses()).value(value).text
    assert eval(text, {"Int32": int, **known}) == meaning(value, known), text


def test_few_parentheses() -> None:
    e = Expressions(scope_of("f32"), Uses())
    a, b, c = (Elem(n) for n in NAMES)
    for value, want in ((ap("add", ap("add", a, b), c), "a + b + c"), (ap("sub", a, ap("sub", b, c)), "a - (b - c)"),
                        (ap("mul", ap("add", a, b), c), "(a + b) * c"), (ap("neg", ap("mul", a, b)), "-(a * b)"),
                        (ap("add", ap("mul", a, b), c), "a * b + c"),
                        (ap("fma", ap("add", a, b), b, 1.0), "fma(a + b, b, Float32(1.0))"),
                        (ap("not", ap("lt", a, b)), "not (a < b)"), (ap("mul_rn", a, 2), "mul(a, Float32(2.0))"),
                        (ap("and", ap("lt", a, 0.5), ap("ne", b, c)), "(a < 0.5) & (b != c)"), (ap("sub", a, -0.0), "a - -0.0"),
                        (ap("max", a, float("-inf")), "maximum(a, -Float32.inf)"), (ap("div", 1.0, a), "1.0 / a")):
        assert e.value(value).text == want


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-7, 7).filter(bool)), max_size=3, unique_by=lambda t: t[0]),
       st.integers(-99, 99), st.booleans(), st.lists(st.integers(0, 7), min_size=3, max_size=3))
def test_integers_keep_their_value(terms, const, wide, numbers) -> None:
    value = Linear(tuple(Term(v, k) for v, k in terms), const)
    known = dict(zip(NAMES, numbers, strict=True))
    text = Expressions(scope_of("i32"), Uses()).linear(value, wide).text
    found = eval(text, {"Int64": int, **{f"i_{n}": v for n, v in known.items()}})
    assert found == const + sum(known[v] * k for v, k in terms), text


def test_offsets_are_wide_where_they_may_be_large() -> None:
    scope = analyse(delta())
    e = Expressions(scope, Uses())
    assert e.linear(lin(row=192, head=64, thread=1), wide=True).text == "Int64(row) * 192 + (head * 64 + thread)"
    assert e.linear(Linear((Term("slot", 1, ("state", 0)), Term("own_v", 64))), True).text == "slot * state.stride[0] + own_v * 64"
    assert e.linear(lin(head=2**30), wide=True).text == f"Int64(head) * {2**30}"
    assert e.linear(lin(row=4), wide=False).text == "row * 4"


def test_digits() -> None:
    names = {("int", "t"): "t", ("int", "b"): "b"}
    e = Expressions(Scope(names, dict.fromkeys(names, "i32"), bounds={"t": (0, 512)}), Uses())
    for digit, want in ((Digit("t", 1, 8), "t & 7"), (Digit("t", 8, 4), "(t >> 3) & 3"), (Digit("t", 64, 8), "t >> 6"),
                        (Digit("t", 6, 0), "t // 6"), (Digit("t", 1, 6), "t % 6"), (Digit("b", 64, 8), "(b >> 6) & 7"),
                        (Digit("b", 1, 0), "b")):
        assert e.digit(digit).text == want


@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), float("-inf"), 1e-45, 3.4e38, 1 / 3, 16777217.0])
def test_literals_keep_their_bits(value: float) -> None:
    text = Expressions(scope_of("f32"), Uses()).lifted(Expressions(scope_of("f32"), Uses()).value(Lit(value)), "f32")

    class Float32(float):
        inf = float("inf")
    found = torch.tensor(eval(text, {"Float32": Float32}), dtype=torch.float32)
    assert found.view(torch.int32) == torch.tensor(value, dtype=torch.float32).view(torch.int32), text


def test_names_that_mean_something_are_renamed() -> None:
    parameters, when = tuple(Parameter(n, "f32", (8,), (1,), 4) for n in ("range", "tile")), (Less(lin(thread=1), 8),)
    spec = KernelSpec("lambda_", "odd names", "sm_90a", parameters, Launch(((1,), (), ()), 32), SmemPlan(), (
        Declare("class", (), "f32"), Copy(Global("range", lin(thread=1)), el("class"), when=when),
        Copy(el("class"), Global("tile", lin(thread=1)), when=when)))
    source = render(spec)
    ast.parse(source)
    assert "range_2: cute.Tensor, tile_2: cute.Tensor" in source and "class_2 = mRange[thread]" in source


# ---- statements

def test_names_of_parameters_that_the_file_uses_itself() -> None:
    names = ("thread", "blocks", "i", "_", "ONCE_BELOW")
    launch = Launch((("rows",), (), ()), 32, once_below=9)
    copies = tuple(Copy(Global(n, lin(thread=4)), el("x", lin()), width=4, hint="evict_first") for n in names)
    spec = KernelSpec("step", "names", "sm_90a", tuple(Parameter(n, "f32", ("rows",), (1,), 16) for n in names), launch, SmemPlan(),
                      (Declare("x", (4,), "f32"), *copies))
    functions = [f for f in ast.parse(render(spec)).body if isinstance(f, ast.FunctionDef)]
    for function in (f for f in functions if f.name in ("step_kernel", "launch")):
        given = {a.arg for a in function.args.args}
        assert not given & {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        assert len(given) == 6 and "ONCE_BELOW" not in given
    assert analyse(dataclasses.replace(spec, body=(Declare("i", (), "f32"),))).loop_names(1) == ("i_",)


def test_scalars_exist_before_the_branch_that_sets_them() -> None:
    body = (Declare("a", (), "f32"), Declare("b", (), "f32"), Guard((Less(lin(thread=1), 3),), (
        Compute((), (Assign(el("a"), Lit(1.0)),)), Declare("c", (), "f32"), Compute((), (Assign(el("c"), Lit(1.0)),)))),
        Compute((), (Assign(el("b"), Lit(1.0)),)))
    assert late_scalars(body) == {"a"}


def test_neighbours_under_one_condition_share_it() -> None:
    when = (Less(lin(thread=1), 200),)
    spec = conv()
    spread = tuple(Guard(when, (s,)) if not isinstance(s, Declare) else s for s in spec.body[1].body)
    merged = regroup((spec.body[0], *spread))
    assert sum(isinstance(s, Guard) for s in merged) == 1
    ours, theirs = conv_inputs(3), conv_inputs(3)
    run_kernel(spec, ours)
    run_kernel(KernelSpec(spec.name, "", spec.arch, spec.parameters, spec.launch, spec.smem, merged), theirs)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_a_condition_that_a_body_changes_is_asked_again() -> None:
    live = (Elem("live"),)
    flip = Compute((), (Assign(el("live"), ap("not", el("live"))),))
    body = (Guard(live, (flip,)), Guard(live, (flip,)))
    assert regroup(body) == body
    body = (Guard(live, (Barrier(("x",)),)), Guard(live, (flip,)))
    assert len(regroup(body)) == 1


def test_regrouping_loses_nothing() -> None:
    for build in SPECS.values():
        spec = build()
        before = sum(not isinstance(s, Guard) for s in walk(spec.body))
        assert sum(not isinstance(s, Guard) for s in walk(regroup(spec.body))) == before


def copy_text(copy: Copy, shape: tuple[int, ...], dtype: str = "f32", memory: str = "f32") -> str:
    x = Parameter("x", memory, (4096,), (1,), 16)
    spec = KernelSpec("one", "one copy", "sm_90a", (x,), Launch(((1,), (), ()), 32), SmemPlan(),
                      (Declare("r", shape, dtype, 0.0), copy))
    source = render(spec)
    return source[source.index(".fill"):source.index("@cute.jit\ndef launch")].split("\n", 1)[1].strip()


def test_copies_as_text() -> None:
    tile = Copy(Global("x", lin(thread=8, c=256)), el("r", "c", 0), (For("c", 2),), 8)
    assert copy_text(tile, (2, 8)) == "cute.autovec_copy(tile(x, thread * 8, 8, (8, 2), (1, 256)), rR)"
    assert copy_text(tile, (2, 8), "f32", "bf16") == "load(tile(x, thread * 8, 8, (8, 2), (1, 256)), rR)"
    assert copy_text(tile, (2, 8), "bf16", "bf16") == "cute.autovec_copy(tile(x, thread * 8, 8, (8, 2), (1, 256)), rR)"
    one = Copy(Global("x", lin(thread=8)), el("r", 1, 0), (), 8)
    assert copy_text(one, (2, 8)) == "cute.autovec_copy(tile(x, thread * 8, 8, (8,), (1,)), rR[None, 1])"
    part = Copy(Global("x", lin(thread=4, i=1)), el("r", lin(1, i=1)), (For("i", 3),))
    assert copy_text(part, (4,)) == "load_part(tile(x, thread * 4, 1, (3,), (1,)), part(rR, 1, (3,), (1,)))"
    joined = Copy(Global("x", lin(thread=8, c=4)), el("r", lin(c=4)), (For("c", 2),), 4)
    assert copy_text(joined, (8,)) == "cute.autovec_copy(tile(x, thread * 8, 4, (8,), (1,)), rR)"
    apart = Copy(Global("x", lin(thread=4, c=256)), el("r", lin(c=4)), (For("c", 2),), 4)
    assert copy_text(apart, (8,)) == "load_part(tile(x, thread * 4, 4, (4, 2), (1, 256)), part(rR, 0, (4, 2), (1, 4)))"
    ragged = Copy(Global("x", lin(thread=8, c=256)), el("r", "c", 0), (For("c", 2),), 8, (Less(lin(thread=8, c=256), 300),))
    assert copy_text(ragged, (2, 8)).splitlines() == [
        "gX = tile(x, thread * 8, 8, (8, 2), (1, 256))", "    for c in cutlass.range_constexpr(2):",
        "        if thread * 8 + c * 256 < 300:", "            cute.autovec_copy(gX[None, c], rR[None, c])"]
    store = Copy(el("r", "i"), Global("x", lin(thread=4, i=1)), (For("i", 4),), hint="evict_first")
    assert copy_text(store, (4,), "f32", "f16") == "store(rR, tile(x, thread * 4, 1, (4,), (1,)), ONCE)"


def test_a_name_that_nothing_introduces() -> None:
    spec = conv()
    with pytest.raises(InternalError, match="ghost is used and never introduced"):
        render(KernelSpec(spec.name, "", spec.arch, spec.parameters, spec.launch, spec.smem,
                          (Compute((), (Assign(el("y"), ap("neg", el("ghost"))),)),)))


def test_long_lines() -> None:
    line = "    target = load(" + ", ".join(f"argument_{i} * {i}" for i in range(20)) + ")"
    wrapped = wrap(line)
    assert all(len(w) <= WIDTH for w in wrapped) and "".join(w.strip() + " " for w in wrapped).split() == line.split()
    ast.parse("\n".join(wrapped).replace("    target", "target", 1))
    plain = wrap("x = " + " + ".join(f"value_{i}" for i in range(40)))
    assert plain[0].startswith("x = (") and all(len(w) <= WIDTH for w in plain)
    ast.parse("\n".join(plain))


def test_origins_do_not_repeat() -> None:
    origin = Origin(("f+1",), "a")
    spec = KernelSpec("two", "two", "sm_90a", (Parameter("x", "f32", (64,), (1,), 4),), Launch(((1,), (), ()), 32), SmemPlan(), (
        Declare("a", (), "f32"), Copy(Global("x", lin(thread=1)), el("a"), origin=origin),
        Compute((), (Assign(el("a"), ap("neg", el("a")), origin),)), Copy(el("a"), Global("x", lin(thread=1)), origin=origin),
        Let("late", lin(thread=2), Origin(("f+9",)))))
    source = render(spec)
    assert source.count("# f+1: a") == 1 and source.count("# f+9") == 1


def test_a_product_in_parentheses_keeps_them_when_it_ends_in_a_constant() -> None:
    """a * (b * 25.0) is not a * b * 25.0: the text of the inner product ends like a widened integer."""
    from fusec.ir.kernel import Apply, Assign, Compute, Declare, Elem
    from fusec.ir.scalar import Lit

    from .specs import conv
    spec = conv("sm_90a")
    a, b = Elem("a"), Elem("b")
    inner = Apply("mul", (b, Lit(25.0)))
    more = (Declare("a", (), "f32", 1.0), Declare("b", (), "f32", 1.0), Declare("c", (), "f32", 0.0),
            Compute((), (Assign(Elem("c"), Apply("mul", (a, inner))),)))
    assert "c = a * (b * 25.0)" in render(dataclasses.replace(spec, body=spec.body + more))


def test_an_eviction_priority_is_imported_by_who_names_it():
    """A state in fp32 goes through no device function: the priority stands in the launch and in the constants alone."""
    import torch

    from fusec.api import capture_graph
    from fusec.passes.pipeline import compile as run_passes

    def decayed(state, k, v, g):
        state.mul_(g[..., None, None]).add_(k[..., None] * v[..., None, :])
        return state.sum(-1)

    given = dict(state=torch.randn(3, 4, 64, 64), k=torch.randn(3, 4, 64), v=torch.randn(3, 4, 64), g=torch.rand(3, 4))
    for arch in ("sm_90a", "sm_100a"):
        source = run_passes(capture_graph(decayed, given).for_arch(arch, {}), arch, until="source").need("source")
        assert "CacheEvictionPriority." in source and "import CacheEvictionPriority" in source
