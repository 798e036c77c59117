"""Every value knows its line, its callers, its column and the name it is assigned to."""

import torch
import torch.nn.functional as F

from fusec.capture import capture

from .steps import normal, unit


# fmt: off
def step(
    x,
    w,
):
    y = unit(x) * w
    z = F.normalize(y, dim=-1)  # comment
    a, b = z.chunk(2, -1)
    total = (
        a
        + b.exp()
    )
    return torch.relu(total)
# fmt: on


@torch.no_grad()
def decorated(x):
    return x.exp()


def nodes(fn, **example):
    return [n for n in capture(fn, example).nodes if n.source]


def by_source(found, source):
    return next(n for n in found if n.source == f"aten.{source}")


def test_lines_count_from_the_def_and_columns_from_the_line():
    found = nodes(step, x=normal(3, 4), w=normal(4))
    frame = by_source(found, "relu.default").loc.frames[0]
    assert (frame.function, frame.offset, frame.column) == ("step", 11, 11)
    assert frame.line == step.__code__.co_firstlineno + 11
    assert by_source(nodes(decorated, x=normal(3, 4)), "exp.default").loc.short == "decorated+1"


def test_helpers_come_with_their_callers():
    loc = by_source(nodes(step, x=normal(3, 4), w=normal(4)), "rsqrt.default").loc
    assert loc.chain == "unit+1 < step+4"


def test_targets():
    found = nodes(step, x=normal(3, 4), w=normal(4))
    assert {n.name for n in found if n.loc.target} == {"y", "z", "total"}
    assert by_source(found, "exp.default").loc.target == ""  # inside an expression
    assert [n.loc.target for n in found if n.source.startswith("aten.slice")] == ["", ""]  # unpacked
    assert by_source(found, "relu.default").loc.target == ""  # returned
    assert next(n for n in found if n.loc.target == "z").source == "aten.div.Tensor"  # the last op of a composite


def test_an_updated_name_is_a_target():
    def local(x):
        y = x * 2
        y += 1
        return y

    assert [n.name for n in nodes(local, x=normal(3, 4))] == ["y", "y_1"]


def test_functions_without_a_source_have_lines_but_no_text():
    scope = {}
    exec("def g(x):\n    y = x * 2\n    return y.exp()\n", scope)
    found = nodes(scope["g"], x=normal(3, 4))
    assert [n.loc.short for n in found] == ["g+1", "g+2"] and [n.loc.target for n in found] == ["", ""]
    assert by_source(nodes(lambda x: x.exp(), x=normal(3, 4)), "exp.default").loc.short == "<lambda>+0"


def test_recipes_are_user_code_and_the_rest_of_fusec_is_not():
    from fusec.capture import locate

    assert locate.is_users(locate.RECIPES + "some.py") and not locate.is_users(locate.ROOT + "api.py")
    assert (
        not locate.is_users(torch.__file__) and locate.is_users("<string>") and not locate.is_users(locate.STDLIB + "functools.py")
    )
