"""The kernel language: words, and how they become LLVM vectors, tiles and memory accesses."""
