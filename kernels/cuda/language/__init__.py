"""The kernel language of CUDA: everything that becomes LLVM IR or PTX text stands in this folder, and nowhere else."""
