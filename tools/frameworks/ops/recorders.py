"""Recorders for tools/oracles/operators.py that ask PyTorch's allocator of a GPU instead of the dispatcher."""
import torch

from .history import History
from .values import values_of

LARGE = 1 << 20  # The cases' own tensors are smaller; workspaces of the matrix libraries are not.


class CudaRecorder:
    """Real tensors on `device`. A new history begins with each `with`. Allocations of the sizes in `workspaces` are the
    libraries' own, kept for good by the handle that made them: they stand in `own` and not in the log."""
    device = torch.device("cuda", 0)

    def __init__(self, workspaces=(), memory=None):
        self.memory = memory or torch.cuda.memory
        self.workspaces = frozenset(size for size in workspaces if size >= LARGE)

    def __enter__(self):
        self.history, self.logs, self.own = History(), [], []
        self.memory._record_memory_history(None)
        self.memory._record_memory_history("all", context=None, stacks="python", max_entries=1_000_000)
        self.position = len(self.entries())
        return self

    def __exit__(self, *_):
        self.memory._record_memory_history(None)

    def entries(self):
        return self.memory._snapshot()["device_traces"][self.device.index]

    def synchronize(self):
        torch.cuda.synchronize(self.device)

    def take(self):
        self.synchronize()
        entries = self.entries()
        log = self.history.read(entries[self.position:])
        self.position = len(entries)
        self.own += [entry[2] for entry in log if entry[0] == "+" and entry[2] in self.workspaces]
        log = [entry for entry in log if self.history.sizes[entry[1]] not in self.workspaces]
        self.logs.append(log)
        return log

    def address_of(self, tensor):
        return tensor.untyped_storage().data_ptr()

    def serial_of(self, tensor):
        return self.history.live.get(self.address_of(tensor))

    def tensor(self, case, place, shape, dtype, requires_grad):
        if place == 0:
            self.first_shape = shape
        made = values_of(case["op"], place, shape, dtype, self.first_shape)
        return made.to(self.device).requires_grad_(requires_grad)

    def like(self, tensor):
        return torch.ones(tensor.shape, dtype=tensor.dtype, device=self.device)


def warm_up(recorder):
    """Makes the libraries' handles and their workspaces, in this thread and in that of the backward, and gives the
    sizes of what stayed. Whatever an old library cannot do is passed over."""
    def products(dtype):
        x = torch.ones(64, 64, dtype=dtype, device=recorder.device, requires_grad=True)
        yield lambda: (x @ x).sum()
        yield lambda: torch.nn.functional.linear(x, x, x[0]).sum()
        yield lambda: torch.addmm(x[0], x, x).sum()
        yield lambda: torch.bmm(x.view(4, 16, 64), x.view(4, 64, 16)).sum()
        image = x.view(1, 4, 32, 32)
        yield lambda: torch.nn.functional.conv2d(image, x.view(-1)[:144].view(4, 4, 3, 3), padding=1).sum()

    with recorder:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for product in products(dtype):
                try:
                    product().backward()
                except RuntimeError:
                    continue
        recorder.take()
        return recorder.history.live_sizes()
