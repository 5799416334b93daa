"""The files of an exported library that people read: header, source, example, and what build tools want."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import bolt_numba
from bolt_numba.base.types import dtype_name

if TYPE_CHECKING:
    from bolt_numba.export.library import Library
    from bolt_numba.export.plans import PlannedSets

_SHOWN_SETS = 20
"""Sets of shapes that the header lists."""


_EXAMPLE = r"""/* Runs the model once: main [FILE ...], each the raw bytes of an input; what is not given is 0.
   Prints the first numbers of each output of floats, and writes all of it to NUMBER.out in the current folder. */

#include <stdio.h>
#include <string.h>

#include "@NAME@.h"

static int failed(const bn_session *session, const char *what) {
    fprintf(stderr, "%s: %s\n", what, bn_error_message(session));
    return 1;
}

static int read_input(bn_session *session, int number, const char *path) {
    bn_info info;
    bn_session_input_info(session, number, &info);
    void *buffer = bn_session_input(session, number);
    if (buffer == NULL) return failed(session, info.name);
    if (path == NULL) return memset(buffer, 0, info.nbytes) == NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return perror(path), 1;
    size_t got = fread(buffer, 1, info.nbytes, file);
    int is_whole = got == info.nbytes && fgetc(file) == EOF;
    fclose(file);
    const char *how_many = got < info.nbytes ? "fewer" : "more";
    if (!is_whole) fprintf(stderr, "%s: got %s bytes, wanted %zu\n", path, how_many, info.nbytes);
    return !is_whole;
}

static void show_output(bn_session *session, int number) {
    bn_info info;
    char path[64];
    bn_session_output_info(session, number, &info);
    const float *numbers = bn_session_output(session, number);
    printf("%s:", info.name);
    for (size_t i = 0; info.dtype == BN_FLOAT && i < 8 && 4 * i < info.nbytes; i++) printf(" %g", numbers[i]);
    printf("\n");
    snprintf(path, sizeof path, "%d.out", number);
    FILE *file = fopen(path, "wb");
    if (file == NULL) return;
    fwrite(numbers, 1, info.nbytes, file);
    fclose(file);
}

