"""Plain PyTorch and transformers: one GPU, dsplan's modelled loop (make the batch, forward, keep the loss and drop the
outputs, backward, drop the loss; after the micro-batches step and zero_grad)."""

import contextlib
import fnmatch
import gc
import sys

import torch
import transformers
from transformers.initialization import no_init_weights

from common.device import ORACLES

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# The modelled loop knows no others. The first of each: what a missing key means.
TAKEN = {"param_groups": ("single", "decay"), "loop": (None, "trainer", "minimal"), "seq_list": (None,),
         "zero_grad_set_to_none": (True,), "preserve_rng_state": (True, False), "checkpoint": ("none", "full")}


class NotMeasured(ValueError):
    """A training file that this loop does not run."""


def run(job):
    training = job.training
    for key, values in TAKEN.items():
        if training.get(key, values[0]) not in values:
            raise NotMeasured(f'"{key}": {training[key]!r} is not measured')
    if job.world_size > 1:
        raise NotMeasured("plain PyTorch on more than one GPU is not measured")
    choose_attention(job)
    with job.phases("init"):
        model = model_of(job)
        optimizer = optimizer_of(training, model)
    entry = job.receipt.rank(0)
    entry["parameters"] = count(model)
    job.receipt.not_measured("memory.host", "plain PyTorch keeps no tensor of the job on the host")
    gc.collect()
    gc.disable()  # No collection at a moment of its own choice; the loop makes no cycles.
    loop = Loop(job, model, optimizer)
    for name in ("first_step", "steady"):
        with job.phases(name):
            loop.step()
    job.phases.persistent()
    loop.time_more(job.extra_steps)


def choose_attention(job):
    """`flash`, `mem-efficient`, `math` and `cudnn` leave PyTorch no choice; `sdpa` leaves it to PyTorch, which prefers
    cuDNN's kernel on some GPUs. Global, because recomputation and backward ask again."""
    wished = job.training["attention"]
    if job.device.name == "fake":
        sys.modules["memory"].Composite.wished = wished
        return
    if wished in ("sdpa", "eager"):
        return
    if job.device.name == "cpu":  # Has flash and math only; which of them matters to nobody.
        return
    torch.backends.cuda.enable_flash_sdp(wished == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(wished == "mem-efficient")
    torch.backends.cuda.enable_math_sdp(wished == "math")
    torch.backends.cuda.enable_cudnn_sdp(wished == "cudnn")


def config_of(job):
    return transformers.AutoConfig.for_model(**job.model_config)


def model_of(job):
    """In its dtype on the device, with adapters, frozen parameters and checkpointing as the training file says."""
    training = job.training
    base = model = on_the_host(job)
    if training.get("lora"):
        model = with_adapters(model, training["lora"], job.device.name == "fake")
    to_the_device(model, job.device)
    freeze(model, training.get("freeze", []))
    checkpointed(base, training)
    return model


def on_the_host(job):
    """Made there without values, to be moved as Module.to() moves: parameters reach the device in the order of their
    registration, and tied ones once. Made on the device, the tied head would be there for a moment."""
    torch.manual_seed(0)
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(
            config_of(job), dtype=DTYPES[job.training["dtype"]],
            attn_implementation="eager" if job.training["attention"] == "eager" else "sdpa")
    model.tie_weights()
    return model.train()


def to_the_device(model, device):
    """And gives the parameters values, in place."""
    if device.name == "fake":
        moved(model, device.torch_device, {})
    else:
        model.to(device.torch_device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)


def moved(module, device, known):
    """Module.to() for fake parameters, which cannot be swapped. `known`: those that came before, by identity."""
    for child in module.children():
        moved(child, device, known)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            if id(parameter) not in known:
                made = torch.nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
                known[id(parameter)] = (made, parameter)  # Both, so that no other gets its identity.
            module._parameters[name] = known[id(parameter)][0]
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = buffer.to(device)


def freeze(model, patterns):
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)


def checkpointed(model, training):
    if training["checkpoint"] == "full":
        how = {"use_reentrant": training.get("checkpoint_impl") == "reentrant"}
        if not training.get("preserve_rng_state", True):
            how["preserve_rng_state"] = False
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def with_adapters(model, lora, fake):
    import peft
    if fake:  # Fake parameters cannot be swapped, as Module.to() would.
        torch.nn.Module._apply = sys.modules["memory"].converted
    return peft.get_peft_model(model, peft.LoraConfig(
        r=lora["r"], lora_alpha=lora.get("alpha", 2 * lora["r"]), lora_dropout=lora.get("dropout", 0.0),
        target_modules=lora["targets"], bias="none", task_type="CAUSAL_LM"),
        autocast_adapter_dtype=lora.get("dtype", "fp32") == "fp32")


