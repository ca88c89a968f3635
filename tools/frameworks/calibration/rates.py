"""Rates: copies by size and direction, matrix products by shape and dtype. Medians; the most telling sizes first."""
import time

from calibration.job import MEBI, times_ns

COPY_SIZES = (256 * MEBI, 16 * MEBI, MEBI, 1024 * MEBI, 65536, 4096)
# M (tokens), N (features out), K (features in): squares, then layers of models of 1 to 70 B, and thin ones.
SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (8192, 128256, 4096),
          (8192, 6144, 4096), (2048, 8192, 2048), (4096, 28672, 8192), (16384, 4096, 4096), (4096, 4096, 16384),
          (2048, 2048, 2048), (1024, 4096, 4096), (512, 4096, 4096), (1024, 1024, 1024), (8192, 768, 768),
          (8192, 3072, 768), (8192, 50257, 768), (8192, 50304, 768), (4096, 512, 4096), (4096, 4096, 512),
          (512, 512, 512), (256, 256, 256))
TINY_SHAPES = ((128, 128, 128), (64, 256, 128))
DTYPES = ("bf16", "fp16", "tf32", "fp32")
FEWER = {"fp32": 8, "tf32": 12}  # of SHAPES: slow ones take time that the others need


def wake(job):
    """An idle GPU runs at a fraction of its clock: the first figures would be too low."""
    if job.on_gpu:
        import torch
        x = torch.randn(4096, 4096, device=job.kind, dtype=torch.bfloat16)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            x @ x
            torch.cuda.synchronize()


def copies(job):
    """Both ways between host and device, pinned and pageable, and within the device. Bytes are counted once."""
    import torch
    wake(job)
    sizes = (MEBI, 65536) if job.tiny else COPY_SIZES
    for size in sizes:
        repeat = 5 if size > 512 * MEBI else 9
        inner = 1 if size >= 16 * MEBI else 20
        device = torch.ones(size, dtype=torch.uint8, device=job.kind)
        other = torch.zeros_like(device)
        kinds = {"d2d": (other, device, True)}
        for word, pin in (("pinned", True), ("pageable", False)):
            with job.row(f"host memory, {word}, of {size} bytes"):
                host = torch.ones(size, dtype=torch.uint8, pin_memory=pin and job.on_gpu)
                kinds[f"h2d_{word}"] = (device, host, pin)
                kinds[f"d2h_{word}"] = (host, device, pin)
        for kind, (target, source, without_waiting) in kinds.items():
            name = f"copy_{kind}:{size}"
            with job.row(name, least_seconds=0.5) as measured:
                if not measured:
                    continue
                nanoseconds = times_ns(job, lambda t=target, s=source, n=without_waiting: t.copy_(s, non_blocking=n),
                                       repeat, inner)
                job.add(name, [size * 1e9 / sample for sample in nanoseconds], "bytes_per_s",
                        f"Tensor.copy_, {inner} in a row, {repeat} times; "
                        + ("CUDA events" if job.on_gpu else "wall clock")
                        + ("; each byte is read and written, and counted once" if kind == "d2d" else ""))
        kinds.clear()
        del device, other


def gemms(job):
    """Products of random matrices: rates on zeros would be too good."""
    import torch
    wake(job)
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
    dtypes = ("bf16", "fp32") if not job.on_gpu else DTYPES
    for dtype in dtypes:
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        shapes = TINY_SHAPES if job.tiny else SHAPES[:FEWER.get(dtype, len(SHAPES))]
        for m, n, k in shapes:
            name = f"gemm:{dtype}:{m}x{n}x{k}"
            with job.row(name, least_seconds=0.5) as measured:
                if not measured:
                    continue
                flop = 2 * m * n * k
                left = torch.randn(m, k, device=job.kind, dtype=types[dtype])
                right = torch.randn(n, k, device=job.kind, dtype=types[dtype]).t()  # as a linear's weight lies
                out = torch.empty(m, n, device=job.kind, dtype=types[dtype])
                inner = max(1, min(200, int(8e12 / flop))) if job.on_gpu else 1
                nanoseconds = times_ns(job, lambda a=left, b=right, c=out: torch.mm(a, b, out=c), 7, inner, warm_up=3)
                job.add(name, [flop * 1e9 / sample for sample in nanoseconds], "flop_per_s",
                        f"torch.mm, M x K times (N x K) transposed, random data, {inner} in a row, 7 times")
                del left, right, out
