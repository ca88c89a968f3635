"""A receipt of whatever trains in this process: the model and the optimizer are found, not named.

The first module that is called with gradients on, and holds parameters of an optimizer, is the model. From there on it is
python/dsplan/receipt.py that records; here are the marks that it cannot see from outside, and what the dry device adds:
collectives, pinned memory, and a second file with every step and every guess (dsplan.dry/1)."""
import atexit
import contextlib
import functools
import importlib.util
import json
import os
import sys
import time
import weakref

from . import answers, device, imports, reads, routing

FOUND = {"optimizers": [], "training_arguments": None, "engine": None, "receipt": None, "backward": False,
         "clipped": None, "norm": None, "sharded_on": None, "synced": False, "moved": False, "cast": False, "peaks": {}, "routed": None}
STEPS = []  # A row for each mark of every step.


def load_receipts():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "..", "python", "dsplan",
                        "receipt.py")
    spec = importlib.util.spec_from_file_location("dsplan_receipt", os.path.abspath(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile looks for the module of whatever it traces.
    spec.loader.exec_module(module)
    return module


def counters(torch):
    stats = torch.cuda.memory_stats()
    row = {}
    for key in ("requested", "allocated", "active", "reserved"):
        row[key] = stats.get(f"{key}_bytes.all.current", 0)
        row["peak_" + key] = stats.get(f"{key}_bytes.all.peak", 0)
    row.update(mallocs=stats.get("num_device_alloc", 0), frees=stats.get("num_device_free", 0),
               retries=stats.get("num_alloc_retries", 0), out_of_memory=stats.get("num_ooms", 0))
    host = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    row["pinned"] = host.get("allocated_bytes.current", host.get("active_bytes.current"))
    return row


RINGS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
PHASES = {"after forward": "forward", "after backward": "backward"}
WATCHDOG = 0.2  # Seconds: NCCL's looks every 100 ms.


def let_watchdog_look(torch):
    """DistributedDataParallel waits for no Work, and since PyTorch 2.8 the process group holds what was sent until its watchdog
    has seen it arrive (docs/ddp.md). A real step gives it the time, and here one takes milliseconds."""
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        time.sleep(WATCHDOG)


class Traffic:
    """Collectives between marks: what NCCL counted by then, less what it had counted before."""

    def __init__(self):
        self.seen, self.rows = {}, {"init": {}, "steady": {}}

    def look(self, stretch, phase, said=None):
        """`said`: what such collectives carry, where their sizes do not show it."""
        now = {tuple(row[key] for key in ("collective", "ranks", "dtype", "kind")): (row["calls"], row["payload_bytes"])
               for row in device.ledger().get("collectives", ())}
        for key, (calls, payload) in now.items():
            before = self.seen.get(key, (0, 0))
            if stretch in self.rows and calls > before[0]:
                row = self.rows[stretch].setdefault(((*key[:3], said or key[3]), phase), [0, 0])
                row[0] += calls - before[0]
                row[1] += payload - before[1]
        self.seen = now

    def figures(self, world):
        """Those of init and of the second step, as a prediction has them. Groups of one rank have none."""
        found = []
        for rows in self.rows.values():
            for ((name, ranks, dtype, kind), phase), (calls, payload) in sorted(rows.items()):
                if ranks > 1:
                    wire = RINGS[name] * (ranks - 1) * payload // ranks if name in RINGS else payload
                    found.append({"collective": name, "group": "dp" if ranks == world else "dp_intra", "phase": phase,
                                  "dtype": dtype, "kind": kind, "calls": calls, "payload_bytes": payload, "wire_bytes": wire})
        return found


def make_class(base, torch):
    class DryReceipt(base.receipt):
        """The same receipt, and between its marks every step as a row of its own."""

        def __init__(self, *args, **kwargs):
            self.step, self.zeroed, self.traffic = 1, False, Traffic()
            super().__init__(*args, **kwargs)

        def counters(self, kind):
            """A job that resets PyTorch's peaks itself does not lower those of a phase."""
            now = super().counters(kind)
            return {key: max(n, FOUND["peaks"].get(key, 0)) for key, n in now.items()} if kind == "peak" else now

        def stretch(self):
            return ("init", "first_step", "steady", "later")[len(self.phases)]

        def mark(self, name):
            if torch.is_grad_enabled() and torch.cuda.is_available():
                if name == "before step" and not self.closed and device.library():
                    let_watchdog_look(torch)
                self.traffic.look(self.stretch(), "init" if not self.phases else PHASES.get(name, "step"))
                STEPS.append({"step": self.step, "at": name, **counters(torch)})
            if name not in ("after forward", "after backward"):  # Outputs and loss are still held there, by the caller.
                super().mark(name)

        def turn(self):
            if self.phases:
                self.step += 1
            self.zeroed = False
            super().turn()
            if self.seen.get("loop") == "minimal" and FOUND["norm"] and FOUND["norm"]() is not None:
                self.seen["loop"] = "trainer"  # It keeps the latest norm as the Trainer does.
            FOUND["peaks"] = {}
            if self.closed and device.setting("SNAPSHOT"):
                torch.cuda.memory._dump_snapshot(self.snapshot_path())
                torch.cuda.memory._record_memory_history(enabled=None)
                self.save()

        def snapshot_path(self):
            return os.path.splitext(self.path)[0] + ".pickle"

        def before_forward(self, module, args, kwargs):
            super().before_forward(module, args, kwargs)
            if self.closed and self.stepped:  # Steps after those that a receipt has.
                self.step, self.stepped, self.zeroed = self.step + 1, False, False
                torch.cuda.reset_peak_memory_stats()

        def parallel(self):
            """What the calls themselves were seen to do, which their results do not show."""
            told = super().parallel()
            if "fsdp" in told and (self.flats or not told.get("model_init")):
                told["model_init"] = FOUND["sharded_on"]
            if self.flats and FOUND["synced"]:
                told["fsdp"]["sync_module_states"] = "true"
            if FOUND["clipped"]:
                told["max_grad_norm"] = FOUND["clipped"]
            if FOUND["moved"] and "fsdp" not in told and self.args is None:
                told["model_init"] = "host"
            if FOUND["cast"] and "fsdp" not in told:  # Beside "cast_model" it is refused by name.
                told["model_init"] = "device"
            return told

        def cleared(self):
            if self.stepped and not self.zeroed:
                self.zeroed = True
                self.mark("after step")

        def save(self, error=None):
            super().save(error)
            if os.path.exists(self.path):
                self.amend()
            write_steps(self.path)

        def amend(self):
            """What the dry device knows better than somebody who looks from outside."""
            with open(self.path) as file:
                value = json.load(file)
            rank = value["ranks"][0]
            missing = {row["what"]: row["why"] for row in rank["not_measured"]}
            peak = rank["memory"]["peak"]
            if not value["complete"] and peak["requested"] is not None:  # The phase that failed counts as well.
                peak.update({key: max(peak[key], now) for key, now in self.counters("peak").items()})
            if device.library():
                missing["memory.process"] = "the dry device has a constant for the context"
                for row in [peak, *(mark for phase in rank["memory"]["phases"] for mark in phase["marks"])]:
                    row["process"] = None
                del missing["communication"]
                rank["communication"] = self.traffic.figures(value["world_size"])
                for row in rank["communication"]:
                    if row["group"] == "dp_intra":
                        missing.setdefault("communication.groups", "groups are told apart by their size alone")
            value["source"] = "dsplan measure"
            if os.path.exists(self.snapshot_path()):
                rank["snapshot"] = os.path.basename(self.snapshot_path())
                missing.pop("snapshot", None)
            if value["inputs"]["deepspeed"] and value["world_size"] == 1:
                value["inputs"]["options"] += ["--gpus", "1"]
            if device.setting("DEVICE_NAME"):
                value["inputs"]["options"] += ["--hardware", device.setting("DEVICE_NAME")]
            if FOUND["routed"]:
                value["inputs"]["options"] += ["--routing", FOUND["routed"]]
            if when := {"done": "immediate", "pending": "at-sync"}.get(device.setting("EVENTS")):
                value["inputs"]["options"] += ["--stream-frees", when]
            elif device.library():
                missing["allocator.events"] = (f"--events {device.setting('EVENTS')} frees what other streams used between both ends "
                                               "of --stream-frees, and a prediction's reserved bytes are those of its high end")
            rank["not_measured"] = [{"what": what, "why": why} for what, why in missing.items()]
            with open(self.path + ".part", "w") as file:
                json.dump(value, file, indent=1)
            os.replace(self.path + ".part", self.path)

    return DryReceipt


def write_steps(path):
    torch = sys.modules["torch"]
    value = {"schema": "dsplan.dry/1", "receipt": os.path.basename(path), "torch": torch.__version__,
             "device": device.setting("DEVICE_NAME"), "events": device.setting("EVENTS", "done"),
             "answered": sorted(answers.ANSWERED.values(), key=lambda row: row["call"]),
             "reads": reads.rows(), "libraries": device.ledger(), "steps": STEPS}
    beside = os.path.splitext(path)[0] + ".dry.json"
    with open(beside + ".part", "w") as file:  # Whoever is killed meanwhile leaves no half of it.
        json.dump(value, file, indent=1)
    os.replace(beside + ".part", beside)


def path_of_receipt():
    return device.setting("RECEIPT")


def ledgers():
    """Where processes leave notes for the launcher."""
    return os.environ.get("DSPLAN_DRY_LEDGERS")


def note(kind, text):
    if ledgers():
        with open(os.path.join(ledgers(), f"{os.getpid()}.{kind}"), "w") as file:
            file.write(text)


def own_path(torch):
    """Of processes that train as the same rank each has a receipt: the first the usual one, the next FILE.process2.json."""
    path, number = path_of_receipt(), 1
    ranks = torch.distributed
    rank = ranks.get_rank() if ranks.is_available() and ranks.is_initialized() else 0
    while ledgers():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.path.join(ledgers(), f"rank{rank}.process{number}"), os.O_CREAT | os.O_EXCL))
            break
        number += 1
    stem, end = os.path.splitext(path)
    return path if number == 1 else f"{stem}.process{number}{end}"


