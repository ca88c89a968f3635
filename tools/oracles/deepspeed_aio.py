"""Stand-ins for what DeepSpeed compiles: its file handle (async_io), its Adam for the host (cpu_adam) and for the
device (fused_adam), and its locked memory. All around them is DeepSpeed's own code. Files are read and written at
once; what is locked is an ordinary tensor whose storage is remembered.
"""

import os
import weakref

import torch

METER = []  # The one that runs.


class Pinned:
    """Storages that were pinned or locked, as long as they live."""

    def __init__(self):
        self.storages = {}

    def add(self, tensor):
        storage = tensor.untyped_storage()
        self.storages[id(storage)] = weakref.ref(storage)
        return tensor

    def has(self, tensor):
        storage = tensor.untyped_storage()
        known = self.storages.get(id(storage))
        return known is not None and known() is storage


PINNED = Pinned()


class Handle:
    """deepspeed_io_handle_t."""

    def __init__(self, *_, **__):
        self.pending = 0

    def async_pread(self, tensor, path, offset):
        return self.move("read", tensor, path, offset)

    def async_pwrite(self, tensor, path, offset):
        return self.move("write", tensor, path, offset)

    def move(self, what, tensor, path, offset):
        meter = METER[0]
        meter.pause += 1
        data = tensor.detach().view(torch.uint8).numpy()
        meter.pause -= 1
        with open(path, "r+b" if os.path.exists(path) else "w+b") as file:
            file.seek(offset)
            moved = file.readinto(data) if what == "read" else file.write(data)
        assert moved == data.nbytes, f"{what} {moved} of {data.nbytes} bytes of {path}"
        meter.write(f"{what} {data.nbytes} {os.path.basename(path).removesuffix('.tensor.swp')}")
        self.pending += 1
        return 0

    def wait(self):
        done, self.pending = self.pending, 0
        return done

    def new_cpu_locked_tensor(self, elements, example):
        return PINNED.add(torch.empty(elements, dtype=example.dtype))

    def free_cpu_locked_tensor(self, tensor):
        return True

    def is_pinned(self, tensor):
        return PINNED.has(tensor)


class AsyncIO:
    aio_handle = Handle


class Adam:
    """The functions of cpu_adam and fused_adam, in place, without weight decay."""

    def create_adam(self, *_):
        pass

    def destroy_adam(self, *_):
        pass

    def adam_update(self, number, step, lr, beta1, beta2, eps, decay, corrects, parameter, gradient, mean, square):
        meter = METER[0]
        meter.pause += 1
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (square / (1 - beta2 ** step)).sqrt_().add_(eps)
        parameter.addcdiv_(mean, scale, value=-lr / (1 - beta1 ** step))
        meter.pause -= 1

    def multi_tensor_adam(self, chunk, flag, lists, lr, beta1, beta2, eps, step, *_):
        for gradient, parameter, mean, square in zip(*lists):
            self.adam_update(0, step, lr, beta1, beta2, eps, 0, True, parameter, gradient, mean, square)


def install():
    """Before any engine is made."""
    from deepspeed.accelerator import get_accelerator
    for name, stand_in in (("AsyncIOBuilder", AsyncIO), ("CPUAdamBuilder", Adam()), ("FusedAdamBuilder", Adam())):
        builder = type(get_accelerator().create_op_builder(name))
        builder.load = lambda self, verbose=True, of=stand_in: of
        builder.is_compatible = lambda self, verbose=False: True
    get_accelerator().pin_memory = lambda tensor, make_copy=True, match_shape=True: PINNED.add(tensor)