int main(int argc, char **argv) {
    bn_model *model = NULL;
    bn_session *session = NULL;
    if (@NAME@_open(@WEIGHTS@&model) != BN_OK) return failed(NULL, "@NAME@");
    if (bn_session_create(model, NULL, &session) != BN_OK) return failed(NULL, "session");
    for (int i = 0; i < bn_session_inputs(session); i++)
        if (read_input(session, i, i + 1 < argc ? argv[i + 1] : NULL)) return 1;
    if (bn_session_run(session) != BN_OK) return failed(session, "run");
    for (int i = 0; i < bn_session_outputs(session); i++) show_output(session, i);
    bn_session_destroy(session);
    bn_model_close(model);
    return 0;
}
"""


def sources(library: Library, runtime: Sequence[str] = ()) -> dict[str, str]:
    """Texts by file name.  runtime: sources of the library in C that are compiled, too."""
    name = library.name
    return {
        f"{name}.h": _header(library), f"{name}.c": _source(library), "main.c": _example(library),
        "CMakeLists.txt": _cmake(library, runtime), f"{name}.pc": _pkg_config(library),
    }  # fmt: skip


def _comment(text: str) -> str:
    """Text that ends no comment."""
    return text.replace("*/", "* /")


def _values(library: Library) -> tuple[list[str], list[str], list[str], list[str]]:
    """Names of inputs and outputs, and a line for each that tells dtype and shape."""
    graph = library.program.planned.graph
    ins, outs = graph.caller_inputs, graph.caller_outputs
    told = [f"{dtype_name(v.type.dtype)}{_shape(v.type.shape)}" for v in (*ins, *(v for _, v in outs))]
    return [v.name for v in ins], [n for n, _ in outs], told[: len(ins)], told[len(ins) :]


def _shape(dims: Sequence[object] | None) -> str:
    return "" if dims is None else f"[{', '.join(map(str, dims))}]"


def _constants(names: Sequence[str], told: Sequence[str], prefix: str) -> Iterator[str]:
    """A constant for the number of each value."""
    seen: set[str] = set()
    for number, (name, text) in enumerate(zip(names, told, strict=True)):
        made = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or str(number)
        while made in seen:
            made = f"{made}_{number}"
        seen.add(made)
        yield f"    {prefix}_{made} = {number}, /* {_comment(name)}: {_comment(text)} */"


def _enum(names: Sequence[str], told: Sequence[str], prefix: str) -> list[str]:
    """The constants as an enum; C takes none without any."""
    return ["enum {", *_constants(names, told, prefix), "};", ""] if names else []


def _sets(names: Sequence[str], chain: PlannedSets) -> str:
    """The shapes that a plan is for."""
    most = "up to " if chain.sets > 1 else ""
    made = ", ".join(f"{n} {most}{_shape(s)}" for n, s in zip(names, chain.greatest, strict=False))
    return made if chain.sets == 1 else f"{made} ({chain.sets} sets of shapes)"


def _header(library: Library) -> str:
    name, up = library.name, library.name.upper()
    ins, outs, in_types, out_types = _values(library)
    found = library.program.planned
    sets = [_sets(ins, chain) for chain in found.chains]
    more = [f"   ... and {len(sets) - _SHOWN_SETS} more"] if len(sets) > _SHOWN_SETS else []
    given = "const char *weights_path, " if library.weights_file else ""
    where = f"   weights_path: the file {name}.weights.\n" if library.weights_file else ""
    return "\n".join([
        f"/* The model {_comment(found.graph.name)} for {found.cpu.isa.level}, by bolt_numba {bolt_numba.__version__}.",
        "   Runs for inputs of these shapes:",
        *(f"   {_comment(text)}" for text in sets[:_SHOWN_SETS]), *more,
        f"   A step is shared by up to {found.threads} threads. */",
        "", f"#ifndef {up}_H", f"#define {up}_H", "", '#include "bolt_numba.h"', "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        *_enum(ins, in_types, f"{up}_IN"), *_enum(outs, out_types, f"{up}_OUT"),
        "/* The model, for bn_session_create; give it back with bn_model_close.",
        f"{where}   BN_TARGET where the processor lacks instructions of {found.cpu.isa.level}. */",
        f"BN_API bn_status {name}_open({given}bn_model **model);", "",
        "#ifdef __cplusplus", "}", "#endif", "", "#endif", "",
    ])  # fmt: skip


def _source(library: Library) -> str:
    name, block = library.name, library.program.block
    path = "weights_path" if library.weights_file else "NULL"
    given = "const char *weights_path, " if library.weights_file else ""
    weights = [] if library.weights_file else [f"extern const unsigned char {name}_weights[];"]
    where = "NULL, 0, 0" if library.weights_file else f"{name}_weights, {sum(map(len, block.data))}, 1"
    kernels = library.symbols or ["NULL"]
    return "\n".join([
        f"/* Tells the library where the parts of the model are; {name}.o has them. */", "",
        f'#include "{name}.h"', "",
        f"extern const unsigned char {name}_program[];", *weights,
        *(f"void {symbol}(void *record, int64_t part, int64_t parts);" for symbol in library.symbols), "",
        "static const bn_kernel kernels[] = {", *(f"    {symbol}," for symbol in kernels), "};", "",
        f"bn_status {name}_open({given}bn_model **model) {{",
        f"    const bn_linked linked = {{{name}_program, {block.nbytes}, kernels, {len(library.symbols)}, {where}}};",
        f"    return bn_model_linked(&linked, {path}, model);", "}", "",
    ])  # fmt: skip


def _example(library: Library) -> str:
    weights = f'"{library.name}.weights", ' if library.weights_file else ""
    return _EXAMPLE.replace("@NAME@", library.name).replace("@WEIGHTS@", weights)


def objects(library: Library) -> list[str]:
    """Names of the objects that are there already."""
    return [f"{library.name}.o"]


def _cmake(library: Library, runtime: Sequence[str]) -> str:
    name = library.name
    paths = " ".join(f"${{CMAKE_CURRENT_SOURCE_DIR}}/{file}" for file in objects(library))
    sources = " ".join(f"runtime/{file}" for file in runtime)
    return f"""# add_subdirectory() of this folder gives the library {name}; alone, it builds the example, too.
cmake_minimum_required(VERSION 3.10)
project({name} C)
set(OBJECTS {paths})
set_source_files_properties(${{OBJECTS}} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
add_library({name} {name}.c {sources} ${{OBJECTS}})
set_target_properties({name} PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}} ${{CMAKE_CURRENT_SOURCE_DIR}}/runtime)
find_package(Threads REQUIRED)
target_link_libraries({name} PUBLIC Threads::Threads m)
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  add_executable({name}_example main.c)
  target_link_libraries({name}_example {name})
endif()
"""


def _pkg_config(library: Library) -> str:
    name = library.name
    return f"""prefix=${{pcfiledir}}

Name: {name}
Description: the model {library.program.planned.graph.name} for {library.program.planned.cpu.isa.level}
Version: {bolt_numba.__version__}
Cflags: -I${{prefix}} -I${{prefix}}/runtime
Libs: -L${{prefix}} -l{name} -lm -lpthread
"""