def optimizer_of(training, model):
    chosen = training["optimizer"]
    how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}[
        chosen.get("implementation", "fused")]
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD,
             "adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop}
    if chosen["name"] not in kinds:
        raise NotMeasured(f'"optimizer": "{chosen["name"]}" is not measured')
    if "momentum" in chosen:
        how["momentum"] = chosen["momentum"]
    if "weight_decay" in chosen:
        how["weight_decay"] = chosen["weight_decay"]
    return kinds[chosen["name"]](groups_of(training, model), lr=1e-5, **how)


def groups_of(training, model):
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if training.get("param_groups", "single") == "single":
        return [p for _, p in trained]
    decayed = set(transformers.Trainer.get_decay_parameter_names(None, model))
    return [{"params": [p for name, p in trained if name in decayed], "weight_decay": 0.01},
            {"params": [p for name, p in trained if name not in decayed], "weight_decay": 0.0}]


def count(model):
    """Elements; a tied parameter counts once, a partitioned one whole."""
    total = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    return {"total": sum(size for size, _ in total), "trainable": sum(size for size, trains in total if trains)}


class Loop:
    """Attributes as the loss functions of tools/oracles/memory.py read them."""

    def __init__(self, job, model, optimizer):
        self.job = job
        self.model = model
        self.optimizer = optimizer
        self.training = job.training
        self.case = {"config": job.model_config}
        self.loss_of = loss_function(job)
        self.held = None

    def batch(self):
        return batch_of(self.job)

    def autocast(self):
        to = self.training.get("autocast") or "none"
        kind = self.job.device.torch_device.type
        return contextlib.nullcontext() if to == "none" else torch.autocast(kind, DTYPES[to])

    def step(self):
        mark = self.job.phases.mark
        for _ in range(self.training["grad_accum"]):
            mark("before batch")
            self.held = self.batch()  # Replaces the one before it.
            mark("before forward")
            with self.autocast():
                loss = self.loss_of(self)
            mark("after forward")
            mark("before backward")
            loss.backward()
            del loss
            mark("after backward")
        mark("before step")
        if self.training.get("max_grad_norm"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training["max_grad_norm"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("after step")  # Gradients are gone, as in a prediction and as after DeepSpeed's step.

    def time_more(self, steps):
        """Further steps for their time alone."""
        import time
        self.job.phases.marks = []
        for _ in range(steps if self.job.device.has_time else 0):
            self.job.device.synchronize()
            started = time.perf_counter_ns()
            self.step()
            self.job.device.synchronize()
            self.job.receipt.sample("steady", time.perf_counter_ns() - started)
        self.job.phases.marks = None


def batch_of(job):
    """Token ids and labels, int64, full rows; made on the host and copied, as a collator's are."""
    shape = (job.training["micro_batch"], job.training["seq"])
    if job.device.name == "fake":
        return {name: torch.empty(shape, dtype=torch.int64, device=job.device.torch_device)
                for name in ("input_ids", "labels")}
    top = job.model_config.get("vocab_size", 1000)
    host = torch.randint(0, top, shape)
    return {name: host.to(job.device.torch_device, copy=True) for name in ("input_ids", "labels")}


def loss_function(job):
    """From Loop to the loss. The losses that transformers lacks are written out in the oracle."""
    kind = job.training["loss"].split(":")[0]
    if ORACLES not in sys.path:
        sys.path.append(ORACLES)
    import memory as oracle
    if kind not in oracle.LOSSES:
        raise NotMeasured(f'"loss": "{job.training["loss"]}" is not measured')
    return liger_loss if kind == "liger" and job.device.name != "fake" else oracle.LOSSES[kind]


def liger_loss(loop):
    """Liger's forward of a causal model, for its loss alone, with its kernel."""
    import importlib
    import types
    family = importlib.import_module("liger_kernel.transformers.model." + loop.case["config"]["model_type"])
    forward = getattr(family, "lce_forward", None) or family.causal_forward
    return types.MethodType(forward, loop.model)(**loop.held, use_cache=False).loss
