"""TEMPORARY: the agreed interface over the prototype, until the interpreter stands here."""
import sys

sys.path.insert(0, "/work/shared/prototypes/cuda")
import numpy as np
import ptxsim


class GlobalMemory:
    def __init__(self, nbytes=1 << 28):
        self.dev = ptxsim.Device(nbytes)

    def allocate(self, nbytes):
        d = self.dev
        b = d.top
        d.top = (b + nbytes + 511) // 256 * 256
        d.valid[b:b + nbytes] = True
        return ptxsim.GBASE + b

    def free(self, address):
        pass

    def write(self, address, array):
        b = address - ptxsim.GBASE
        self.dev.mem[b:b + array.nbytes] = array.reshape(-1).view(np.uint8)

    def read(self, address, array):
        b = address - ptxsim.GBASE
        array.reshape(-1).view(np.uint8)[...] = self.dev.mem[b:b + array.nbytes]


class Module:
    def __init__(self, ptx):
        self.ptx = ptx

    def launch(self, memory, grid, threads, args, shared=0):
        sim = ptxsim.Sim(self.ptx)
        sim.launch(memory.dev, grid, (threads,), args, dynsmem=shared)
        return sim.report()
