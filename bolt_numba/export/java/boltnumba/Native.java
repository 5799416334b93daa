package boltnumba;

import java.nio.ByteBuffer;

/** The functions of jni.c.  Sessions are addresses; buffers are memory of theirs and must not outlive them. */
final class Native {
    static {
        String path = System.getProperty("boltnumba.library");
        if (path == null) {
            System.loadLibrary("bolt_numba_java");
        } else {
            System.load(path);
        }
    }

    private Native() {
    }

    static native long open(String path, int threads);

    static native long openBytes(byte[] data, int threads);

    static native long copy(long session);

    static native void destroy(long session);

    static native void setThreads(long session, int threads);

    static native void setTimeLimit(long session, double seconds);

    static native int count(long session, boolean outputs);

    static native String name(long session, boolean outputs, int number);

    /** The number of the dtype, then the sizes. */
    static native long[] type(long session, boolean outputs, int number);

    static native ByteBuffer buffer(long session, boolean outputs, int number);

    static native void resize(long session, long[][] shapes);

    static native void setInputShape(long session, int input, long[] shape);

    static native void run(long session);

    static native void resetState(long session);
}
