"""What kernels become: levels of processors, and the words of the language as LLVM instructions."""
