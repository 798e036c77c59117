"""F01: a user's mistake is a message with file, line, source text and a hint, or it simply works; never an assertion of ours."""
import inspect
import re
import subprocess
import sys

import pytest
import torch

import fusec

from .steps import right, rmsnorm


def example():
    return dict(x=torch.randn(3, 16), w=torch.randn(16))


@fusec.fuse
def inner(x, w):
    return x * w


def calls_a_fused_function(x, w):
    return inner(x, w) + 1.0


def uses_linalg(x, w):
    return torch.linalg.svd(x)[1] + w[:3]


def searches(x, w):
    return torch.searchsorted(w, x * w)


def prints(x, w):
    y = x * w
    print(y)
    return y


def tries(x, w):
    try:
        y = x * w
    except RuntimeError:
        y = x
    return y


def generator(x, w):
    yield x * w


def loops_on_a_value(x, w):
    while x.sum() > 0:
        x = x - 1
    return x * w


def branches_on_a_value(x, w):
    if x[0, 0] > 0:
        return x * w
    return x


def takes_an_item(x, w):
    return x * w.sum().item()


def masks(x, w):
    return (x * w)[x > 0]


def nonzero(x, w):
    return torch.nonzero(x * w)


def counts(x, w):
    return x * len([v for v in w if v > 0])


def to_numpy(x, w):
    return x * float(w.numpy().sum())


def two_outputs(x, w):
    return x + 1.0, (x * w).sum(-1)


def returns_a_number(x, w):
    return 3.0


def random_numbers(x, w):
    return x * torch.rand_like(x)


REFUSED = [uses_linalg, searches, generator, loops_on_a_value, branches_on_a_value, takes_an_item, masks, nonzero, counts, to_numpy,
           random_numbers, returns_a_number]
RIGHT = [tries, two_outputs]
EITHER = [calls_a_fused_function, prints]


def lines_of(fn):
    source, first = inspect.getsourcelines(fn)
    return range(first, first + len(source))


def refused(fn, given=None):
    """The refusal; every bug of ours (an InternalError, an AssertionError, a torch error) fails the test by passing through."""
    with pytest.raises(fusec.FusecError) as caught:
        fusec.compile(fn, given or example(), arch="sm_90a")
    return caught.value


@pytest.mark.parametrize("fn", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_compiled_is_refused_at_its_line(fn):
    text = str(refused(fn))
    place = re.search(r"test_f01_messages\.py:(\d+)", text)
    if fn is not returns_a_number:
        assert place and int(place.group(1)) in lines_of(fn) and "^" in text, text
    assert "Traceback" not in text and "assert" not in text.lower(), text


@pytest.mark.parametrize("fn", RIGHT, ids=lambda f: f.__name__)
def test_what_can_be_compiled_is_right(fn, level):
    right(fn, example(), level)


@pytest.mark.parametrize("fn", EITHER, ids=lambda f: f.__name__)
def test_the_rest_is_right_or_refused(fn, level, capsys):
    try:
        right(fn, example(), level)
    except fusec.FusecError as refusal:
        assert str(refusal)


def test_the_message_names_the_op_the_line_and_a_remedy():
    refusal = refused(searches)
    text = str(refusal)
    assert isinstance(refusal, fusec.UnsupportedOp)
    assert "searchsorted" in text and "torch.searchsorted(w, x * w)" in text and "hint" in text


def test_a_helper_is_named_at_the_line_inside_it():
    def helper(v):
        return torch.searchsorted(v[0], v)

    def step(x, w):
        return helper(x * w) + 1.0

    text = str(refused(step))
    assert "torch.searchsorted(v[0], v)" in text


def test_the_command_line_exits_with_2_and_without_a_traceback(tmp_path):
    path = tmp_path / "step.py"
    path.write_text("import torch\nimport fusec\n\n\ndef example(rows, device):\n    return dict(x=torch.randn(rows, 8))\n\n\n"
                    "@fusec.fuse(example=example)\ndef step(x):\n    return torch.searchsorted(x[0], x)\n")
    command = [sys.executable, "-m", "fusec", "compile", str(path), "--arch", "sm_90a"]
    found = subprocess.run(command, capture_output=True, text=True)
    said = found.stdout + found.stderr
    assert found.returncode == 2, said
    assert "step.py:11" in said and "torch.searchsorted" in said and "Traceback" not in said


def test_wrong_arguments_of_the_api_are_refused():
    with pytest.raises(fusec.FusecError):
        fusec.fuse(3)
    with pytest.raises(fusec.FusecError):
        fusec.compile(rmsnorm, dict(x=torch.randn(3, 8)), arch="sm_90a")
    with pytest.raises(fusec.FusecError, match="sm_90a"):
        fusec.compile(rmsnorm, dict(x=torch.randn(3, 8), weight=torch.randn(8)), arch="hopper")
    with pytest.raises(fusec.FusecError, match="graph"):
        fusec.check(rmsnorm, dict(x=torch.randn(3, 8), weight=torch.randn(8)), level="fast")
    with pytest.raises(fusec.FusecError, match="zero"):
        fusec.check(rmsnorm, dict(x=torch.zeros(3, 8), weight=torch.zeros(8)))


def test_a_wrong_predicate_is_named_at_its_line():
    def step(pool, index, x):
        return fusec.load_rows(pool, index, where=index) + x

    text = str(refused(step, dict(pool=torch.randn(9, 8), index=torch.arange(3, dtype=torch.int32), x=torch.randn(3, 8))))
    assert "expected bool, found int32" in text and "where=index)" in text and "hint: a comparison" in text


def test_nothing_to_compute_and_a_size_of_nothing_are_named():
    with pytest.raises(fusec.FusecError, match="nothing to compute"):
        fusec.compile(lambda x: x, dict(x=torch.randn(3, 8)), arch="sm_90a")
    with pytest.raises(fusec.FusecError, match="Q: the sizes that can be set are none"):
        fusec.compile(rmsnorm, dict(x=torch.randn(3, 8), weight=torch.randn(8)), arch="sm_90a", static=dict(Q=3))
