"""Asks PyTorch, transformers and bitsandbytes what an optimizer step allocates and frees on the device, in order.

    python tools/oracles/optimizers.py tests/witnesses/optimizers.json

Runs on FakeTensors of a CUDA device, so that no GPU is needed; what it sees are the dispatcher's allocations. A storage
counts from the first operator that returns it until its last reference is gone. What lies inside one CUDA kernel
launch (the scratch of _foreach_norm, of large reductions) is not visible here.
"""
import json
import sys
import types
import warnings
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
         torch.uint8: "uint8", torch.int32: "int32", torch.int64: "int64"}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


# In-place kernels without an implementation for FakeTensors. They take no memory (aten/src/ATen/native/cuda/
# FusedSgdKernel.cu, AmpKernels.cu), so that leaving them out changes nothing.
IN_PLACE = {"aten::_fused_sgd_", "aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"}


class Log(TorchDispatchMode):
    """Allocations "DTYPE BYTES" and frees "-BYTES" of device storages, in order."""

    def __init__(self):
        super().__init__()
        self.events, self.known, self.host = [], {}, 0
        self.live = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in IN_PLACE:
            return args[0] if func._schema.returns else None
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        return out

    def see(self, tensor, quietly=False):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if size == 0 or key in self.known:
            return
        device = tensor.device.type == "cuda"

        def gone(_):
            del self.known[key]
            if device:
                self.live -= size
                self.events.append(f"-{size}")

        self.known[key] = weakref.ref(storage, gone)
        if quietly:
            return
        if not device:
            self.host += 1
            return
        self.live += size
        self.peak = max(self.peak, self.live)
        self.events.append(f"{SHORT[tensor.dtype]} {size}")

    def take(self):
        events, self.events = self.events, []
        peak, self.peak = self.peak, self.live
        host, self.host = self.host, 0
        return {"log": events, "peak": peak, "held": self.live, "host_tensors": host}


def make_parameters(kinds):
    parameters = []
    for shape, dtype in kinds:
        parameters.append(torch.nn.Parameter(torch.empty(shape, device="cuda:0", dtype=dtype)))
        parameters[-1].grad = torch.empty_like(parameters[-1])
    return parameters


