"""TFLite's schema in short: the fields of each table by place, and the names of enumerations by number.

A field is its name, its kind and its default, if that is not zero; "-" is a place that is no longer used.  A kind is a
NumPy code, with the enumeration that the number stands for, ``str``, a table, ``?Union``, or one of these in brackets:
a vector.  A union takes two places; the first has the number of its kind.  Source: schema.fbs of LiteRT 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bolt_numba.converters.flat import FlatField

_TABLES = """
CustomQuantization: custom [u1]
BlockwiseQuantization: scales i4, zero_points i4, block_size i4, block_shape [i4]
MultiAxisQuantization: scales i4, zero_points i4, block_size i4, quantized_dimensions [i4]
QuantizationParameters: min [f4], max [f4], scale [f4], zero_point [i8], details_type u1, details
    ?QuantizationDetails, quantized_dimension i4
Int32Vector: values [i4]
Uint16Vector: values [u2]
Uint8Vector: values [u1]
DimensionMetadata: format i1:DimensionType, dense_size i4, array_segments_type u1, array_segments ?SparseIndexVector,
    array_indices_type u1, array_indices ?SparseIndexVector
SparsityParameters: traversal_order [i4], block_map [i4], dim_metadata [DimensionMetadata]
VariantSubType: shape [i4], type i1:TensorType, has_rank b1
Tensor: shape [i4], type i1:TensorType, buffer u4, name str, quantization QuantizationParameters, is_variable b1,
    sparsity SparsityParameters, shape_signature [i4], has_rank b1, variant_tensors [VariantSubType], external_buffer
    u4
StablehloGatherOptions: offset_dims [i8], collapsed_slice_dims [i8], start_index_map [i8], index_vector_dim i8,
    slice_sizes [i8], indices_are_sorted b1
StablehloTransposeOptions: permutation [i8]
StablehloDotGeneralOptions: lhs_batching_dimensions [i8], rhs_batching_dimensions [i8], lhs_contracting_dimensions
    [i8], rhs_contracting_dimensions [i8], precision_config [u4]
StablehloReduceWindowOptions: window_dimensions [i8], window_strides [i8], base_dilations [i8], window_dilations [i8],
    padding [i8], body_subgraph_index i4
StablehloWhileOptions: cond_subgraph_index i4, body_subgraph_index i4
StablehloSortOptions: dimension i8, is_stable b1, comparator_subgraph_index i4
StablehloConcatenateOptions: dimension i8
StablehloBroadcastInDimOptions: broadcast_dimensions [i8]
StablehloCompareOptions: comparison_direction u4:Comparison, compare_type u4:ComparisonType
StablehloDynamicSliceOptions: slice_sizes [i8]
StablehloPadOptions: edge_padding_low [i8], edge_padding_high [i8], interior_padding [i8]
StablehloIotaOptions: iota_dimension i8
StablehloCustomCallOptions: call_target_name str, has_side_effect b1, backend_config str, api_version i4,
    called_computations [i4], custom_attributes [u1]
StablehloReduceOptions: dimensions [i8], body_subgraph_index i4
StablehloSliceOptions: start_indices [i8], limit_indices [i8], strides [i8]
StablehloConvolutionOptions: window_strides [i8], padding [i8], lhs_dilation [i8], rhs_dilation [i8], window_reversal
    [b1], input_batch_dimension i8, input_feature_dimension i8, input_spatial_dimensions [i8],
    kernel_input_feature_dimension i8, kernel_output_feature_dimension i8, kernel_spatial_dimensions [i8],
    output_batch_dimension i8, output_feature_dimension i8, output_spatial_dimensions [i8], feature_group_count i8,
    batch_group_count i8, precision_config [u4]
StablehloScatterOptions: indices_are_sorted b1, update_window_dims [i8], inserted_window_dims [i8],
    scatter_dims_to_operand_dims [i8], index_vector_dim i8, unique_indices b1, update_computation_subgraph_index i4
StablehloCaseOptions: branch_subgraph_indices [i4]
StablehloRngBitGeneratorOptions: algorithm i1:RngAlgorithm
Conv2DOptions: padding i1:Padding, stride_w i4, stride_h i4, fused_activation_function i1:Activation,
    dilation_w_factor i4=1, dilation_h_factor i4=1, quantized_bias_type i1:TensorType
