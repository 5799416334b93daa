/* Reads the text on a page with PP-OCR, as examples/ocr.py does: one network finds lines of text, another reads them.

   Lines are taken to be upright: a box is drawn around each region of likely pixels.  The network that finds them has a
   plan for pages of this size, with the steps that resize a page in its graph.  The other has plans for some widths; a
   line gets the smallest that it fits into, and grey behind it.  docs/c-api.md says how the files are made.

   cc examples/c/ocr.c -Ibuild -Lbuild -lbolt_numba -lm -Wl,-rpath,build -o ocr
   ./ocr detect.bolt read.bolt letters.txt page.ppm */

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "bolt_numba.h"
#include "ppm.h"

enum { HEIGHT = 48, STEP = 32, WIDEST = 3200, MIN_SIDE = 3, MAX_BOXES = 1000 };

static const double PIXEL_THRESHOLD = 0.3, BOX_THRESHOLD = 0.5, UNCLIP = 1.6;

typedef struct box {
    int64_t left, top, right, bottom; /* pixels; the last two are excluded */
} box;

typedef struct letters {
    char *text;   /* of the file, each line ended by 0 */
    char **lines; /* number i is what class i + 1 stands for; class 0 is nothing, the last is a blank */
    size_t count;
} letters;

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static void *room(size_t count, size_t nbytes) {
    void *made = calloc(count == 0 ? 1 : count, nbytes);
    if (made == NULL) exit(fail("ocr", "no memory"));
    return made;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* A session of a file; ends the program where there is none. */
static bn_session *opened(const char *path) {
    bn_model *model = NULL;
    bn_session *session = NULL;
    if (bn_model_open(path, &model) != BN_OK || bn_session_create(model, NULL, &session) != BN_OK)
        exit(fail("model", bn_error_message(NULL)));
    bn_model_close(model); /* its memory stays until the session ends */
    return session;
}

/* Whether the model takes one array of so many dimensions and this dtype. */
static bool takes(const bn_session *session, int rank, bn_dtype dtype) {
    bn_info info;
    return bn_session_inputs(session) == 1 && bn_session_input_info(session, 0, &info) == BN_OK && info.rank == rank &&
           info.dtype == dtype;
}

static letters letters_of(const char *path) {
    FILE *file = fopen(path, "rb");
    long nbytes = file == NULL || fseek(file, 0, SEEK_END) != 0 ? -1 : ftell(file);
    if (nbytes < 0) exit(fail(path, "cannot be read"));
    letters made = {room((size_t)nbytes + 1, 1), room((size_t)nbytes + 1, sizeof(char *)), 0};
    rewind(file);
    if (fread(made.text, 1, (size_t)nbytes, file) != (size_t)nbytes) exit(fail(path, "cannot be read"));
    fclose(file);
    for (char *line = made.text, *next; line != NULL && *line != 0; line = next) {
        if ((next = strchr(line, '\n')) != NULL) *next++ = 0;
        made.lines[made.count++] = line;
    }
    return made;
}

/* --- finding lines ------------------------------------------------------------------------------------------------ */

/* A map of probabilities, and which of its pixels belong to text: likely ones, and those right of and below them. */
typedef struct map {
    const float *probabilities;
    bool *is_text;
    int64_t height, width;
} map;

static map map_of(const float *probabilities, int64_t height, int64_t width) {
    map m = {probabilities, room((size_t)(height * width), sizeof(bool)), height, width};
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            if ((double)probabilities[y * width + x] > PIXEL_THRESHOLD)
                for (int64_t row = y; row < least(y + 2, height); row++)
                    for (int64_t column = x; column < least(x + 2, width); column++) m.is_text[row * width + column] = true;
    return m;
}

/* The box around all that is connected with a pixel, corners included, which is taken out of the map.  stack: room for
   all pixels. */
static box region_of(map *m, int64_t first, int64_t *stack) {
    box found = {m->width, m->height, 0, 0};
    int64_t count = 0;
    m->is_text[first] = false;
    stack[count++] = first;
    while (count > 0) {
        int64_t at = stack[--count], y = at / m->width, x = at % m->width;
        found = (box){least(found.left, x), least(found.top, y), most(found.right, x + 1), most(found.bottom, y + 1)};
        for (int64_t row = most(y - 1, 0); row < least(y + 2, m->height); row++)
            for (int64_t column = most(x - 1, 0); column < least(x + 2, m->width); column++)
                if (m->is_text[row * m->width + column]) {
                    m->is_text[row * m->width + column] = false;
                    stack[count++] = row * m->width + column;
                }
    }
    return found;
}

/* The mean of the likely pixels within a box. */
static double score_of(const map *m, box b) {
    double sum = 0, count = 0;
    for (int64_t y = b.top; y < b.bottom; y++)
        for (int64_t x = b.left; x < b.right; x++) {
            double p = (double)m->probabilities[y * m->width + x];
            if (p > PIXEL_THRESHOLD) sum += p, count += 1;
        }
    return count > 0 ? sum / count : 0;
}

/* Pixels of the page, grown by what training shrank regions by. */
static box grown(const map *m, box b, const picture *page) {
    double h = (double)(b.bottom - b.top), w = (double)(b.right - b.left), grow = h * w * UNCLIP / (2 * (h + w));
    double sx = (double)page->width / (double)m->width, sy = (double)page->height / (double)m->height;
    return (box){
        most((int64_t)rint(((double)b.left - grow) * sx), 0), most((int64_t)rint(((double)b.top - grow) * sy), 0),
        least((int64_t)rint(((double)b.right + grow) * sx), page->width),
        least((int64_t)rint(((double)b.bottom + grow) * sy), page->height)};
}

static int64_t short_side(box b) { return least(b.bottom - b.top, b.right - b.left); }

/* Boxes around lines of text; their number. */
static size_t find_boxes(map m, const picture *page, box boxes[MAX_BOXES]) {
    int64_t *stack = room((size_t)(m.height * m.width), sizeof *stack);
    size_t count = 0;
    for (int64_t at = 0; at < m.height * m.width && count < MAX_BOXES; at++) {
        if (!m.is_text[at]) continue;
        box found = region_of(&m, at, stack);
        if (score_of(&m, found) < BOX_THRESHOLD || short_side(found) < MIN_SIDE) continue;
        boxes[count] = grown(&m, found, page);
        if (short_side(boxes[count]) >= MIN_SIDE) count++;
    }
    free(stack);
    return count;
}

static int by_middle(const void *a, const void *b) {
    const box *p = a, *q = b;
    int64_t above = p->top + p->bottom - q->top - q->bottom;
    return above != 0 ? (above > 0) - (above < 0) : (p->left > q->left) - (p->left < q->left);
}

static int by_left(const void *a, const void *b) {
    const box *p = a, *q = b;
    return (p->left > q->left) - (p->left < q->left);
}

/* From top to bottom; what overlaps most of a line's height belongs to it, and goes from left to right. */
static void sort_boxes(box *boxes, size_t count) {
    qsort(boxes, count, sizeof *boxes, by_middle);
    for (size_t first = 0, i = 1; i <= count; i++) {
        const box *last = &boxes[i - 1];
        bool belongs = i < count && (double)(boxes[i].top + boxes[i].bottom) / 2 <
                                        (double)last->bottom - 0.3 * (double)(last->bottom - last->top);
        if (belongs) continue;
        qsort(&boxes[first], i - first, sizeof *boxes, by_left);
        first = i;
    }
}

/* --- reading a line ------------------------------------------------------------------------------------------------ */

/* Keys's cubic, of which resizing takes the weights of neighbours. */
static double cubic(double x) {
    x = fabs(x);
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((2.5 - 0.5 * x) * x - 4) * x + 2 : 0;
}

/* Resize a line of levels that lie `step` apart, as Pillow's BICUBIC does; one that shrinks has more neighbours. */
static void resize_levels(const uint8_t *from, int64_t size, int64_t step, uint8_t *to, int64_t made, int64_t to_step) {
    double scale = (double)size / (double)made, wide = fmax(scale, 1);
    for (int64_t i = 0; i < made; i++) {
        double middle = ((double)i + 0.5) * scale, sum = 0, total = 0;
        int64_t first = (int64_t)fmax(middle - 2 * wide + 0.5, 0), end = (int64_t)(middle + 2 * wide + 0.5);
        for (int64_t k = first; k < least(end, size); k++) {
            double weight = cubic(((double)k + 0.5 - middle) / wide);
            sum += weight * from[k * step], total += weight;
        }
        to[i * to_step] = (uint8_t)fmin(fmax(rint(sum / total), 0), 255);
    }
}

/* Resize a part of the page to HEIGHT x width, as [3, HEIGHT, line_width] floats from -1 to 1: blue, green, red; zeros
   behind. */
static void fill_line(float *line, int64_t line_width, const picture *page, box b, int64_t width) {
    int64_t rows = b.bottom - b.top, columns = b.right - b.left;
    uint8_t *narrow = room((size_t)(rows * width), 1), *made = room((size_t)(HEIGHT * width), 1);
    for (int channel = 2; channel >= 0; channel--) {
        const uint8_t *from = page->pixels + 3 * (b.top * page->width + b.left) + channel;
        for (int64_t y = 0; y < rows; y++)
            resize_levels(from + 3 * y * page->width, columns, 3, narrow + y * width, width, 1);
        for (int64_t x = 0; x < width; x++) resize_levels(narrow + x, rows, width, made + x, HEIGHT, width);
        for (int64_t y = 0; y < HEIGHT; y++)
            for (int64_t x = 0; x < line_width; x++) *line++ = x < width ? (float)(made[y * width + x] / 127.5 - 1) : 0;
    }
    free(narrow);
    free(made);
}

static bool has_plan(bn_session *session, int64_t width) {
    const int64_t shape[] = {1, 3, HEIGHT, width}, *shapes[] = {shape};
    return bn_session_resize(session, shapes) == BN_OK;
}

/* Choose the narrowest plan that a line fits into; its width, 0 where there is none. */
static int64_t chosen_plan(bn_session *session, int64_t width) {
    for (int64_t tried = (width + STEP - 1) / STEP * STEP; tried <= WIDEST; tried += STEP)
        if (has_plan(session, tried)) return tried;
    return has_plan(session, width) ? width : 0; /* the message then tells what was wanted */
}

/* Print the best path: for each place the likeliest class, without repetitions and class 0. */
static void print_text(const float *p, const bn_info *info, const letters *known, box b) {
    int64_t places = info->dims[1], classes = info->dims[2], before = -1;
    size_t length = 0;
    double sure = 0;
    char *text = room((size_t)places * 8 + 1, 1); /* a letter has at most 4 bytes; some classes have two letters */
    for (int64_t i = 0; i < places; i++, p += classes) {
        int64_t best = 0;
        for (int64_t j = 1; j < classes; j++)
            if (p[j] > p[best]) best = j;
        if (best != 0 && best != before) {
            const char *letter = (size_t)best <= known->count ? known->lines[best - 1] : " ";
            snprintf(text + strlen(text), 9, "%s", letter);
            sure += (double)p[best];
            length++;
        }
        before = best;
    }
    printf("%5lld %5lld %5lld x %-4lld %5.1f%%  %s\n", (long long)b.left, (long long)b.top, (long long)(b.right - b.left),
           (long long)(b.bottom - b.top), length > 0 ? 100 * sure / (double)length : 0.0, text);
    free(text);
}

static int read_line(bn_session *session, const letters *known, const picture *page, box b) {
    bn_info scores;
    int64_t width = (int64_t)rint((double)(b.right - b.left) * HEIGHT / (double)(b.bottom - b.top) / 8) * 8;
    int64_t line_width = chosen_plan(session, width = most(width, STEP));
    if (line_width == 0) return fail("line", bn_error_message(session));
    fill_line(bn_session_input(session, 0), line_width, page, b, width);
    if (bn_session_run(session) != BN_OK) return fail("line", bn_error_message(session));
    bn_session_output_info(session, 0, &scores);
    if (scores.rank != 3 || scores.dtype != BN_FLOAT) return fail(scores.name, "wanted floats [1, places, classes]");
    if (scores.dims[2] != (int64_t)known->count + 2) return fail("letters", "wanted a line for each class of the model");
    print_text(bn_session_output(session, 0), &scores, known, b);
    return 0;
}

int main(int argc, char **argv) {
    static box boxes[MAX_BOXES];
    picture page;
    bn_info found;
    const char *wrong;
    if (argc != 5) return fprintf(stderr, "usage: ocr DETECT.bolt READ.bolt LETTERS.txt PAGE.ppm\n"), 2;
    if ((wrong = ppm_read(argv[4], &page)) != NULL) return fail(argv[4], wrong);
    bn_session *detect = opened(argv[1]), *read = opened(argv[2]);
    letters known = letters_of(argv[3]);
    if (!takes(detect, 3, BN_UINT8) || !takes(read, 4, BN_FLOAT)) return fail("models", "wanted those of docs/c-api.md");
    const int64_t shape[] = {page.height, page.width, 3}, *shapes[] = {shape};
    size_t nbytes = 3 * (size_t)page.height * (size_t)page.width;
    if (bn_session_resize(detect, shapes) != BN_OK || bn_session_bind_input(detect, 0, page.pixels, nbytes) != BN_OK ||
        bn_session_run(detect) != BN_OK)
        return fail(argv[4], bn_error_message(detect));
    bn_session_output_info(detect, 0, &found);
    if (found.rank != 4 || found.dtype != BN_FLOAT) return fail(found.name, "wanted floats [1, 1, height, width]");
    map m = map_of(bn_session_output(detect, 0), found.dims[2], found.dims[3]);
    size_t count = find_boxes(m, &page, boxes);
    sort_boxes(boxes, count);
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) failed = read_line(read, &known, &page, boxes[i]);
    bn_session_destroy(detect);
    bn_session_destroy(read);
    free(m.is_text);
    free(known.text);
    free(known.lines);
    free(page.pixels);
    return failed;
}
