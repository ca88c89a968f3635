"""One job in a process of its own: the model, a few training steps, and after each phase what the allocator says.

Runs in a fork of a process that has imported torch, so that a small job takes a second. The training file of a job is
dsplan's own; what it cannot say stands beside it: device, capacity, events, DeepSpeed JSON, rank and world.
"""

import contextlib
import fnmatch
import gc
import json
import os
import sys
import tempfile
import time
import traceback

from . import model_config, pictures

WHAT = ("requested", "allocated", "reserved", "active")
KERNELS = {"flash": "flash", "cudnn": "cudnn", "mem-efficient": "mem_efficient", "math": "math"}
IMPLEMENTATIONS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}


class Meter:
    """Peaks of each phase. `where` is the phase that runs, for the out-of-memory error that ends it."""

    def __init__(self, settle, hooked):
        import torch

        self.rows, self.where, self.settle, self.hooked, self.seen = [], "start", settle, hooked, None
        self.before, self.reset = [0] * len(WHAT), torch.cuda.reset_peak_memory_stats
        torch.cuda.reset_peak_memory_stats = torch.cuda.memory.reset_peak_memory_stats = self.reset_by_others

    def reset_by_others(self, device=None):
        """DeepSpeed's see_memory_usage forgets the peak: what it was counts all the same."""
        self.before = self.peaks()
        self.reset(device)

    def peaks(self):
        import torch

        stats = torch.cuda.memory_stats()
        return [max(old, stats[f"{w}_bytes.all.peak"]) for w, old in zip(WHAT, self.before)]

    def begins(self, phase):
        self.where = phase

    def ends(self):
        import torch

        if self.settle:  # NCCL's watchdog lets go of finished buckets every 100 ms; a real phase gives it the time.
            if self.hooked:  # Nothing that is pending is seen to arrive before.
                torch.cuda.synchronize()
            time.sleep(0.3)
        peak = self.peaks()
        if self.hooked:  # What another stream has used counts as requested until the allocator is asked next: it is.
            torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1))
        stats = torch.cuda.memory_stats()
        now = {"mallocs": stats["num_device_alloc"], "retries": stats["num_alloc_retries"]}
        row = {
            "phase": self.where,
            "peak": peak,
            "end": [stats[f"{w}_bytes.all.current"] for w in WHAT],
        }
        row.update({k: n - (self.seen or {}).get(k, 0) for k, n in now.items() if n != (self.seen or {}).get(k, 0)})
        self.seen = now
        self.rows.append(row)
        self.before = [0] * len(WHAT)
        self.reset()

    @contextlib.contextmanager
    def __call__(self, phase):
        self.begins(phase)
        yield
        self.ends()


