"""DeepSpeed as a runtime of `step`: the model, deepspeed.initialize with the JSON as it stands, and dsplan's modelled
loop (make the batch, forward, keep the loss and drop the outputs, engine.backward, drop the loss, engine.step).

A world of one is a real one. In a larger one this process is the rank that --rank names (0 without it), in torch's fake
process group: it holds what that rank of many would hold, and no communicator. Stage 3 builds the model under
zero.Init, LoRA adapters after it, as PEFT's users do.

FusedAdam and DeepSpeedCPUAdam are compiled where that is possible. Where it is not, the receipt's JSON says what ran in
their place ("torch_adam": true), so that dsplan predicts the same.
"""

import copy
import gc
import os

from zero.ops import folder, why_not

folder()  # Before torch reads where extensions go.

import torch
import deepspeed

import pytorch_step
from pytorch_step import NotMeasured
from zero.host import Host
from zero.traffic import Traffic
from zero.world import environment_of, join, never_overflow

CONTEXT_AT_IMPORT = torch.cuda.is_initialized()  # Then a baseline taken afterwards holds the context already.


def run(job):
    if job.device.name == "fake":
        raise NotMeasured("DeepSpeed on FakeTensors is not measured")
    settings = settings_of(job)
    job.training = {**job.training, **plain_training(settings)}
    refuse_unknown(job.training)
    os.environ.update(environment_of(job.world_size, job.rank))
    pytorch_step.choose_attention(job)
    never_overflow()
    host = Host(job.device.name)
    entry = job.receipt.rank(job.rank)
    with job.phases("init"):
        traffic = Traffic(join(job.device.name, job.world_size, job.rank), job.world_size)
        model = model_of(job, settings)
        entry["parameters"] = pytorch_step.count(model)
        engine = engine_of(model, settings)
    del model
    gc.collect()
    gc.disable()  # No collection at a moment of its own choice.
    loop = Loop(job, engine, traffic)
    for name in ("first_step", "steady"):
        traffic.stretch = name
        with job.phases(name):
            loop.step()
    job.phases.persistent()
    entry["communication"] = traffic.rows()
    entry["memory"]["host"] = host.measured()
    for what, why in host.not_measured + unmeasured(job):
        job.receipt.not_measured(what, why, job.rank)
    traffic.stretch = "timed"
    loop.time_more(job.extra_steps)


def unmeasured(job):
    entries = []
    if job.world_size > 1:
        entries.append(("communicators", "a fake process group has none: process is without them"))
    if CONTEXT_AT_IMPORT:
        entries.append(("context", "CUDA was up before the baseline was taken: where process is capacity less free, "
                                   "the context is not in it"))
    return entries


def settings_of(job):
    """The JSON, and in its place what can run here. The receipt holds what ran."""
    if not job.deepspeed:
        raise NotMeasured('runtime deepspeed without a "deepspeed" object')
    settings = copy.deepcopy(job.deepspeed)
    if uses_nvme(settings) and why_not("AsyncIOBuilder"):
        raise NotMeasured(why_not("AsyncIOBuilder"))
    optimizer = settings.get("optimizer", {})
    if optimizer.get("type") not in ("Adam", "AdamW"):
        raise NotMeasured(f'"optimizer": {{"type": "{optimizer.get("type")}"}} is not measured')
    if not optimizer.get("params", {}).get("torch_adam"):
        reason = why_not("CPUAdamBuilder" if offloads(settings) else "FusedAdamBuilder")
        if reason:
            optimizer.setdefault("params", {})["torch_adam"] = True
            if offloads(settings):
                settings["zero_force_ds_cpu_optimizer"] = False
            job.receipt.not_measured("optimizer", f"torch.optim's Adam in its place: {reason}", job.rank)
    job.receipt.value["inputs"]["deepspeed"] = copy.deepcopy(settings)
    return settings


def offloads(settings):
    offload = settings.get("zero_optimization", {}).get("offload_optimizer") or {}
    return offload.get("device", "none") in ("cpu", "nvme")


def uses_nvme(settings):
    zero = settings.get("zero_optimization", {})
    return any((zero.get(key) or {}).get("device") == "nvme" for key in ("offload_optimizer", "offload_param"))


def plain_training(settings):
    """What a DeepSpeed JSON says in a training file's words."""
    dtype = next((name for name in ("bf16", "fp16") if settings.get(name, {}).get("enabled")), "fp32")
    return {"dtype": dtype, "micro_batch": settings["train_micro_batch_size_per_gpu"],
            "grad_accum": settings.get("gradient_accumulation_steps", 1), "autocast": "none"}


def refuse_unknown(training):
    taken = {**pytorch_step.TAKEN, "checkpoint_impl": ("non_reentrant", "reentrant", "deepspeed")}
    for key, values in taken.items():
        if training.get(key, values[0]) not in values:
            raise NotMeasured(f'"{key}": {training[key]!r} is not measured')


def model_of(job, settings):
    training = job.training
    if settings.get("zero_optimization", {}).get("stage") == 3:
        torch.manual_seed(0)
        with job.device.torch_device, deepspeed.zero.Init(config_dict_or_path=settings):
            model = pytorch_step.transformers.AutoModelForCausalLM.from_config(
                pytorch_step.config_of(job), dtype=pytorch_step.DTYPES[training["dtype"]],
                attn_implementation="eager" if training["attention"] == "eager" else "sdpa")
        model.train()
    else:
        model = pytorch_step.on_the_host(job)
        pytorch_step.to_the_device(model, job.device)
    base = model
    if training.get("lora"):
        with job.device.torch_device:
            model = pytorch_step.with_adapters(model, training["lora"], False)
    pytorch_step.freeze(model, training.get("freeze", []))
    checkpointed(base, training, settings)
    return model


def checkpointed(model, training, settings):
    if training.get("checkpoint_impl") != "deepspeed":
        pytorch_step.checkpointed(model, training)
    elif training["checkpoint"] == "full":
        deepspeed.checkpointing.configure(None, deepspeed_config=settings)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=deepspeed.checkpointing.checkpoint)


def engine_of(model, settings):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return deepspeed.initialize(model=model, model_parameters=trained, config=copy.deepcopy(settings))[0]


class Loop(pytorch_step.Loop):
    def __init__(self, job, engine, traffic):
        super().__init__(job, engine, None)
        self.traffic = traffic

    def step(self):
        engine, traffic, mark = self.model, self.traffic, self.job.phases.mark
        accumulated = self.training["grad_accum"]
        for at in range(accumulated):
            mark("before batch")
            self.held = self.batch()  # Replaces the one before it.
            mark("before forward")
            traffic.phase = "forward"
            loss = self.loss_of(self)
            mark("after forward")
            mark("before backward")
            traffic.phase = "backward"
            engine.backward(loss)
            del loss
            mark("after backward")
            traffic.phase = "step"
            if at == accumulated - 1:
                mark("before step")
            engine.step()
        mark("after step")
