"""What cannot be captured is refused at its line, with the op and what to do; never by an assertion of ours."""

import functools

import pytest
import torch
import torch.nn.functional as F

from fusec.capture import capture
from fusec.errors import CaptureError, FusecError, UnsupportedOp

from .steps import linear_attention, linear_attention_example, normal, window_conv, window_conv_example

BIG = torch.ones(100, 4)
SMALL = torch.ones(4)


def item(x):
    return x * x.max().item()


def mask(x):
    return x[x > 0]


def branch(x):
    y = x + 1
    if y.sum() > 0:
        return y
    return x


def loop(x):
    while x.sum() > 0:
        x = x - 1
    return x


def choice(x):
    return x if (x > 0).all() else -x


def helper(x):
    return x.tolist()


def through_helper(x):
    return x * helper(x)[0][0]


def svd(x):
    return torch.linalg.svd(x)[0]


def printing(x):
    print(x)
    return x + 1


def ordered(x):
    return x.median(-1).values


def place(x):
    return x.cummax(-1)[1]


def random(x):
    return F.dropout(x)


def wide(x):
    return x.double() + 1


def generator(x):
    yield x


def lazy(x):
    return (x[i] for i in range(3))


def raising(x):
    raise ValueError(f"no mode {x.shape[0]}")


def reads_big(x):
    return x @ BIG.T


def writes_constant(x):
    SMALL.add_(1)
    return x * SMALL


def idle(x):
    x * 2


def by_rows(x):
    if x.shape[0] > 1:
        return x + 1
    return x * 2


def by_three(x):
    return x + 1 if x.shape[0] == 3 else x * 2


def squeezes(x):
    return (x[:, None] * 2).squeeze()


def accumulates(x):
    return torch.zeros(5, 4).index_put((torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2])), x[:, 0], accumulate=True)


def copies_by_int32(x):
    return torch.zeros(5, 4).index_copy(0, torch.arange(3, dtype=torch.int32), x)


def fills_by_int32(x):
    return x.index_fill(1, torch.arange(2, dtype=torch.int32), 1.0)


def bits(x):
    return x.to(torch.int64).view(torch.int32)


def mask_reduced(x):
    return x + x[x > 0].sum()


def other_mask(x):
    y = x.clone()
    y[x > 0] = x[x < 0]
    return y


def double(x):
    return (x.double() * 2).float()


REFUSED = {
    item: ("item() depends on the values of a tensor", ".item()", "keep it a tensor"),
    mask: ("a size depends on the values of a tensor", "x[x > 0]", "torch.where"),
    branch: ("a branch depends on the values", "if y.sum() > 0:", "torch.where"),
    loop: ("a branch depends on the values", "while x.sum() > 0:", "torch.where"),
    choice: ("a branch depends on the values", "return x if", "torch.where"),
    through_helper: ("item() depends on the values", "return x.tolist()", "keep it a tensor"),
    svd: ("aten.linalg_svd.default is not supported", "torch.linalg.svd", "supported ops"),
    printing: ("print: ", "print(x)", "outside"),
    ordered: ("aten.median.dim is not supported", "x.median(-1)", "pass indices"),
    place: ("aten.cummax.default: result 1", "x.cummax(-1)[1]", "amax"),
    random: ("is not supported", "F.dropout(x)", "pass them as an argument"),
    wide: ("a result of dtype float64", "x.double()", "float32"),
    generator: ("generator", "def generator", "return tensors"),
    lazy: ("generator", "def lazy", "return tensors"),
    raising: ("ValueError: no mode 3", "raise ValueError", "eager"),
    reads_big: ("reads a tensor of 400 elements", "def reads_big", "pass it as an argument"),
    writes_constant: ("writes to a tensor that is not an argument", "", "pass it as an argument"),
    idle: ("returns nothing and writes to none", "def idle", "return a tensor"),
    by_rows: ("with one row the function computes something else", "return x + 1", "number of rows"),
    by_three: ("rows is fixed to 3", "def by_three", "constant"),
    squeezes: ("with one row the function computes something else", ".squeeze()", "by number"),
    copies_by_int32: ("an index of type i32", "index_copy", "index.long()"),
    fills_by_int32: ("an index of type i32", "index_fill", "index.long()"),
    bits: ("the bits of i64 as i32", "view(torch.int32)", "before the call"),
    mask_reduced: ("of what a mask selects", "x[x > 0].sum()", "torch.where"),
    other_mask: ("of what a mask selects", "y[x > 0]", "the same mask"),
    double: ("a result of dtype float64", "x.double()", "in float32 and narrower"),
    accumulates: ("accumulate=True", "index_put", "distinct"),
}


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_refused_with_its_line_and_a_hint(fn, capsys):
    message, text, hint = REFUSED[fn]
    with pytest.raises((CaptureError, UnsupportedOp)) as error:
        capture(fn, dict(x=normal(3, 4)))
    said = error.value
    assert message in said.message and hint in said.hint
    assert text in str(said) and f"{__file__}:" in str(said)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""  # torch's own explanations stay away