def begin(module):
    """The model is found: record from here on. This very call runs the hooks that the recorder adds."""
    torch = sys.modules["torch"]
    inner, engine = module, FOUND["engine"] and FOUND["engine"]()
    if engine is not None and (engine is module or engine.module is module):
        given = {"engine": engine}
    else:
        while hasattr(inner, "module") and isinstance(inner.module, torch.nn.Module):
            inner = inner.module
        given = {"model": module, "optimizer": owner_of(inner)}
    rule = device.setting("ROUTING")
    if rule and device.library() and (mixtures := routing.route(inner, rule)):
        FOUND["routed"] = rule
        answers.told("experts in a loop", f"tokens are routed {rule}")["count"] += mixtures
    cls = make_class(load_receipts(), torch)
    FOUND["receipt"] = cls(own_path(torch), training_args=FOUND["training_arguments"], **given)


def trains(module):
    engine = FOUND["engine"] and FOUND["engine"]()
    if engine is not None:  # Its optimizer holds partitions, not the module's parameters.
        return module is engine or module is engine.module
    return bool(FOUND["optimizers"]) and owner_of(module) is not None


def owner_of(module):
    parameters = {id(p) for p in module.parameters()}
    for reference in FOUND["optimizers"]:
        optimizer = reference()
        if optimizer is not None and any(id(p) in parameters for g in optimizer.param_groups for p in g["params"]):
            return optimizer
    return None


