"""Values and bindings of the drop-in against onnxruntime's: the same calls on both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
import bolt_numba.onnxruntime as ours
from tests.test_onnxruntime import ENGINES, F, S, X, args, check, info, model, session, value

ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "numpy": lambda v, ort: v.numpy(),
    "shape": lambda v, ort: v.shape(),
    "data_type": lambda v, ort: v.data_type(),
    "element_type": lambda v, ort: v.element_type(),
    "device_name": lambda v, ort: v.device_name(),
    "the address": lambda v, ort: v.data_ptr() == S.ctypes.data,
    "kinds": lambda v, ort: (v.has_value(), v.is_tensor(), v.is_tensor_sequence(), v.is_sparse_tensor()),
    "bytes": lambda v, ort: v.tensor_size_in_bytes(),
    "DLPack": lambda v, ort: (np.from_dlpack(v), v.__dlpack_device__()),
    "from DLPack": lambda v, ort: ort.OrtValue.from_dlpack(S).numpy(),
    "from what DLPack gives": lambda v, ort: ort.OrtValue.from_dlpack(S.__dlpack__()).numpy(),
    "from no DLPack": lambda v, ort: ort.OrtValue.from_dlpack(5),
    "an array": lambda v, ort: (np.asarray(v), np.array(v, copy=True), v.__array__(np.float64)),
    "sparse": lambda v, ort: v.as_sparse_tensor(),
    "updated by too few": lambda v, ort: v.update_inplace(np.zeros(3, np.float32)),
    "updated by texts": lambda v, ort: v.update_inplace(np.full(S.shape, "a")),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "a list": lambda v: v.ortvalue_from_numpy([1]),
    "a scalar": lambda v: v.ortvalue_from_numpy(np.float32(3)),
    "texts": lambda v: v.ortvalue_from_numpy(np.array(["a"])),
    "rank 0": lambda v: v.ortvalue_from_numpy(np.zeros(())).shape(),
    "strided": lambda v: v.ortvalue_from_numpy(S.T).numpy(),
    "another device": lambda v: v.ortvalue_from_numpy(S, "cuda", 0),
    "zeros": lambda v: v.ortvalue_from_shape_and_type([2, 3], np.float32).shape(),
    "of a dtype": lambda v: v.ortvalue_from_shape_and_type((2, 3), np.dtype("i8")).data_type(),
    "of a number": lambda v: v.ortvalue_from_shape_and_type((2, 3), 10).data_type(),
    "complex": lambda v: v.ortvalue_from_shape_and_type((2, 3), np.complex64),
    "bits of bfloat16": lambda v: v.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint16), 16).data_type(),
    "bits of another width": lambda v: v.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint8), 16),
    "of nothing": lambda v: v(1),
    "of complex numbers": lambda v: v.ortvalue_from_numpy(np.zeros(3, np.complex64)),
    "of records": lambda v: v.ortvalue_from_numpy(np.zeros(3, [("a", "f4")])),
    "a negative size": lambda v: v.ortvalue_from_shape_and_type([-1, 2], np.float32),
    "too many bytes": lambda v: v.ortvalue_from_shape_and_type([1 << 40, 1 << 40], np.float32),
    "too many axes": lambda v: v.ortvalue_from_shape_and_type([2] * 70, np.float32),
}


@pytest.mark.parametrize("name", ASKED)
def test_values_say_the_same(name: str) -> None:
    check(lambda ort: ASKED[name](value(ort), ort))


@pytest.mark.parametrize("name", MADE)
def test_values_are_made_the_same(name: str) -> None:
    check(lambda ort: MADE[name](ort.OrtValue))


def nested() -> bytes:
    """A list of two tensors, and how many it holds of what."""
    out = helper.make_tensor_sequence_value_info("y", F, None)
    return model([helper.make_node("SequenceConstruct", ["x", "x"], ["y"])], [info("x", F, ["n"])], [out])


def taking() -> bytes:
    """One tensor of a list."""
    node = helper.make_node("SequenceAt", ["s", "i"], ["y"])
    ins = [helper.make_tensor_sequence_value_info("s", F, None), info("i", TensorProto.INT64, [])]
    return model([node], ins, [info("y", F, None)])


def test_a_list_beside_a_scalar_that_has_an_axis() -> None:
    check(lambda ort: session(ort, taking()).run(None, {"s": [X, X * 2], "i": np.array([1])}))


def test_lists_are_values_too() -> None:
    take = taking()

    def call(ort: Any) -> Any:
        (made,) = session(ort, nested()).run_with_ort_values(None, {"x": value(ort, X[0, 0])})
        again = session(ort, take).run(None, {"s": made, "i": np.array(1)})
        said = made.data_type(), made.is_tensor(), made.is_tensor_sequence(), made.element_type(), made.has_value()
        return said, again, args(session(ort, take).get_inputs())

    check(call)
    for asked in ("numpy", "shape", "data_ptr"):
        check(lambda ort, asked=asked: getattr(  # type: ignore[misc]
            session(ort, nested()).run_with_ort_values(None, {"x": value(ort, X[0, 0])})[0], asked)())  # fmt: skip


TEXTS: dict[str, Any] = {
    "texts": np.array(["a", "ü"]),
    "objects": np.array(["a", 1, None, 2.5, b"bytes"], object),
    "void": np.array([b"this", b"test"], np.void),
    "void with zeros": np.array([b"this", b"is", b"", "ü".encode()], "V4"),
    "void apart": np.array([b"this", b"is", b"here"], "V4")[::2],
    "records": np.array([(65, 66), (0, 67)], [("a", "i4"), ("b", "i4")]),
    "a list": ["a", "ü"],
    "numbers": np.array([1, 2]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_read_as_there(name: str) -> None:
    kind = TensorProto.STRING
    data = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", kind, ["n"])], [info("y", kind, ["n"])])
    check(lambda ort: session(ort, data).run(None, {"x": TEXTS[name]})[0].tolist())


def test_records_with_objects_are_no_texts() -> None:
    """onnxruntime reads the addresses in them."""
    kind = TensorProto.STRING
    data = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", kind, ["n"])], [info("y", kind, ["n"])])
    with pytest.raises(ours.errors.InvalidArgument, match="wanted bytes or texts"):
        session(ours, data).run(None, {"x": np.array([("x",)], [("a", "O")])})


def test_values_of_zeros_ask_the_budget() -> None:
    with pytest.raises(ours.errors.RuntimeException, match=r"OrtValue: memory: got .* MiB, wanted at most"):
        ours.OrtValue.ortvalue_from_shape_and_type([1 << 45], np.float32)


def test_texts_of_bytes() -> None:
    """onnxruntime's own reading of such arrays goes beyond their end."""
    kind = TensorProto.STRING
    data = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", kind, ["n"])], [info("y", kind, ["n"])])
    (found,) = session(ours, data).run(None, {"x": np.array([b"this", "ü".encode()])})
    assert found.tolist() == ["this", "ü"]
    with pytest.raises(ours.errors.InvalidArgument, match="wanted UTF-8"):
        session(ours, data).run(None, {"x": np.array([b"\xff\xfe"])})


