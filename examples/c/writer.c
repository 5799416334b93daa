/* Writes text, letter by letter, as examples/writer.py does.  What the model has seen, and how much, are its states: the
   program gives a letter a run and gets the probabilities of the next.

   python examples/writer.py --save writer.bolt
   cc examples/c/writer.c -Ibuild -Lbuild -lbolt_numba -Wl,-rpath,build -o writer
   ./writer writer.bolt 100 "A kernel " "The session " */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bolt_numba.h"

enum { LETTERS = 96 };

typedef struct decoder {
    bn_session *session;
    int64_t *token;             /* what the next run reads */
    const float *probabilities; /* what the last run gave */
    int64_t length;             /* letters that it can remember */
} decoder;

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

/* 0 for the end of a line, else the letter's place from the blank on, which is 1; -1 for what is not ASCII. */
static int token_of(char letter) {
    if (letter == '\n') return 0;
    return letter >= ' ' && letter <= '~' ? letter - 31 : -1;
}

static int letter_of(int token) { return token == 0 ? '\n' : token + 31; }

/* Read a letter and print it. */
static bn_status step(decoder *d, int token) {
    *d->token = token;
    bn_status status = bn_session_run(d->session);
    if (status == BN_OK) putchar(letter_of(token));
    return status;
}

/* The letter in whose share of 0 to 1 the next random number falls. */
static int drawn(const float *probabilities, uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u; /* Knuth's generator of linear congruences */
    double left = (double)(*seed >> 11) / 9007199254740992.0;    /* 2 ** 53 */
    int token = -1;
    while (left >= 0 && token < LETTERS - 1) left -= (double)probabilities[++token];
    return token;
}

/* Print the prompt and as many letters behind it, but no more than can be remembered. */
static int write_text(decoder *d, const char *prompt, long letters, uint64_t seed) {
    int64_t given = (int64_t)strlen(prompt);
    bn_status status = bn_session_reset_state(d->session);
    if (given < 1 || given > d->length) return fail(prompt, "too short or too long");
    if (letters > d->length - given) letters = (long)(d->length - given);
    for (const char *at = prompt; *at != 0 && status == BN_OK; at++) {
        int token = token_of(*at);
        if (token < 0) return fail(prompt, "wanted letters of ASCII");
        status = step(d, token);
    }
    for (long i = 0; i < letters && status == BN_OK; i++) status = step(d, drawn(d->probabilities, &seed));
    putchar('\n');
    return status == BN_OK ? 0 : fail("run", bn_error_message(d->session));
}

int main(int argc, char **argv) {
    bn_model *model = NULL;
    decoder d = {0};
    bn_info seen, token, next;
    char *end = NULL;
    long letters = argc < 4 ? -1 : strtol(argv[2], &end, 10);
    if (letters < 0 || end == argv[2] || *end != 0) return fprintf(stderr, "usage: writer MODEL.bolt LETTERS PROMPT...\n"), 2;
    if (bn_model_open(argv[1], &model) != BN_OK || bn_session_create(model, NULL, &d.session) != BN_OK)
        return fail("model", bn_error_message(NULL));
    if (bn_session_find(d.session, "past_k0", &seen) == NULL || seen.rank != 3 || bn_session_inputs(d.session) != 1 ||
        bn_session_input_info(d.session, 0, &token) != BN_OK || token.nbytes != sizeof *d.token ||
        bn_session_output_info(d.session, 0, &next) != BN_OK || next.nbytes != LETTERS * sizeof *d.probabilities)
        return fail(argv[1], "wanted the model of examples/writer.py");
    d.length = seen.dims[1];
    d.token = bn_session_input(d.session, 0);
    d.probabilities = bn_session_output(d.session, 0);
    int failed = 0;
    for (int i = 3; i < argc && !failed; i++) failed = write_text(&d, argv[i], letters, (uint64_t)(i - 3));
    bn_session_destroy(d.session);
    bn_model_close(model);
    return failed;
}