def note_torch(torch):
    note("torch", json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "python": sys.executable}))


def hook_torch(torch):
    made = torch.optim.Optimizer.__init__

    def __init__(self, *args, **kwargs):
        made(self, *args, **kwargs)
        FOUND["optimizers"].append(weakref.ref(self))

    torch.optim.Optimizer.__init__ = __init__
    if device.setting("SNAPSHOT"):  # From the first allocation on; CUDA is not started for it.
        torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(max_entries=10_000_000, stacks="python"))
    real = torch.nn.Module.__call__

    def __call__(self, *args, **kwargs):
        if torch.compiler.is_compiling():  # A look at what was found would be a guard of somebody's graph.
            return real(self, *args, **kwargs)
        if FOUND["receipt"] is None and torch.is_grad_enabled() and trains(self):
            torch.nn.Module.__call__ = real
            begin(self)
        return real(self, *args, **kwargs)

    torch.nn.Module.__call__ = __call__
    hook_moves(torch.nn.Module)
    hook_loop(torch)
    hook_clipping(torch.nn.utils)
    hook_peaks(torch.cuda)


def marked_backward(backward):
    """DeepSpeed's engine reduces after autograd's own backward: the outermost call is the phase."""
    def call(*args, **kwargs):
        receipt, outermost = FOUND["receipt"], not FOUND["backward"]
        if receipt and outermost:
            receipt.mark("before backward")
        FOUND["backward"] = True
        try:
            result = backward(*args, **kwargs)
        finally:
            FOUND["backward"] = not outermost
        if receipt and outermost:
            receipt.mark("after backward")
        return result
    return call


def hook_loop(torch):
    """Backward and zero_grad, which the receipt cannot see from outside."""
    backward = torch.autograd.backward

    torch.autograd.backward = marked_backward(backward)

    def clearing(owner):
        zero_grad = owner.zero_grad

        def call(self, *args, **kwargs):
            result = zero_grad(self, *args, **kwargs)
            receipt = FOUND["receipt"]
            if receipt and (self is receipt.model or self is receipt.optimizer):
                receipt.cleared()
            return result

        owner.zero_grad = call

    clearing(torch.optim.Optimizer)
    clearing(torch.nn.Module)