def test_maps_are_values_too() -> None:
    made = ours.OrtValue([{0: 0.5, 1: 0.5}])
    assert made.data_type() == "seq(map(int64,tensor(float)))"
    assert ours.OrtValue({"a": 1.0}).data_type() == "map(string,tensor(float))"
    assert not made.is_tensor_sequence()
    with pytest.raises(RuntimeError):
        made.element_type()


@pytest.mark.parametrize("feeds", [{}, {"o": None}, {"o": X[0, 0]}], ids=["left out", "None", "an array"])
def test_optional_inputs_may_be_left_out(feeds: Any) -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, ["n"]))
    data = model(
        [helper.make_node("OptionalHasElement", ["o"], ["y"])], [helper.make_value_info("o", kind)],
        [info("y", TensorProto.BOOL, [])],
    )  # fmt: skip
    check(lambda ort: session(ort, data).run(None, feeds))
    check(lambda ort: args(session(ort, data).get_inputs()))


def test_a_value_shares_memory_with_its_array() -> None:
    for ort in ENGINES:
        array = S.copy()
        made = value(ort, array)
        array[0, 0] = 9
        assert made.numpy()[0, 0] == 9
        made.update_inplace(S * 2)
        np.testing.assert_array_equal(array, S * 2)


def test_devices() -> None:
    asked = ("type", "id", "mem_type", "vendor_id")
    check(lambda ort: [getattr(ort.OrtDevice.make("cpu", 0), f"device_{what}")() for what in asked])
    check(lambda ort: ort.OrtDevice.make("cuda", 1).device_type())


# --- bindings --------------------------------------------------------------------------------------------------------

Step = Callable[[Any, Any, Any], Any]
BOUND: dict[str, list[Step]] = {
    "by name": [lambda b, s, o: b.bind_cpu_input("x", X), lambda b, s, o: b.bind_output("y")],
    "by address": [
        lambda b, s, o: b.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data),
        lambda b, s, o: b.bind_output("y", "cpu"),
    ],
    "by OrtValue": [
        lambda b, s, o: b.bind_ortvalue_input("x", value(o, X)),
        lambda b, s, o: b.bind_ortvalue_output("y", o.OrtValue.ortvalue_from_shape_and_type([2, 3, 4], np.float32)),
    ],
    "overridden": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_cpu_input("w", np.ones(4, np.float32)),
        lambda b, s, o: b.bind_output("y"),
    ],
    "no output": [lambda b, s, o: b.bind_cpu_input("x", X)],
    "unknown input": [lambda b, s, o: b.bind_cpu_input("zz", X)],
    "no array": [lambda b, s, o: b.bind_cpu_input("x", [1.0])],
    "another dtype": [lambda b, s, o: b.bind_cpu_input("x", X.astype(np.float64)), lambda b, s, o: b.bind_output("y")],
    "another size": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_ortvalue_output("y", o.OrtValue.ortvalue_from_shape_and_type([2, 3, 5], np.float32)),
    ],
    "of negative sizes": [lambda b, s, o: b.bind_input("x", "cpu", 0, np.float32, (-1, 3, -4), X.ctypes.data)],
    "of too many bytes": [lambda b, s, o: b.bind_input("x", "cpu", 0, np.float32, (1 << 62, 4), X.ctypes.data)],
    "an address without a shape": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_output("y", "cpu", 0, np.float32, None, X.ctypes.data),
    ],
    "an address without a type": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_output("y", "cpu", 0, None, (2, 3, 4), X.ctypes.data),
    ],
    "cleared": [
        lambda b, s, o: b.bind_cpu_input("x", X),
        lambda b, s, o: b.bind_output("y"),
        lambda b, s, o: b.clear_binding_outputs(),
        lambda b, s, o: b.clear_binding_inputs(),
    ],
}