class Worker:
    def __init__(self, job):
        import torch

        self.job, self.training = job, job["training"]
        self.deepspeed = job.get("deepspeed")
        self.meter = Meter(self.runtime() == "ddp", "comm_hook" in job.get("ddp", {}))
        self.types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        self.engine = self.optimizer = self.accelerator = self.offloads = None
        self.facts = {}

    def runtime(self):
        if self.training.get("runtime") in ("fsdp2", "hsdp"):
            return "fsdp2"
        if self.training.get("runtime") == "fsdp1":
            return "fsdp1"
        return "deepspeed" if self.deepspeed else "ddp" if self.job.get("world", 1) > 1 else "pytorch"

    # What runs

    def run(self):
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.choose_attention()
        if self.training.get("allocator_conf"):
            torch.cuda.memory._set_allocator_settings(self.training["allocator_conf"])
        torch.cuda.init()
        if self.runtime() != "pytorch":
            torch.cuda.set_device(0)
            on_host = self.training.get("fsdp", {}).get("cpu_offload")  # What is on the host is summed there.
            torch.distributed.init_process_group("cuda:nccl,cpu:gloo" if on_host else "nccl")
        self.meter.ends()
        gc.collect()
        with self.measured("model"):
            model = self.model()
            if "activation_offloading" in self.training:
                self.offloads = offloading(model, self.training["activation_offloading"])
            model = self.wrapped(model)
        with self.measured("optimizer"):
            self.make_optimizer(model)
        del model
        with self.measured("batch"):
            self.held, self.taken = self.batch(), False
        for step in range(1, self.job.get("steps", 2) + 1):
            self.step(f"{step}.")
        self.facts["last_live"] = self.meter.rows[-1]["end"][:2]
        if self.engine:
            self.facts["skipped"] = self.engine.skipped_steps

    def measured(self, phase):
        return self.meter(phase)

    def step(self, prefix):
        import torch

        count = self.micro_batches()
        for micro in range(count):
            tail = str(micro + 1) if count > 1 else ""
            if self.runtime() == "fsdp2" and count > 1 and self.training.get("fsdp", {}).get("gradient_sync") != "every":
                self.net.set_requires_gradient_sync(micro + 1 == count)
            with self.without_sync(micro + 1 < count), self.offloads or contextlib.nullcontext():
                with self.measured(prefix + "forward" + tail):
                    self.held = self.next_batch()
                    with self.autocast():
                        loss = self.loss()
                self.facts.setdefault("kernels", kernels_of(loss))
                with self.measured(prefix + "backward" + tail):
                    if self.engine or self.scales():
                        (self.engine or self.accelerator).backward(loss)
                    else:
                        loss.backward()
                    del loss
            if self.engine and micro + 1 < count:
                with self.measured(prefix + "micro_step" + tail):
                    self.engine.step()
        with self.measured(prefix + "step"):
            if self.engine:
                self.engine.step()
            else:
                if self.training.get("max_grad_norm") and self.accelerator:
                    self.accelerator.clip_grad_norm_(self.net.parameters(), self.training["max_grad_norm"])
                elif self.training.get("max_grad_norm") and self.runtime() == "fsdp1":
                    self.net.clip_grad_norm_(self.training["max_grad_norm"])
                elif self.training.get("max_grad_norm"):
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.training["max_grad_norm"])
                self.optimizer.step()
                none = {} if self.scales() or self.job.get("axolotl") else {"set_to_none": self.training.get("zero_grad_set_to_none", True)}
                self.optimizer.zero_grad(**none)

    def scales(self):
        """By accelerate's GradScaler."""
        return bool(self.accelerator) and self.training.get("mixed_precision") == "fp16"

    def micro_batches(self):
        if self.deepspeed:
            return self.deepspeed.get("gradient_accumulation_steps", 1)
        return self.training.get("grad_accum", 1)

    def without_sync(self, wanted):
        every = self.training.get("fsdp", {}).get("gradient_sync") == "every"
        delays = self.runtime() == "ddp" or (self.runtime() == "fsdp1" and not every)
        return self.net.no_sync() if wanted and delays else contextlib.nullcontext()

    def autocast(self):
        import torch

        to = self.training.get("autocast")
        return torch.autocast("cuda", self.types[to]) if to else contextlib.nullcontext()

    # The model

    def choose_attention(self):
        """A kernel's name leaves torch no other; without one torch chooses. Recomputation and backward ask again, so
        this is global."""
        import torch

        wished = KERNELS.get(self.training.get("attention"))
        for kernel in KERNELS.values() if wished else ():
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(kernel == wished)

    def raw(self):
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(**self.job["config"])
        config.use_cache = False
        named = self.trained_class()
        made = AutoModelForCausalLM.from_config
        # No automatic class knows mistral4.
        if self.contrasts() or named.endswith(("Mistral4ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "Classification", "MTModel")):
            import transformers

            made = getattr(transformers, named)._from_config
        return made(
            config,
            dtype=self.types[self.dtype()],
            attn_implementation="eager" if self.training.get("attention") == "eager" else None,  # transformers' choice.
            **({"experts_implementation": self.training["experts"]} if "experts" in self.training else {}),
        )

    def dtype(self):
        if not self.deepspeed:
            return self.training.get("dtype", "bf16")
        return next((d for d in ("bf16", "fp16") if self.deepspeed.get(d, {}).get("enabled")), "fp32")

    def model(self):
        import torch

        if self.training.get("quantization"):
            return self.packed()
        usual = {"fsdp2": "meta", "fsdp1": "host"}.get(self.runtime(), "zero_init" if self.stage() == 3 else "device")
        init = self.training.get("model_init") or usual
        if init == "zero_init":
            import deepspeed

            with deepspeed.zero.Init(config_dict_or_path=self.deepspeed):
                model = self.raw()
        elif init == "meta":
            with torch.device("meta"):
                model = self.raw()
        elif init in ("host", "rank0"):
            from transformers.initialization import no_init_weights

            with no_init_weights():
                model = self.raw()
            model.tie_weights()
        else:
            with torch.device("cuda"):
                model = self.raw()
        if self.training.get("liger_kernels"):
            self.put_liger_kernels(model)
        if self.training.get("loss") == "liger" and not self.training.get("liger_kernels") and self.runtime() == "fsdp1":
            self.put_liger_loss(model)
        if self.training.get("loss") == "cut":
            model = self.cut(model)
        if self.training.get("loss") == "trl":
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
        if self.training.get("experts") == "eager":
            from dsplan_dry import routing

            routing.route(model, self.training.get("routing", "balanced"))
        base = model
        if self.training.get("lora"):
            model = self.adapted(model, self.training["lora"])
        if self.training.get("lora_kernels"):  # axolotl's.
            sys.path.insert(0, str(model_config.ROOT / "tools" / "oracles"))
            import adapter_kernels

            adapter_kernels.put(model, self.training["lora_kernels"])
        if init == "host" and self.runtime() in ("pytorch", "ddp"):  # With its adapters, as Trainer is given it.
            model = model.to("cuda")
        for name, parameter in model.named_parameters():
            if any(fnmatch.fnmatchcase(name, glob) for glob in self.training.get("freeze", ())):
                parameter.requires_grad_(False)
        model.train()
        if self.training.get("input_require_grads"):
            model.enable_input_require_grads()
        self.checkpoint(base, model)
        return model

    def cut(self, what):
        """axolotl's fork of cut_cross_entropy, on PYTHONPATH, put into a model or a class."""
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # A fork starts no pool of compilers.
        from cut_cross_entropy.transformers import cce_patch

        return cce_patch(what)

    def packed(self):
        """As tools/oracles/qlora.py makes it: loaded from a checkpoint, prepared, with adapters and checkpoints."""
        sys.path.insert(0, str(model_config.ROOT / "tools" / "oracles"))
        import qlora

        self.tell_transformers_of_zero3()
        if self.training.get("loss") == "cut":
            self.cut(self.job["config"]["model_type"])  # The class, before the model is loaded.

        model = qlora.build(self.job, lambda phase: None)
        return model

    def tell_transformers_of_zero3(self):
        """As its Trainer does; peft asks it whether weights have to be gathered."""
        if self.stage() == 3:
            from transformers.integrations import HfDeepSpeedConfig

            self.told = HfDeepSpeedConfig(self.deepspeed)  # Held: transformers keeps a weak reference.

    def stage(self):
        return (self.deepspeed or {}).get("zero_optimization", {}).get("stage", 0)

    def adapted(self, model, lora):
        import peft

        if lora.get("dora"):  # It reads the weights beside its factors.
            self.tell_transformers_of_zero3()
        return peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=lora["r"],
                lora_alpha=lora.get("alpha", 2 * lora["r"]),
                lora_dropout=lora.get("dropout", 0.0),
                bias="none",
                target_modules=lora["targets"],
                target_parameters=lora.get("parameters"),
                modules_to_save=lora.get("save"),
                use_dora=lora.get("dora", False),
                task_type=None if self.contrasts() else "CAUSAL_LM",
            ),
            autocast_adapter_dtype=lora.get("dtype", "fp32") == "fp32",
        )

    def checkpoint(self, base, model):
        wished = self.training.get("checkpoint", "none")
        if wished in ("none", "nested"):  # accelerate's and axolotl's own preparations nest them.
            return
        if self.training.get("layers_require_grads"):
            return checkpoint_trained(base, self.training.get("checkpoint_impl") == "reentrant")
        if wished.startswith("keep:linear/2"):
            return checkpointed_by_torchtitan(layers_of(model)[0], self.training)
        if wished == "full":
            reentrant = self.training.get("checkpoint_impl") in ("reentrant", "deepspeed")
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            if self.training.get("checkpoint_impl") == "deepspeed":
                import deepspeed

                deepspeed.init_distributed()
                deepspeed.checkpointing.configure(None, deepspeed_config=self.deepspeed)
                base._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=deepspeed.checkpointing.checkpoint)
            if self.training.get("lora"):
                model.enable_input_require_grads()
        else:  # As `dsplan emit --format checkpointing` says it.
            exec(self.job["checkpointing"], {"model": model})

    def wrapped(self, model):
        if self.job.get("axolotl"):
            self.count(model)
            self.accelerator, made, self.optimizer = prepared_by_axolotl(model, self.training, self.job)
            return made
        if self.training.get("model_init") == "rank0" or "held" in self.training.get("fsdp", {}).get("wrap", ""):
            return prepared_by_accelerate(model, self.training, self.job, self.types)
        if self.runtime() == "fsdp2":
            return fully_sharded(model, self.training, self.job["world"], self.types)
        if self.runtime() == "fsdp1":
            self.count(model)  # Afterwards each rank has shards.
            if self.job.get("accelerate"):
                self.accelerator = accelerator_of(model, self.training, self.job)
                if "adapters" in self.training.get("fsdp", {}).get("wrap", ""):  # As transformers' Trainer does.
                    from transformers.distributed.fsdp import update_fsdp_plugin_peft

                    update_fsdp_plugin_peft(model, self.accelerator)
                return self.accelerator.prepare(model)
            return flattened(model, self.training, self.job["world"], self.types)
        if self.runtime() != "ddp":
            return model
        from torch.nn.parallel import DistributedDataParallel

        self.meter.ends()
        given = dict(self.job.get("ddp", {}))
        hook = given.pop("comm_hook", "no")
        given.pop("zero_redundancy", None)  # The optimizer's.
        made = DistributedDataParallel(model, device_ids=[0], **given)
        if hook != "no":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            made.register_comm_hook(None, getattr(default_hooks, hook + "_compress_hook"))
        return made

    def make_optimizer(self, model):
        trained = [p for p in model.parameters() if p.requires_grad]
        if self.runtime() != "fsdp1" and not self.job.get("axolotl"):
            self.count(model)
        self.net = model
        if self.optimizer:
            return
        if self.deepspeed:
            import deepspeed
            import torch

            # Its optimizer prints a parameter: of chance values torch counts those that are not zero, and makes as many numbers.
            torch._tensor_str._str = lambda tensor, **_: "tensor"
            self.engine = deepspeed.initialize(model=model, model_parameters=trained, config=self.deepspeed)[0]
            self.net = self.engine
            return
        if self.training.get("param_groups") == "decay":
            from transformers.trainer_pt_utils import get_parameter_names
            from transformers.trainer import Trainer

            names = set(Trainer.get_decay_parameter_names(None, model))
            decays = [[p for n, p in model.named_parameters() if (n in names) == wanted] for wanted in (True, False)]
            trained = [{"params": decays[0]}, {"params": decays[1], "weight_decay": 0.0}]
        redundant = self.job.get("ddp", {}).get("zero_redundancy")
        self.optimizer = optimizer_of(self.training.get("optimizer", {}), trained, redundant)
        if self.scales():
            self.optimizer = self.accelerator.prepare(self.optimizer)

    def count(self, model):
        size = lambda p: getattr(p, "ds_numel", p.numel())
        trained = (p for p in model.parameters() if p.requires_grad)
        self.facts["parameters"] = [sum(map(size, model.parameters())), sum(map(size, trained))]

    def next_batch(self):
        """A new one is made while the loop's variable still holds the last, as `for batch in loader` does."""
        batch, self.taken = self.batch() if self.taken else self.held, True
        return batch

    def batch(self):
        import torch

        rows, sound = self.micro_batch(), self.job["config"]["model_type"] == "whisper"
        if "images" in self.training or self.trained_class().endswith("ForImageClassification") or self.contrasts():
            return pictures.batch(self.job["config"], self.training, rows, self.types[self.dtype()])
        batch = {}
        if self.training.get("loss") == "trl":
            shape = rows, self.training["seq"]
            batch = {name: torch.ones(shape, dtype=torch.int64).to("cuda") for name in ("input_ids", "attention_mask", "labels")}
            return {**batch, "count": torch.tensor(rows * (shape[1] - 1)).to("cuda")}
        if sound:
            shape = rows, self.job["config"]["num_mel_bins"], 2 * self.training["seq"]
            batch["input_features"] = torch.zeros(shape, dtype=self.types[self.held_dtype()]).to("cuda")
        for name in ("labels",) if sound else ("input_ids", "labels"):
            length = self.training.get("target_seq", self.training["seq"]) if name == "labels" else self.training["seq"]
            shape = (rows,) if name == "labels" and self.trained_class().endswith("ForSequenceClassification") else (rows, length)
            batch[name] = torch.zeros(shape, dtype=torch.int64).to("cuda")
        return batch

    def contrasts(self):
        return self.trained_class() in ("CLIPModel", "SiglipModel")

    def trained_class(self):
        return (self.job["config"].get("architectures") or [""])[0]

    def held_dtype(self):
        """That of what a first layer is given: as weights are gathered."""
        return self.training.get("fsdp", {}).get("param_dtype") or self.dtype()

    def micro_batch(self):
        return (self.deepspeed or {}).get("train_micro_batch_size_per_gpu") or self.training.get("micro_batch", 1)

    def loss(self):
        """`outputs` of the loop that most scripts have stay alive until the next forward has returned."""
        import torch

        if self.training.get("loss") == "liger" and not self.training.get("liger_kernels") and self.runtime() != "fsdp1":
            return self.liger_loss()
        if self.training.get("loss") == "trl":
            return self.supervised_loss()
        if self.training.get("loss", "hf") == "native":
            logits = self.net(input_ids=self.held["input_ids"], use_cache=self.training.get("use_cache", False)).logits
            padded = torch.nn.functional.pad(self.held["labels"], (0, 1), value=-100)  # Held, as in transformers.
            labels = padded[..., 1:].contiguous()
            return torch.nn.functional.cross_entropy(
                logits.view(-1, logits.shape[-1]), labels.view(-1), ignore_index=-100
            )
        told = {"use_cache": self.training.get("use_cache", False)} if "input_ids" in self.held else {}
        if self.contrasts():
            told = {"return_loss": True}
        if self.job.get("holds_outputs"):
            self.outputs = self.net(**self.held, **told)
            return self.outputs.loss
        return self.net(**self.held, **told).loss

    def supervised_loss(self):
        """SFTTrainer.compute_loss of TRL 1.16, but for what it logs."""
        held = {name: value for name, value in self.held.items() if name != "count"}
        outputs = self.net(**held, use_cache=False, fused_lm_head=True)
        losses = -outputs.log_probs
        return losses.sum() / self.held["count"].clamp(min=1) * self.job.get("world", 1)

    def wished_liger(self):
        """A job says which release, and that one is installed."""
        from importlib import metadata

        wished, found = self.training["liger_version"], metadata.version("liger-kernel")
        if wished != found:
            raise SystemExit(f"{self.job['name']}: liger-kernel {found} is installed")

    def put_liger_kernels(self, model):
        """As transformers' use_liger_kernel puts them into a model that is there."""
        self.wished_liger()
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        kinds = self.training["liger_kernels"].split(",")
        _apply_liger_kernel_to_instance(
            model=model,
            fused_linear_cross_entropy=self.training.get("loss") == "liger",
            **{kind: kind in kinds for kind in ("rope", "rms_norm", "swiglu")},
        )

    def put_liger_loss(self, model):
        """Before it is wrapped, whose hooks hang on the call."""
        import importlib
        import types

        self.wished_liger()
        family = importlib.import_module(f"liger_kernel.transformers.model.{model.config.model_type}")
        model.forward = types.MethodType(family.lce_forward, model)

    def liger_loss(self):
        """Liger's forward of a causal model, for its loss alone."""
        import importlib
        import types

        self.wished_liger()
        family = importlib.import_module(f"liger_kernel.transformers.model.{self.net.config.model_type}")
        return types.MethodType(family.lce_forward, self.net)(**self.held, use_cache=False).loss

    def result(self):
        import torch

        host = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
        pinned = host.get("allocated_bytes.peak", 0)
        return {"rows": self.meter.rows, **self.facts, **({"pinned": pinned} if pinned else {})}


