"""Views that share bytes, against enumeration of their bytes."""
from hypothesis import given, settings
from hypothesis import strategies as st

from fusec.runtime.overlap import View, meet, repeats


def elements(view, start=0):
    places = [start]
    for n, s in zip(view.shape, view.strides):
        places = [p + s * i for p in places for i in range(n)]
    return places


def touched(view, start=0):
    return {p + b for p in elements(view, start) for b in range(view.item)}


@st.composite
def views(draw):
    item = draw(st.sampled_from([1, 2, 4]))
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 4)) for _ in range(rank))
    return View(shape, tuple(item * draw(st.integers(0, 20)) for _ in range(rank)), item)


@settings(max_examples=400, deadline=None)
@given(views(), views(), st.integers(-80, 80))
def test_meet_is_exact(first, second, distance):
    assert meet(first, second, distance) == bool(touched(first) & touched(second, distance))


@settings(max_examples=400, deadline=None)
@given(views())
def test_repeats_is_exact(view):
    assert repeats(view) == (len(touched(view)) < len(elements(view)) * view.item)


def test_two_pools_interleaved_in_pages_are_apart():
    page = 56_171_520
    conv = View((8193, 4608, 3), (page, 2, 9216), 2)
    state = View((8193, 12, 128, 128), (page, 65536, 512, 4), 4)
    assert meet(conv, state, 27648) is False
    assert meet(conv, state, 27646) is True
    assert meet(conv, state, page - 12 * 65536) is False
    assert meet(conv, state, page - 12 * 65536 + 2) is True


def test_columns_of_one_row_are_apart():
    q, k = View((70_000, 512), (4096, 2), 2), View((70_000, 256), (4096, 2), 2)
    assert meet(q, k, 1024) is False and meet(q, k, 1022) is True


def test_expanded_and_overlapping_windows_repeat():
    assert repeats(View((5, 8), (0, 4), 4)) is True
    assert repeats(View((5, 4), (4, 4), 4)) is True
    assert repeats(View((5, 4), (16, 4), 4)) is False
    assert repeats(View((3, 2), (8, 12), 4)) is False  # Not nested, and yet no two elements meet.
