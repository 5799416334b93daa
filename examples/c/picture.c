/* Says what a picture shows: the five likeliest classes.  The model takes pixels as they were decoded, because the steps
   that resize and convert them are part of its graph; docs/c-api.md says how the files are made.

   cc examples/c/picture.c -Ibuild -Lbuild -lbolt_numba -Wl,-rpath,build -o picture
   ./picture picture.bolt labels.txt photo.ppm */

#include <string.h>

#include "bolt_numba.h"
#include "ppm.h"

enum { BEST = 5, LABEL = 128 };

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

/* The score of a class: a float, or a byte that counts 256ths, as TFLite's quantised networks give it. */
static double score_of(const void *scores, bn_dtype dtype, size_t number) {
    return dtype == BN_UINT8 ? ((const uint8_t *)scores)[number] / 256.0 : (double)((const float *)scores)[number];
}

/* The line of that number of a file, "" where it has fewer. */
static void label_of(FILE *labels, size_t number, char line[LABEL]) {
    rewind(labels);
    for (size_t i = 0; i <= number; i++)
        if (fgets(line, LABEL, labels) == NULL) line[0] = 0;
    line[strcspn(line, "\r\n")] = 0;
}

static size_t lines_of(FILE *labels) {
    size_t count = 0;
    for (char line[LABEL]; fgets(line, LABEL, labels) != NULL;) count++;
    return count;
}

/* Print the greatest scores, of equal ones the first. */
static void print_best(const void *scores, const bn_info *info, FILE *labels) {
    size_t count = info->nbytes / bn_dtype_size(info->dtype), best[BEST], kept = 0;
    for (size_t i = 0; i < count; i++) {
        double score = score_of(scores, info->dtype, i);
        size_t place = kept < BEST ? kept++ : BEST;
        for (; place > 0 && score_of(scores, info->dtype, best[place - 1]) < score; place--)
            if (place < BEST) best[place] = best[place - 1];
        if (place < BEST) best[place] = i;
    }
    for (size_t i = 0; i < kept; i++) {
        char line[LABEL];
        label_of(labels, best[i], line);
        printf("%5.1f %%  %s\n", 100 * score_of(scores, info->dtype, best[i]), line);
    }
}

int main(int argc, char **argv) {
    bn_model *model = NULL;
    bn_session *session = NULL;
    bn_info image, scores;
    picture photo;
    const char *wrong;
    if (argc != 4) return fprintf(stderr, "usage: picture MODEL.bolt LABELS.txt PICTURE.ppm\n"), 2;
    FILE *labels = fopen(argv[2], "r");
    if (labels == NULL) return fail(argv[2], "cannot be opened");
    if ((wrong = ppm_read(argv[3], &photo)) != NULL) return fail(argv[3], wrong);
    if (bn_model_open(argv[1], &model) != BN_OK) return fail("model", bn_error_message(NULL));
    if (bn_session_create(model, NULL, &session) != BN_OK) return fail("model", bn_error_message(NULL));
    bn_session_input_info(session, 0, &image);
    if (bn_session_inputs(session) != 1 || image.dtype != BN_UINT8 || image.rank != 3)
        return fail(argv[1], "wanted a model of one picture in bytes: its steps are to be part of its graph");
    const int64_t shape[] = {photo.height, photo.width, 3}, *shapes[] = {shape};
    size_t nbytes = 3 * (size_t)photo.height * (size_t)photo.width;
    if (bn_session_resize(session, shapes) != BN_OK || /* a plan for pictures of this size, if there is one */
        bn_session_bind_input(session, 0, photo.pixels, nbytes) != BN_OK || bn_session_run(session) != BN_OK)
        return fail(argv[3], bn_error_message(session));
    bn_session_output_info(session, 0, &scores);
    if (scores.dtype != BN_FLOAT && scores.dtype != BN_UINT8) return fail(scores.name, "wanted floats or bytes");
    if (lines_of(labels) != scores.nbytes / bn_dtype_size(scores.dtype))
        return fail(argv[2], "wanted a line for each class of the model");
    print_best(bn_session_output(session, 0), &scores, labels);
    bn_session_destroy(session);
    bn_model_close(model);
    free(photo.pixels);
    fclose(labels);
    return 0;
}