def checkpoint_trained(model, reentrant):
    """As LLaMA-Factory does (model/model_utils/checkpointing.py, get_custom_gradient_checkpointing_func)."""
    import torch
    from torch.utils.checkpoint import checkpoint

    def around(function, *args, **keywords):
        layer = getattr(function, "func", function).__self__
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            return function(*args, **keywords)
        for one in args:
            if torch.is_tensor(one) and torch.is_floating_point(one):
                one.requires_grad_(True)
                break
        return checkpoint(function, *args, use_reentrant=reentrant, **keywords)

    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=around)


def checkpointed_by_torchtitan(layers, training):
    """Selective by operator: attention, and of the products every second one, are kept (its apply_ac)."""
    from collections import Counter

    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = {aten.mm.default} | {
        getattr(aten, f"_scaled_dot_product_{kind}_attention").default for kind in ("efficient", "flash", "cudnn")
    }

    def contexts():
        seen = Counter()

        def policy(context, operator, *args, **kwargs):
            where = "again" if context.is_recompute else "first"
            seen[where] += operator is aten.mm.default
            keeps = operator in kept and not (operator is aten.mm.default and seen[where] % 2 == 0)
            return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    rng = training.get("preserve_rng_state", True)
    for at, layer in enumerate(layers):
        layers[at] = checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=rng)