def run(kinds, act, prepare=lambda parameters: None):
    """The log of `act(parameters, prepared)` done twice, gradients being there each time. The cases below take it as an
    argument: tools/frameworks/ops runs the same on a GPU."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        parameters = make_parameters(kinds)
        log = Log()
        for parameter in parameters:
            log.see(parameter, quietly=True)
            log.see(parameter.grad, quietly=True)
        steps = []
        with log:
            prepared = prepare(parameters)
            constructed = log.take()
            for _ in range(2):
                act(parameters, prepared)
                steps.append(log.take())
        return {"parameters": [{"shape": list(s), "dtype": SHORT[d]} for s, d in kinds],
                "constructed": constructed["log"], "first": steps[0], "second": steps[1]}


SHAPES = [(64, 96), (4096,), (97, 64), (3,), (40, 128), (5000,)]
MATRICES = [(64, 96), (96, 64), (32, 32), (8, 200)]


def typed(shapes, *dtypes):
    return [(s, dtypes[i % len(dtypes)]) for i, s in enumerate(shapes)]


LISTS = {"bf16": typed(SHAPES, BF16), "fp32": typed(SHAPES, FP32), "mixed": typed(SHAPES, BF16, FP32),
         "three": typed(SHAPES, FP32, FP16, BF16)}
FORMS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}


def torch_cases(run):
    optim = torch.optim
    table = [("adam", optim.Adam, FORMS, [{}, {"weight_decay": 0.1}]),
             ("adamw", optim.AdamW, FORMS, [{"weight_decay": 0.1}]),
             ("sgd", optim.SGD, FORMS, [{}, {"weight_decay": 0.1}, {"momentum": 0.9},
                                        {"momentum": 0.9, "weight_decay": 0.1}]),
             ("adagrad", optim.Adagrad, ["foreach", "for-loop"], [{}, {"weight_decay": 0.1}]),
             ("rmsprop", optim.RMSprop, ["foreach", "for-loop"], [{}, {"weight_decay": 0.1}, {"momentum": 0.9}])]
    for name, kind, forms, settings in table:
        for form in forms:
            for setting in settings:
                for dtypes, kinds in LISTS.items():
                    prepare = lambda p: kind(p, **FORMS[form], **setting)
                    yield {"optimizer": name, "implementation": form, "dtypes": dtypes, **setting,
                           **run(kinds, lambda p, o: o.step(), prepare)}


def other_cases(run):
    for dtypes in ("bf16", "fp32"):
        kinds = typed(MATRICES, BF16 if dtypes == "bf16" else FP32)
        yield {"optimizer": "muon", "implementation": "for-loop", "dtypes": dtypes,
               **run(kinds, lambda p, o: o.step(), torch.optim.Muon)}
    from transformers.optimization import Adafactor
    for dtypes, kinds in LISTS.items():
        make = lambda p: Adafactor(p, lr=1e-3, scale_parameter=False, relative_step=False)
        yield {"optimizer": "adafactor", "implementation": "for-loop", "dtypes": dtypes,
               **run(kinds, lambda p, o: o.step(), make)}


def bitsandbytes_cases(run):
    """The kernels are replaced by nothing: they take no memory of their own."""
    import bitsandbytes
    import bitsandbytes.functional as F
    import bitsandbytes.optim.optimizer as module
    nothing = lambda *args, **kwargs: None
    for name in ("optimizer_update_8bit_blockwise", "optimizer_update_32bit"):
        setattr(F, name, nothing)
    module.sync_gpu = nothing
    real = F.create_dynamic_map(signed=True)
    F.create_dynamic_map = lambda *args, **kwargs: torch.zeros(real.numel(), dtype=real.dtype)  # Its values are read.
    # Managed memory is not PyTorch's: it counts as a tensor of the host.
    F.get_paged = lambda *shape, dtype, device: torch.zeros(shape, dtype=dtype, device="cpu")
    F.fill = nothing
    F.GlobalPageManager.prefetch_all = nothing
    module.Optimizer8bit.prefetch_state = nothing
    optim = bitsandbytes.optim
    table = [("adam8bit", optim.AdamW8bit, {}), ("lion", optim.Lion, {}), ("adamw32bit", optim.AdamW32bit, {}),
             ("lion8bit", optim.Lion8bit, {}), ("ademamix", optim.AdEMAMix, {}), ("ademamix8bit", optim.AdEMAMix8bit, {})]
    large = typed([(64, 96), (400, 256), (5000,), (99_999,)], BF16)
    for name, kind, setting in table:
        yield {"optimizer": name, "implementation": "fused", "dtypes": "bf16", "paged": True,
               **run(large, lambda p, o: o.step(), lambda p: kind(p, lr=1e-3, is_paged=True, **setting))}
    for name, kind, setting in table:
        for dtypes, kinds in LISTS.items():
            yield {"optimizer": name, "implementation": "fused", "dtypes": dtypes,
                   **run(kinds, lambda p, o: o.step(), lambda p: kind(p, lr=1e-3, **setting))}
    # The Trainer registers embeddings as 32-bit: here the first parameter.
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()

    def overridden(parameters):
        manager.initialize()
        module_ = types.SimpleNamespace(weight=parameters[0])
        manager.register_module_override(module_, "weight", {"optim_bits": 32})
        return bitsandbytes.optim.AdamW8bit(parameters, lr=1e-3)

    yield {"optimizer": "adam8bit", "implementation": "fused", "dtypes": "bf16", "embedding": 0,
           **run(LISTS["bf16"], lambda p, o: o.step(), overridden)}


def clip_cases(run):
    for form, foreach in (("foreach", None), ("for-loop", False)):
        for dtypes, kinds in LISTS.items():
            for keep in (False, True):
                kept = {}

                def act(parameters, _):
                    kept["norm"] = None
                    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
                    if keep:
                        kept["norm"] = norm

                yield {"action": "clip", "implementation": form, "keep": keep, "dtypes": dtypes, **run(kinds, act)}


def zero_cases(run):
    for set_to_none in (True, False):
        for dtypes, kinds in LISTS.items():
            made = lambda p: torch.optim.AdamW(p)

            def act(parameters, optimizer):
                if parameters[0].grad is not None:
                    optimizer.zero_grad(set_to_none=set_to_none)

            yield {"action": "zero_grad", "set_to_none": set_to_none, "dtypes": dtypes, **run(kinds, act, made)}


class Scaler(torch.amp.GradScaler):
    """No value can be read from a FakeTensor: no step is skipped."""

    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        return optimizer.step(*args, **kwargs)


def fake_scaler():
    torch.amp.grad_scaler.amp_definitely_not_available = lambda: False
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    scaler = Scaler("cuda")
    scaler._enabled = True
    return scaler


def scaler_cases(run, make_scaler=fake_scaler):
    """unscale_ (if asked), clip (if asked), step, update; the scale is there since the first backward."""
    for form in ("fused", "foreach", "for-loop"):
        for clip in (False, True):
            def prepare(parameters):
                return types.SimpleNamespace(scaler=make_scaler(), norm=None,
                                             optimizer=torch.optim.AdamW(parameters, **FORMS[form]))

            def act(parameters, made):
                loss = torch.zeros((), device="cuda:0")
                scaled = made.scaler.scale(loss)
                del loss, scaled
                made.norm = None
                if clip:
                    made.scaler.unscale_(made.optimizer)
                    made.norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                made.scaler.step(made.optimizer)
                made.scaler.update()

            yield {"action": "grad_scaler", "implementation": form, "clip": clip, "dtypes": "fp32",
                   **run(LISTS["fp32"], act, prepare)}


def main(path):
    import bitsandbytes
    import transformers
    torch._C._ensureCUDADeviceGuardSet()
    warnings.simplefilter("ignore")
    cases = []
    for source in (torch_cases, other_cases, bitsandbytes_cases, clip_cases, zero_cases, scaler_cases):
        cases += list(source(run))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__,
                "bitsandbytes": bitsandbytes.__version__}
    with open(path, "w") as out:
        out.write('{"versions": ' + json.dumps(versions) + ',\n "cases": [\n')
        out.write(",\n".join(json.dumps(case) for case in cases))
        out.write("\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
