import boltnumba.AffinityType;
import boltnumba.BoltException;
import boltnumba.BoltModel;
import boltnumba.BoltResult;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Reads handwritten digits, raw floats in a file, and prints for each the best guess.
 *
 * <pre>
 * bolt-numba export examples/digits/digits.onnx -o digits.bolt --shape image=1,1,8,8
 * bolt-numba c-library --java -o build
 * java -cp build/bolt_numba.jar -Djava.library.path=build examples/java/Classify.java digits.bolt images.raw
 * </pre>
 */
public final class Classify {
    public static void main(String[] args) throws IOException {
        if (args.length != 2) {
            System.err.println("usage: Classify MODEL.bolt IMAGES");
            System.exit(2);
        }
        ByteBuffer images = ByteBuffer.wrap(Files.readAllBytes(Path.of(args[1]))).order(ByteOrder.LITTLE_ENDIAN);
        try (BoltModel model = new BoltModel(args[0], AffinityType.CPU_HIGH_PERFORMANCE)) {
            String input = model.getInputNames().get(0);
            String output = model.getOutputNames().get(0);
            long[] shape = model.getInputDimension(input);
            float[] image = new float[(int) (shape[1] * shape[2] * shape[3])];
            while (images.remaining() >= image.length * Float.BYTES) {
                images.asFloatBuffer().get(image);
                images.position(images.position() + image.length * Float.BYTES);
                BoltResult result = model.run(new String[] {input}, new float[][] {image});
                System.out.println(best(result.getResultData(output)));
            }
        } catch (BoltException error) {
            System.err.println(error.getMessage());
            System.exit(1);
        }
    }

    private static int best(float[] scores) {
        int found = 0;
        for (int i = 1; i < scores.length; i++) {
            found = scores[i] > scores[found] ? i : found;
        }
        return found;
    }
}
