"""What a training job takes, as a receipt for `dsplan compare --re-predict`. One file that needs torch alone:

    with receipt("out.json", model=model, optimizer=optimizer):        # or engine=engine, under DeepSpeed
        train()                                                        # two optimizer steps are enough
    trainer = Trainer(..., callbacks=[ReceiptCallback("out.json")])    # transformers' Trainer

It never fails the job. What cannot be seen is null, with its reason in `not_measured`; without a GPU that is all bytes.
A step ends, and peaks are reset, where the next one's forward begins."""
import json, os, sys, time  # noqa: E401

import torch

COUNTERS = ("requested", "allocated", "active", "reserved")
SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def quiet(method):
    def wrapper(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.missing.setdefault("recorder." + method.__name__, f"{type(error).__name__}: {error}")
    return wrapper


class receipt:
    @quiet
    def __init__(self, path, model=None, optimizer=None, engine=None, config=None, training_args=None):
        self.phases, self.marks, self.seen, self.shape, self.calls = [], [], {}, (0, 0), 0
        self.cuda, self.stepped, self.closed = torch.cuda.is_available(), False, False
        self.missing = {"memory.host": "not looked at", "communication": "not looked at", "snapshot": "not taken",
                        "memory.process": "capacity less free: what everybody has on this GPU"}
        self.missing.update({"memory." + key: "no GPU" for key in (*COUNTERS, "process", "peak") if not self.cuda})
        self.path, self.engine, self.config, self.args = str(path), engine, config, training_args
        self.model, self.optimizer = getattr(engine, "module", model), getattr(engine, "optimizer", optimizer)
        while hasattr(self.optimizer, "optimizer"):  # DeepSpeed's and accelerate's hold the one that steps.
            self.optimizer = self.optimizer.optimizer
        ranks = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
        self.rank, self.world = (ranks.get_rank(), ranks.get_world_size()) if ranks else (0, 1)
        self.path = "{0}.rank{2}{1}".format(*os.path.splitext(self.path), self.rank) if self.rank else self.path
        self.save()
        self.model.register_forward_pre_hook(self.before_forward, prepend=True, with_kwargs=True)  # Before ZeRO-3 gathers.
        self.model.register_forward_hook(lambda *_: self.mark("after forward"))
        self.optimizer.register_step_pre_hook(lambda *_: None if self.stepped else self.mark("before step"))
        self.optimizer.register_step_post_hook(lambda *_: setattr(self, "stepped", True))

    def counters(self, kind):
        stats = torch.cuda.memory_stats() if self.cuda else {}
        return {key: stats.get(f"{key}_bytes.all.{kind}", 0) if self.cuda else None for key in COUNTERS}

    @quiet
    def mark(self, name):
        if torch.is_grad_enabled() and not self.closed:  # Evaluation is no step.
            free = torch.cuda.mem_get_info() if self.cuda else None
            self.marks.append({"name": name, **self.counters("current"), "process": free and free[1] - free[0]})

    def turn(self):
        self.mark("end")
        peaks = {"peak_" + key: value for key, value in self.counters("peak").items()}
        self.phases.append({"name": ("init", "first_step", "steady")[len(self.phases)], "marks": self.marks, **peaks})
        self.marks, self.stepped, self.seen["grad_accum"], self.calls = [], False, self.calls, 0
        self.closed = len(self.phases) == 3
        self.cuda and torch.cuda.reset_peak_memory_stats()
        self.mark("begin")
        self.save()

    @quiet
    def before_forward(self, module, args, kwargs):
        if torch.is_grad_enabled() and not self.closed and (self.stepped or not self.phases):
            self.turn()
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.calls, self.shape, kind = self.calls + 1, tuple(ids.shape), ids.device.type
        self.seen["loss"] = "hf" if kwargs.get("labels") is not None else None
        self.seen["autocast"] = SHORT[torch.get_autocast_dtype(kind)] if torch.is_autocast_enabled(kind) else "none"
        self.mark("before forward")

    __enter__ = lambda self: self  # noqa: E731
    def __exit__(self, kind=None, error=None, trace=None):
        quiet(lambda self: self.stepped and not error and not self.closed and self.turn())(self)  # The job's last step.
        self.closed = True
        self.save(error)

    def training(self, config, deepspeed):
        named, chosen = list(self.model.named_parameters()), getattr(self.optimizer, "defaults", {})
        ways = [m._gradient_checkpointing_func for m in self.model.modules() if getattr(m, "gradient_checkpointing", 0)]
        adapters = list(getattr(self.model, "peft_config", {}).values())[:1]
        told = {"dsplan": 1, "kind": "training", "source": "python/dsplan/receipt.py", "seq": self.shape[-1] or None,
                "attention": getattr(config, "_attn_implementation", None), "loss": self.seen.get("loss"),
                "checkpoint": "full" if ways else "none",
                "freeze": [name for name, p in named if not p.requires_grad and not adapters]}
        if ways:
            told["checkpoint_impl"] = "reentrant" if ways[0].keywords.get("use_reentrant") else "non_reentrant"
        for lora in adapters:
            told["lora"] = {"r": lora.r, "targets": list(lora.target_modules), "dropout": lora.lora_dropout,
                            "dtype": next(SHORT[p.dtype] for name, p in named if "lora_" in name)}
            more = {"save": list(lora.modules_to_save or ()), "dora": lora.use_dora, "rslora": lora.use_rslora,
                    "bias": lora.bias if lora.bias != "none" else None}
            told["lora"].update({key: value for key, value in more.items() if value})
        if not deepspeed:
            each = chosen["foreach"] if chosen.get("foreach") is not None else self.cuda
            how = "fused" if chosen.get("fused") else "foreach" if each else "for-loop"
            told["optimizer"] = {"name": type(self.optimizer).__name__.lower(), "implementation": how}
            told.update(dtype=SHORT[named[0][1].dtype], micro_batch=self.shape[0], **self.seen)
        if self.args:
            half = "bf16" if self.args.bf16 else "fp16" if self.args.fp16 else "none"
            told["loop"], told["max_grad_norm"] = "trainer", self.args.max_grad_norm
            told.update({} if deepspeed else {"param_groups": "decay", "autocast": half})
        return {key: value for key, value in told.items() if value}

    @quiet
    def save(self, error=None):
        done, marks = len(self.phases) == 3, [mark for phase in self.phases for mark in phase["marks"]]
        why = f"{type(error).__name__}: {error}" if error else "it ended before its second optimizer step did"
        peak = {key: max(p["peak_" + key] for p in self.phases) if self.cuda and marks else None for key in COUNTERS}
        peak["process"] = max(mark["process"] for mark in marks) if self.cuda and marks else None
        peak["phase"] = next((p["name"] for p in self.phases if p["peak_requested"] == peak["requested"] != None), None)
        config = getattr(self.model, "config", None)  # Of transformers.
        found = getattr(self.engine, "_config", getattr(self.args, "hf_deepspeed_config", None))
        deepspeed = self.config or getattr(found, "_param_dict", getattr(found, "config", None))
        sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in self.model.parameters()]
        version = {key: str(getattr(sys.modules.get(key), "__version__", "")).split("+")[0] or None
                   for key in ("torch", "transformers", "deepspeed", "peft")}
        environment = {"gpu": torch.cuda.get_device_name() if self.cuda else None, "driver": None, "limit_bytes": None,
                       "capacity_bytes": torch.cuda.mem_get_info()[1] if self.cuda else None, **version,
                       "allocator_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), "cuda": torch.version.cuda,
                       "recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "python": sys.version.split()[0]}
        rank = {"rank": self.rank, "communication": None, "snapshot": None,
                "parameters": {"total": sum(n for n, _ in sizes), "trainable": sum(n for n, trains in sizes if trains)},
                "memory": {"persistent": {key: marks[-1][key] for key in COUNTERS[:2]} if done else None,
                           "peak": peak, "phases": self.phases, "host": None},
                "not_measured": [{"what": what, "why": why} for what, why in self.missing.items()]}
        inputs = {"model": json.loads(config.to_json_string(use_diff=False)) if config else {}, "deepspeed": deepspeed,
                  "training": self.training(config, deepspeed), "training_arguments": self.args and self.args.to_dict(),
                  "options": ["--gpus", str(self.world)] if self.world > 1 else [], "fingerprint": None}
        outcome = "ran" if done or not error else "out_of_memory" if "out of memory" in why else "error"
        value = {"schema": "dsplan.receipt/1", "source": "python/dsplan/receipt.py", "level": "framework", "samples": [],
                 "name": os.path.splitext(os.path.basename(self.path))[0], "device": "cuda" if self.cuda else "cpu",
                 "ranks_are": "process", "complete": done, "outcome": outcome, "message": None if done else why,
                 "environment": environment, "inputs": inputs, "world_size": self.world, "ranks": [rank]}
        with open(self.path + ".part", "w") as file:
            json.dump(value, file, indent=1, default=str)
        os.replace(self.path + ".part", self.path)


def ReceiptCallback(path="receipt.json"):
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            self.receipt = receipt(path, model, optimizer, training_args=args)
        on_train_end = lambda self, *_, **__: self.receipt.__exit__()  # noqa: E731
    return Callback()
