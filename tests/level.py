"""What `make test` runs, and what it leaves to `make test-all`.

A test belongs to `make test` (``-m "not long"``) as far as it fits.  These are ``long``:

- what `LONG` names, by its reason: it works with many processes, with networks that are fetched or simulated as a
  whole, with other compilers and processors, or for long by intention;
- of a function with more than `FEW` cases all but `FEW` of them, spread over its list.  What `EVERY` names keeps all
  its cases: each of them is another operator, kernel, rule or page, or they take no time.

Walks over operators and kernels (`DRAWN`) run at both levels, and draw fewer cases for each in `make test`.  So do
tests of hypothesis: `make test` draws the same cases each time, `make test-all` others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import pytest

QUICK = "BOLT_NUMBA_TEST_QUICK"
"""Set by `conftest` where long tests are left out: only a few cases are drawn of each operator."""
FEW = 4
"""Cases of a function that `make test` runs."""

DRAWN = (
    "tests/test_kernels.py::test_kernel_equals_reference",
    "tests/cuda/test_kernels.py::test_kernel_equals_reference",
    "tests/test_special_values.py::test_every_operand",
    "tests/test_widen.py::test_operators",
    "tests/test_choices.py::test_every_operator",
    "tests/test_tape.py::test_every_operator",
    "tests/test_references.py",
    "tests/test_rowwise.py::test_kernel_equals_reference",
)
"""Tests that draw fewer cases in `make test`, and all of them in `make test-all`."""

EVERY = (
    *DRAWN,
    "tests/converters/test_golden.py::test_what_the_original_computes",
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
    "tests/test_special_values.py::test_pointwise",
    "tests/test_structure.py",
)
"""Tests whose cases all run in `make test`."""

LONG: dict[str, Sequence[str]] = {
    "whole networks, most of which are fetched": (
        "tests/converters/test_caffe.py::test_a_real_net_agrees_with_its_twin_in_onnx",
        "tests/converters/test_caffe_sized.py::test_calibration_of_another_size",
        "tests/converters/test_caffe_sized.py::test_plans_for_other_sizes_are_exported",
        "tests/converters/test_onnx_models.py::test_model_means_what_onnxruntime_computes",
        "tests/converters/test_onnx_models.py::test_rounding_layers_agree_one_by_one",
        "tests/converters/test_onnx_models.py::test_intermediate_tensors_have_their_names",
        "tests/converters/test_paddle.py::test_real_programs_are_as_their_twins",
        "tests/converters/test_paddle_control.py::test_a_real_network_that_writes_a_table_token_by_token",
        "tests/converters/test_tflite_models.py",
        "tests/native/test_c_examples.py",
        "tests/test_bf16.py::test_real_models",
        "tests/test_built_in.py",
        "tests/test_examples.py::test_a_flow_reads_what_the_plain_loop_reads",
        "tests/test_examples.py::test_a_flow_hears_in_each_stream_what_a_plain_loop_hears",
        "tests/test_pages.py::test_page",
        "tests/test_pages.py::test_the_site_is_built_without_a_warning",
    ),
    "whole networks and larger products on the simulated GPU; machine code of all kernels": (
        "tests/cuda/test_bench.py",
        "tests/cuda/test_language.py::test_macros_become_machine_code_without_local_memory",
        "tests/cuda/test_models.py::test_light_networks",
        "tests/cuda/test_models.py::test_a_small_transformer[f32]",
        "tests/cuda/test_models.py::test_a_small_transformer[bf16]",
        "tests/cuda/test_models.py::test_digits_in_bytes",
        "tests/cuda/test_needs.py::test_real_models",
        "tests/cuda/test_products.py::test_sums_of_bytes",
        "tests/cuda/test_products.py::test_tiles_of_halves",
        "tests/cuda/test_recurrent.py::test_functions",
        "tests/cuda/test_reductions.py::test_rows_are_normalised",
        "tests/cuda/test_resources.py::test_kernels_take_what_the_table_says",
        "tests/cuda/test_spatial.py::test_sampling_at_points_equals_the_reference",
        "tests/cuda/test_spatial.py::test_what_topk_is_tried_on_everywhere",
        "tests/cuda/test_wgmma.py::test_tiles",
        "tests/flow/test_devices.py",
    ),
    "other processors (`tests.lower_isa` has lower instruction sets of this one)": (
        "tests/aarch64/",
        "tests/test_binary.py::test_bits_are_counted_by_instructions",
        "tests/test_blas.py::test_values_hold_on_other_processors",
        "tests/test_targets.py::test_sessions_run_on_lower_instruction_sets",
    ),
    "many processes, threads or compilers of other languages": (
        "tests/cuda/test_code.py::test_several_processes_compile_at_once",
        "tests/flow/test_processes.py",
        "tests/plugins/test_real_devices.py::test_a_child_computes_and_ends",
        "tests/plugins/test_starts_of_models.py::test_real_devices_start_with_few_modules",
        "tests/native/test_c_library.py::test_damaged_programs_are_refused_or_run",
        "tests/native/test_c_library.py::test_no_memory_is_lost",
        "tests/native/test_c_library.py::test_threads_have_no_races",
        "tests/native/test_java.py",
        "tests/test_budget.py::test_small_models_take_little_or_are_refused",
        "tests/test_cli.py::TestMachine::test_cache",
        "tests/test_cli.py::TestUsage::test_shells_complete",
        "tests/test_clients.py::test_a_client_gives_what_it_gives_with_onnxruntime",
        "tests/test_export_library.py",
        "tests/test_index.py",
        "tests/test_interrupts.py",
        "tests/test_leases.py::test_leases_that_come_and_go_leave_the_bits",
        "tests/test_leases.py::test_sessions_that_close_and_go_while_others_run",
        "tests/test_new_shapes.py::test_a_warmed_cache_has_kernels_for_shapes_that_come",
        "tests/test_new_shapes.py::test_ten_new_shapes_wait_for_no_compiler",
        "tests/test_new_shapes.py::test_what_is_printed_while_an_assistant_starts_is_no_answer",
        "tests/test_own_operators.py",
        "tests/test_reader_pages.py",
    ),
    "stress: long by intention": (
        "tests/flow/test_stress.py",
        "tests/plugins/test_faults.py::test_nothing_is_left_of_a_thousand_sessions",
        "tests/plugins/test_fallback.py::test_a_session_may_forbid_that_others_compute",
        "tests/plugins/test_random_faults.py",
        "tests/plugins/test_random_parts.py",
        "tests/test_robustness.py::test_altered_models_end_well",
        "tests/test_robustness.py::test_changed_documents_end_well",
        "tests/test_robustness.py::test_damaged_files_of_other_formats_end_well",
        "tests/test_robustness.py::test_mutations_end_well",
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


def _spread(cases: Sequence[pytest.Item]) -> set[int]:
    """Places of `FEW` cases, the first and the last among them."""
    return {round(i * (len(cases) - 1) / (FEW - 1)) for i in range(FEW)} if len(cases) > FEW else set(range(len(cases)))


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
        kept = _spread(cases)
        yield from (case for place, case in enumerate(cases) if place not in kept)
