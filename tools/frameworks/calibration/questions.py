"""Questions about a machine with one GPU that need no program of ours: each answered yes, no or unknown, with figures.

A GPU under a sandbox may deny what a bare one gives (process lists, tracing), and libraries' undocumented habits differ
by version: so the answers are data, asked again wherever the tools run.
"""
import contextlib
import ctypes
import glob
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from calibration.job import MEBI, Space, library

TOOL = pathlib.Path(__file__).resolve().parent.parent / "constants"
RANK_SECONDS = 60
# A second rank on one device is refused by pairs of (host, bus id), hence hosts that differ by name; newer versions
# have a switch. Few channels, because both ranks share the multiprocessors.
TWO_RANKS = {
    "nccl_hostid": {"NCCL_HOSTID": "dsplan-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_CTAS": "1"},
    "nccl_multi_rank_switch": {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "1"},
}


def worker(group, job, environment, arguments=()):
    """The command of another process of this tool, its environment and the file that its lines go to."""
    handle, path = tempfile.mkstemp(suffix=".jsonl")
    os.close(handle)
    command = [sys.executable, str(TOOL), "--worker", group, "--rows", path, "--device", job.kind, "--seconds",
               str(RANK_SECONDS), *(["--tiny"] if job.tiny else []), *arguments]
    return command, {**os.environ, **environment}, path


def nvml_process(job):
    """Does NVML list this process, and does it agree with what the device lost?"""
    with job.row("nvml_process"):
        space = Space(job)
        import torch
        block = torch.zeros(256 * MEBI, dtype=torch.uint8, device=job.kind)
        beyond = space.read()
        data = {"beyond_allocator": beyond, "how": space.how()}
        own = None
        if job.on_gpu:
            own = space.process.of_this_process()
            data.update(own=own, by_device=space.of_device(), reserved=torch.cuda.memory_reserved(),
                        device_total=space.process.capacity(), cuda_total=torch.cuda.mem_get_info()[1])
        listed = own is not None
        job.answer("nvml_process", "yes" if listed else "no", f"{space.how()}: {beyond} bytes beside the allocator", data)
        del block


