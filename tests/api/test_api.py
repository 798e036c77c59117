"""The public functions: what they give, what shapes a key, what they refuse."""
import ast
import json
import os
import subprocess
import sys

import pytest
import torch

import fusec

no_device = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")


def make(rows, device, C=48):
    return dict(x=torch.randn(rows, C, device=device), y=torch.randn(rows, C, device=device))


@fusec.fuse(example=make)
def scaled_sum(x, y, scale=2.0):
    """x + scale y."""
    return x + y * scale


def plain(x, y, scale=2.0):
    return x + y * scale


@pytest.fixture(scope="module")
def artifact():
    return fusec.compile(plain, make(3, "cpu"), arch=["sm_90a", "sm_100a"])


def key(fn, inputs, **options):
    return fusec.compile(fn, inputs, arch="sm_90a", **options).kernels[0].key


def test_a_decorated_function_keeps_its_name_its_text_and_itself():
    x, y = make(2, "cpu").values()
    assert scaled_sum.__name__ == "scaled_sum" and scaled_sum.__doc__ == "x + scale y."
    assert torch.equal(scaled_sum.reference(x, y), x + y * 2.0) and fusec.fuse(plain).reference is plain
    assert set(scaled_sum.inputs(5, C=7)) == {"x", "y", "scale"} and scaled_sum.inputs(5, C=7)["x"].shape == (5, 7)
    with pytest.raises(fusec.FusecError, match="the example's sizes are C"):
        scaled_sum.inputs(5, D=7)
    with pytest.raises(fusec.FusecError, match="expected a function, found 3"):
        fusec.fuse(3)


def test_an_artifact_holds_a_kernel_per_architecture_with_all_its_levels(artifact):
    assert [k.arch for k in artifact.kernels] == ["sm_90a", "sm_100a"] and len({k.key for k in artifact.kernels}) == 2
    for kernel in artifact.kernels:
        assert kernel.function == kernel.name == "plain" and kernel.spec.name == "plain" and kernel.plan.threads == kernel.threads
        imported = {n.split(".")[0] for node in ast.walk(ast.parse(kernel.source)) if isinstance(node, (ast.Import, ast.ImportFrom))
                    for n in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])}
        assert imported == {"cutlass"} and "plain+" in kernel.source and kernel.resources["spills"] == 0


def test_the_object_loads_and_takes_the_tensors_in_the_order_of_its_parameters(artifact):
    kernel = artifact.kernels[0]
    with pytest.raises(TypeError, match="x: Tensor.*y: Tensor.*out: Tensor"):
        kernel.loaded()


def test_tuples_dicts_and_decorated_functions_compile_to_the_same(artifact):
    same = artifact.kernels[0].key
    assert key(plain, tuple(make(4, "cpu").values())) == same
    assert key(plain, {**make(5, "cpu"), "scale": 2.0}) == same
    assert key(fusec.fuse(plain), make(3, "cpu")) == same


def test_constants_closures_layouts_and_numerics_are_in_the_key(artifact):
    def scaled(by):
        def plain(x, y):
            return x + y * by
        return plain

    x, y = make(3, "cpu").values()
    keys = [artifact.kernels[0].key, key(scaled(3.0), (x, y)), key(scaled(-3.0), (x, y)), key(plain, (x, y, 4.0)),
            key(plain, (x, y), numerics="strict"), key(plain, (x.bfloat16(), y)), key(plain, (torch.randn(48, 3).t(), y)),
            key(plain, (torch.randn(3, 40), torch.randn(3, 40)))]
    assert len(set(keys)) == len(keys)
    assert key(scaled(3.0), (x, y)) == keys[1]


def test_keys_and_bytes_do_not_depend_on_process_folder_or_comments(tmp_path):
    body = "import fusec, torch, json, sys\n{}\ndef step(x, y):\n    z = x * 2.0  {}\n    return z + y\n\n\n" \
           "k = fusec.compile(step, (torch.randn(3, 8), torch.randn(3, 8)), arch='sm_90a').kernels[0]\n" \
           "print(json.dumps([k.key, k.source]))\n"
    found = []
    for name, seed, above, beside in (("a", "1", "", ""), ("b ü", "2", "# a comment above\n\n", "# and one beside")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.py").write_text(body.format(above, beside))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "FUSEC_CACHE_DIR": str(tmp_path / name / "store")}
        done = subprocess.run([sys.executable, "step.py"], cwd=tmp_path / name, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]


@no_device
def test_without_a_device_calls_and_compiles_without_arch_say_so(artifact):
    x, y = make(3, "cpu").values()
    for call in (lambda: artifact(x, y), lambda: scaled_sum(x, y), lambda: fusec.compile(plain, (x, y))):
        with pytest.raises(fusec.TargetError, match="no CUDA device"):
            call()


@pytest.mark.parametrize("change, error, message", [
    (dict(arch="sm_70"), fusec.TargetError, "unknown architecture 'sm_70'; known: "),
    (dict(numerics="fast"), fusec.FusecError, "numerics: expected one of default, strict, found 'fast'"),
    (dict(example_inputs=(torch.zeros(3, 4),)), fusec.ArgumentError, "example inputs of plain: missing a required argument: 'y'"),
    (dict(example_inputs=dict(x=1, y=2, z=3)), fusec.ArgumentError, "unexpected keyword argument 'z'"),
])
def test_what_compile_refuses(change, error, message):
    arguments = {"example_inputs": tuple(make(3, "cpu").values()), "arch": "sm_90a", **change}
    with pytest.raises(error, match=message):
        fusec.compile(plain, **arguments)


def test_a_builtin_is_refused_with_a_remedy():
    with pytest.raises(fusec.CaptureError, match="abs has no signature"):
        fusec.compile(torch.abs, (torch.zeros(3, 4),), arch="sm_90a")


def test_a_method_is_refused_with_a_remedy():
    class Layer:
        @fusec.fuse
        def step(self, x):
            return x

    with pytest.raises(fusec.FusecError, match="expected a function, found a method"):
        Layer().step(torch.zeros(2, 2))


def test_one_fused_function_may_call_another():
    @fusec.fuse
    def inner(x):
        return x * 3.0

    def outer(x, y):
        return inner(x) + y

    assert fusec.compile(outer, tuple(make(3, "cpu").values()), arch="sm_90a").kernels[0].function == "outer"
