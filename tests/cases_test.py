"""Which tests answer which of the known cases, and that they are there.

The rows are those of the survey of what users of long-context evaluation get
bitten by: A tokenizers, offsets and BOS; B formats; C short, empty and odd
texts; D precision; F RoPE and configs; G checkpoints; H sharding and
resume; I training; J protocol and reproducibility; L usability.
"""

import ast
import functools
import pathlib

import pytest

TESTS = pathlib.Path(__file__).parent
ROWS = {
  "A": 14, "B": 7, "C": 9, "D": 8, "F": 9, "G": 9, "H": 9, "I": 9, "J": 10,
  "L": 7,
}  # fmt: skip
# Chat prompts and generated benchmarks, which there are none of here.
OUTSIDE = {"A12", "B3", "B4", "J7", "J8"}

CASES = {
  "A1": """
    text/tokenizer_test::test_offsets_equal_those_of_the_tokenizers_library
    text/tokenizer_test::test_every_byte_of_a_character_has_the_character
    text/tokenizer_test::test_offsets_that_nothing_proves_are_an_error""",
  "A2": """
    text/tokenizer_test::test_offsets_equal_those_of_the_tokenizers_library
    text/tokenizer_test::test_offsets_do_not_drift_over_a_thousand_emoji""",
  "A3": """
    text/tokenizer_test::test_wrong_offsets_are_rebuilt_with_one_warning
    text/tokenizer_test::test_offsets_that_nothing_proves_are_an_error
    scoring/protocol_test::test_reasons""",
  "A4": """
    text/tokenizer_test::test_wrong_offsets_are_rebuilt_with_one_warning
    scoring/run_test::test_every_document_that_has_no_keys_says_why""",
  "A5": """
    paper/spans_test::test_all_byte_tokens_of_a_key_character_are_key
    paper/spans_test::test_repeated_spans_of_one_character_collapse
    evaluation/passes_test::test_sums_are_those_of_a_brute_force_count
    longppl_test::test_every_byte_of_a_key_character_is_key""",
  "A6": """
    text/offsets_test::test_a_prefix_that_the_text_lacks_covers_nothing
    text/offsets_test::test_a_lone_prefix_does_not_borrow_a_word
    text/tokenizer_test::test_a_prefix_covers_only_what_the_text_has""",
  "A7": """
    paper/spans_test::test_straddling_token_is_key_only_under_overlap
    paper/spans_test::test_projection_equals_the_double_loop
    longppl_test::test_longppl_is_the_papers""",
  "A8": """
    evaluation/passes_test::test_a_key_first_token_is_counted_and_moves_no_value
    paper/spans_test::test_reference_toy_cases""",
  "A9": """
    text/tokenizer_test::test_ids_survive_the_way_through_their_text
    text/tokenizer_test::test_ids_whose_text_was_cleaned_up_are_refused""",
  "A10": """
    text/tokenizer_test::test_a_space_that_decoding_loses_moves_no_offset
    text/tokenizer_test::test_a_prefix_covers_only_what_the_text_has
    longppl_test::test_every_byte_of_a_key_character_is_key""",
  "A11": """
    scoring/protocol_test::test_who_reads_the_bos
    scoring/protocol_test::test_more_than_a_nat_per_token_is_refused_with_both_numbers
    scoring/protocol_test::test_paper_stops_at_a_model_that_needs_its_bos
    longppl_test::test_the_manifest_names_what_the_numbers_depend_on""",
  "A13": """
    scoring/protocol_test::test_without_a_bos_the_first_token_is_unscored
    scoring/protocol_test::test_nothing_is_checked_where_there_is_no_bos_to_miss""",
  "A14": """
    scoring/protocol_test::test_strict_gives_a_model_its_bos_in_every_window
    scoring/protocol_test::test_paper_windows_without_bos_make_most_tokens_key
    evaluation/results_test::test_warnings_of_the_key_tokens""",
  "B1": """
    text/corpus_test::test_every_format_holds_the_same_texts
    text/corpus_test::test_pretokenized_rows_decode_to_the_same_texts
    scoring/run_test::test_a_text_has_the_same_numbers_from_every_format""",
  "B2": "text/row_files_test::test_absent_data_is_refused_at_once",
  "B5": "scoring/run_test::test_a_text_has_the_same_numbers_from_every_format",
  "B6": """
    scoring/scorer_test::test_scores_are_the_papers
    text/corpus_test::test_pretokenized_rows_decode_to_the_same_texts""",
  "B7": """
    scoring/protocol_test::test_over_length_policies_at_the_limit
    scoring/run_test::test_a_policy_for_long_documents_comes_before_any_pass""",
  "C1": """
    paper/windows_test::test_plan_is_the_papers_loop_and_scores_each_id_once
    scoring/scorer_test::test_scores_are_the_papers
    longppl_test::test_one_id_more_than_a_window_can_be_key""",
  "C2": """
    longppl_test::test_documents_without_key_tokens_say_why
    scoring/protocol_test::test_the_windows_suggested_to_a_short_document_fit
    evaluation/passes_test::test_the_evaluators_reason_stays_and_the_ppl_with_it
    scripts_test::test_too_short_documents_say_which_windows_would_fit""",
  "C3": """
    longppl_test::test_documents_without_key_tokens_say_why
    longppl_test::test_a_document_with_high_thresholds_has_no_key_tokens
    evaluation/results_test::test_the_commonest_reason_stands_for_all
    scoring/run_test::test_ten_texts_without_keys_end_with_windows_that_fit
    evaluation/run_test::test_documents_without_keys_are_counted_by_reason""",
  "C4": """
    scoring/protocol_test::test_reasons
    longppl_test::test_documents_without_key_tokens_say_why
    evaluation/results_test::test_results_are_json_with_finite_numbers
    paper/perplexity_test::test_perplexity_is_a_finite_json_number_or_null""",
  "C5": """
    scoring/protocol_test::test_a_cut_document_is_the_text_before_the_cut
    longppl_test::test_half_a_document_scores_as_half_the_text
    paper/perplexity_test::test_a_truncated_document_counts_only_what_was_scored""",
  "C6": """
    scoring/protocol_test::test_over_length_policies_at_the_limit
    evaluation/passes_test::test_a_shorter_context_cuts_or_skips""",
  "C7": "text/tokenizer_test::test_normalized_characters_are_confirmed_or_never_key",
  "C8": "checkpoints/gguf/tokenizer_test::test_a_long_run_of_one_letter_tokenizes_in_time",
  "C9": """
    scoring/scorer_test::test_the_first_window_is_the_long_pass_to_the_bit
    paper/windows_test::test_plan_is_the_papers_loop_and_scores_each_id_once
    paper/document_scores_test::test_key_tokens_of_the_first_window_do_not_count
    key_tokens/record_test::test_known_reason_excludes_key_tokens""",
  "D1": """
    model/log_probs_test::test_uniform_logits_of_bfloat16_give_the_exact_log
    model/log_probs_test::test_bfloat16_inputs_give_the_float32_answer_of_those_inputs
    """,
  "D2": """
    model/log_probs_test::test_bfloat16_inputs_give_the_float32_answer_of_those_inputs
    longppl_test::test_the_manifest_names_what_the_numbers_depend_on""",
  "D3": """
    paper/contrast_test::test_bfloat16_log_probs_are_compared_in_float32
    key_tokens/record_test::test_criterion_is_taken_in_float32
    paper/document_scores_test::test_near_threshold_is_where_the_decision_could_flip
    evaluation/results_test::test_nothing_is_counted_twice_or_lost""",
  "D4": """
    model/rope_test::test_table_is_the_published_formula
    model/rope_test::test_table_at_131071_is_the_float32_product
    model/rope_test::test_neighbouring_positions_differ_in_bfloat16_models""",
  "D5": """
    model/log_probs_test::test_chunked_equals_the_definition
    model/log_probs_test::test_chunked_gradients_equal_the_plain_ones""",
  "D6": """
    model/attention_test::test_the_self_check_names_the_fault
    model/attention_test::test_the_choice_follows_platform_and_self_check""",
  "D7": """
    model/log_probs_test::test_soft_cap_is_applied
    model/attention_test::test_plain_attention_is_the_definition
    checkpoints/facts/config_json_test::test_what_is_not_understood_is_refused_by_name""",
  "D8": "paper/contrast_test::test_a_difference_of_800_nats_gives_gamma_exactly",
  "F1": """
    parity_test::test_rope_tables_are_those_of_transformers
    checkpoints/facts/rope_schema_test::test_old_and_new_schema_give_bit_equal_tables
    checkpoints/facts/config_json_test::test_what_is_not_understood_is_refused_by_name
    model/rope_test::test_bad_configs_are_refused""",
  "F2": """
    checkpoints/facts/rope_schema_test::test_old_and_new_schema_give_bit_equal_tables
    checkpoints/facts/config_json_test::test_round_trip
    checkpoints/facts/published_models_test::test_a_published_config_gives_its_model
    parity_test::test_a_config_survives_transformers""",
  "F3": """
    checkpoints/facts/config_json_test::test_round_trip
    checkpoints/export_test::test_one_shard_is_one_file_that_stays
    checkpoints/weight_faults_test::test_an_odd_rope_table_is_called_out
    checkpoints/export_parity_test::test_an_exported_folder_has_our_logits_in_transformers
    checkpoints/family_parity_test::test_logits_are_those_of_transformers""",
  "F4": """
    model/rope_test::test_factor_is_read_and_not_assumed
    model/rope_test::test_table_is_the_published_formula
    checkpoints/family_parity_test::test_logits_are_those_of_transformers""",
  "F5": """
    model/rope_test::test_rows_of_a_batch_have_the_tables_of_their_own_lengths
    model/transformer_test::test_the_longer_of_two_packed_documents_has_the_long_table
    scoring/scorer_test::test_tables_go_by_the_real_length_of_a_pass
    evaluation/rope_tables_test::test_tables_that_differ_are_called_out
    checkpoints/facts/config_json_test::test_describe_rope_names_the_table_of_a_pass""",
  "F6": """
    parity_test::test_rope_tables_are_those_of_transformers
    checkpoints/facts/rope_schema_test::test_yarn_attention_factor_follows_from_the_factor
    checkpoints/facts/rope_schema_test::test_yarn_scales_of_all_dimensions""",
  "F7": """
    training/context_test::test_an_override_changes_the_table_and_is_written
    training/context_test::test_a_bad_override_is_refused
    checkpoints/weight_faults_test::test_an_odd_rope_table_is_called_out""",
  "F8": """
    model/transformer_test::test_a_sliding_window_hides_the_first_token
    model/attention_test::test_keys_out_of_sight_never_matter
    checkpoints/facts/families_test::test_windows_are_read_per_layer
    checkpoints/family_parity_test::test_logits_are_those_of_transformers""",
  "F9": "model/attention_test::test_head_sizes",
  "G1": """
    checkpoints/hf_folder_test::test_shards_load_to_the_same
    checkpoints/weights_test::test_wrong_tensors_are_named
    checkpoints/weights_test::test_a_pattern_allows_missing_and_unexplained_tensors""",
  "G2": """
    checkpoints/weights_test::test_a_tied_head_may_be_stored_twice
    checkpoints/weight_faults_test::test_odd_weights_are_called_out
    parity_test::test_logits_are_those_of_transformers""",
  "G3": """
    checkpoints/gguf/tensors_test::test_tensors_come_back_in_hugging_face_layout
    checkpoints/gguf/facts_test::test_a_gguf_file_gives_the_model_of_its_safetensors
    checkpoints/hf_folder_test::test_other_layouts_are_refused_by_name""",
  "G4": """
    checkpoints/memory_test::test_the_host_holds_a_shard_and_two_tensors_at_most""",
  "G5": """
    checkpoints/convert_test::test_to_orbax_and_back_is_bit_equal
    checkpoints/convert_test::test_verification_is_what_its_names_say
    checkpoints/export_test::test_what_was_loaded_comes_out_bit_equal""",
  "G6": """
    checkpoints/export_test::test_what_no_config_json_states_fails_before_anything_is_written
    checkpoints/export_test::test_a_failed_export_leaves_nothing""",
  "G7": "checkpoints/export_test::test_one_shard_is_one_file_that_stays",
  "G8": """
    checkpoints/loading_test::test_ids_without_an_embedding_are_refused_where_they_occur
    checkpoints/convert_test::test_verification_is_what_its_names_say""",
  "G9": """
    checkpoints/export_test::test_shards_keep_to_their_size_and_are_indexed
    checkpoints/gguf/tokenizer_test::test_the_tokenizer_can_be_written_as_files
    checkpoints/export_parity_test::test_an_exported_folder_has_our_logits_in_transformers""",
  "H1": """
    training/checkpoint_test::test_eight_devices_write_what_any_number_reads
    checkpoints/orbax_folder_test::test_eight_devices_write_and_any_number_reads
    checkpoints/loading_test::test_slow_reading_says_that_it_goes_on""",
  "H2": "training/checkpoint_test::test_eight_devices_write_what_any_number_reads",
  "H3": """
    scoring/scorer_test::test_devices_change_nothing
    training/step_test::test_every_mesh_has_the_loss_and_gradients_of_one_device
    training/train_processes_test::test_two_processes_take_the_step_of_one
    scoring/eval_step_test::test_sums_are_the_same_on_any_mesh
    scoring/shared_test::test_several_processes_write_the_rows_of_one""",
  "H4": """
    runtime/processes_test::test_one_process_joins_nobody
    runtime/processes_test::test_processes_that_do_not_come_are_reported
    training/train_processes_test::test_two_processes_run_the_whole_program
    scoring/shared_test::test_all_scorers_get_one_stream_of_jobs
    runtime/watch_test::test_a_killed_process_ends_one_that_hangs""",
  "H5": """
    training/data_test::test_resuming_is_exact_on_any_number_of_processes
    training/run_test::test_a_run_that_goes_on_elsewhere_ends_alike
    training/run_test::test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit
    training/kill_test::test_kill_9_loses_at_most_the_last_interval""",
  "H6": """
    training/data_test::test_a_step_is_all_of_its_accumulated_parts
    training/step_test::test_accumulation_pools_what_parts_of_unequal_size_sum_to""",
  "H7": """
    training/state_test::test_the_start_does_not_depend_on_the_mesh
    training/step_test::test_every_mesh_has_the_loss_and_gradients_of_one_device""",
  "H8": """
    model/row_parts_test::test_attention_in_parts_is_that_of_whole_rows
    model/row_parts_test::test_a_model_in_parts_is_the_same
    model/row_parts_test::test_parts_whose_positions_start_anew_are_caught
    model/row_parts_test::test_rope_that_starts_anew_on_each_shard_is_caught
    training/step_test::test_split_rows_have_the_loss_and_gradients_of_one_device""",
  "H9": "training/checkpoint_test::test_twenty_saves_leave_no_memory_behind",
  "I1": """
    training/rows_test::test_a_packed_row_holds_each_document_whole_and_once
    training/rows_test::test_padding_is_known_by_its_position_and_not_by_its_id
    training/data_test::test_an_epoch_trains_on_each_chunk_once
    training/step_test::test_what_stands_in_the_padding_changes_nothing""",
  "I2": "training/rows_test::test_padding_is_known_by_its_position_and_not_by_its_id",
  "I3": """
    training/rows_test::test_padding_is_known_by_its_position_and_not_by_its_id
    training/step_test::test_what_stands_in_the_padding_changes_nothing""",
  "I4": """
    model/transformer_test::test_packed_documents_equal_separate_ones
    training/rows_test::test_one_document_changes_nothing_of_its_neighbours
    training/step_test::test_packed_documents_train_as_separate_ones
    training/step_test::test_a_document_does_not_feel_another_in_its_row""",
  "I5": """
    training/rows_test::test_a_packed_row_holds_each_document_whole_and_once
    training/step_test::test_packed_documents_train_as_separate_ones""",
  "I6": """
    training/rows_test::test_windows_of_a_row_are_those_of_its_documents
    training/rows_test::test_targets_with_a_short_context_have_that_much_of_their_own_text
    training/step_test::test_packed_documents_train_as_separate_ones
    training/step_test::test_a_document_does_not_feel_another_in_its_row""",
  "I7": """
    training/step_test::test_accumulation_pools_what_parts_of_unequal_size_sum_to
    training/metrics_test::test_steps_are_pooled_and_never_a_mean_of_means""",
  "I8": """
    training/losses_test::test_fused_equals_the_plain_composition
    training/head_sweep_test::test_fused_on_a_mesh_equals_fused_on_one_device
    training/head_sweep_test::test_weight_zero_contributes_exactly_nothing
    training/step_test::test_stored_weights_multiply_each_targets_gradient""",
  "I9": """
    configs_test::test_every_field_is_read_by_the_package
    training/step_test::test_each_field_does_what_it_says
    training/step_test::test_the_loss_is_that_of_the_definition
    training/step_test::test_clipping_clips""",
  "J1": """
    paper/windows_test::test_plan_is_the_papers_loop_and_scores_each_id_once
    scoring/scorer_test::test_scores_are_the_papers
    paper/perplexity_test::test_pooled_equals_the_concatenation""",
  "J2": """
    report/comparison_test::test_unlike_results_are_refused_by_name
    report/page_test::test_unlike_results_are_refused_unless_forced
    longppl_test::test_key_tokens_of_unlike_runs_are_not_pooled""",
  "J3": """
    evaluation/results_test::test_perplexities_are_one_loss_over_several_counts
    paper/perplexity_test::test_bits_per_byte_is_the_log_of_the_byte_perplexity""",
  "J4": """
    scoring/scorer_test::test_window_batch_changes_nothing
    scoring/scorer_test::test_buckets_change_nothing
    scoring/scorer_test::test_order_of_documents_changes_nothing
    scoring/scorer_test::test_devices_change_nothing
    scoring/scorer_test::test_a_run_repeats_to_the_bit
    model/transformer_test::test_padding_on_the_right_changes_nothing""",
  "J5": """
    evaluation/passes_test::test_the_evaluators_own_pass_is_taken
    evaluation/passes_test::test_any_other_model_runs
    longppl_test::test_the_evaluators_pass_is_the_models_own
    evaluation/run_test::test_a_model_never_gets_the_numbers_of_another""",
  "J6": """
    longppl_test::test_key_tokens_of_another_text_are_refused
    longppl_test::test_other_thresholds_equal_finding_anew
    paper/spans_test::test_code_in_a_slice_file_is_never_run
    paper/spans_test::test_junk_in_a_slice_file_is_named
    key_tokens/slices_test::test_span_behind_its_text_is_named_with_likely_causes
    evaluation/run_test::test_what_the_user_named_must_be_that_of_the_store
    scoring/run_test::test_a_store_of_other_settings_is_refused_by_field""",
  "J9": "model/transformer_test::test_a_bigram_model_has_the_tables_nll",
  "J10": """
    paper/perplexity_test::test_paper_ppl_weights_a_document_by_its_ids
    paper/perplexity_test::test_paper_and_strict_ppl_differ_when_lengths_do
    evaluation/results_test::test_ppl_is_weighted_as_the_protocol_says
    longppl_test::test_longppl_is_the_papers""",
  "L1": """
    offline_test::test_the_api_works_without_network_and_torch
    offline_test::test_a_hub_id_says_at_once_what_to_copy_where
    checkpoints/hub_test::test_a_missing_one_says_what_to_copy_where
    checkpoints/hub_test::test_a_hub_that_never_answers_is_not_waited_for""",
  "L2": "offline_test::test_the_api_works_without_network_and_torch",
  "L3": """
    scoring/run_test::test_a_killed_run_ends_as_one_that_was_not
    scoring/run_test::test_a_finished_document_is_not_scored_again
    evaluation/run_test::test_a_killed_evaluation_ends_as_one_that_was_not
    evaluation/files_test::test_a_torn_last_line_costs_its_document_alone
    scoring/shared_test::test_a_killed_process_ends_the_others_and_the_run_goes_on""",
  "L4": "evaluation/run_test::test_the_rows_per_token_sum_to_the_result",
  "L5": """
    commands_test::test_a_mistake_is_one_line_and_status_2
    scripts_test::test_a_documented_command_works
    scripts_test::test_documented_flags_and_files_exist
    configs_test::test_every_field_is_read_by_the_package""",
  "L6": "commands_test::test_a_mistake_is_one_line_and_status_2",
  "L7": """
    text/corpus_test::test_row_ranges_together_equal_one_run
    text/corpus_test::test_columns_pass_through
    fields_test::test_a_row_range_is_two_numbers
    scoring/run_test::test_a_finished_document_is_not_scored_again""",
}

