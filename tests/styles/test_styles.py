"""Functions in the styles of public test and model files compile as they stand: each is one kernel that computes what it says."""

from __future__ import annotations

import pytest
import torch

import fusec

from . import attention, convolutions, full_size, norms, numbers, recurrences

STEPS = {**attention.STEPS, **convolutions.STEPS, **norms.STEPS, **numbers.STEPS, **recurrences.STEPS}
QUICK = ("mqa_scores", "conv_circular", "group_quant_ue8m0", "comba", "gather_accepted", "gather_each", "titans",
         "rope_then_halves", "rope_of_three_positions", "latent_pages", "conversions", "fp8_bytes_read_and_written",
         "numbers_put_by_masks", "rope_written_by_steps", "steps_across_groups", "rwkv7_matrices", "rope_complex_argument",
         "complex_state", "what_masks_select", "append_at_offsets", "codes_by_comparisons", "conv_after_accepted_tokens",
         "buffers_longer_than_the_batch", "activation_by_row", "gelu_new_gate", "masks_added_and_multiplied",
         "one_place_several_times", "written_then_shifted", "halves_swapped_and_moved")


@pytest.mark.recipes
@pytest.mark.parametrize("name", full_size.STEPS)
def test_it_is_so_at_full_size(name):
    fn, make = full_size.STEPS[name]
    torch.manual_seed(6)
    report = fusec.check(fn, make(2), level="kernel")
    assert report.ok, str(report)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.recipes) for n in STEPS])
def test_it_is_one_kernel_that_computes_what_it_says(name):
    fn, make = STEPS[name]
    torch.manual_seed(6)
    report = fusec.check(fn, make(3), level="kernel")
    assert report.ok, str(report)