def test_what_looks_like_a_mistake_and_is_none():
    def attempt(x):
        try:
            return x.no_such_method()
        except AttributeError:
            return x + 1

    def static(x, bias=None, flag=True):
        for k in range(10):
            if k == 2:
                continue
            if k == 4:
                break
            x = x + k
        return (x if flag else -x) if bias is None else x + bias

    assert [n.op.fn for n in capture(attempt, dict(x=normal(3, 4))).nodes if n.source] == ["add"]
    assert len([n for n in capture(static, dict(x=normal(3, 4))).nodes if n.source]) == 3


def test_a_wrong_shape_says_both():
    with pytest.raises(CaptureError, match=r"length 5.*\n.*return a \+ b|5 at"):
        capture(lambda a, b: a + b, dict(a=normal(3, 4), b=normal(3, 5)))


# ---- examples -----------------------------------------------------------------------------------------------------------------


def test_examples_that_share_memory():
    def add(x, y):
        x += y
        return x

    whole = normal(3, 8)
    for x, y in (
        (whole, whole[:]),
        (whole[:, :4], whole[:, 2:6]),
        (whole.view(-1)[:8].view(2, 4), whole.view(-1)[4:12].view(2, 4)),
    ):
        with pytest.raises(CaptureError, match="arguments x and y share memory, and x is written"):
            capture(add, dict(x=x, y=y))
    capture(add, dict(x=whole[:, :4], y=whole[:, 4:]))
    capture(lambda x, y: x + y, dict(x=whole, y=whole))
    with pytest.raises(CaptureError, match="x is written and has a dim of stride 0"):
        capture(lambda x: x.add_(1), dict(x=normal(1, 4).expand(3, 4)))


@pytest.mark.parametrize("tensor, found", (
    (torch.ones(3, 4, dtype=torch.float64), "argument y: expected one of float32, .*found float64"),
    (torch.ones(3, 4, dtype=torch.complex128), "found complex128"),
    (torch.ones(3, 4).to_sparse(), "argument y: expected a dense tensor"),
    (torch.ones(3, 4, requires_grad=True), "argument y: requires a gradient"),
))  # fmt: skip
def test_tensors_that_no_kernel_takes(tensor, found):
    with pytest.raises(CaptureError, match=found):
        capture(lambda x, y: x + y, dict(x=normal(3, 4), y=tensor))


def test_arguments_that_do_not_fit_the_signature():
    def step(x, y=None, *, z):
        return x

    with pytest.raises(CaptureError, match="the example lacks 'z'"):
        capture(step, dict(x=normal(3, 4)))
    with pytest.raises(CaptureError, match="the example has 'w', which step does not take"):
        capture(step, dict(x=normal(3, 4), z=1, w=2))
    with pytest.raises(CaptureError, match="expected a function, found int"):
        capture(5, {})
    with pytest.raises(CaptureError, match="has no signature"):
        capture(torch.sin, dict(x=normal(3, 4)))


def test_callables_other_than_functions():
    class Step:
        eps = 0.5

        def __call__(self, x):
            return self.forward(x)

        def forward(self, x):
            return x + self.eps

    def two(x, y):
        return x * y

    for fn in (Step(), Step().forward, functools.partial(two, y=2.0), torch.no_grad()(lambda x: x + 1), torch.nn.Linear(4, 4)):
        name = "input" if isinstance(fn, torch.nn.Linear) else "x"
        with torch.no_grad():
            assert capture(fn, {name: normal(3, 4)}).rows == "rows"


def test_two_closures_of_one_function_differ():
    def make(scale, shift):
        return lambda x: x * scale + shift

    texts = {repr(capture(make(s, t), dict(x=normal(3, 4))).nodes) for s in (2, 3) for t in (SMALL, SMALL + 1)}
    assert len(texts) == 4


# ---- rows ---------------------------------------------------------------------------------------------------------------------


def test_one_row_is_no_example():
    with pytest.raises(CaptureError, match=r"argument idx: expected an example of two rows or more, found shape \[1\]"):
        capture(linear_attention, linear_attention_example(1))
    with pytest.raises(CaptureError, match=r"argument x: expected an example of two rows or more, found shape \[1, 20\]"):
        capture(window_conv, window_conv_example(1))
    with pytest.raises(FusecError, match="two rows"):
        capture(lambda x, w: x * w, dict(x=normal(1, 4), w=normal(4)))


