"""The derived graphs: who owns what, what only moves, how far one ulp reaches; and storages as wholes."""
import torch

from fusec.checker import storage
from fusec.checker.bound import BOUND, reach
from fusec.checker.levels import interpreted, model
from fusec.checker.masks import COMPUTED, MOVED, UNTOUCHED, touched
from fusec.checker.probes import GIVEN, roundings, with_given

from .graphs import D, inputs, step_graph, with_node

GRAPH = step_graph()


def test_a_call_owns_what_its_rows_point_at():
    given = inputs()
    found = touched(GRAPH, given)
    live = torch.zeros(11, dtype=torch.bool)
    live[given["idx"].long()] = True
    assert (found.masks["pool"][live] == COMPUTED).all() and (found.masks["pool"][~live] == UNTOUCHED).all()
    assert (found.masks["window"] == MOVED).all() and (found.masks["out"] == COMPUTED).all()
    keep, owned = found.bytes[storage.key(given["pool"])]
    assert owned.view(11, 4 * D)[live].all() and not owned.view(11, 4 * D)[~live].any() and torch.equal(keep, owned)


def test_a_clone_keeps_what_is_shared_and_what_lies_between():
    whole = torch.arange(40.0)
    first, second = whole[::2], whole[1::4]
    copy = storage.clone({"a": first, "b": second, "n": 3})
    assert copy["n"] == 3 and storage.key(copy["a"]) == storage.key(copy["b"]) != storage.key(first)
    assert torch.equal(copy["a"], first) and copy["b"].stride() == (4,) and copy["b"].storage_offset() == 1
    assert torch.equal(storage.raw(copy["a"]), storage.raw(first))


def test_poison_is_seen_in_every_type():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool):
        value = storage.poison(torch.zeros(3, dtype=dtype)).float()
        assert (value != 0).all() and value.isfinite().all()
    assert storage.poison(torch.zeros(1)).item() == 777.0


def test_the_first_changed_byte_is_found():
    before = storage.random_bytes(1000, torch.device("cpu"), 1)
    after = before.clone()
    after[[200, 700]] ^= 1
    owned = torch.zeros(1000, dtype=torch.bool)
    assert storage.changed(before, before, None) is None and storage.changed(before, after, owned) == 200
    owned[200] = True
    assert storage.changed(before, after, owned) == 700


def test_the_model_goes_on_from_what_it_is_given():
    given = inputs()
    y = (given["x"] * given["w"]).to(torch.bfloat16)
    o = torch.zeros(6, D, dtype=torch.bfloat16)
    graph = with_given(GRAPH, roundings(GRAPH))
    out = model(graph, {**given, GIVEN + "y": y * 2, GIVEN + "o": o})
    assert torch.allclose(out["scale"], 2 * y.float().sum(-1), rtol=1e-6)
    assert torch.equal(out["out"], o) and torch.equal(out["probe_y"], y.float()), "probes hold what the model computed itself"


def test_reach_is_an_ulp_where_a_midpoint_is_near_and_nothing_elsewhere():
    given = inputs()
    given["x"][:] = 1.0
    given["w"][:] = 1.2
    given["w"][5] = 1.0 + 2.0 ** -8 + 2.0 ** -20
    graph, names = reach(GRAPH, 2e-5, 1e-6)
    assert set(names) == {"pool", "out", "scale"}
    zeros = {BOUND + n: torch.zeros(tuple(given["pool"].shape) if n == "pool" else (6, D) if n == "out" else (6,)) for n in names}
    interpreted(graph, {**inputs(), "x": given["x"], "w": given["w"], "idx": given["idx"], **zeros}, "f64")
    pool = zeros[BOUND + "pool"][given["idx"].long()]
    assert torch.allclose(pool[:, 5], torch.tensor(2.0 ** -7)) and (pool[:, [i for i in range(D) if i != 5]] == 0).all()
    assert torch.allclose(zeros[BOUND + "scale"], torch.tensor(2.0 ** -7))
    assert (zeros[BOUND + "out"][:, 5] > 0).all()


def test_reach_covers_every_flip():
    """Whatever rounding is nudged by an ulp where it may be, the result stays within reach: against a direct experiment."""
    given = inputs(seed=3)
    wide = with_node(GRAPH, "y", dtype="f32")
    free = model(GRAPH, storage.clone(given))
    graph, names = reach(GRAPH, 2 ** -9, 1e-6)  # So coarse a tolerance that each rounding may go either way.
    zeros = {BOUND + n: torch.zeros((11, D) if n == "pool" else (6, D) if n == "out" else (6,)) for n in names}
    interpreted(graph, {**storage.clone(given), **zeros}, "f64")
    for sign in (-1, 1):
        moved = dict(storage.clone(given))
        moved["w"] = moved["w"] * (1 + sign * 2 ** -9)
        other = model(GRAPH, moved)
        far = (other["scale"] - free["scale"]).abs()
        assert (far <= zeros[BOUND + "scale"] + 1e-6).all()
    assert model(wide, storage.clone(given))["scale"].ne(free["scale"]).any()


def test_reach_does_not_depend_on_how_rows_are_taken(monkeypatch):
    from fusec.checker import method
    given = inputs()
    given["x"][:], given["w"][:] = 1.0, 1.0 + 2.0 ** -8 + 2.0 ** -20

    def found():
        scene = method.Scene(method.Question("step", GRAPH, None, None, None), given)
        return {n: scene.reach(n) for n in ("pool", "out", "scale")}

    whole = found()
    monkeypatch.setattr(method, "TURN", 4 * 3 * D)
    assert len(method.Scene(method.Question("step", GRAPH, None, None, None), given)._turns()) == 2
    for name, t in found().items():
        assert torch.equal(t, whole[name]) and bool((t > 0).any())