@pytest.mark.parametrize("name", BOUND)
def test_bindings(name: str) -> None:
    def call(ort: Any) -> Any:
        sess = session(ort)
        binding = sess.io_binding()
        for step in BOUND[name]:
            step(binding, sess, ort)
        binding.synchronize_inputs()
        sess.run_with_iobinding(binding)
        binding.synchronize_outputs()
        found = binding.get_outputs()[0]
        return binding.copy_outputs_to_cpu(), found.numpy(), found.shape(), found.data_type()

    check(call)


def test_a_binding_runs_with_its_own_session() -> None:
    """Another session's model could have inputs of the same names."""

    def call(ort: Any) -> Any:
        other = session(ort).io_binding()
        other.bind_cpu_input("x", X)
        other.bind_output("y")
        session(ort).run_with_iobinding(other)

    check(call)


@pytest.mark.parametrize("address", [0, -8, 1 << 70, None, "a", 1.5])
def test_what_is_no_address_is_not_followed(address: Any) -> None:
    with pytest.raises(ours.errors.InvalidArgument, match="buffer_ptr: got"):
        session(ours).io_binding().bind_input("x", "cpu", 0, np.float32, X.shape, address)


WRONG: dict[str, Callable[[Any], Any]] = {
    "run_with_iobinding": lambda s: s.run_with_iobinding(None),
    "a binding of no value": lambda s: s.io_binding().bind_ortvalue_input("x", None),
    "a place that is no value": lambda s: s.io_binding().bind_ortvalue_output("y", X),
    "feeds of run_async": lambda s: s.run_async(None, None, print, None),
    "a callback that is none": lambda s: s.run_async(None, {"x": X}, None, None),
    "a number for names": lambda s: s.run(5, {"x": X}),
    "sizes that are no numbers": lambda s: ours.OrtValue.ortvalue_from_shape_and_type(["a"], np.float32),
    "no sizes": lambda s: ours.OrtValue.ortvalue_from_shape_and_type(None, np.float32),
    "a value of the other byte order": lambda s: ours.OrtValue.ortvalue_from_numpy(X.astype(">f4")),
    "bits of the other byte order": lambda s: ours.OrtValue.ortvalue_from_numpy_with_onnx_type(X.astype(">f4"), 1),
    "bits of nothing": lambda s: ours.OrtValue.ortvalue_from_numpy_with_onnx_type(None, 1),
    "DLPack of the other byte order": lambda s: ours.OrtValue.from_dlpack(X.astype(">f4")),
    "a value that is only read": lambda s: value(ours, np.frombuffer(bytes(8), "f4")).update_inplace([1, 2]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_caller_gets_wrong_is_no_fault_of_ours(name: str) -> None:
    with pytest.raises(ours.errors.InvalidArgument, match=r"wanted|cannot be updated") as found:
        WRONG[name](session(ours))
    assert not isinstance(found.value, bn.InternalError)


def test_an_output_is_written_where_it_is_bound() -> None:
    for ort in ENGINES:
        out = np.zeros((2, 3, 4), np.float32)
        sess = session(ort)
        binding = sess.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
        sess.run_with_iobinding(binding)
        np.testing.assert_array_equal(out, X + np.arange(4, dtype=np.float32))
        assert binding.get_outputs()[0].data_ptr() == out.ctypes.data


def test_some_outputs_have_a_place_and_others_get_one() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    data = model(nodes, [info("x", F, ["n"])], [info("y", F, ["n"]), info("z", F, ["n"])])
    x, out = np.array([-1, 2], np.float32), np.zeros(2, np.float32)
    for ort in ENGINES:
        out[:] = 0
        sess = session(ort, data)
        binding = sess.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("z")
        binding.bind_output("y", "cpu", 0, np.float32, [2], out.ctypes.data)
        sess.run_with_iobinding(binding)
        first, second = binding.copy_outputs_to_cpu()
        assert (first.tolist(), second.tolist(), out.tolist()) == ([1, -2], [0, 2], [0, 2])
