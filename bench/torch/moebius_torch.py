"""Our grouped products on torch's tensors (libmoebius_torch.so, a target of the presets with CUDA)."""

import ctypes

import torch

KINDS = {"fwd": 0, "dgrad": 1, "wgrad": 2}


class Moebius:
    def __init__(self, library, device=0):
        self.library = ctypes.CDLL(str(library))
        self.context = ctypes.c_void_p()
        self.call(self.library.moebius_torch_open, device, ctypes.byref(self.context))

    def call(self, function, *arguments):
        error = ctypes.create_string_buffer(2000)
        if function(*arguments, error, len(error)) != 0:
            raise RuntimeError(error.value.decode())

    def grouped_gemm(self, kind, a, b, split_sizes, out):
        """Of dense bf16 tensors on the card and i64 sizes: "fwd" x (M, K), W (E, N, K) → (M, N); "dgrad" dy (M, N), W → (M, K);
        "wgrad" dy, x → (E, N, K). On torch's current stream."""
        for tensor in (a, b, out):
            if not tensor.is_contiguous() or tensor.dtype != torch.bfloat16:
                raise ValueError("dense bf16 tensors are wanted")
        weight = out if kind == "wgrad" else b
        experts, outer, inner = weight.shape
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, out, split_sizes)]
        sizes = [ctypes.c_int64(size) for size in (experts, a.shape[0], outer, inner)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call(self.library.moebius_torch_grouped_gemm, self.context, stream, KINDS[kind], *pointers, *sizes)
        return out
