"""Each case has its test, named after it, or waits for what it is about, and both are counted."""

import re
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).parent
NUMBERED = {"c": 22, "p": 11, "s": 9, "k": 13, "d": 12, "m": 13, "g": 8, "n": 5, "x": 24, "f": 18}  # letter → cases
CASES = {f"{letter}{number:02}" for letter, last in NUMBERED.items() for number in range(1, last + 1)}
FILES = sorted(file.name for file in HERE.glob("test_*.py") if file.name != Path(__file__).name)
ELSEWHERE = {  # case → the tests that have it
    "c08": ("cli/test_sweep.py", "test_a_failure_is_told_before_the_next_run_starts"),
    "p06": ("parallel/test_spread_model.py", "test_serving_makes_the_collectives_of_a_forward"),
    "p07": ("engine/world/test_fleet.py", "test_requests_go_to_the_rank_with_the_least_to_do_and_count_once"),
    "p11": ("parallel/test_spread_model.py", "test_p11_every_token_chooses_the_same_experts"),
    "k05": ("speculation/test_dspark_drafter.py", "test_k05_drafts_behind_a_restored_snapshot_equal_cold_ones"),
    "d05": ("api/test_llm_blocks.py", "test_d05_nothing_behind_an_end_inside_a_block"),
    "d06": ("api/test_llm_blocks.py", "test_d06_text_ids_and_logprobs_end_at_one_place_inside_a_block"),
    "d10": (
        "api/test_llm_chat_blocks.py",
        "test_d10_every_cut_into_blocks_gives_the_same_thinking_and_content",
    ),
    "d11": ("api/test_llm_blocks.py", "test_d11_sixteen_at_once_with_one_draft_give_the_text_of_none"),
    "f12": ("parallel/test_rendezvous.py", "test_everything_that_is_wrong_is_told_to_all_at_once"),
    "f13": ("parallel/test_rendezvous.py", "test_everything_that_is_wrong_is_told_to_all_at_once"),
    "f14": ("engine/world/test_fleet.py", "test_a_rank_that_gives_no_sign_of_life_counts_as_lost"),
    "f15": ("engine/test_long_wait.py", "test_a_long_wait_is_explained_once"),
    "x17": ("sampling/test_collector.py", "test_x17_x18_bytes_of_characters_in_any_blocks"),
    "x18": ("sampling/test_collector.py", "test_x17_x18_bytes_of_characters_in_any_blocks"),
    "x19": ("sampling/test_collector.py", "test_x19_a_stop_string_over_blocks_sends_none_of_its_head"),
    "x20": (
        "sampling/test_collector.py",
        "test_x20_only_what_may_still_become_a_stop_is_held_back_and_the_end_gives_it",
    ),
    "m02": ("serving/http/test_chat_refusals.py", "test_m01_m02_what_is_no_number_is_refused_in_clean_json"),
    "x01": ("serving/test_reading.py", "test_x01_x11_x23_every_split_gives_the_whole_answer"),
    "x02": ("serving/test_reading.py", "test_x02_x20_nothing_that_was_held_back_is_lost_at_the_end"),
    "x03": ("serving/test_reading.py", "test_x03_the_flag_of_a_value_counts"),
    "x04": ("serving/test_reading.py", "test_x04_a_field_named_arguments_stays_and_a_wrapper_goes"),
    "x05": ("serving/test_reading.py", "test_x02_x05_x07_x18_x19_what_a_client_has_in_the_end"),
    "x06": ("serving/test_reading.py", "test_x06_x24_what_is_malformed_is_text_and_no_call"),
    "x07": ("serving/test_reading.py", "test_x07_an_end_that_comes_alone_does_not_hide_the_calls"),
    "x08": ("serving/test_reading.py", "test_x08_the_first_news_of_a_call_has_its_id_and_name"),
    "x09": ("serving/test_messages_events.py", "test_thinking_text_and_three_calls_are_five_blocks"),
    "x10": ("serving/test_messages_events.py", "test_cached_tokens_are_counted_once"),
    "x11": ("serving/test_responses_events.py", "test_events_come_in_order_and_add_up_to_the_response"),
    "x12": ("serving/test_responses_events.py", "test_events_come_in_order_and_add_up_to_the_response"),
    "x13": ("serving/test_chat_job.py", "test_x13_a_forced_call_turns_the_default_off_and_says_so"),
    "x14": ("serving/test_chat_job.py", "test_x14_thoughts_that_are_missing_are_empty"),
    "x15": ("serving/http/test_chat_sdk.py", "test_x15_an_answer_that_was_begun_is_continued"),
    "x16": ("serving/test_chat_job.py", "test_x16_calls_of_one_turn_are_one_turn_and_others_are_not"),
    "x21": ("serving/test_chat_job.py", "test_x21_a_prompt_that_does_not_fit_is_refused_with_the_numbers"),
    "x22": ("serving/test_chat_job.py", "test_x22_max_tokens_is_the_clients_within_the_room_left"),
    "x23": ("serving/http/test_chat_sdk.py", "test_x23_a_stream_adds_up_to_the_whole"),
    "x24": ("serving/test_reading.py", "test_x06_x24_what_is_malformed_is_text_and_no_call"),
}
ALSO = {  # parts of cases that are tested outside of this folder besides
    "d02": ("engine/test_any_drafts.py", "test_d02_every_verify_length_gives_the_same_text"),
    "d04": (
        "api/test_llm_chat_blocks.py",
        "test_d04_chats_are_those_of_single_tokens_with_markers_anywhere_in_a_block",
    ),
    "d09": ("api/test_llm_blocks.py", "test_d09_each_token_of_a_streamed_block_has_its_own_alternatives"),
    "d12": ("engine/test_engine_back_off.py", "test_a_useless_drafter_rests_and_a_good_one_is_taken_back"),
    "f17": ("speculation/test_back_off.py", "test_speculation_that_costs_is_turned_off_and_told_once"),
    "k02": ("engine/test_prefix_models.py", "test_a_conversation_with_speculation_is_the_one_without_a_cache"),
    "p04": ("parallel/test_rebalance.py", "test_a_rebalance_in_mid_traffic_changes_nothing"),
    "p05": ("parallel/test_placement.py", "test_every_slot_holds_the_expert_that_sends_rows_there"),
    "g02": ("serving/http/test_refusals_named.py", "test_g02_g03_g07_bad_grammars_are_refused_and_the_server_lives"),
    "g07": ("serving/http/test_refusals_named.py", "test_g02_g03_g07_bad_grammars_are_refused_and_the_server_lives"),
    "m13": ("serving/http/test_chat_sdk.py", "test_m13_answers_of_one_request_come_from_its_seed"),
    "m10": ("engine/test_reproducible.py", "test_any_mix_of_exact_features_gives_the_bits_of_lone_runs"),
}


