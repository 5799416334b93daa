package boltnumba;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/** The outputs of one run, which are copies. */
public final class BoltResult {
    private record Output(DataType type, long[] shape, ByteBuffer data) {
    }

    private final Map<String, Output> outputs = new LinkedHashMap<>();

    void add(String name, DataType type, long[] shape, ByteBuffer data) {
        outputs.put(name, new Output(type, shape, data));
    }

    /** Names of the outputs, in their order. */
    public Set<String> getResultName() {
        return outputs.keySet();
    }

    public DataType getResultDataType(String name) {
        return output(name).type;
    }

    public long[] getResultDimension(String name) {
        return output(name).shape.clone();
    }

    /** The numbers of an output of FP_32. */
    public float[] getResultData(String name) {
        Output found = output(name);
        if (found.type != DataType.FP_32) {
            throw new IllegalArgumentException(name + ": got " + found.type + ", wanted FP_32; see getResultBytes");
        }
        float[] made = new float[found.data.capacity() / Float.BYTES];
        getResultBytes(name).asFloatBuffer().get(made);
        return made;
    }

    /** The numbers of any output, in the order of bytes of the machine. */
    public ByteBuffer getResultBytes(String name) {
        return output(name).data.asReadOnlyBuffer().order(ByteOrder.nativeOrder());
    }

    private Output output(String name) {
        Output found = outputs.get(name);
        if (found == null) {
            throw new IllegalArgumentException("output: got " + name + ", wanted one of " + outputs.keySet());
        }
        return found;
    }
}
