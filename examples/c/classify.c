/* Reads handwritten digits, raw floats on standard input, and prints for each how sure the model is of its best guess.

   bolt-numba export examples/digits/digits.onnx -o digits.bolt
   bolt-numba c-library -o build
   cc examples/c/classify.c -Ibuild -Lbuild -lbolt_numba -Wl,-rpath,build -o classify
   ./classify digits.bolt < images.raw */

#include <stdio.h>

#include "bolt_numba.h"

static int fail(const char *what, const bn_session *session) {
    fprintf(stderr, "%s: %s\n", what, bn_error_message(session));
    return 1;
}

int main(int argc, char **argv) {
    bn_model *model = NULL;
    bn_session *session = NULL;
    bn_info image, scores;
    if (argc != 2) return fprintf(stderr, "usage: classify MODEL.bolt < IMAGES\n"), 2;
    if (bn_model_open(argv[1], &model) != BN_OK) return fail("model", NULL);
    if (bn_session_create(model, NULL, &session) != BN_OK) return fail("session", NULL);
    bn_session_input_info(session, 0, &image);
    bn_session_output_info(session, 0, &scores);
    float *pixels = bn_session_input(session, 0);
    const float *score = bn_session_output(session, 0);
    if (pixels == NULL || score == NULL) return fail("memory", session);
    if (image.dtype != BN_FLOAT || scores.dtype != BN_FLOAT || image.nbytes == 0 || scores.nbytes == 0)
        return fprintf(stderr, "%s: wanted a model of images in floats that gives floats\n", argv[1]), 1;
    while (fread(pixels, 1, image.nbytes, stdin) == image.nbytes) {
        if (bn_session_run(session) != BN_OK) return fail("run", session);
        size_t best = 0, count = scores.nbytes / sizeof *score;
        for (size_t i = 1; i < count; i++)
            if (score[i] > score[best]) best = i;
        printf("%zu %.4f\n", best, (double)score[best]);
    }
    bn_session_destroy(session);
    bn_model_close(model);
    return 0;
}