Conv3DOptions: padding i1:Padding, stride_d i4, stride_w i4, stride_h i4, fused_activation_function i1:Activation,
    dilation_d_factor i4=1, dilation_w_factor i4=1, dilation_h_factor i4=1
Pool2DOptions: padding i1:Padding, stride_w i4, stride_h i4, filter_width i4, filter_height i4,
    fused_activation_function i1:Activation
DepthwiseConv2DOptions: padding i1:Padding, stride_w i4, stride_h i4, depth_multiplier i4, fused_activation_function
    i1:Activation, dilation_w_factor i4=1, dilation_h_factor i4=1
ConcatEmbeddingsOptions: num_channels i4, num_columns_per_channel [i4], embedding_dim_per_channel [i4]
LSHProjectionOptions: type i1:LSHProjectionType
SVDFOptions: rank i4, fused_activation_function i1:Activation, asymmetric_quantize_inputs b1
RNNOptions: fused_activation_function i1:Activation, asymmetric_quantize_inputs b1
SequenceRNNOptions: time_major b1, fused_activation_function i1:Activation, asymmetric_quantize_inputs b1
BidirectionalSequenceRNNOptions: time_major b1, fused_activation_function i1:Activation, merge_outputs b1,
    asymmetric_quantize_inputs b1
FullyConnectedOptions: fused_activation_function i1:Activation, weights_format i1:WeightsFormat, keep_num_dims b1,
    asymmetric_quantize_inputs b1, quantized_bias_type i1:TensorType, quant_spec [u1]
SoftmaxOptions: beta f4
ConcatenationOptions: axis i4, fused_activation_function i1:Activation
AddOptions: fused_activation_function i1:Activation, pot_scale_int16 b1=1
MulOptions: fused_activation_function i1:Activation
L2NormOptions: fused_activation_function i1:Activation
LocalResponseNormalizationOptions: radius i4, bias f4, alpha f4, beta f4
LSTMOptions: fused_activation_function i1:Activation, cell_clip f4, proj_clip f4, kernel_type i1:LSTMKernel,
    asymmetric_quantize_inputs b1
UnidirectionalSequenceLSTMOptions: fused_activation_function i1:Activation, cell_clip f4, proj_clip f4, time_major b1,
    asymmetric_quantize_inputs b1, diagonal_recurrent_tensors b1
BidirectionalSequenceLSTMOptions: fused_activation_function i1:Activation, cell_clip f4, proj_clip f4, merge_outputs
    b1, time_major b1=1, asymmetric_quantize_inputs b1
ResizeBilinearOptions: -, -, align_corners b1, half_pixel_centers b1
ResizeNearestNeighborOptions: align_corners b1, half_pixel_centers b1
CallOptions: subgraph u4
ReshapeOptions: new_shape [i4]
SkipGramOptions: ngram_size i4, max_skip_size i4, include_all_ngrams b1
SpaceToDepthOptions: block_size i4
DepthToSpaceOptions: block_size i4
SubOptions: fused_activation_function i1:Activation, pot_scale_int16 b1=1
DivOptions: fused_activation_function i1:Activation
EmbeddingLookupSparseOptions: combiner i1:Combiner
GatherOptions: axis i4, batch_dims i4
ReducerOptions: keep_dims b1
SqueezeOptions: squeeze_dims [i4]
SplitOptions: num_splits i4
SplitVOptions: num_splits i4
StridedSliceOptions: begin_mask i4, end_mask i4, ellipsis_mask i4, new_axis_mask i4, shrink_axis_mask i4, offset b1
CastOptions: in_data_type i1:TensorType, out_data_type i1:TensorType
ArgMaxOptions: output_type i1:TensorType
ArgMinOptions: output_type i1:TensorType
TransposeConvOptions: padding i1:Padding, stride_w i4, stride_h i4, fused_activation_function i1:Activation,
    quantized_bias_type i1:TensorType
