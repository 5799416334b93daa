package boltnumba;

/** Types of numbers, by the numbers of ONNX. */
public enum DataType {
    FP_32(1, 4), UINT_8(2, 1), INT_8(3, 1), UINT_16(4, 2), INT_16(5, 2), INT_32(6, 4), INT_64(7, 8), BOOL(9, 1),
    FP_16(10, 2), FP_64(11, 8), UINT_32(12, 4), UINT_64(13, 8), BF_16(16, 2);

    final int code;
    /** Bytes of a number. */
    public final int size;

    DataType(int code, int size) {
        this.code = code;
        this.size = size;
    }

    static DataType of(int code) {
        for (DataType type : values()) {
            if (type.code == code) {
                return type;
            }
        }
        throw new IllegalArgumentException("dtype: got " + code);
    }
}
