"""Memory that is no tensor's: context, handles, workspaces, communicators, first uses of kernels, pinned rounding.

Each function runs in a fresh process, because what is measured is paid once per process.
"""
import contextlib
import ctypes
import gc
import os
import tempfile

from calibration.job import MEBI, Space, library

# Created by hand, so that nothing of PyTorch's stands in the figure.
HANDLES = {"cublas_handle": ("libcublas", "cublasCreate_v2"), "cublaslt_handle": ("libcublasLt", "cublasLtCreate"),
           "cudnn_handle": ("libcudnn", "cudnnCreate")}
PINNED = (1, 4095, 4096, 4097, MEBI - 1, MEBI, MEBI + 1, 3 * MEBI, 64 * MEBI + 1, 96 * MEBI, 512 * MEBI + 1)


def first_tensor(job):
    import torch
    return torch.zeros(1, device=job.kind)


def context(job):
    """The context alone, then with PyTorch's first tensor, then after a training step; how modules load is in the
    environment of the process (CUDA_MODULE_LOADING)."""
    name = job.argument
    space = Space(job)
    before = 0 if job.on_gpu else space.read()
    import torch
    with job.row(name):
        if job.on_gpu:
            code = library("libcudart").cudaFree(None)
            if code:
                raise RuntimeError(f"cudaFree(0) returned {code}")
            job.add(f"{name}:bare", space.read(), "bytes", f"after cudaFree(0) only; {space.how()}")
        kept = first_tensor(job)
        job.add(name, space.read() - before, "bytes", f"after PyTorch's first tensor; {space.how()}; "
                f"CUDA_MODULE_LOADING={os.environ.get('CUDA_MODULE_LOADING', '')}")
        del kept
    with job.row(f"{name}:after_step"):
        small_step(job)
        job.add(f"{name}:after_step", space.read() - before, "bytes",
                f"after a small training step in bf16: context, handles and modules; {space.how()}")
    if job.on_gpu:
        with job.row(f"{name}:by_device"):
            job.add(f"{name}:by_device", space.of_device(), "bytes", "the device's memory in use, less before this "
                    "process and less PyTorch's allocator: others on the device would stand in it")
        if name != "context":
            return
        with job.row("capacity"):
            job.add("capacity", torch.cuda.mem_get_info()[1], "bytes", "cudaMemGetInfo's total")
            job.add("capacity:nvml", space.process.capacity(), "bytes", "NVML's total of the device")


def small_step(job):
    """Forward, backward and optimizer of a little transformer layer."""
    import torch
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, device=job.kind,
                                             dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(layer.parameters())
    out = layer(torch.randn(2, 16, 64, device=job.kind, dtype=torch.bfloat16))
    torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), torch.zeros(32, device=job.kind,
                                                                              dtype=torch.long)).backward()
    optimizer.step()
    job.synchronize()


def handle(job):
    """One handle, created by hand."""
    name = job.argument
    space = Space(job)
    with job.row(name):
        import torch  # noqa: F401: brings the libraries
        kept = first_tensor(job)
        before = space.read()
        stem, create = HANDLES[name]
        pointer = ctypes.c_void_p()
        code = getattr(library(stem), create)(ctypes.byref(pointer))
        if code:
            raise RuntimeError(f"{create} returned {code}")
        job.add(name, space.read() - before, "bytes", f"before and after {create}; {space.how()}")
        del kept


def first_uses(job):
    """What the first call of each kind of kernel adds, in the order of a training step: modules that load lazily."""
    import torch
    from torch.nn import functional
    space = Space(job)
    kept = first_tensor(job)
    bf16 = torch.bfloat16
    x = torch.randn(64, 64, device=job.kind, dtype=bf16, requires_grad=True)
    heads = torch.randn(1, 2, 64, 64, device=job.kind, dtype=bf16, requires_grad=True)
    image = torch.randn(1, 3, 16, 16, device=job.kind, dtype=bf16)
    parameter = torch.nn.Parameter(torch.ones(64, device=job.kind))
    parameter.grad = torch.ones_like(parameter)
    uses = {
        "elementwise": lambda: (x * 2).sum().item(),
        "gemm": lambda: (x @ x).sum().item(),
        "linear_bias": lambda: functional.linear(x, x, x[0]).sum().item(),
        "layer_norm": lambda: functional.layer_norm(x, (64,)).sum().item(),
        "sdpa": lambda: functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum().item(),
        "cross_entropy": lambda: functional.cross_entropy(x.float(), torch.zeros(64, device=job.kind,
                                                                               dtype=torch.long)).item(),
        "backward_gemm": lambda: (x @ x).sum().backward(),
        "backward_sdpa": lambda: functional.scaled_dot_product_attention(heads, heads, heads,
                                                                         is_causal=True).sum().backward(),
        "conv": lambda: functional.conv2d(image, torch.randn(4, 3, 3, 3, device=job.kind, dtype=bf16)).sum().item(),
        "adamw_foreach": lambda: torch.optim.AdamW([parameter], foreach=True).step(),
        "adamw_fused": lambda: torch.optim.AdamW([parameter], fused=True).step(),
    }
    for name, use in uses.items():
        with job.row(f"first_use:{name}"):
            before = space.read()
            use()
            job.add(f"first_use:{name}", space.read() - before, "bytes",
                    f"before and after, in the order {', '.join(uses)}; {space.how()}")
    del kept


