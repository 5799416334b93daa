#!/bin/bash -eu
# What OSS-Fuzz calls to have the fuzzers in $OUT: one for each target of tests/fuzz/targets.py, with its seeds.
python3 -m pip install --quiet . onnx hypothesis pytest
python3 -m tests.fuzz seeds "$WORK/seeds"

# Readers and operators are found by the files of their folders, so the sources go along.
mkdir -p "$WORK/hooks"
for package in bolt_numba tests; do
    echo "module_collection_mode = 'py'" > "$WORK/hooks/hook-$package.py"
done

for folder in "$WORK"/seeds/*; do
    target=$(basename "$folder")
    zip --quiet --junk-paths "$OUT/fuzz_${target}_seed_corpus.zip" "$folder"/*
    if [ "$target" = program ]; then
        python3 -m tests.fuzz build "$OUT/fuzz_program"
        continue
    fi
    echo "from tests.fuzz.__main__ import start; start('$target')" > "fuzz_$target.py"
    compile_python_fuzzer "fuzz_$target.py" --additional-hooks-dir "$WORK/hooks" \
        --collect-submodules bolt_numba --collect-submodules tests.attack --collect-submodules tests.cases \
        --hidden-import tests.fuzz.targets --add-data examples/digits:examples/digits
done
