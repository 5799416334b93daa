import boltnumba.AffinityType;
import boltnumba.BoltException;
import boltnumba.BoltModel;
import boltnumba.BoltResult;
import boltnumba.DataType;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/** JavaApi DENSE LOOKUP SELECTOR: what a test wants of the Java API; the models are those of nets.py. */
public final class JavaApi {
    private interface Call {
        void go();
    }

    private static void want(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void refused(String text, Class<? extends Exception> kind, Call call) {
        try {
            call.go();
        } catch (RuntimeException error) {
            want(kind.isInstance(error) && error.getMessage().contains(text), error.toString());
            return;
        }
        throw new AssertionError("not refused: " + text);
    }

    private static void dense(String path) throws Exception {
        String[] names = {"x"};
        float[][] data = {new float[256]};
        Arrays.fill(data[0], 0.5f);
        try (BoltModel model = new BoltModel(path, AffinityType.CPU_LOW_POWER)) {
            want(model.getInputNames().equals(List.of("x")) && model.getOutputNames().equals(List.of("y")), "names");
            want(model.getInputDataType("x") == DataType.FP_32, "type");
            want(Arrays.equals(model.getInputDimension("x"), new long[] {64, 256}), "shape");
            refused("x: got 1024 bytes, wanted 65536", IllegalArgumentException.class, () -> model.run(names, data));
            refused("shapes: got x 2x256", BoltException.class, () -> model.run(names, new long[][] {{2, 256}}, data));
            BoltResult first = model.run(names, new long[][] {{1, 256}}, data);
            want(Arrays.equals(first.getResultDimension("y"), new long[] {1, 256}), "result");
            refused("shapes: got x 3x256", BoltException.class, () -> model.setInputShape("x", new long[] {3, 256}));
            refused("x: got 1 sizes, wanted 2", BoltException.class, () -> model.setInputShape("x", new long[] {3}));
            model.setInputShape("x", new long[] {64, 256});
            want(Arrays.equals(model.getOutputDimension("y"), new long[] {64, 256}), "shape of an output");
            refused("output: got z", IllegalArgumentException.class, () -> model.getOutputDimension("z"));
            model.setInputShape("x", new long[] {1, 256});
            model.setNumThreads(3);
            refused("threads: got 0", BoltException.class, () -> model.setNumThreads(0));
            refused("time limit: got -1", BoltException.class, () -> model.setTimeLimit(-1));
            model.setTimeLimit(600);
            try (BoltModel copy = model.clone()) {
                float[][] other = {new float[256]};
                float[][] made = new float[1][];
                Thread thread = new Thread(() -> made[0] = copy.run(names, data).getResultData("y"));
                thread.start();
                model.run(names, other);
                thread.join();
                want(Arrays.equals(made[0], first.getResultData("y")), "clone");
            }
            model.destructor();
            refused("after close", IllegalStateException.class, () -> model.run(names, data));
        }
    }

    private static void lookup(String path) throws IOException {
        byte[] bytes = Files.readAllBytes(Path.of(path));
        ByteBuffer at = ByteBuffer.allocate(32).order(ByteOrder.nativeOrder());
        ByteBuffer table = ByteBuffer.allocate(60).order(ByteOrder.nativeOrder());
        table.asFloatBuffer().put(new float[] {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14});
        at.asLongBuffer().put(new long[] {1, 0, 4, 2});
        String[] names = {"at", "table"};
        try (BoltModel model = new BoltModel(bytes, AffinityType.CPU)) {
            BoltResult result = model.run(names, new ByteBuffer[] {at, table});
            float[] wanted = {3, 4, 5, 0, 1, 2, 12, 13, 14, 6, 7, 8};
            want(Arrays.equals(result.getResultData("found"), wanted), "rows");
            want(result.getResultDataType("same") == DataType.INT_64, "type");
            want(result.getResultBytes("same").asLongBuffer().get(2) == 4, "bytes");
            at.asLongBuffer().put(2, 5);
            refused("got 5, wanted -5 to 4", BoltException.class, () -> model.run(names, new ByteBuffer[] {at, table}));
        }
        refused("modelPath: got null", NullPointerException.class, () -> new BoltModel(null));
        refused("data: got null", NullPointerException.class, () -> new BoltModel((byte[]) null, AffinityType.CPU));
        refused("no native program", BoltException.class, () -> new BoltModel(new byte[99], AffinityType.CPU));
    }

    private static void selector(String path) throws Exception {
        try (BoltModel model = new BoltModel(path, AffinityType.CPU)) {
            for (int count : new int[] {5, 0, 12}) {
                float[][] data = {new float[12]};
                Arrays.fill(data[0], 0, count, 1);
                BoltResult result = model.run(new String[] {"x"}, data);
                want(Arrays.equals(result.getResultDimension("places"), new long[] {2, count}), "places");
                want(result.getResultBytes("places").remaining() == 16 * count, "bytes of places");
                want(Arrays.equals(result.getResultDimension("halves"), new long[] {count, 2}), "halves");
                want(result.getResultData("times").length == (count > 0 ? 12 : 24), "branch");
            }
        }
    }

    public static void main(String[] args) throws Exception {
        dense(args[0]);
        lookup(args[1]);
        selector(args[2]);
        System.out.println("done");
    }
}