# Faults that real use found, by kind: the tests that ask the general question.
FAULTS = {
  # Numbers that belong to other inputs.
  # one workdir, other documents
  "stale-1": """
    evaluation/identity_test::test_only_the_documents_of_this_corpus_are_pooled
    evaluation/files_test::test_a_ledger_of_before_is_done_again_with_a_word""",
  # new texts under the same ids
  "stale-2": """
    evaluation/identity_test::test_new_texts_under_the_ids_of_others_are_evaluated
    evaluation/identity_test::test_one_changed_text_is_evaluated_and_the_others_kept
    evaluation/identity_test::test_a_store_that_was_scored_anew_is_evaluated_anew""",
  # an edited slice file
  "stale-3": """
    evaluation/identity_test::test_edited_slices_are_other_key_tokens
    evaluation/identity_test::test_the_hash_of_key_tokens_is_of_all_that_a_model_is_told""",
  # results on different documents side by side
  "stale-4": """
    evaluation/identity_test::test_results_on_other_texts_are_not_comparable
    evaluation/files_test::test_documents_of_another_result_are_refused_by_file
    report/alike_test::test_each_command_asks_for_the_same_documents""",
  # heat maps of another store
  "stale-5": """
    evaluation/identity_test::test_heat_maps_of_other_key_tokens_are_refused_by_field""",
  # stored weights of a store made anew
  "stale-6": """
    training/stored_weights_test::test_a_store_that_was_made_anew_is_other_data""",
  # thresholds that are not the store's
  "stale-7": """
    evaluation/identity_test::test_the_thresholds_are_the_stores_unless_named
    scripts_test::test_the_numbers_do_not_depend_on_the_way""",
  # tokens of documents by place
  "stale-8": """
    evaluation/identity_test::test_tokens_are_named_by_document_and_are_those_of_the_result""",
  # a finished evaluation again
  "stale-9": """
    evaluation/run_test::test_a_finished_evaluation_runs_no_pass
    evaluation/identity_test::test_where_a_model_lies_is_no_other_model""",
  # Work lost, or done by two at once.
  # two that score, or evaluate, into one workdir
  "lost-1": """
    scoring/run_test::test_shards_side_by_side_do_not_meet_and_others_are_refused
    scoring/run_test::test_shards_of_any_number_make_the_store_of_one_run
    scoring/run_test::test_a_document_that_got_lost_is_missed_at_the_end
    key_tokens/merging_test::test_each_document_is_taken_once_and_a_failed_one_where_it_did_not
    evaluation/files_test::test_two_do_not_write_one_ledger""",
  # two trainings in one workdir
  "lost-2": """
    training/start_test::test_two_runs_in_one_workdir_are_refused""",
  # a document whose log-probs are NaN
  "lost-3": """
    scoring/run_test::test_a_document_without_numbers_fails_alone_and_is_tried_again
    evaluation/identity_test::test_a_document_that_is_not_finite_fails_alone
    evaluation/files_test::test_losses_that_are_not_finite_are_in_no_ledger""",
  # a row that could not be read once
  "lost-4": """
    scoring/run_test::test_a_row_that_can_be_read_now_is_scored
    key_tokens/writer_test::test_changed_and_failed_documents_are_written_again""",
  # a document that changed, or is gone
  "lost-5": """
    scoring/run_test::test_a_changed_text_is_scored_again_and_no_other
    scoring/run_test::test_documents_that_are_gone_are_pruned_on_request
    key_tokens/writer_test::test_documents_are_pruned_also_where_they_were_replaced
    key_tokens/store_test::test_a_store_that_changes_under_a_reader_is_called_out
    evaluation/identity_test::test_what_key_tokens_and_corpus_share_is_evaluated_on_request""",
  # Ctrl-C
  "lost-6": """
    scoring/run_test::test_an_interrupted_run_keeps_what_it_finished
    training/start_test::test_ctrl_c_saves_and_ends_with_130
    training/start_test::test_a_second_ctrl_c_ends_at_once""",
  # one id twice
  "lost-7": """
    scoring/run_test::test_two_documents_of_one_id_are_found_before_a_model_loads""",
  # flipped bits
  "lost-8": """
    key_tokens/store_test::test_flipped_bits_are_not_read
    key_tokens/store_test::test_damaged_part_is_named_with_the_remedy""",
  # a kill before the first checkpoint
  "lost-9": """
    training/start_test::test_a_start_is_evaluated_once_and_known_documents_are_counted""",
  # a finished run with more steps asked for
  "lost-10": """
    training/start_test::test_more_steps_go_on_from_the_end""",
  # Something is left out and nobody says so.
  # documents cut to a limit
  "silent-1": """
    scoring/run_test::test_what_is_not_read_is_said_with_share_and_remedy
    evaluation/caveats_test::test_a_model_that_cuts_says_how_much
    evaluation/caveats_test::test_what_the_evaluator_did_not_read_is_unread
    evaluation/results_test::test_cut_documents_are_counted_and_warned_of""",
  # limits of documented RoPE tables
  "silent-2": """
    checkpoints/facts/context_test::test_a_model_reaches_as_far_as_its_table
    checkpoints/facts/context_test::test_a_stretch_whose_end_no_field_states_is_said
    checkpoints/facts/context_test::test_a_trained_table_reaches_as_far_as_its_export""",
  # a model that skips documents
  "silent-3": """
    evaluation/caveats_test::test_a_model_that_skips_half_of_the_documents_covers_half
    evaluation/results_test::test_a_skipped_document_counts_as_missed""",
  # all documents failed
  "silent-4": """
    scoring/run_test::test_a_run_in_which_nothing_could_be_scored_is_an_error
    scoring/run_test::test_documents_that_can_not_be_read_are_refused_before_a_model_loads
    evaluation/caveats_test::test_nothing_scored_is_an_error_after_the_results
    scripts_test::test_where_nothing_is_read_nothing_comes_next""",
  # a .json file that is one array
  "silent-5": """
    text/json_rows_test::test_an_array_of_json_is_read_row_by_row
    text/json_rows_test::test_json_that_holds_no_rows_is_refused_before_a_text_is_read""",
  # log-probs of an engine that cut the prompt
  "silent-6": """
    evaluation/caveats_test::test_an_engine_that_cut_its_prompt_is_not_the_tokenizers_fault
    evaluation/foreign_test::test_what_an_engine_read_is_seen_from_its_log_probs""",
  # K + d beyond the row, in training
  "silent-7": """
    training/start_test::test_a_window_longer_than_a_row_is_refused
    training/inventory_test::test_rows_with_short_contexts_are_counted_and_none_is_refused""",
  # subfolders, .md, compressed files
  "silent-8": """
    text/row_files_test::test_a_folder_is_read_with_its_subfolders
    text/streams_test::test_compressed_files_read_like_others
    text/streams_test::test_a_damaged_compressed_file_is_named""",
  # progress within a document, compile, load
  "silent-9": """
    runtime/progress_test::test_a_long_document_tells_its_windows
    runtime/progress_test::test_what_lasts_is_told_at_its_start_and_again""",
  # Facts of a checkpoint or tokenizer that are not taken.
  # a tied model that stores another head
  "facts-1": """
    checkpoints/weights_test::test_a_tied_model_may_store_a_head_of_its_own
    checkpoints/weights_test::test_the_head_alone_is_the_embedding_of_a_tied_model""",
  # ids beyond the embedding
  "facts-2": """
    checkpoints/loading_test::test_ids_without_an_embedding_are_refused_where_they_occur""",
  # config and post-processor that disagree on the BOS
  "facts-3": """
    text/tokenizer_test::test_files_that_disagree_on_the_bos_are_called_out""",
  # a text that holds the BOS
  "facts-4": """
    scoring/protocol_test::test_a_text_that_holds_the_bos_is_called_out""",
  # tokenizer.model or tekken.json alone
  "facts-5": """
    text/tokenizer_test::test_the_package_that_reads_a_vocabulary_is_named""",
  # a GGUF pre-tokenizer that is not known
  "facts-6": """
    checkpoints/gguf/tokenizer_test::test_an_unknown_pre_tokenizer_is_read_from_beside""",
  # unknown fields that are false or 0
  "facts-7": """
    checkpoints/facts/config_json_test::test_what_is_not_understood_is_refused_by_name""",
  # exports of EABF and PI in both schemas
  "facts-8": """
    training/context_test::test_an_override_changes_the_table_and_is_written""",
  # F64 weights, integer buffers
  "facts-9": """
    checkpoints/hf_folder_test::test_weights_of_64_bits_are_read
    checkpoints/hf_folder_test::test_whole_numbers_are_named_for_what_they_are""",
  # a LoRA adapter's folder
  "facts-10": """
    checkpoints/hf_folder_test::test_an_adapter_is_named""",
  # An exception in place of a sentence.
  # cut-off or empty safetensors
  "sentence-1": """
    checkpoints/hf_folder_test::test_a_damaged_file_is_named""",
  # git-lfs pointers
  "sentence-2": """
    checkpoints/hf_folder_test::test_a_damaged_file_is_named
    runtime/foreign_files_test::test_what_is_no_object_is_named""",
  # URLs without their package, or offline
  "sentence-3": """
    text/row_files_test::test_urls_that_cannot_be_read_here_are_named
    text/row_files_test::test_a_connection_that_breaks_later_is_named
    commands_test::test_a_mistake_is_one_line_and_status_2""",
  # a dtype that is none
  "sentence-4": """
    commands_test::test_a_mistake_is_one_line_and_status_2""",
  # a manifest without a format
  "sentence-5": """
    key_tokens/manifest_test::test_a_missing_field_is_named
    key_tokens/manifest_test::test_what_is_no_manifest_is_called_so""",
  # offsets beyond the text
  "sentence-6": """
    evaluation/foreign_test::test_log_probs_of_what_the_evaluator_did_not_read_are_refused
    evaluation/foreign_test::test_a_file_that_does_not_fit_names_document_and_target
    evaluation/foreign_test::test_a_file_that_is_no_parquet_is_named""",
  # benchmarks that are not named
  "sentence-7": """
    commands_test::test_a_mistake_is_one_line_and_status_2""",
  # a full disk
  "sentence-8": """
    runtime/failures_test::test_a_full_disk_is_named_by_the_file_that_was_to_appear
    runtime/failures_test::test_what_came_from_outside_is_a_sentence
    commands_test::test_a_mistake_is_one_line_and_status_2""",
  # the model "."
  "sentence-9": """
    evaluation/names_test::test_the_folder_one_is_in_has_a_name""",
  # a config without a model
  "sentence-10": """
    commands_test::test_a_mistake_is_one_line_and_status_2""",
  # a workdir in a bucket
  "sentence-11": """
    commands_test::test_a_mistake_is_one_line_and_status_2
    runtime/urls_test::test_nothing_is_written_to_a_url""",
  # macOS, Windows
  "sentence-12": """
    runtime/machine_test::test_score_eval_and_report_run_everywhere
    runtime/machine_test::test_training_says_at_once_where_it_cannot_run
    runtime/machine_test::test_cores_and_memory_are_counted_or_left_out
    runtime/machine_test::test_a_folder_that_cannot_be_opened_is_no_error_on_windows""",
  # Ctrl-C and SIGTERM
  "sentence-13": """
    commands_test::test_a_signal_ends_in_one_line""",
  # Statistics that promise more than they hold.
  # intervals over few documents; copies of a text
  "statistics-1": """
    paper/coverage_test::test_intervals_over_documents_hold_what_they_promise
    paper/coverage_test::test_paired_intervals_hold_what_they_promise
    paper/coverage_test::test_region_intervals_hold_for_these_texts
    evaluation/results_test::test_the_interval_says_what_it_speaks_of
    report/comparison_test::test_the_table_says_what_an_interval_speaks_of
    report/comparison_test::test_few_shared_documents_give_a_ratio_without_interval
    evaluation/results_test::test_copies_of_a_text_count_once_and_are_counted
    report/comparison_test::test_copies_of_a_text_are_no_evidence
    paper/intervals_test::test_copies_of_a_text_are_no_evidence""",
  # by construction, missed
  "statistics-2": """
    evaluation/run_test::test_the_evaluators_weights_in_another_form_are_known
    evaluation/run_test::test_the_evaluators_log_probs_from_elsewhere_are_known
    evaluation/passes_test::test_slice_files_are_known_by_their_evaluators_name
    evaluation/results_test::test_a_model_with_the_evaluators_losses_is_the_evaluator""",
  # a correlation of three points
  "statistics-3": """
    report/correlation_test::test_too_few_or_constant_values_have_no_correlation
    report/page_test::test_correlate_matches_scipy_and_lists_who_is_missing""",
  # identity by path or revision
  "statistics-4": """
    evaluation/identity_test::test_where_a_model_lies_is_no_other_model
    key_tokens/manifest_test::test_what_a_number_depends_on
    checkpoints/hub_test::test_a_revision_is_pinned_by_its_name""",
  # In training, of all kinds.
  # a checkpoint in the middle
  "training-1": """
    training/start_test::test_a_checkpoint_is_a_model
    training/start_test::test_a_checkpoint_in_the_middle_becomes_a_folder
    training/start_test::test_a_checkpoint_alone_says_what_it_needs""",
  # a loss that diverged
  "training-2": """
    training/start_test::test_the_advice_after_a_divergence_is_a_command_that_runs
    training/start_test::test_without_a_good_checkpoint_the_advice_is_to_start_anew""",
  # inputs under another path
  "training-3": """
    training/start_test::test_inputs_may_lie_elsewhere
    training/start_test::test_other_texts_are_refused
    training/start_test::test_other_weights_are_refused_and_overwrite_says_what_goes
    training/start_test::test_what_overwrite_removes_is_said
    training/inventory_test::test_other_ids_of_the_same_lengths_are_other_data""",
  # a batch that devices cannot share
  "training-4": """
    training/start_test::test_a_batch_that_devices_cannot_share_is_refused_first""",
  # held-out documents that are trained on
  "training-5": """
    training/start_test::test_a_start_is_evaluated_once_and_known_documents_are_counted
    training/inventory_test::test_documents_that_are_trained_on_are_known""",
  # a warm-up as long as the run
  "training-6": """
    training/optimizer_test::test_warm_up_must_end""",
  # a BOS within a text
  "training-7": """
    training/inventory_test::test_a_bos_within_a_text_is_counted""",
  # a step of several epochs
  "training-8": """
    training/inventory_test::test_a_step_of_several_epochs_says_so""",
  # --config in a flag file
  "training-9": """
    commands_test::test_a_mistake_is_one_line_and_status_2""",
  # what scoring refuses: ids
  "training-10": """
    training/inventory_test::test_ids_beyond_the_vocabulary_are_refused""",
  # what scoring refuses: dtypes
  "training-11": """
    training/config_test::test_settings_that_no_run_can_have_are_refused""",
  # what scoring refuses: documents that cannot be read
  "training-12": """
    training/inventory_test::test_documents_that_cannot_be_read_are_counted""",
  # files of the origin that state a fact which training changed
  "training-13": """
    checkpoints/export_test::test_a_longer_context_is_stated_wherever_the_former_was
    checkpoints/export_test::test_a_kind_of_cache_for_windows_goes_with_them""",
}
FAULT_ROWS = {
  "stale": 9,
  "lost": 10,
  "silent": 9,
  "facts": 10,
  "sentence": 13,
  "statistics": 4,
  "training": 13,
}


@functools.cache
def names_in(name):
  """Names of the test functions of a file."""
  body = ast.parse((TESTS / f"{name}.py").read_text()).body
  return {
    node.name
    for node in body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
  }


def test_every_row_is_answered():
  rows = {f"{group}{i + 1}" for group, n in ROWS.items() for i in range(n)}
  assert set(CASES) == rows - OUTSIDE
  faults = {
    f"{kind}-{i + 1}" for kind, n in FAULT_ROWS.items() for i in range(n)
  }
  assert set(FAULTS) == faults
  assert all(answer.strip() for answer in (CASES | FAULTS).values())


@pytest.mark.parametrize("row", CASES | FAULTS)
def test_the_tests_of_a_row_exist(row):
  nodes = [node.split("::") for node in (CASES | FAULTS)[row].split()]
  missing = [node for node in nodes if node[1] not in names_in(node[0])]
  assert not missing
