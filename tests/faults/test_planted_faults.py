"""Every planted fault is caught, and by which existing check."""

import planted
import pytest
import test_batch_invariance
import test_golden_engine
import test_op_values
import test_same_bits
import torch
from small_models import golden_model, golden_prompts

from deepinfer.ops import native, reference

GOLDEN = test_golden_engine.test_logits_equal_golden
STEPWISE = test_same_bits.test_token_by_token_equals_one_shot
STALE = test_same_bits.test_stale_and_nan_content_of_a_reused_slot_is_never_seen
TIES = test_op_values.test_equal_scores_go_to_the_lowest_index
LIMITS = test_op_values.test_swiglu_clamps_the_gate_from_above_and_the_other_half_on_both_sides
WIDTHS = test_batch_invariance.test_a_row_has_the_same_bits_at_every_width_and_offset

# fault → the check that must fail, and the numerics it runs with
TABLE = [
    (planted.keys_in_ring_order, STEPWISE, "none"),
    (planted.ring_one_slot_short, STEPWISE, "kv"),
    (planted.window_one_key_short, GOLDEN, "kv"),
    (planted.ties_to_the_highest_index, TIES, "none"),
    (planted.stale_index_keys_at_even_positions, STEPWISE, "kv"),
    (planted.mixing_matrix_transposed, GOLDEN, "kv"),
    (planted.one_sinkhorn_round_less, GOLDEN, "kv"),
    (planted.collapse_with_this_sites_weights, GOLDEN, "kv"),
    (planted.sink_missing, GOLDEN, "kv"),
    (planted.inverse_rotation_missing, GOLDEN, "kv"),
    (planted.entries_rotated_at_their_last_token, GOLDEN, "kv"),
    (planted.entries_visible_one_token_early, GOLDEN, "none"),
    (planted.candidates_ignored, GOLDEN, "kv"),
    (planted.newest_block_not_forced, GOLDEN, "kv"),
    (planted.routing_weight_from_biased_score, GOLDEN, "kv"),
    (planted.routing_weight_after_the_last_product, GOLDEN, "full"),
    (planted.router_uses_the_image_bias, GOLDEN, "kv"),
    (planted.engram_pads_with_another_class, GOLDEN, "kv"),
    (planted.window_key_rounded_before_rotation, GOLDEN, "kv"),
    (planted.no_yarn, GOLDEN, "kv"),
    (planted.pair_gates_swapped, GOLDEN, "kv"),
    (planted.partner_from_the_wrong_tail_slot, STEPWISE, "kv"),
    (planted.hidden_slots_not_zeroed, STALE, "kv"),
    (planted.output_latent_not_quantised, GOLDEN, "full"),
    (planted.swiglu_limit_missing, LIMITS, "none"),
    (planted.products_follow_the_batch_width, WIDTHS, "none"),
]


def check(test: object, numerics: str) -> None:
    """Run an existing test as it stands, on a model built now."""
    if test in (TIES, LIMITS):
        test()  # type: ignore[operator]
    elif test is WIDTHS:
        WIDTHS("linear", reference, torch.float32, full=False, sample_seed=0)
    elif test is GOLDEN:
        engine = golden_model().engine(reference(), numerics, "float64")
        for number in (1, 5):
            GOLDEN((engine, numerics, "float64", 2e-6), number)
    else:
        engine = golden_model().engine(reference() if test is STALE else native(), numerics, "float32")
        test(engine, engine.run(golden_prompts()[5], []))  # type: ignore[operator]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("fault", "caught_by", "numerics"), TABLE, ids=[fault.__name__ for fault, *_ in TABLE])
def test_planted_fault_is_caught(
    fault: object, caught_by: object, numerics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        check(caught_by, numerics)


@pytest.mark.parametrize(("caught_by", "numerics"), sorted({row[1:] for row in TABLE}, key=str))
def test_without_a_fault_the_checks_pass(caught_by: object, numerics: str) -> None:
    check(caught_by, numerics)
