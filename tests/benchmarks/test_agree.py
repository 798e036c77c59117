"""The comparison before the timing: what it lets pass and what it names."""
import pytest
import torch

from benchmarks import agree

from . import small


def agrees(name, call, inputs):
    artifact = small.artifact(name)
    return agree.differences(artifact.reference, call, inputs.sets[0], inputs.mutated, inputs.sets[0].get("idx"))


@pytest.mark.parametrize("name", ["gla_decode", "add_rmsnorm_quant", "merge_states"])
def test_the_reference_agrees_with_itself(name):
    assert agrees(name, lambda k: small.artifact(name).reference(**k), small.inputs(name, 2, 1)) == []


def test_a_wrong_output_a_wrong_state_and_a_stray_write_are_told_apart():
    artifact, inputs = small.artifact("gla_decode"), small.inputs("gla_decode", 2, 3)
    slots = inputs.sets[0]["idx"]

    def wrong_output(k):
        return artifact.reference(**k) * 1.1

    def wrong_state(k):
        out = artifact.reference(**k)
        k["pool"][slots] *= 1.1
        return out

    def stray(k):
        out = artifact.reference(**k)
        k["pool"][0, 0, 0, 0] += 1e-6
        return out

    assert [d.split(":")[0] for d in agrees("gla_decode", wrong_output, inputs)] == ["output 0"]
    assert [d.split(":")[0] for d in agrees("gla_decode", wrong_state, inputs)] == ["pool"]
    assert agrees("gla_decode", stray, inputs) == ["pool: slots that no row owns were written"]
    assert agrees("gla_decode", lambda k: (artifact.reference(**k), inputs.outputs[0])[1], inputs)


INF = float("inf")


@pytest.mark.parametrize("got, want, wrong", [
    ([1.0, -INF], [1.0, -INF], False), ([1.0, 5.0], [1.0, -INF], True), ([1.0, INF], [1.0, -INF], True),
    ([float("nan"), 1.0], [1.0, 1.0], True), ([float("nan"), 1.0], [float("nan"), 1.0], False)])
def test_infinities_and_nan_are_equal_or_wrong(got, want, wrong):
    assert bool(agree._differs("x", torch.tensor(got), torch.tensor(want), None)) == wrong


def test_one_scale_that_rounds_elsewhere_is_no_fault_of_the_codes_and_many_are():
    want = torch.full((1000, 128), 1 << 24, dtype=torch.int32)
    got = want.clone()
    got[0] *= 2
    assert agree._differs("x", got, want, None) == []
    got[:9] *= 2
    assert agree._differs("x", got, want, None)


def test_outputs_that_a_candidate_does_not_compute_do_not_count():
    one, two = torch.ones(200), torch.zeros(200)
    given = ({}, (), None, None)
    assert agree.differences(lambda: (one, one), lambda k: (one, two), *given)
    assert agree.differences(lambda: (one, one), lambda k: (one, two), *given, outputs=(0,)) == []