def hook_moves(module):
    """Whether what trains was made in the host's memory and moved: a tied weight is then never there twice. And whether it
    was cast on the device, where it was in another dtype first."""
    def kinds(self):
        return {p.device.type for p in self.parameters()}, {p.dtype for p in self.parameters()}

    def moving(name):
        real = getattr(module, name)

        def call(self, *args, **kwargs):
            places, dtypes = kinds(self)
            result = real(self, *args, **kwargs)
            now, cast = kinds(self)
            FOUND["moved"] |= places == {"cpu"} and now == {"cuda"}
            FOUND["cast"] |= places == {"cuda"} and dtypes != cast
            return result

        setattr(module, name, functools.wraps(real)(call))

    for name in ("to", "cuda", "bfloat16", "half"):
        moving(name)


def hook_clipping(utils):
    utils.clip_grad_norm_ = clipping(utils.clip_grad_norm_)


def clipping(clip):
    """Of what comes first, parameters or a model."""
    @functools.wraps(clip)
    def call(parameters, max_norm, *args, **kwargs):
        FOUND["clipped"], receipt = float(max_norm), FOUND["receipt"]
        traffic = getattr(receipt, "traffic", None)
        if traffic:
            traffic.look(receipt.stretch(), "step")
        total = clip(parameters, max_norm, *args, **kwargs)
        FOUND["norm"] = weakref.ref(total)
        if traffic:
            traffic.look(receipt.stretch(), "step", "control")  # Sums of squares, weight by weight.
        return total

    return call


def hook_peaks(cuda):
    """torchtitan, for one, resets the peaks after each step that it logs."""
    reset = cuda.reset_peak_memory_stats

    def call(device=None):
        if device in (None, cuda.current_device()) or getattr(device, "index", None) == cuda.current_device():
            now = cuda.memory_stats()
            for key in ("requested", "allocated", "active", "reserved"):
                FOUND["peaks"][key] = max(FOUND["peaks"].get(key, 0), now.get(f"{key}_bytes.all.peak", 0))
        return reset(device)

    cuda.reset_peak_memory_stats = call


def hook_sharding(fsdp):
    """Where the first module was when it was cut: what is made on no device shows nothing of it later."""
    names = {"meta": "meta", "cuda": "device", "cpu": "host"}

    def look(module):
        if FOUND["sharded_on"] is None:
            modules = module if isinstance(module, (list, tuple)) else [module]
            FOUND["sharded_on"] = next((names.get(p.device.type) for m in modules for p in m.parameters()), None)

    hook_flattening(fsdp.FullyShardedDataParallel, look)
    shard = getattr(fsdp, "fully_shard", None)
    if shard is None:  # Before PyTorch 2.6.
        return

    def call(module, *args, **kwargs):
        look(module)
        return shard(module, *args, **kwargs)

    call.state = shard.state
    fsdp.fully_shard = call


def hook_flattening(wrapper, look):
    made = wrapper.__init__

    @functools.wraps(made)
    def __init__(self, module, *args, **kwargs):
        look(module)
        FOUND["synced"] |= bool(kwargs.get("sync_module_states"))
        made(self, module, *args, **kwargs)

    wrapper.__init__ = __init__
    wrapper.clip_grad_norm_ = clipping(wrapper.clip_grad_norm_)


def hook_trainer(trainer):
    train = trainer.Trainer.train

    def call(self, *args, **kwargs):
        FOUND["training_arguments"] = self.args
        return train(self, *args, **kwargs)

    trainer.Trainer.train = call


def hook_deepspeed(deepspeed):
    initialize = deepspeed.initialize

    def call(*args, **kwargs):
        result = initialize(*args, **kwargs)
        FOUND["engine"] = weakref.ref(result[0])
        result[0].backward = marked_backward(result[0].backward)
        return result

    deepspeed.initialize = call


def forget():
    """A receipt is the process's that began it: what that process has forked writes none of the same name."""
    if FOUND["receipt"]:
        FOUND["receipt"].closed = True
    FOUND["receipt"] = None


def end():
    receipt = FOUND["receipt"]
    if receipt:
        receipt.__exit__(None, getattr(sys, "last_value", None))


def install():
    if not path_of_receipt():
        return
    imports.after("torch", hook_torch)
    imports.after("torch.distributed.fsdp", hook_sharding)
    imports.after("transformers.trainer", hook_trainer)
    imports.after("deepspeed", hook_deepspeed)
    atexit.register(end)
    os.register_at_fork(after_in_child=forget)
    before = sys.excepthook

    def remember(kind, error, trace):
        if kind.__name__ == "OutOfMemoryError":
            note("full", str(error))
        if FOUND["receipt"]:
            FOUND["receipt"].__exit__(kind, error, trace)
            FOUND["receipt"] = None
        before(kind, error, trace)

    sys.excepthook = remember
