"""Keys: what must change them and what must not."""
import os
import subprocess
import sys

import sympy

from fusec.errors import Frame, Loc
from fusec.ir.axis import Axis
from fusec.ir.graph import Graph, Map, Node, Ref
from fusec.ir.scalar import Lit
from fusec.runtime.identity import canonical, graph_key, source_identity, without_comments


def graph(constant=1.0, loc=Loc()):  # noqa: B008
    axes = (Axis("r", sympy.Symbol("r")),)
    return Graph("f", axes, (), (), (Node("y", Map("mul", (Ref("x"), Lit(constant))), axes, "f32", loc),), ())


def key(g, arch="sm_90a", numerics="default", alignment=None):
    return graph_key(g, arch, numerics, alignment)


def test_what_shapes_the_code_changes_the_key():
    keys = [key(graph()), key(graph(2.0)), key(graph(-1.0)), key(graph(0.0)), key(graph(-0.0)), key(graph(1)), key(graph(True)),
            key(graph(float("inf"))), key(graph(float("nan"))), key(graph(1.0000000000000002)), key(graph(), "sm_90"),
            key(graph(), numerics="strict"), key(graph(), alignment={"x": 8})]
    assert len(set(keys)) == len(keys)


def test_a_location_does_not():
    assert key(graph()) == key(graph(loc=Loc((Frame("f", "/a/b.py", 7, 3, 2),))))


def test_the_same_in_another_process_with_another_hash_seed():
    code = ("import sys; sys.path[:0] = [%r]; from test_identity import *; from fusec.runtime.identity import canonical\n"
            "print(key(graph()), canonical({'b': 1, 'a': frozenset({'x', 'y', 'z'})}))") % os.path.dirname(__file__)
    runs = {subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
                           check=True).stdout for seed in "123"}
    assert runs == {f"{key(graph())} {canonical({'b': 1, 'a': frozenset({'x', 'y', 'z'})})}\n"}


def test_comments_do_not_count_and_strings_with_a_hash_do():
    assert without_comments("x = 1  # one\n# all\n\ny = '#'\n") == "x = 1\ny = '#'\n"
    assert source_identity("x = 1  # a+3\n", "sm_90a") == source_identity("x = 1  # a+4\n", "sm_90a")
    assert source_identity("x = '# a'\n", "sm_90a") != source_identity("x = '# b'\n", "sm_90a")
