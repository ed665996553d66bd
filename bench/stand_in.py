"""A stand-in for a GPU, which holds CPU tensors of torch, plans for a simulated card, and launches nothing."""
import ctypes

import torch

from ferroflash._library import LIB, check


class NoGpu:
    """A device like `_devices.Cuda`, on the CPU."""

    device = torch.device("cpu")
    empty_like, zeros_like = staticmethod(torch.empty_like), staticmethod(torch.zeros_like)

    def __init__(self):
        self.context, self.number = ctypes.c_void_p(), 0
        check(LIB.ferroflash_context_create_simulator(b"h200", ctypes.byref(self.context)))

    def stream(self):
        return self.number

    def capturing(self):
        return False

    def dtype(self, name):
        return getattr(torch, name)

    def empty(self, count):
        return torch.empty(count, dtype=torch.uint8)

    def counters(self, _stream, count):
        return torch.zeros(count, dtype=torch.uint8)


class NoLaunch:
    """The library without launches."""

    def __getattr__(self, name):
        return getattr(LIB, name)

    def ferroflash_launch(self, *_arguments):
        return 0
