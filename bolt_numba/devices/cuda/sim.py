"""TEMPORARY place of the device's instance"""
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.devices.cuda.simulated import SimulatedGpu

DEVICE = Cuda("cuda-sim", SimulatedGpu())