def test_several_candidates_are_named():
    example = dict(a=normal(5, 4), b=normal(6, 4), i=torch.arange(3), j=torch.arange(2))
    with pytest.raises(CaptureError, match="several dims could be the rows: dim 0 of i .extent 3.*; dim 0 of j .extent 2") as error:
        capture(lambda a, b, i, j: (a[i], b[j]), example)
    assert "dynamic_shapes" in error.value.hint
    graph = capture(lambda a, b, i, j: (a[i], b[j]), example, {"j": {0: torch.export.Dim("n")}})
    assert [str(a.shape[0]) for a in graph.arguments] == ["a_0", "b_0", "3", "rows"] and graph.rows == "rows"


def test_marked_dims():
    step = lambda x, y: (x + 1, y * 2)  # noqa: E731
    example = dict(x=normal(3, 4), y=normal(5, 4))
    dim = torch.export.Dim
    assert capture(step, example).rows is None  # The outputs share no dim.
    shapes = lambda graph: [[str(n) for n in a.shape] for a in graph.arguments]  # noqa: E731
    assert shapes(capture(step, example, {"y": {0: dim("n")}})) == [["3", "4"], ["rows", "4"]]
    assert shapes(capture(step, example, {"x": {0: dim("n")}, "y": {0: dim("m")}})) == [["rows", "4"], ["y_0", "4"]]
    assert shapes(capture(step, example, ({0: dim.DYNAMIC}, None))) == [["rows", "4"], ["5", "4"]]
    assert shapes(capture(lambda x, y: x + y, dict(x=normal(3, 4), y=normal(3, 4)), {"x": {0: dim("n")}})) == [["rows", "4"]] * 2
    with pytest.raises(CaptureError, match="dynamic_shapes names 'z'"):
        capture(step, example, {"z": {0: dim("n")}})
    with pytest.raises(CaptureError, match="argument x has no dim 7"):
        capture(step, example, {"x": {7: dim("n")}})


def test_marked_dims_in_containers():
    step = lambda pair, scale, d: (pair[0] * scale + d["k"], pair[1] * 2)  # noqa: E731
    example = dict(pair=(normal(3, 4), normal(5, 4)), scale=2.0, d={"k": normal(3, 4)})
    dim = torch.export.Dim("n")
    for marks in ({"pair": ({0: dim}, None)}, ((None, None), None, {"k": {0: dim}})):
        graph = capture(step, example, marks)
        assert {a.name: str(a.shape[0]) for a in graph.arguments} == {"pair_0": "rows", "pair_1": "5", "d_k": "rows"}


def test_an_index_within_a_row_is_not_the_rows():
    def step(x, pool, idx, heads):
        return pool[idx][:, heads] * x[:, heads]

    graph = capture(step, dict(x=normal(3, 2, 4), pool=normal(5, 2, 4), idx=torch.arange(3), heads=torch.tensor([0, 0, 1, 1])))
    assert [str(n) for a in graph.arguments for n in a.shape[:1]] == ["rows", "pool_0", "rows", "4"]


def test_a_result_of_one_element_does_not_hide_the_rows():
    assert capture(lambda x: (x * 2, x.amax()), dict(x=normal(3, 4))).rows == "rows"


def test_rows_are_a_class_and_not_a_size():
    """Every extent is three, and one weight is [3, 3]."""

    def step(x, w, pool, idx):
        h = pool[idx] * w + x
        pool[idx] = h
        return h

    graph = capture(step, dict(x=normal(3, 3), w=normal(3, 3)[:1].expand(3, 3)[0], pool=normal(3, 3), idx=torch.tensor([2, 0, 1])))
    assert [[str(n) for n in a.shape] for a in graph.arguments] == [["rows", "3"], ["3"], ["pool_0", "3"], ["rows"]]


def test_pools_of_one_slot_or_none_are_free_as_well():
    for count in (0, 1):
        graph = capture(lambda x, pool, idx: pool[idx] + x, dict(x=normal(3, 4), pool=normal(count, 4), idx=torch.zeros(3).long()))
        assert [str(a.shape[0]) for a in graph.arguments] == ["rows", "pool_0", "rows"]


def test_a_tensor_may_not_be_called_self() -> None:
    with pytest.raises(CaptureError, match="a tensor argument is called self"):
        capture(lambda self, x: self * x, {"self": torch.randn(3, 4), "x": torch.randn(3, 4)})


def test_rows_that_are_added_up_are_not_mistaken_for_a_constant():
    def combined(y, index, w):
        out = torch.zeros_like(y)
        out.index_add_(0, index, y * w)
        return out

    example = dict(y=normal(3, 8), index=torch.tensor([0, 2, 0]), w=normal(8))
    with pytest.raises(CaptureError, match="adds what the rows hold at indices that may repeat: dim 0 of y, index") as error:
        capture(combined, example)
    assert error.value.loc.frames[-1].line and "dynamic_shapes={}" in error.value.hint
    assert capture(combined, example, dynamic_shapes={}).arguments[0].shape == (3, 8)