SparseToDenseOptions: validate_indices b1
ShapeOptions: out_type i1:TensorType
FakeQuantOptions: min f4, max f4, num_bits i4, narrow_range b1
PackOptions: values_count i4, axis i4
OneHotOptions: axis i4
UnpackOptions: num i4, axis i4
LeakyReluOptions: alpha f4
MirrorPadOptions: mode i1:MirrorPadMode
UniqueOptions: idx_out_type i1:TensorType=2
ReverseSequenceOptions: seq_dim i4, batch_dim i4
IfOptions: then_subgraph_index i4, else_subgraph_index i4
CallOnceOptions: init_subgraph_index i4
WhileOptions: cond_subgraph_index i4, body_subgraph_index i4
BatchMatMulOptions: adj_x b1, adj_y b1, asymmetric_quantize_inputs b1
CumsumOptions: exclusive b1, reverse b1
HashtableOptions: table_id i4, key_dtype i1:TensorType, value_dtype i1:TensorType
VarHandleOptions: container str, shared_name str
RandomOptions: seed i8, seed2 i8
BucketizeOptions: boundaries [f4]
GeluOptions: approximate b1
ReduceWindowOptions: reduce_function i4:WindowFunction
OperatorCode: deprecated_builtin_code i1, custom_code str, version i4=1, builtin_code i4
StableHLOCompositeOptions: name str, decomposition_subgraph_index i4, composite_attributes [u1],
    composite_attributes_format i1, version i4
Operator: opcode_index u4, inputs [i4], outputs [i4], builtin_options_type u1, builtin_options ?BuiltinOptions,
    custom_options [u1], custom_options_format i1, mutating_variable_inputs [b1], intermediates [i4],
    large_custom_options_offset u8, large_custom_options_size u8, builtin_options2_type u1, builtin_options2
    ?BuiltinOptions2, debug_metadata_index i4=-1
SubGraph: tensors [Tensor], inputs [i4], outputs [i4], operators [Operator], name str, debug_metadata_index i4=-1
Buffer: data [u1], offset u8, size u8
ExternalBufferGroup: name str
ExternalBuffer: id u4, group u4, offset u8, length u8, packing str
Metadata: name str, buffer u4
TensorMap: name str, tensor_index u4
SignatureDef: inputs [TensorMap], outputs [TensorMap], signature_key str, -, subgraph_index u4
Model: version u4, operator_codes [OperatorCode], subgraphs [SubGraph], description str, buffers [Buffer],
    metadata_buffer [i4], metadata [Metadata], signature_defs [SignatureDef], external_buffer_groups
    [ExternalBufferGroup], external_buffers [ExternalBuffer]
"""

_ENUMS = """
Padding: SAME VALID
Activation: NONE RELU RELU_N1_TO_1 RELU6 TANH SIGN_BIT
WeightsFormat: DEFAULT SHUFFLED4x16INT8
LSTMKernel: FULL BASIC
Combiner: SUM MEAN SQRTN
MirrorPadMode: REFLECT SYMMETRIC
WindowFunction: UNSUPPORTED ADD MUL MINIMUM MAXIMUM ALL ANY
TensorType: FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 RESOURCE
    VARIANT UINT32 UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2
Comparison: EQ NE GE GT LE LT
ComparisonType: NOTYPE FLOAT FLOAT_TOTAL_ORDER SIGNED UNSIGNED
RngAlgorithm: DEFAULT PHILOX THREEFRY
DimensionType: DENSE SPARSE_CSR
LSHProjectionType: UNKNOWN SPARSE DENSE
QuantizationDetails: NONE CustomQuantization BlockwiseQuantization MultiAxisQuantization
SparseIndexVector: NONE Int32Vector Uint16Vector Uint8Vector
BuiltinOptions: NONE Conv2DOptions DepthwiseConv2DOptions ConcatEmbeddingsOptions LSHProjectionOptions Pool2DOptions
    SVDFOptions RNNOptions FullyConnectedOptions SoftmaxOptions ConcatenationOptions AddOptions L2NormOptions
    LocalResponseNormalizationOptions LSTMOptions ResizeBilinearOptions CallOptions ReshapeOptions SkipGramOptions
    SpaceToDepthOptions EmbeddingLookupSparseOptions MulOptions PadOptions GatherOptions BatchToSpaceNDOptions
    SpaceToBatchNDOptions TransposeOptions ReducerOptions SubOptions DivOptions SqueezeOptions SequenceRNNOptions
    StridedSliceOptions ExpOptions TopKV2Options SplitOptions LogSoftmaxOptions CastOptions DequantizeOptions
    MaximumMinimumOptions ArgMaxOptions LessOptions NegOptions PadV2Options GreaterOptions GreaterEqualOptions
    LessEqualOptions SelectOptions SliceOptions TransposeConvOptions SparseToDenseOptions TileOptions
    ExpandDimsOptions EqualOptions NotEqualOptions ShapeOptions PowOptions ArgMinOptions FakeQuantOptions PackOptions
    LogicalOrOptions OneHotOptions LogicalAndOptions LogicalNotOptions UnpackOptions FloorDivOptions SquareOptions
    ZerosLikeOptions FillOptions BidirectionalSequenceLSTMOptions BidirectionalSequenceRNNOptions
    UnidirectionalSequenceLSTMOptions FloorModOptions RangeOptions ResizeNearestNeighborOptions LeakyReluOptions
    SquaredDifferenceOptions MirrorPadOptions AbsOptions SplitVOptions UniqueOptions ReverseV2Options AddNOptions
    GatherNdOptions CosOptions WhereOptions RankOptions ReverseSequenceOptions MatrixDiagOptions QuantizeOptions
    MatrixSetDiagOptions HardSwishOptions IfOptions WhileOptions DepthToSpaceOptions NonMaxSuppressionV4Options
    NonMaxSuppressionV5Options ScatterNdOptions SelectV2Options DensifyOptions SegmentSumOptions BatchMatMulOptions
    CumsumOptions CallOnceOptions BroadcastToOptions Rfft2dOptions Conv3DOptions HashtableOptions HashtableFindOptions
    HashtableImportOptions HashtableSizeOptions VarHandleOptions ReadVariableOptions AssignVariableOptions
    RandomOptions BucketizeOptions GeluOptions DynamicUpdateSliceOptions UnsortedSegmentProdOptions
    UnsortedSegmentMaxOptions UnsortedSegmentMinOptions UnsortedSegmentSumOptions ATan2Options SignOptions
    BitcastOptions BitwiseXorOptions RightShiftOptions