def context_drift(job):
    """Is a context's size the same in every process?"""
    with job.row("context_drift"):
        sizes = []
        for _ in range(2 if job.tiny else 4):
            command, environment, path = worker("context", job, {"CUDA_MODULE_LOADING": "LAZY"})
            subprocess.run(command, env=environment, timeout=RANK_SECONDS, check=False, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            sizes += [row["row"]["value"] for row in read_lines(path) if row.get("row", {}).get("name") == "context"]
        drift = max(sizes) - min(sizes)
        job.answer("context_is_constant", "yes" if drift == 0 else "no",
                   f"{len(sizes)} fresh processes: {min(sizes)} to {max(sizes)} bytes", {"bytes": sizes})


def read_lines(path):
    """What a worker wrote; its file is removed."""
    import json
    with open(path, encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines if line.endswith("\n")]
    os.unlink(path)
    return found


def nccl_library(job):
    """Which NCCL is there, and can a program be built against it?"""
    with job.row("nccl_library"):
        import torch
        version = torch.cuda.nccl.version()
        folders = ["/usr/include", "/usr/local/include", "/usr/local/cuda/include",
                   *glob.glob(os.path.join(os.path.dirname(torch.__file__), "..", "nvidia", "*", "include"))]
        headers = {}
        for folder in folders:
            path = os.path.join(folder, "nccl.h")
            if os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    code = re.search(r"#define\s+NCCL_VERSION_CODE\s+(\d+)", text := file.read())
                parts = re.findall(r"#define\s+NCCL_(?:MAJOR|MINOR|PATCH)\s+(\d+)", text)
                headers[os.path.realpath(path)] = ".".join(parts) or (code and code[1])
        with contextlib.suppress(OSError):
            has_stats = hasattr(library("libnccl"), "ncclCommMemStats")
            job.answer("nccl_says_what_it_holds", "yes" if has_stats else "no", "ncclCommMemStats is in the library"
                       if has_stats else "the library has no ncclCommMemStats")
        shown = ".".join(map(str, version))
        job.answer("nccl_headers", "yes" if headers else "no",
                   f"NCCL {shown}; headers: {', '.join(map(str, headers.values())) or 'none found'}",
                   {"version": shown, "headers": headers})


def bit_equality(job):
    """Does the same product of the same matrices have the same bits every time?"""
    import torch
    shapes = ((64, 64, 64),) if job.tiny else ((4096, 4096, 4096), (2048, 14336, 4096), (512, 512, 16384),
                                               (4096, 128256, 512), (300, 700, 1100))
    cases = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for shape in shapes:
            name = f"{str(dtype).removeprefix('torch.')}:{'x'.join(map(str, shape))}"
            with job.row(f"gemm_bit_equality {name}", least_seconds=1) as measured:
                if measured:
                    cases[name] = repeated(job, dtype, shape)
    same = all(found["again"] for found in cases.values())
    moved = all(all(found.values()) for found in cases.values())
    job.answer("gemm_repeats_bit_equal", "yes" if cases and same else "no" if cases else "unknown",
               f"{sum(found['again'] for found in cases.values())} of {len(cases)} products repeat bit for bit; "
               + ("also" if moved else "not all") + " with moved inputs, another stream and new workspaces", cases)


def repeated(job, dtype, shape):
    """Whether repetitions equal the first: as it is, with inputs at other addresses, on another stream, and with new
    workspaces."""
    import torch
    m, n, k = shape
    a = torch.randn(m, k, device=job.kind, dtype=dtype)
    b = torch.randn(k, n, device=job.kind, dtype=dtype)
    first = a @ b
    found = {"again": all(torch.equal(first, a @ b) for _ in range(8))}
    padding = torch.empty(3 * MEBI + 512, dtype=torch.uint8, device=job.kind)
    found["moved"] = torch.equal(first, a.clone() @ b.clone())
    if job.on_gpu:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            other = a @ b
        torch.cuda.synchronize()
        found["other_stream"] = torch.equal(first, other)
        torch._C._cuda_clearCublasWorkspaces()
        found["new_workspace"] = torch.equal(first, a @ b)
    del padding
    return found


def two_ranks(job):
    """Do two processes reduce through NCCL on one GPU, by the trick that the argument names?"""
    name = job.argument
    with job.row(name), tempfile.TemporaryDirectory() as folder:
        ranks, paths = [], []
        for rank in range(2):
            trick = {key: value.format(rank=rank) for key, value in TWO_RANKS[name].items()}
            command, environment, path = worker("rank", job, {**trick, "NCCL_DEBUG": "WARN"},
                                                ["--rank", str(rank), "--store", f"{folder}/store"])
            with open(f"{folder}/{rank}.log", "w", encoding="utf-8") as log:
                ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            paths.append(path)
        end = time.monotonic() + RANK_SECONDS
        outcomes = [outcome_of(process, end) for process in ranks]
        lines = [line for path in paths for line in read_lines(path)]
        done = [line["answer"]["data"] for line in lines if "answer" in line]
        said = [telling(f"{folder}/{rank}.log") for rank in range(2)]
        worked = len(done) == 2 and all(entry["sum_is_right"] for entry in done)
        job.answer(name, "yes" if worked else "no",
                   "two ranks reduced on one device" if worked else f"ranks ended {outcomes}: {said[0] or said[1]}",
                   {"environment": TWO_RANKS[name], "ended": outcomes, "ranks": done, "said": said})


def outcome_of(process, end):
    """Exit code, or "hung" for one that had to be ended."""
    try:
        return process.wait(max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "hung"


def telling(path):
    """The line of a log that says most about a failure."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    marked = [line for line in lines if re.search(r"NCCL WARN|Duplicate GPU|Error", line)]
    return (marked or lines or [""])[0 if marked else -1][:300]


def rank(job, number, store):
    """One of the two processes."""
    import datetime
    import torch
    from torch import distributed
    space = Space(job)
    with job.row(f"rank {number}"):
        data = torch.full((MEBI,), float(number + 1), device=job.kind)
        before = space.read()
        distributed.init_process_group("nccl" if job.on_gpu else "gloo", init_method=f"file://{store}", rank=number,
                                       world_size=2, timeout=datetime.timedelta(seconds=RANK_SECONDS // 2))
        distributed.all_reduce(data)
        right = bool((data == 3).all().item())
        job.answer(f"rank {number}", "yes" if right else "no", "all_reduce over two ranks",
                   {"rank": number, "sum_is_right": right, "communicator_bytes": space.read() - before})
    # Leaving in order would wait for the other rank, which may have failed.
    os._exit(0)


def profiler(job):
    """Does PyTorch's profiler see kernels, and allocations?"""
    with job.row("profiler"):
        import torch
        from torch.profiler import ProfilerActivity, profile
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if job.on_gpu else [])
        x = torch.randn(256, 256, device=job.kind)
        with profile(activities=activities, profile_memory=True) as seen:
            (x @ x).sum().item()
        events = seen.events()
        kernels = [event for event in events if "CUDA" in str(event.device_type)]
        told = len(kernels) if job.on_gpu else len(events)
        job.answer("profiler_sees_kernels", "yes" if told else "no", f"{len(events)} events, {len(kernels)} of the device",
                   {"events": len(events), "kernels": [event.name for event in kernels][:20]})


def cupti_memory(job):
    """Does CUPTI report allocations of device memory (activity kind MEMORY2, 49)?"""
    with job.row("cupti_memory"):
        import torch
        cupti = library("libcupti")
        size, room = 2**20, []
        seen = {"bytes": 0}

        @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t),
                          ctypes.POINTER(ctypes.c_size_t))
        def requested(buffer, bytes_of_it, records):
            room.append(ctypes.create_string_buffer(size + 64))
            buffer[0] = (ctypes.addressof(room[-1]) + 63) // 64 * 64
            bytes_of_it[0], records[0] = size, 0

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        def completed(context, stream, buffer, bytes_of_it, valid):
            seen["bytes"] += valid

        codes = {"register": cupti.cuptiActivityRegisterCallbacks(requested, completed),
                 "enable": cupti.cuptiActivityEnable(49)}
        block = torch.zeros(64 * MEBI, dtype=torch.uint8, device=job.kind)
        torch.cuda.synchronize()
        codes["flush"] = cupti.cuptiActivityFlushAll(1)
        job.answer("cupti_reports_memory", "yes" if seen["bytes"] else "no",
                   f"{seen['bytes']} bytes of records; return codes {codes}", {"codes": codes, **seen})
        del block


def mapping_granularity(job):
    """In which units does the driver map memory (expandable segments, NCCL)?"""
    with job.row("mapping_granularity"):
        import torch
        torch.zeros(1, device=job.kind)

        class Properties(ctypes.Structure):
            """CUmemAllocationProp: pinned memory of device 0, no handle types."""
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int),
                        ("device", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        found = {}
        for word, flag in (("minimum", 0), ("recommended", 1)):
            bytes_of_it = ctypes.c_size_t()
            code = ctypes.CDLL("libcuda.so.1").cuMemGetAllocationGranularity(
                ctypes.byref(bytes_of_it), ctypes.byref(Properties(1, 0, 1, 0)), flag)
            found[word] = bytes_of_it.value if code == 0 else f"error {code}"
        job.answer("mapping_is_in_2_mib", "yes" if set(found.values()) == {2 * MEBI} else "no",
                   f"minimum {found['minimum']}, recommended {found['recommended']}", found)