def layers_of(model):
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    inner = getattr(base, base.base_model_prefix, base)  # t5's stacks are the model's own.
    if base.config.is_encoder_decoder:
        stacks = [getattr(inner, name) for name in ("encoder", "decoder")]
        return [layer for stack in stacks for layer in getattr(stack, "layers", None) or stack.block], inner, base
    if hasattr(base.config, "vision_config") or type(base).__name__.endswith("ForImageClassification"):
        return pictures.layers_of(base), inner, base
    inner = getattr(inner, "decoder", inner)
    return getattr(inner, "layers", None) or inner.h, inner, base


def fully_sharded(model, training, world, types):
    """As torchtitan and accelerate call fully_shard; what was made on no device is then made, empty, in shards."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    wished = training.get("fsdp", {})
    replicate = wished.get("replicate", 1)
    if replicate > 1:
        mesh = init_device_mesh("cuda", (replicate, world // replicate), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cuda", (world,))
    policy = {k: types[wished[k]] for k in ("param_dtype", "reduce_dtype", "output_dtype") if k in wished}
    common = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(**policy)}
    if wished.get("cpu_offload"):
        common["offload_policy"] = CPUOffloadPolicy()
    if wished.get("ignored"):
        common["ignored_params"] = ignored_of(model, wished["ignored"].split("+"))
    inside = dict(common)
    if wished.get("reshard_after_forward", "auto") != "auto":
        inside["reshard_after_forward"] = wished["reshard_after_forward"]
    layers, inner, base = layers_of(model)
    wrap = wished.get("wrap", "layers")
    last = {**inside, "reshard_after_forward": False} if wished.get("reshard_last") is False else inside
    for word in ("ends+layers" if wrap == "ends" else wrap).split("+"):
        wrap_word(word, layers, inner, base, (inside, last), common, bool(wished.get("reshard_tail")))
    fully_shard(model, **common, **({"reshard_after_forward": True} if wished.get("reshard_root") else {}))
    prefetch(layers, wished)
    if any(p.is_meta for p in model.parameters()):
        model.to_empty(device="cpu" if wished.get("cpu_offload") else "cuda")
        for module in model.modules():  # torchtitan makes its buffers anew on the device.
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer.to("cuda")
    return model


def flattened(model, training, world, types):
    """FullyShardedDataParallel as accelerate calls it (Accelerator.prepare_model)."""
    import functools

    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffload,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
    )
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

    wished = training.get("fsdp", {})
    replicate, kept = wished.get("replicate", 1), wished.get("reshard_after_forward") is False
    common = {}
    if wished.get("shard") == 1:
        strategy = ShardingStrategy.NO_SHARD
    elif replicate > 1:
        strategy = ShardingStrategy._HYBRID_SHARD_ZERO2 if kept else ShardingStrategy.HYBRID_SHARD
        names = ("replicate", "shard")
        common["device_mesh"] = init_device_mesh("cuda", (replicate, world // replicate), mesh_dim_names=names)
    else:
        strategy = ShardingStrategy.SHARD_GRAD_OP if kept else ShardingStrategy.FULL_SHARD
    policy = {k: types[wished[k]] for k in ("param_dtype", "reduce_dtype", "buffer_dtype") if k in wished}
    layers, _, base = layers_of(model)
    wrap = wished.get("wrap", "layers")
    if wrap.startswith("size:"):
        common["auto_wrap_policy"] = functools.partial(size_based_auto_wrap_policy, min_num_params=int(wrap[5:]))
    elif wrap != "root":
        names = {type(layers[0]).__name__ if word == "layers" else word for word in wrap.split("+")}
        classes = {type(module) for module in base.modules() if type(module).__name__ in names}
        common["auto_wrap_policy"] = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes)
    prefetches = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
    return FullyShardedDataParallel(
        model,
        sharding_strategy=strategy,
        mixed_precision=MixedPrecision(**policy) if policy else None,
        cpu_offload=CPUOffload(offload_params=bool(wished.get("cpu_offload"))),
        backward_prefetch=prefetches[wished.get("backward_prefetch", "pre")],
        forward_prefetch=wished.get("forward_prefetch", "false") == "true",
        limit_all_gathers=wished.get("limit_all_gathers", "true") != "false",
        use_orig_params=wished.get("use_orig_params", "false") == "true",
        sync_module_states=wished.get("sync_module_states", "false") == "true",
        device_id=torch.cuda.current_device(),
        **common,
    )


def accelerator_of(model, training, job):
    """An Accelerator that will prepare `model` with version 1 of FSDP."""
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    wished = training.get("fsdp", {})
    wrap = wished.get("wrap", "layers").replace("adapters+", "")
    policy = {"root": "no_wrap"}.get(wrap, "size_based_wrap" if wrap.startswith("size:") else "transformer_based_wrap")
    named = None if wrap in ("root", "layers") or wrap.startswith("size:") else wrap.split("+")
    kept = wished.get("reshard_after_forward") is False
    true = lambda key, usual="false": wished.get(key, usual) == "true"
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=1,
        sharding_strategy="NO_SHARD" if wished.get("shard") == 1 else "SHARD_GRAD_OP" if kept else "FULL_SHARD",
        backward_prefetch={"pre": "BACKWARD_PRE", "post": "BACKWARD_POST", "none": "NO_PREFETCH"}[
            wished.get("backward_prefetch", "pre")
        ],
        auto_wrap_policy=policy,
        transformer_cls_names_to_wrap=named,
        min_num_params=int(wrap[5:]) if wrap.startswith("size:") else None,
        cpu_offload=bool(wished.get("cpu_offload")),
        limit_all_gathers=true("limit_all_gathers", "true"),
        use_orig_params=true("use_orig_params"),
        sync_module_states=true("sync_module_states"),
        forward_prefetch=true("forward_prefetch"),
        activation_checkpointing=job["accelerate"].get("activation_checkpointing", False),
    )
    return Accelerator(mixed_precision=training.get("mixed_precision", "no"), fsdp_plugin=plugin)


def ignored_of(model, globs):
    """By name; "packed" is what accelerate leaves out of 4-bit models. What is on the host is moved, as it does."""
    found = set()
    for name, parameter in model.named_parameters():
        packed = "packed" in globs and not parameter.is_floating_point()
        if packed or any(fnmatch.fnmatchcase(name, glob) for glob in globs):
            if parameter.device.type == "cpu":
                parameter.data = parameter.data.to("cuda")
            found.add(parameter)
    return found


def prefetch(layers, wished):
    """As PyTorch's example calls it: layers without so many neighbours are left as they are."""
    forward, backward = int(wished.get("forward_prefetch", 0)), int(wished.get("backward_prefetch", 0))
    for at, layer in enumerate(layers):
        if forward and at + forward < len(layers):
            layer.set_modules_to_forward_prefetch([layers[at + by] for by in range(1, forward + 1)])
        if backward and at >= backward:
            layer.set_modules_to_backward_prefetch([layers[at - by] for by in range(1, backward + 1)])