BuiltinOptions2: NONE StablehloConcatenateOptions StablehloBroadcastInDimOptions StablehloSliceOptions
    StablehloConvolutionOptions StablehloCustomCallOptions StablehloReduceOptions StablehloScatterOptions
    StablehloCompareOptions StablehloDynamicSliceOptions StablehloPadOptions StablehloIotaOptions
    StablehloDotGeneralOptions StablehloReduceWindowOptions StablehloSortOptions StablehloWhileOptions
    StablehloGatherOptions StablehloTransposeOptions DilateOptions StablehloRngBitGeneratorOptions ReduceWindowOptions
    StableHLOCompositeOptions StablehloShiftLeftOptions StablehloCaseOptions
BuiltinOperator: ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
    EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION
    LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX
    SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD
    UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE
    UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE
    BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL
    SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW
    ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN
    FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE
    MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG
    QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND
    SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D
    CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL
    CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE
    RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
    UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC
    STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP
    STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL
    STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
    STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT
    STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
    STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL
    STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE
    STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""


def _rows(text: str) -> dict[str, str]:
    """Lines by what stands before their colon; an indented line goes on with the one before."""
    return dict(line.split(": ", 1) for line in text.replace("\n    ", " ").strip().splitlines())


ENUMS = {name: tuple(row.split()) for name, row in _rows(_ENUMS).items()}
"""Names by number."""


def _fields(text: str) -> tuple[FlatField | None, ...]:
    return tuple(None if row == "-" else _field(row) for row in text.split(", "))


def _field(row: str) -> FlatField:
    name, kind = row.split(" ")
    kind, _, default = kind.partition("=")
    vector = kind.startswith("[")
    kind, _, names = kind.strip("[]").partition(":")
    made = ENUMS[names] if names else ()
    if vector or not kind[-1].isdigit() or kind.startswith("?") or len(kind) != 2:
        return FlatField(name, kind, None, vector)
    value: float | int | bool = int(default or 0)
    value = bool(value) if kind == "b1" else float(value) if kind.startswith("f") else value
    return FlatField(name, kind, made[int(value)] if made else value, False, made)


class _Schema(Mapping[str, tuple[FlatField | None, ...]]):
    """Fields by table, each understood when it is first asked for; a table that is not listed has none."""

    def __init__(self, text: str) -> None:
        self._texts = _rows(text)
        self._made: dict[str, tuple[FlatField | None, ...]] = {}

    def __getitem__(self, table: str) -> tuple[FlatField | None, ...]:
        if table not in self._made:
            text = self._texts.get(table)
            self._made[table] = () if text is None else _fields(text)
        return self._made[table]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


TABLES = _Schema(_TABLES)
"""Fields by table."""
