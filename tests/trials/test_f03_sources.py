"""F03: functions without a file, or not at the top of one: they work, or say what to do, and the interpreter lives."""
import linecache
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch

import fusec
from fusec.api import capture_graph
from fusec.passes import pipeline

X = dict(x=torch.randn(4, 32))
TEXT = "def step(x):\n    y = x.exp()\n    return y / y.sum(-1, keepdim=True)\n"


def source(fn, example=X):
    return pipeline.compile(capture_graph(fn, example).for_arch("sm_90a"), "sm_90a").need("source")


def executed(text, name):
    scope = {}
    exec(compile(text, name, "exec"), scope)
    return scope["step"]


def module_step(x):
    return x * 2.0


@pytest.mark.parametrize("name", [
    "<stdin>", *(pytest.param(n, marks=pytest.mark.slow) for n in ("<string>", "<cell>", "/nowhere/step.py"))])
def test_text_that_was_executed(name):
    made = source(executed(TEXT, name))
    compile(made, "made", "exec")
    assert "def step_kernel(" in made and "step+1" in made


def test_a_notebook_cell_has_its_lines():
    name = "<ipython-input-7-ab>"
    linecache.cache[name] = (len(TEXT), None, TEXT.splitlines(True), name)
    assert ": y" in source(executed(TEXT, name)) or "rY" in source(executed(TEXT, name))
    bad = TEXT.replace("x.exp()", "torch.linalg.svd(x)[1]").replace("def", "import torch\ndef")
    linecache.cache[name] = (len(bad), None, bad.splitlines(True), name)
    with pytest.raises(fusec.UnsupportedOp) as error:
        source(executed(bad, name))
    assert f"{name}:3" in str(error.value) and "torch.linalg.svd(x)" in str(error.value)


def test_lambdas_partials_and_functions_from_elsewhere():
    import functools
    for fn in (lambda x: x * 3.0, functools.partial(lambda x, by: x * by, by=3.0), pickle.loads(pickle.dumps(module_step))):
        assert "_kernel(" in source(fn)


def test_an_executed_function_compiles_all_the_way():
    assert fusec.compile(executed(TEXT, "<string>"), X, arch="sm_90a").kernels[0].resources["spills"] == 0


def test_a_decorated_method_says_what_to_do_and_a_static_one_works():
    class Layer:
        @fusec.fuse
        def forward(self, x):
            return x * 2.0

        @staticmethod
        def step(x):
            return x * 2.0

    with pytest.raises(fusec.FusecError, match="found a method"):
        Layer().forward  # noqa: B018
    assert "_kernel(" in source(Layer.step)
    bound = Layer()
    bound.scale = 2.0
    assert "_kernel(" in source(lambda x: x * bound.scale)


def test_a_command_line_program():
    program = textwrap.dedent("""
        import torch, fusec
        @fusec.fuse
        def step(x):
            return torch.special.i0e(x)
        from fusec.api import capture_graph
        try:
            capture_graph(step.reference, dict(x=torch.randn(4, 8)))
        except fusec.UnsupportedOp as error:
            print("refused", str(error).splitlines()[0])
        from fusec.passes import pipeline
        print(pipeline.compile(capture_graph(lambda x: x * 2, dict(x=torch.randn(4, 8))).for_arch("sm_90a"), "sm_90a").graph.name)
        print("alive")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("refused ") and done.stdout.endswith("alive\n"), done.stderr