def prepared_by_accelerate(model, training, job, types):
    """accelerate's own preparation, by which rank 0 sends the others what they shard, or each has the model on its host."""
    import torch
    from types import SimpleNamespace

    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.fsdp import MixedPrecisionPolicy

    wished = training.get("fsdp", {})
    policy = {k: types[wished[k]] for k in ("param_dtype", "reduce_dtype", "output_dtype") if k in wished}
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=wished.get("reshard_after_forward", True),
        auto_wrap_policy="transformer_based_wrap",
        cpu_ram_efficient_loading=training["model_init"] == "rank0",
        cpu_offload=wished.get("cpu_offload", False),
        mixed_precision_policy=MixedPrecisionPolicy(**policy),
    )
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="no",
        device=torch.device("cuda", torch.cuda.current_device()),
        is_main_process=job["rank"] == 0,
    )
    replicate = wished.get("replicate", 1)
    if replicate > 1:
        from torch.distributed.device_mesh import init_device_mesh

        names = ("dp_replicate", "dp_shard")
        accelerator.torch_device_mesh = init_device_mesh("cuda", (replicate, job["world"] // replicate), mesh_dim_names=names)
        accelerator.parallelism_config = SimpleNamespace(fsdp_dim_names=names)
    return fsdp2_prepare_model(accelerator, model)


def prepared_by_axolotl(model, training, job):
    """axolotl's own preparation, put in the place of accelerate's: model and optimizer go to accelerate's prepare together,
    the model on the device unless rank 0 sends it (axolotl 0.19, loaders/model.py, monkeypatch/accelerate/fsdp2.py)."""
    import accelerate.accelerator
    import torch
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin
    from axolotl.monkeypatch.accelerate.fsdp2 import fsdp2_prepare_model

    accelerate.accelerator.fsdp2_prepare_model = fsdp2_prepare_model
    wished = training.get("fsdp", {})
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=wished.get("reshard_after_forward", True),
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[type(layers_of(model)[0][0]).__name__],
        cpu_ram_efficient_loading=training["model_init"] == "rank0",
        cpu_offload=wished.get("cpu_offload", False),
        state_dict_type="FULL_STATE_DICT",
        activation_checkpointing=job["axolotl"].get("activation_checkpointing", False),
    )
    accelerator = Accelerator(mixed_precision=training.get("mixed_precision", "no"), fsdp_plugin=plugin)
    if training["model_init"] == "device":
        model.to("cuda")
    trained = [p for p in model.parameters() if p.requires_grad]
    made, optimizer = accelerator.prepare(model, optimizer_of(training.get("optimizer", {}), trained, False))
    torch.cuda.synchronize()
    return accelerator, made, optimizer


def wrap_word(word, layers, inner, base, how, common, tail_reshards=False):
    """`how`: what layers and other modules are given, and the last layer."""
    from torch.distributed.fsdp import fully_shard

    inside, last = how

    if word == "ends" and hasattr(base.config, "vision_config"):  # As accelerate finds them: it sees no norm.
        tail = [base.get_output_embeddings()]
        if base.get_input_embeddings().weight is tail[0].weight:
            tail.insert(0, base.get_input_embeddings())
        else:
            fully_shard(base.get_input_embeddings(), **inside)
        fully_shard(tail, **common, reshard_after_forward=tail_reshards)
    elif word == "ends":
        embedding = inner.embed_tokens if hasattr(inner, "embed_tokens") else inner.wte
        norm = inner.norm if hasattr(inner, "norm") else inner.ln_f
        tail = [norm, base.lm_head]
        if embedding.weight is base.lm_head.weight:
            tail.insert(1, embedding)
        else:
            fully_shard(embedding, **inside)
        fully_shard(tail, **common, reshard_after_forward=tail_reshards)
    elif word == "adapters":  # Each factor by itself.
        for name, module in base.named_modules():
            if name.endswith((".lora_A.default", ".lora_B.default")):
                fully_shard(module, **inside)
    elif word == "layers":
        for at, layer in enumerate(layers):
            fully_shard(layer, **(last if at + 1 == len(layers) else inside))
    elif word != "root":
        for name, module in list(base.named_modules())[::-1]:
            if name and type(module).__name__ == word:
                fully_shard(module, **inside)


def optimizer_of(wished, trained, redundant=False):
    import torch

    name, how = wished.get("name", "adamw"), dict(IMPLEMENTATIONS[wished.get("implementation", "fused")])
    if name == "adam8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
    if name in ("lion", "lion8bit", "adamw32bit"):
        import bitsandbytes

        classes = {"lion": "Lion", "lion8bit": "Lion8bit", "adamw32bit": "AdamW"}
        return getattr(bitsandbytes.optim, classes[name])(trained, lr=1e-4)
    if name.startswith("ao_"):  # With a cache of the compiler's own: what is tuned is tuned within the job.
        sys.path.insert(0, os.environ.get("DSPLAN_DRY_TORCHAO", ""))  # Elsewhere transformers would import it before the fork.
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=tempfile.mkdtemp(), TORCHINDUCTOR_COMPILE_THREADS="1")
        import torchao.optim

        classes = {"ao_adamw_8bit": "AdamW8bit", "ao_adamw_4bit": "AdamW4bit", "ao_adamw_fp8": "AdamWFp8"}
        return getattr(torchao.optim, classes[name])(trained, lr=1e-4, weight_decay=wished.get("weight_decay", 0.0))
    if name == "adafactor":  # As transformers' Trainer makes it.
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-4, scale_parameter=False, relative_step=False)
    for key in ("momentum", "weight_decay"):
        if key in wished:
            how[key] = wished[key]
    kinds = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
    }
    if redundant:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(trained, optimizer_class=kinds[name], lr=1e-4, **how)
    return kinds[name](trained, lr=1e-4, **how)