class Held:
    """Requested bytes of PyTorch's allocator; elsewhere of live storages, as the dispatcher sees them."""

    def __init__(self, job):
        import torch
        from common.device import device_of
        self.torch, self.job = torch, job
        self.device = None if job.on_gpu else device_of("cpu")

    def running(self):
        return contextlib.nullcontext() if self.device is None else self.device.running()

    def current(self):
        gc.collect()
        self.job.synchronize()
        if self.device is not None:
            return self.device.counters()["requested"]
        return self.torch.cuda.memory_stats()["requested_bytes.all.current"]


def workspaces(job):
    """What products leave behind in the caching allocator, by thread and stream: kept for the life of the process."""
    import torch
    from torch.nn import functional
    held = Held(job)
    kept = first_tensor(job)
    with held.running():
        def fresh(grad=False):
            return torch.randn(256, 256, device=job.kind, dtype=torch.bfloat16, requires_grad=grad)

        def left_by(use):
            before = held.current()
            use()
            return held.current() - before

        def backward_of(forward):
            x = fresh(grad=True)
            y = forward(x)
            return left_by(lambda: torch.autograd.grad(y.sum(), x) and None)

        def on_side_stream():
            with torch.cuda.stream(torch.cuda.Stream()):
                fresh() @ fresh()
            torch.cuda.synchronize()

        conf = f"CUBLAS_WORKSPACE_CONFIG={os.environ.get('CUBLAS_WORKSPACE_CONFIG', '')}"
        rows = [
            ("cublas_workspace", lambda: left_by(lambda: (fresh() @ fresh()) is None), "first x @ x"),
            ("cublas_workspace:again", lambda: left_by(lambda: (fresh() @ fresh()) is None), "second x @ x"),
            ("cublaslt_workspace", lambda: left_by(lambda: functional.linear(fresh(), fresh(), fresh()[0]) is None),
             "first linear with a bias, after x @ x"),
            ("cublas_workspace:backward_thread", lambda: backward_of(lambda x: x @ x.detach()),
             "first backward of x @ x"),
            ("cublaslt_workspace:backward_thread", lambda: backward_of(
                lambda x: functional.linear(x, x.detach(), x.detach()[0])),
             "backward of a linear with a bias, after that of x @ x"),
        ]
        if job.on_gpu:
            rows.append(("cublas_workspace:side_stream", lambda: left_by(on_side_stream), "x @ x on another stream"))
        for name, measure, how in rows:
            with job.row(name):
                job.add(name, measure(), "bytes", f"requested bytes that stay allocated after the {how}; {conf}")
    del kept


def communicator(job):
    """One rank's communicator, after each collective has been used once."""
    import torch
    from torch import distributed
    name = job.argument
    space = Space(job)
    with job.row(name), tempfile.TemporaryDirectory() as folder:
        kept = first_tensor(job)
        options = None
        if job.on_gpu and name.endswith("max_ctas_1"):
            options = distributed.ProcessGroupNCCL.Options()
            options.config.max_ctas = 1
        # All that the collectives themselves load first, in a device's memory, comes before the first reading.
        data = torch.ones(4 * MEBI, device=job.kind)
        torch.cat([data[:8], data[8:16]]).sum().item()
        before = space.read()
        distributed.init_process_group("nccl" if job.on_gpu else "gloo", init_method=f"file://{folder}/store",
                                       rank=0, world_size=1, pg_options=options)
        try:
            distributed.all_reduce(data)
            job.synchronize()
            job.add(f"{name}:first_all_reduce", space.read() - before, "bytes",
                    f"the communicator and the first all_reduce; {space.how()}")
            distributed.all_gather_into_tensor(torch.empty_like(data), data)
            if job.on_gpu:
                distributed.reduce_scatter_tensor(torch.empty_like(data), data)
            distributed.broadcast(data, 0)
            job.synchronize()
            version = ".".join(map(str, torch.cuda.nccl.version())) if job.on_gpu else "gloo"
            job.add(name, space.read() - before, "bytes",
                    f"init_process_group with one rank, then each collective once, NCCL {version}; {space.how()}")
        finally:
            distributed.destroy_process_group()
        del kept


def pinned(job):
    """What PyTorch's allocator of pinned memory takes for a request; elsewhere what the process' memory grows by."""
    import torch
    kept = first_tensor(job)

    def taken():
        return torch.cuda.host_memory_stats()["allocated_bytes.current"] if job.on_gpu else Space(job).read()

    sizes = PINNED[:6] if job.tiny else PINNED
    for size in sizes:
        with job.row(f"pinned_rounding:{size}", least_seconds=1) as measured:
            if not measured:
                continue
            gc.collect()
            if job.on_gpu:
                torch._C._host_emptyCache()
            before = taken()
            data = torch.empty(size, dtype=torch.uint8, pin_memory=job.on_gpu)
            data.fill_(1)
            job.add(f"pinned_rounding:{size}", taken() - before, "bytes",
                    "host_memory_stats: allocated_bytes" if job.on_gpu else "growth of the process' resident memory")
            del data
    del kept
