"""Calls on a device: streams, graphs, layouts, refusals. What the kernels compute is the checker's."""
import pytest
import torch

import fusec
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv

pytestmark = pytest.mark.gpu
KDA = dict(H=2, D=128)


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        rtol = 1 / 8 if a.dtype == torch.float8_e4m3fn else 3e-2  # One step of the type: an honest order of a sum may take it.
        torch.testing.assert_close(a.float(), b.float(), rtol=rtol, atol=2e-2)


def as_eager(fused, inputs, call=None):
    mine = {n: t.detach().clone() for n, t in inputs.items()}
    expected = fused.reference(**mine)
    found = (call or fused)(**inputs)
    outputs = lambda x: list(x) if isinstance(x, tuple) else [x]  # noqa: E731
    close(outputs(found), outputs(expected))
    close(list(inputs.values()), list(mine.values()))
    return found


@pytest.mark.parametrize("fused, sizes", [
    (kda_decode, KDA), (kda_decode, KDA | dict(state="bf16")), (gla_decode, {}), (short_conv, {}), (add_rmsnorm_quant, {})])
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
def test_a_decorated_call_is_what_eager_computes(fused, sizes, rows):
    torch.manual_seed(rows)
    for _ in range(3):
        as_eager(fused, fused.inputs(rows, "cuda", **sizes))


def test_no_rows_leave_no_error_behind():
    for fused in (gla_decode, short_conv, add_rmsnorm_quant):
        given = fused.inputs(2, "cuda")
        given = {n: t[:0] if n in ("q", "k", "v", "g", "idx", "x", "window", "residual") else t for n, t in given.items()}
        found = fused(**given)
        assert (found[0] if isinstance(found, tuple) else found).shape[0] == 0
    torch.zeros(3, device="cuda").sum()
    torch.cuda.synchronize()


def test_work_goes_to_the_current_stream():
    given = short_conv.inputs(64, "cuda")
    short_conv(**{n: t.clone() for n, t in given.items()})
    stream = torch.cuda.Stream()
    for _ in range(20):
        x = torch.zeros_like(given["x"])
        window = given["window"].clone()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            x.copy_(given["x"])
            out = short_conv(x, window, given["weight"]) + 0
        stream.synchronize()
        expected = short_conv.reference(given["x"], given["window"].clone(), given["weight"])
        close([out], [expected])


def test_a_captured_graph_replays_and_updates_in_place():
    given = gla_decode.inputs(4, "cuda")
    gla_decode(**{n: t.clone() for n, t in given.items()})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gla_decode(**given)
    eager = {n: t.clone() for n, t in given.items()}
    for _ in range(3):
        for n in "qkv":
            given[n].copy_(torch.randn_like(given[n]))
            eager[n].copy_(given[n])
        graph.replay()
        close([out, given["pool"]], [gla_decode.reference(**eager), eager["pool"]])


def test_a_compile_during_capture_is_refused_and_the_capture_can_end():
    def fresh(x):
        return x * 1.2345

    fused, x = fusec.fuse(fresh), torch.randn(4, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(fusec.ArgumentError, match="while a CUDA graph is captured"):
            fused(x)
        y = x + 1
    graph.replay()
    close([y, fused(x)], [x + 1, fresh(x)])


def test_warm_calls_neither_synchronise_nor_copy_to_the_host():
    given = add_rmsnorm_quant.inputs(8, "cuda")
    add_rmsnorm_quant(**given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        add_rmsnorm_quant(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_layouts_that_serving_engines_use():
    """Rows that are slices of a wide projection and start unaligned, a pool interleaved page by page, slots in any order."""
    wide = torch.randn(5, 3 * 256 + 40, device="cuda").bfloat16()
    given = kda_decode.inputs(5, "cuda", **KDA)
    as_eager(kda_decode, given | dict(x=wide[:, 3:3 + 768]))
    slots, conv_bytes, state_bytes = 9, 768 * 3 * 2, 2 * 128 * 128 * 4
    page = conv_bytes + state_bytes
    storage = torch.randint(0, 255, (slots * page,), device="cuda", dtype=torch.uint8)
    conv = storage.view(torch.bfloat16).as_strided((slots, 768, 3), (page // 2, 1, 768))
    state = storage.view(torch.float32).as_strided((slots, 2, 128, 128), (page // 4, 16384, 128, 1), conv_bytes // 4)
    conv.copy_(torch.randn(conv.shape) * 0.1)
    state.copy_(torch.randn(state.shape) * 0.01)
    given |= dict(conv_state=conv, state=state, state_indices=torch.tensor([8, 0, 3, 7, 2], device="cuda", dtype=torch.int32))
    as_eager(kda_decode, given)


def test_out_is_used_and_others_are_refused_untouched():
    given = gla_decode.inputs(3, "cuda")
    out = torch.full((3, 4, 192), 777.0, device="cuda").bfloat16()
    assert as_eager(gla_decode, given, lambda **k: gla_decode(**k, out=out)) is out
    before = given["pool"].clone()
    for change in (dict(idx=given["idx"][:2]), dict(q=given["q"].cpu()), dict(v=given["v"][:, :3])):
        with pytest.raises(fusec.ArgumentError):
            gla_decode(**given | change)
    assert torch.equal(given["pool"], before)


def test_an_artifact_without_the_devices_architecture_is_refused():
    given = short_conv.inputs(3, "cuda")
    other = "sm_100a" if torch.cuda.get_device_capability()[0] == 9 else "sm_90a"
    with pytest.raises(fusec.TargetError, match="expected a kernel for"):
        short_conv.compile(arch=other)(**given)


def test_gradients_are_refused_only_where_they_would_be_recorded():
    given = short_conv.inputs(3, "cuda")
    given["weight"] = torch.nn.Parameter(given["weight"])
    with pytest.raises(fusec.ArgumentError, match="requires_grad"):
        short_conv(**given)
    with torch.no_grad():
        as_eager(short_conv, given)
    with torch.inference_mode():
        short_conv(**given)