def offloading(model, how):
    """What TRL's trainers put around each training step."""
    from trl.models.activation_offloading import get_act_offloading_ctx_manager

    context = get_act_offloading_ctx_manager(model, use_streams=how == "streams")
    context.virtual_memory_safe_pct = 100  # It would warn of this machine's memory by accelerate's logger, which is not there.
    return context


def kernels_of(loss):
    """Which attention the graph holds; through checkpoints none is seen."""
    found, todo, done = {}, [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in done:
            continue
        done.add(node)
        if "Attention" in node.name():
            name = node.name().replace("ScaledDotProduct", "").replace("Backward0", "")
            found[name] = found.get(name, 0) + 1
        todo += [following for following, _ in node.next_functions]
    return found


def events_of(step_from):
    import torch

    return [
        [
            e["action"],
            e["size"],
            e["stream"],
            e.get("addr"),
            [f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}" for f in e.get("frames", [])[:8]],
        ]
        for e in torch.cuda.memory._snapshot()["device_traces"][0][step_from:]
    ]


def run(job, path, events=None):
    """In the child: the job's result into `path`. Never returns."""
    answer = {}
    try:
        import torch

        started = time.time()
        if events:
            # Asking for Python's frames at a free forgets the exception by which a checkpoint ends its recomputation.
            stops = job["training"].get("checkpoint") and job["training"].get("checkpoint_impl") != "reentrant"
            how = "alloc" if stops else "all"
            torch.cuda.memory._record_memory_history(max_entries=10_000_000, context=how, stacks="python")
        worker = Worker(job)
        try:
            worker.run()
        except torch.OutOfMemoryError as error:
            worker.meter.ends()
            answer["oom"] = {"phase": worker.meter.where, "message": str(error).split(". GPU")[0][-60:]}
        answer.update(worker.result(), seconds=round(time.time() - started, 1))
        if events:
            json.dump(events_of(0), open(events, "w"))
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-4:]
        answer = {
            "failed": f"{type(error).__name__}: {error}"[:300],
            "at": [f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in where],
        }
    with open(path, "w") as out:
        json.dump(answer, out)
    os._exit(0)  # No destructors: NCCL's watchdog would wait for the other ranks.
