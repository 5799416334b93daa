package boltnumba;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/**
 * A model that `bolt-numba export` wrote, ready to run.  Calls of one object run one after another; for threads of
 * their own, clone it: clones share weights and code.
 */
public final class BoltModel implements AutoCloseable, Cloneable {
    private long session;

    public BoltModel(String modelPath) {
        this(modelPath, AffinityType.CPU);
    }

    public BoltModel(String modelPath, AffinityType affinity) {
        session = Native.open(Objects.requireNonNull(modelPath, "modelPath: got null"), affinity.threads);
    }

    /** Of the bytes of a file. */
    public BoltModel(byte[] data, AffinityType affinity) {
        session = Native.openBytes(Objects.requireNonNull(data, "data: got null"), affinity.threads);
    }

    private BoltModel(long session) {
        this.session = session;
    }

    /** A model for another thread, with weights and code of this one and memory of its own. */
    @Override
    public synchronized BoltModel clone() {
        return new BoltModel(Native.copy(live()));
    }

    /** Threads of a run, the caller's included. */
    public synchronized void setNumThreads(int threads) {
        Native.setThreads(live(), threads);
    }

    /** Seconds of one run, behind which no loop begins an iteration; 0 for no limit. */
    public synchronized void setTimeLimit(double seconds) {
        Native.setTimeLimit(live(), seconds);
    }

    public synchronized List<String> getInputNames() {
        return names(false);
    }

    public synchronized List<String> getOutputNames() {
        return names(true);
    }

    public synchronized DataType getInputDataType(String name) {
        return DataType.of((int) Native.type(live(), false, index(name))[0]);
    }

    public synchronized long[] getInputDimension(String name) {
        return shape(false, index(name));
    }

    /** For the shapes that the inputs have now; where data decide it, that of the last run. */
    public synchronized long[] getOutputDimension(String name) {
        int found = names(true).indexOf(name);
        if (found < 0) {
            throw new IllegalArgumentException("output: got " + name + ", wanted one of " + names(true));
        }
        return shape(true, found);
    }

    /**
     * The shape of one input; the others keep theirs.  Where others have to change, too, a run and
     * {@link #getOutputDimension} are refused until they have.
     */
    public synchronized void setInputShape(String name, long[] shape) {
        Native.setInputShape(live(), index(name), Objects.requireNonNull(shape, "shape: got null"));
    }

    /** Run with floats for each of the inputs named, which have the shapes that the model has now. */
    public synchronized BoltResult run(String[] names, float[][] data) {
        for (int i = 0; i < names.length; i++) {
            int number = index(names[i]);
            if (getInputDataType(names[i]) != DataType.FP_32) {
                throw new IllegalArgumentException(names[i] + ": got floats, wanted " + getInputDataType(names[i]));
            }
            ByteBuffer place = buffer(false, number);
            wantSize(names[i], (long) data[i].length * Float.BYTES, place);
            place.asFloatBuffer().put(data[i]);
        }
        return result();
    }

    /** The same with other shapes, for which the program must have been exported. */
    public synchronized BoltResult run(String[] names, long[][] shapes, float[][] data) {
        resize(names, shapes);
        return run(names, data);
    }

    /** Run with the bytes of numbers of any type, in the order of bytes of the machine. */
    public synchronized BoltResult run(String[] names, ByteBuffer[] data) {
        for (int i = 0; i < names.length; i++) {
            ByteBuffer place = buffer(false, index(names[i]));
            wantSize(names[i], data[i].remaining(), place);
            place.put(data[i].duplicate());
        }
        return result();
    }

    /** Have inputs of these shapes; inputs that are not named keep theirs. */
    public synchronized void resize(String[] names, long[][] shapes) {
        long[][] all = new long[Native.count(live(), false)][];
        for (int i = 0; i < all.length; i++) {
            all[i] = shape(false, i);
        }
        for (int i = 0; i < names.length; i++) {
            int number = index(names[i]);
            if (shapes[i].length != all[number].length) {
                throw new IllegalArgumentException(names[i] + ": got " + Arrays.toString(shapes[i]) + ", wanted "
                        + all[number].length + " sizes");
            }
            all[number] = shapes[i];
        }
        if (!same(all)) {
            Native.resize(live(), all);
        }
    }

    /** What the model keeps from run to run is as before the first. */
    public synchronized void resetState() {
        Native.resetState(live());
    }

    /** Free the memory; the same as {@link #close}. */
    public void destructor() {
        close();
    }

    @Override
    public synchronized void close() {
        if (session != 0) {
            Native.destroy(session);
            session = 0;
        }
    }

    private long live() {
        if (session == 0) {
            throw new IllegalStateException("model: got a call after close");
        }
        return session;
    }

    private List<String> names(boolean outputs) {
        List<String> found = new ArrayList<>();
        for (int i = 0; i < Native.count(live(), outputs); i++) {
            found.add(Native.name(session, outputs, i));
        }
        return found;
    }

    private int index(String name) {
        int found = names(false).indexOf(name);
        if (found < 0) {
            throw new IllegalArgumentException("input: got " + name + ", wanted one of " + names(false));
        }
        return found;
    }

    private long[] shape(boolean outputs, int number) {
        long[] type = Native.type(live(), outputs, number);
        return Arrays.copyOfRange(type, 1, type.length);
    }

    private boolean same(long[][] shapes) {
        for (int i = 0; i < shapes.length; i++) {
            if (!Arrays.equals(shapes[i], shape(false, i))) {
                return false;
            }
        }
        return true;
    }

    private ByteBuffer buffer(boolean outputs, int number) {
        return Native.buffer(live(), outputs, number).order(ByteOrder.nativeOrder());
    }

    private static void wantSize(String name, long nbytes, ByteBuffer place) {
        if (nbytes != place.capacity()) {
            throw new IllegalArgumentException(name + ": got " + nbytes + " bytes, wanted " + place.capacity());
        }
    }

    private BoltResult result() {
        Native.run(live());
        BoltResult made = new BoltResult();
        List<String> names = names(true);
        for (int i = 0; i < names.size(); i++) {
            ByteBuffer found = buffer(true, i);
            ByteBuffer copy = ByteBuffer.allocate(found.capacity()).put(found).rewind();
            DataType type = DataType.of((int) Native.type(session, true, i)[0]);
            made.add(names.get(i), type, shape(true, i), copy);
        }
        return made;
    }
}