class Waits(Struct, frozen=True):
    """A case that no test can have yet: for what it waits, and the test that this is refused, or said to be missing."""

    feature: str
    refused_by: str


ROUTER = Waits("a router", "test_a_router_is_refused_by_name")
TIERS = Waits("cache tiers: blocks on the host, on disk or in a store", "test_cache_tiers_are_refused_by_name")
TRANSFER = Waits(
    "prefill and decode apart (deploy=disaggregated): blocks that travel between them",
    "test_what_needs_two_roles_is_not_run",
)
WAITING = {
    "p08": ROUTER,
    "p09": ROUTER,
    "p10": ROUTER,
    "k06": TIERS,
    "k07": TIERS,
    "k08": TRANSFER,
    "k09": TRANSFER,
    "k10": TRANSFER,
    "k11": TRANSFER,
    "k12": TRANSFER,
    "k13": TIERS,
    "n05": Waits("a second backend of the experts on a device", "test_a_second_backend_of_a_device_is_planned_only"),
}
WAITING_PARTS = {  # cases with a test of what there is → what else they are about
    "n02": "kernels that are built for a chip, which say at start for which",
    "n03": "kernels other than the reference, whose tests of invariance are in tests/ops",
}


def names(file: str) -> list[str]:
    return re.findall(r"^def (test_\w+)", (HERE / file).read_text("utf-8"), re.MULTILINE)


def cases_in(file: str) -> set[str]:
    """The cases in the names of a file's tests."""
    return {case for name in names(file) for case in re.findall(r"(?<=_)([cdfgkmnpsx]\d\d)(?=_)", name)}


def test_every_case_is_tested_or_waits() -> None:
    here = set.union(*(cases_in(file) for file in FILES))
    found = here | ELSEWHERE.keys()
    print(
        f"{len(CASES)} cases: {len(found - WAITING_PARTS.keys())} tested, {len(WAITING_PARTS)} as far as there is code, "
        f"{len(WAITING)} waiting"
    )
    assert not found & WAITING.keys(), "a case that waits has no test of its own"
    assert found | WAITING.keys() == CASES
    assert WAITING_PARTS.keys() <= found and ALSO.keys() <= here
    assert not here & ELSEWHERE.keys(), "listed as tested elsewhere, and tested here"


def test_what_a_case_waits_for_is_refused_by_a_test() -> None:
    known = {name for file in FILES for name in names(file)}
    assert {waits.refused_by for waits in WAITING.values()} <= known


def test_cases_with_other_tests_are_there() -> None:
    for case, (file, test) in [*ELSEWHERE.items(), *ALSO.items()]:
        assert f"\ndef {test}(" in (HERE.parent / file).read_text("utf-8"), case
