"""What `make test` runs, and what it leaves to `make test-all`.

A test belongs to `make test` (``-m "not long"``) as far as it fits.  These are ``long``:

- what `LONG` names, by its reason: it works with many processes, with networks that are fetched or simulated as a
  whole, with other compilers and processors, or for long by intention;
- of a function with more than two cases all but the first and the last.  What `EVERY` names keeps all its cases:
  each of them is another operator, kernel, rule or page, or they take no time.

Walks over operators and kernels (`DRAWN`) run at both levels, and draw fewer cases for each in `make test`.  So do
tests of hypothesis: `make test` draws the same cases each time, `make test-all` others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import pytest

QUICK = "BOLT_NUMBA_TEST_QUICK"
"""Set by `conftest` where long tests are left out: only a few cases are drawn of each operator."""

DRAWN = (
    "tests/test_kernels.py::test_kernel_equals_reference",
    "tests/cuda/test_kernels.py::test_kernel_equals_reference",
    "tests/test_special_values.py::test_every_operand",
    "tests/test_widen.py::test_operators",
    "tests/test_choices.py::test_every_operator",
    "tests/test_tape.py::test_every_operator",
    "tests/test_references.py",
    "tests/test_rowwise.py::test_kernel_equals_reference",
    "tests/test_special_values.py::test_pointwise",
    "tests/serve/test_machine.py",
)
"""Tests that draw fewer cases in `make test`, and all of them in `make test-all`."""

EVERY = (
    *DRAWN,
    "tests/converters/test_golden.py::test_what_the_original_computes",
    "tests/converters/test_gguf.py",
    "tests/converters/test_gguf_hostile.py",
    "tests/converters/test_gguf_tokens.py",
    "tests/converters/test_onnx_schemas.py",
    "tests/converters/test_onnx_tensors.py",
    "tests/converters/test_onnx_opsets.py",
    "tests/converters/test_onnx_write.py",
    "tests/flow/test_files.py",
    "tests/plugins/test_lowering.py",
    "tests/plugins/test_onnxruntime_driver.py",
    "tests/test_data_safety.py",
    "tests/test_extents.py",
    "tests/test_infer.py",
    "tests/test_infer_edges.py",
    "tests/test_infer_operands.py",
    "tests/test_objects.py",
    "tests/test_onnxruntime_page.py",
    "tests/test_pages.py",
    "tests/test_pointwise.py",
    "tests/test_prose.py",
    "tests/test_rules.py",
    "tests/test_structure.py",
)
"""Tests whose cases all run in `make test`."""

LONG: dict[str, Sequence[str]] = {
    "whole networks, most of which are fetched": (
        "tests/converters/test_caffe.py::test_a_real_net_agrees_with_its_twin_in_onnx",
        "tests/converters/test_caffe_sized.py::test_calibration_of_another_size",
        "tests/converters/test_caffe_sized.py::test_plans_for_other_sizes_are_exported",
        "tests/converters/test_gguf.py::test_smollm2_continues_as_llama_cpp_does",
        "tests/converters/test_gguf_tokens.py::test_smollm2_cuts_hard_texts_as_llama_cpp_does",
        "tests/text/test_generator.py::test_smollm2_makes_the_same_texts_however_it_is_asked",
        "tests/converters/test_onnx_models.py::test_model_means_what_onnxruntime_computes",
        "tests/converters/test_onnx_models.py::test_rounding_layers_agree_one_by_one",
        "tests/converters/test_onnx_models.py::test_intermediate_tensors_have_their_names",
        "tests/converters/test_onnx_write.py::test_models_come_back[ch_PP-OCRv4_det_infer.onnx]",
        "tests/converters/test_onnx_write.py::test_models_come_back[minilm.onnx]",
        "tests/converters/test_onnx_write.py::test_models_come_back[open_nsfw.onnx]",
        "tests/converters/test_paddle.py::test_real_programs_are_as_their_twins",
        "tests/converters/test_paddle_control.py::test_a_real_network_that_writes_a_table_token_by_token",
        "tests/converters/test_tflite_models.py",
        "tests/test_translate.py",
        "tests/text/test_translator.py",
        "tests/native/test_c_examples.py",
        "tests/test_bench_text.py::test_the_folder_for_others_computes_what_the_file_does",
        "tests/test_bench_text.py::test_a_step_reads_all_weights_and_a_prompt_multiplies_those_of_layers",
        "tests/test_bf16.py::test_real_models",
        "tests/test_built_in.py",
        "tests/test_examples.py::test_a_flow_reads_what_the_plain_loop_reads",
        "tests/test_examples.py::test_a_flow_hears_in_each_stream_what_a_plain_loop_hears",
        "tests/test_pages.py::test_page",
        "tests/test_pages.py::test_the_site_is_built_without_a_warning",
    ),
    "whole networks and larger products on the simulated GPU; machine code of all kernels": (
        "tests/cuda/test_attention.py::test_cache_of_halves",
        "tests/cuda/test_attention.py::test_tensor_cores",
        "tests/cuda/test_bench.py",
        "tests/cuda/test_between_bytes.py::test_results_between_bytes_are_at_most_a_level_apart",
        "tests/cuda/test_bindings.py::test_every_call_arrives",
        "tests/cuda/test_convolution.py::test_bytes_product",
        "tests/cuda/test_convolution.py::test_depthwise",
        "tests/cuda/test_convolution.py::test_long_sums_are_divided",
        "tests/cuda/test_convolution.py::test_plain_product",
        "tests/cuda/test_convolution.py::test_tensor_product",
        "tests/cuda/test_convolution.py::test_tiles_have_no_bank_conflicts",
        "tests/cuda/test_convolution.py::test_transposed_by_phases",
        "tests/cuda/test_device_arrays.py::test_a_foreign_tensor_is_read_where_it_is_when_its_stream_has_made_it",
        "tests/cuda/test_device_arrays.py::test_dlpack_carries_every_dtype",
        "tests/cuda/test_driver.py::test_a_model_gives_what_the_interpreter_gives",
        "tests/cuda/test_driver.py::test_all_sessions_let_go_for_constants_and_arrays_of_another",
        "tests/cuda/test_driver.py::test_memory_that_is_not_there_is_refused_and_the_session_goes_on",
        "tests/cuda/test_driver.py::test_the_digits_demo_and_a_transformer_run_through_the_driver",
        "tests/cuda/test_language.py::test_macros_become_machine_code_without_local_memory",
        "tests/cuda/test_models.py::test_a_small_transformer",
        "tests/cuda/test_models.py::test_digits",
        "tests/cuda/test_models.py::test_light_networks",
        "tests/cuda/test_models.py::test_recurrent_networks",
        "tests/cuda/test_needs.py::test_real_models",
        "tests/cuda/test_products.py::test_halves",
        "tests/cuda/test_products.py::test_other_activations_are_generated",
        "tests/cuda/test_products.py::test_sums_of_bytes",
        "tests/cuda/test_products.py::test_tiles_meet_no_bank_twice_and_move_whole_sectors",
        "tests/cuda/test_products.py::test_tiles_of_halves",
        "tests/cuda/test_recurrent.py::test_functions",
        "tests/cuda/test_recurrent.py::test_halves",
        "tests/cuda/test_reductions.py::test_rows_are_normalised",
        "tests/cuda/test_resources.py::test_kernels_take_what_the_table_says",
        "tests/cuda/test_resources.py::test_the_linker_has_nothing_to_say_of_warp_groups",
        "tests/cuda/test_sessions.py::test_a_constant_is_on_the_gpu_once_for_all_plans_and_goes_with_the_last",
        "tests/cuda/test_spatial.py::test_sampling_at_points_equals_the_reference",
        "tests/cuda/test_spatial.py::test_what_topk_is_tried_on_everywhere",
        "tests/cuda/test_wgmma.py::test_tiles",
        "tests/flow/test_devices.py",
    ),
    "other processors (`tests.lower_isa` has lower instruction sets of this one)": (
        "tests/aarch64/",
        "tests/test_binary.py::test_bits_are_counted_by_instructions",
        "tests/test_blas.py::test_values_hold_on_other_processors",
        "tests/test_export.py::test_a_lower_instruction_set",
        "tests/text/test_encoder.py::test_a_real_model_as_the_usual_recipe",
        "tests/test_levels.py::test_another_processor_of_the_level_compiles_nothing",
        "tests/test_machine.py::test_another_processor_gives_the_same_bits",
        "tests/test_targets.py::test_code_has_the_registers_of_its_target",
        "tests/test_targets.py::test_kernels_compile_for_targets_that_are_not_this_processor",
        "tests/test_targets.py::test_products_of_bytes_lower_to_what_a_target_has",
        "tests/test_targets.py::test_sessions_run_on_lower_instruction_sets",
    ),
    "many processes, threads or compilers of other languages": (
        "tests/converters/test_onnx_backend.py::test_score_of_a_part_of_the_suite",
        "tests/serve/test_tracing.py::test_requests_are_spans_of_their_callers",
        "tests/serve/test_command.py::test_a_server_begins_serves_and_ends",
        "tests/serve/test_command.py::test_processes_share_a_port_and_one_that_dies_is_begun_again",
        "tests/serve/test_command.py::test_changes_that_meet",
        "tests/serve/test_command.py::test_a_process_that_begins_during_a_change_has_it",
        "tests/serve/test_command.py::test_a_model_that_takes_long_to_load_does_not_keep_the_server",
        "tests/serve/test_workers.py::test_a_version_that_one_process_cannot_load_is_taken_by_none",
        "tests/serve/test_workers.py::test_a_process_that_takes_the_place_of_another_has_what_the_others_have",
        "tests/serve/test_workers.py::test_a_process_that_dies_of_a_version_once_does_not_keep_it_from_others",
        "tests/serve/test_workers.py::test_a_version_that_processes_die_of_is_refused",
        "tests/serve/test_workers.py::test_two_who_ask_for_a_load_at_once",
        "tests/serve/test_workers.py::test_processes_that_wait_for_a_load_that_never_ends_end",
        "tests/converters/test_onnx_missing.py::test_exactly_the_listed_tests_fail",
        "tests/converters/test_onnx_missing.py::test_the_values_of_the_loop_agree",
        "tests/cuda/test_code.py::test_code_that_is_in_the_cache_imports_no_compiler",
        "tests/cuda/test_code.py::test_several_processes_compile_at_once",
        "tests/flow/test_processes.py",
        "tests/engines/",
        "tests/fuzz/test_fuzz.py::test_the_fuzzer_of_programs",
        "tests/native/test_c_library.py::test_damaged_programs_are_refused_or_run",
        "tests/native/test_c_library.py::test_no_memory_is_lost",
        "tests/native/test_c_library.py::test_of_several_programs_in_a_file_the_best_is_taken",
        "tests/native/test_c_library.py::test_threads_have_no_races",
        "tests/native/test_java.py",
        "tests/plugins/test_real_devices.py::test_a_child_computes_and_ends",
        "tests/plugins/test_starts_of_models.py::test_real_devices_start_with_few_modules",
        "tests/test_budget.py::test_small_models_take_little_or_are_refused",
        "tests/test_calls.py",
        "tests/test_claims.py::test_workers_that_start_at_once_compile_each_kernel_once",
        "tests/test_cli.py::TestMachine::test_cache",
        "tests/test_cli.py::TestUsage::test_shells_complete",
        "tests/test_clients.py::test_a_client_gives_what_it_gives_with_onnxruntime",
        "tests/test_counts.py::test_instructions_are_as_stored",
        "tests/test_export_library.py",
        "tests/test_index.py",
        "tests/test_interrupts.py",
        "tests/test_leases.py::test_leases_that_come_and_go_leave_the_bits",
        "tests/test_leases.py::test_sessions_that_close_and_go_while_others_run",
        "tests/test_new_shapes.py::test_a_warmed_cache_has_kernels_for_shapes_that_come",
        "tests/test_cold_start.py::test_first_runs_that_wait",
        "tests/test_new_shapes.py::test_ten_new_shapes_wait_for_no_compiler",
        "tests/test_cold_start.py::test_the_first_run_waits_for_no_compiler",
        "tests/test_cold_start.py::test_what_a_process_leaves_is_compiled_for_the_next",
        "tests/test_cold_start.py::test_without_another_interpreter_the_first_run_waits",
        "tests/test_cold_start.py::test_without_another_processor_the_first_run_waits",
        "tests/test_new_shapes.py::test_what_is_printed_while_an_assistant_starts_is_no_answer",
        "tests/test_own_operators.py",
        "tests/test_packaging.py::test_a_source_distribution_has_all_files",
        "tests/test_packaging.py::test_a_wheel_has_its_bill_of_materials",
        "tests/test_workflows.py::test_the_schema_of_workflows_is_kept",
        "tests/test_promises.py::test_programs_of_earlier_versions_run",
        "tests/test_reader_pages.py",
        "tests/test_robustness.py::test_a_hang_is_noticed",
        "tests/serve/test_adapters.py::test_an_adapter_answers_as_a_session",
        "tests/serve/test_deployments.py::test_the_demo_serves_and_ends",
        "tests/serve/test_hostile.py",
        "tests/serve/test_image.py::test_nobody_but_its_maker_may_write_to_the_image",
        "tests/serve/test_image.py::test_the_server_compiles_nothing_and_writes_nothing",
        "tests/test_start.py::test_a_second_process_imports_what_the_model_needs",
        "tests/test_warm.py::test_what_is_warm_compiles_nothing",
        "tests/test_weights.py::test_what_the_passes_computed_leaves_memory_when_it_is_packed",
    ),
    "many kernels, which take seconds to compile; walks over all kernels run a few cases of each": (
        "tests/test_depthwise.py::test_depthwise_is_exact",
        "tests/test_depthwise.py::test_transposed_is_exact",
        "tests/test_export.py::test_the_command_says_what_it_wrote",
        "tests/test_export_shapes.py::test_few_tapes_serve_all_sizes",
        "tests/test_f16.py::test_weights_are_widened_in_registers",
        "tests/test_fillers.py::test_taps",
        "tests/test_grouped.py::test_grouped_is_exact",
        "tests/test_integer_ties.py::test_pointwise",
        "tests/test_integer_ties.py::test_sums_of_bytes",
        "tests/test_layout.py::test_random_image_networks_keep_their_values",
        "tests/test_movement.py::test_reductions_of_scattered_elements",
        "tests/test_pointwise.py::test_integers",
        "tests/test_pointwise.py::test_short_runs",
        "tests/test_quantise_models.py::test_networks_of_onnxruntimes_quantiser",
        "tests/test_quantise_models.py::test_real_files_run_on_bytes_as_near_as_onnxruntimes",
        "tests/test_recurrent.py::test_threads_share_steps_and_keep_the_bits",
        "tests/test_reductions.py::test_long_sums_of_two_groups_of_axes",
        "tests/test_reductions.py::test_running_lines_are_summed_in_order",
        "tests/test_stops.py::test_iterations_of_sizes_by_data",
        "tests/test_tape_numbers.py::test_stacked_blocks_never_meet",
        "tests/test_winograd.py::test_exact_where_transforms_are",
    ),
    "many models, or large ones, of the formats": (
        "tests/converters/test_bolt_layers.py::test_check_compares_element_by_element",
        "tests/converters/test_bolt_layers.py::test_colours_become_a_camera_image",
        "tests/converters/test_caffe_forks.py::test_detections_of_yolo",
        "tests/converters/test_caffe_sized.py::test_a_session_is_closed_while_threads_bring_sizes",
        "tests/converters/test_caffe_sized.py::test_results_are_those_of_opencv",
        "tests/converters/test_golden.py::test_every_graph_is_written_as_onnx",
        "tests/converters/test_golden.py::test_sessions_compute_what_the_original_computes",
        "tests/converters/test_onnx_hostile.py::test_lies_are_refused_or_read_and_never_worse",
        "tests/converters/test_onnx_microsoft_forms.py::test_all_forms_of_fused_operators",
        "tests/converters/test_onnx_microsoft_operands.py::test_spoiled_operands_are_refused_in_clear_words",
        "tests/converters/test_onnx_ml.py::test_support_vectors",
        "tests/converters/test_onnx_search.py::test_searches_find_what_onnxruntime_finds",
        "tests/converters/test_onnx_search_forms.py::test_sizes_and_numbers_may_change_from_run_to_run",
        "tests/converters/test_onnx_search_forms.py::test_words_that_were_there_or_are_hidden_do_not_come",
        "tests/converters/test_paddle_more.py::test_programs_of_paddle_give_what_it_gives",
        "tests/converters/test_paddle_silent.py::test_a_range_of_one_number_has_it_in_the_middle",
        "tests/converters/test_sklearn.py::test_export_means_what_onnxruntime_computes",
        "tests/converters/test_sklearn.py::test_trees_run_natively",
    ),
    "stress: long by intention": (
        "tests/flow/test_stress.py",
        "tests/plugins/test_faults.py::test_nothing_is_left_of_a_thousand_sessions",
        "tests/plugins/test_fallback.py::test_a_session_may_forbid_that_others_compute",
        "tests/plugins/test_plugins.py::test_nothing_leaks_over_many_cycles",
        "tests/plugins/test_random_faults.py",
        "tests/plugins/test_random_parts.py",
        "tests/test_robustness.py::test_altered_models_end_well",
        "tests/test_robustness.py::test_changed_documents_end_well",
        "tests/test_robustness.py::test_damaged_files_of_other_formats_end_well",
        "tests/test_robustness.py::test_mutations_end_well",
        "tests/test_robustness.py::test_what_makes_texts_ends_well",
        "tests/test_robustness.py::test_operands_that_do_not_fit_end_well",
    ),
}
"""Starts of names of long tests, by why they are."""


def is_quick() -> bool:
    return QUICK in os.environ


def few(count: int, quick: int) -> int:
    """How many cases a walk draws: ``quick`` of ``count`` in `make test`."""
    return quick if is_quick() else count


def _starts(node: str, names: Iterable[str]) -> bool:
    return node.startswith(tuple(names))


def long_tests(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Those of the collected tests that are long."""
    named = [name for names in LONG.values() for name in names]
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if _starts(item.nodeid, named):
            yield item
        elif not _starts(item.nodeid, EVERY):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        yield from cases[1:-1]
