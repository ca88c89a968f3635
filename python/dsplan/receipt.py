"""What a training job takes, as a receipt for `dsplan compare --re-predict`. One file that needs torch alone:

    with receipt("out.json", model=model, optimizer=optimizer):        # or engine=engine, under DeepSpeed
        train()                                                        # two optimizer steps are enough
    trainer = Trainer(..., callbacks=[ReceiptCallback("out.json")])    # transformers' Trainer

It never fails the job. What cannot be seen is null, with its reason in `not_measured`; without a GPU that is all bytes.
A step ends, and peaks are reset, where the next one's forward begins."""
import json, math, os, sys, time, typing, weakref  # noqa: E401

import torch
import torch.utils.checkpoint

COUNTERS = ("requested", "allocated", "active", "reserved")
SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def bare(module):
    """FullyShardedDataParallel hands on what its module has, so that only children are asked."""
    inner = [module._modules[key] for key in ("_fsdp_wrapped_module", "_checkpoint_wrapped_module") if key in module._modules]
    return bare(inner[0]) if inner else module


def clean(name):
    return name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")


def compiles(module):
    return type(module).__name__ == "OptimizedModule"


def unwrapped(module):
    """What is inside of DistributedDataParallel, or of what torch.compile has put around a module."""
    return module._orig_mod if compiles(module) else getattr(module, "module", None)


def flattens(module):
    return type(module).__name__ == "FullyShardedDataParallel"


def sharded(module):
    return any(one.__name__ == "FSDPModule" for one in type(module).__mro__)


def own_class(module):
    """Of what fully_shard and checkpoint_wrapper have put another class over or around."""
    return next(one.__name__ for one in type(bare(module)).__mro__ if "FSDPModule" not in [b.__name__ for b in one.__mro__])


def accelerated():
    """What accelerate knows of this process; empty where it is not in use."""
    return getattr(getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None), "_shared_state", {})


class Shards:
    """What a script's own calls of fully_shard were given, read off its modules, in the words of a training file. What
    these words cannot say raises: a prediction of other calls would be of another job."""

    def __init__(self, model):
        found, self.order, self.root = {}, {}, model
        for at, (path, module) in enumerate(model.named_modules()):
            self.order[path] = at
            if sharded(module):
                found.setdefault(id(module._get_fsdp_state()), []).append((path, module))
        self.calls = sorted(found.values(), key=lambda call: self.number(self.state(call)))
        self.layers, self.paths = [], {id(m): path for path, m in model.named_modules()}
        for box in model.modules():  # The outermost lists of one class each: what is inside of a layer is none.
            if isinstance(box, (torch.nn.ModuleList, torch.nn.ModuleDict)) and len({own_class(m) for m in box.children()}) == 1:
                inside = self.inside(self.paths[id(box)])
                self.layers += [] if inside else list(map(bare, box.children()))

    state = staticmethod(lambda call: call[0][1]._get_fsdp_state())

    @staticmethod
    def number(state):
        """Hooks are numbered, over all modules, as they are registered: the order of the calls."""
        hook = state._pre_forward_hook_handle
        return (hook.handles[0] if hasattr(hook, "handles") else hook).id

    def words(self, world):
        groups = [(call, self.state(call)._fsdp_param_group) for call in self.calls]
        groups = [(call, group) for call, group in groups if group]
        meshes = {(g.mesh_info.shard_mesh_size, getattr(g.mesh_info, "replicate_mesh_size", 1)) for _, g in groups}
        policies = {g.mp_policy for _, g in groups}
        offloads = {repr(g.offload_policy) for _, g in groups}
        if len(meshes) != 1 or len(policies) != 1 or len(offloads) != 1:
            raise ValueError("fully_shard was called with several meshes or policies")
        (shard, replicate), policy, offload = meshes.pop(), policies.pop(), offloads.pop()
        if shard * replicate != world:
            raise ValueError(f"fully_shard over {shard} x {replicate} of {world} ranks: the rest is another parallelism")
        if not policy.cast_forward_inputs or "pin_memory=False" in offload:
            raise ValueError("fully_shard without cast_forward_inputs, or with pageable shards")
        told = {"wrap": self.wrap(), "reshard_after_forward": self.resharding(groups, shard), "shard": str(shard),
                "replicate": str(replicate), "cpu_offload": "CPUOffloadPolicy" in offload and "true", **self.prefetches()}
        root = [g for call, g in groups if call[0][0] == ""]
        told["reshard_root"] = bool(root and root[0].post_forward_mesh_info) and "true"
        told["reshard_tail"] = any(g.post_forward_mesh_info for call, g in groups if len(call) > 1) and "true"
        for key in ("param_dtype", "reduce_dtype", "output_dtype"):
            told[key] = getattr(policy, key) and SHORT[getattr(policy, key)]
        return {"runtime": "hsdp" if replicate > 1 else "fsdp2", "fsdp": {k: v for k, v in told.items() if v}}

    def wrap(self):
        """Word by word: layers from the first to the last, classes bottom up, both ends, the model."""
        if [path for path, _ in self.calls[-1]] != [""]:
            raise ValueError("the model itself was not given to fully_shard, or not last")
        words, left = [], self.calls[:-1]
        layers = {id(m) for m in self.layers}
        of_layers = [call for call in left if any(id(bare(m)) in layers or self.inside(path) for path, m in call)]
        for call in left:
            word = "layers" if call in of_layers else "ends"
            words += [word] if word not in words else []
        if "ends" in words:
            self.check_ends([call for call in left if call not in of_layers])
        if "layers" in words:
            words[words.index("layers")] = self.classes(of_layers, layers)
        return "+".join(words) or "root"

    def inside(self, path):
        return any(path.startswith(self.paths[id(m)] + ".") for m in self.layers)

    def classes(self, calls, layers):
        """In which of both orders classes are cut, children first, moves no byte of a step."""
        if any(len(call) != 1 for call in calls):
            raise ValueError("several modules of layers are one group of fully_shard")
        taken, paths = [bare(m) for call in calls for _, m in call], [path for call in calls for path, _ in call]
        at = [self.order[path] for path in paths]
        if {id(m) for m in taken} == layers and at == sorted(at):
            return "layers"
        names = list(dict.fromkeys(map(own_class, taken)))
        there = {id(bare(m)) for m in self.root.modules() if own_class(m) in names}
        after = {path: n for n, path in enumerate(paths)}
        children_first = all(after[path] < after[other] for path in paths for other in paths if path.startswith(other + "."))
        if there != {id(m) for m in taken} or not children_first:
            raise ValueError(f"fully_shard around some modules of {', '.join(names)}, or in an order of its own")
        return "+".join(names)

    def check_ends(self, calls):
        kinds = [[("embedding" if isinstance(m, torch.nn.Embedding) else "head" if isinstance(m, torch.nn.Linear) else
                   "norm" if "norm" in own_class(m).lower() else own_class(m)) for _, m in call] for call in calls]
        whole = [["embedding"], ["head", "norm"]], [["embedding", "head", "norm"]]
        if hasattr(getattr(self.root, "config", None), "vision_config"):  # accelerate finds no norm in such.
            whole = [["embedding"], ["head"]], [["embedding", "head"]]
        if [sorted(kind) for kind in kinds] not in whole:
            raise ValueError("fully_shard around " + "; ".join(path for call in calls for path, _ in call) + " outside of layers")

    def resharding(self, groups, shard):
        ends = [call for call in self.calls if len(call) > 1]
        kept = lambda g: g.post_forward_mesh_info and g.post_forward_mesh_info.shard_mesh_size  # noqa: E731
        if any(kept(self.state(call)._fsdp_param_group) not in (None, shard) for call in ends):
            raise ValueError("norm and head are resharded after forward to fewer ranks")
        found = {kept(g) for call, g in groups if call[0][0] and call not in ends}
        if len(found) > 1:
            raise ValueError("reshard_after_forward is not the same for all groups")
        size = found.pop() if found else shard
        return "true" if size == shard else str(size) if size else "false"

    def prefetches(self):
        told = {}
        layers = [m._get_fsdp_state() for m in self.layers if sharded(m)]
        for way in ("forward", "backward"):
            ahead = [getattr(state, f"_states_to_{way}_prefetch") for state in layers]
            most = max(map(len, ahead), default=0)
            usual = lambda at: (layers[at + 1:at + 1 + most] if way == "forward" else layers[:at][::-1][:most])  # noqa: E731
            if any(list(one) != (usual(at) if len(usual(at)) == most else []) for at, one in enumerate(ahead)):
                raise ValueError(f"set_modules_to_{way}_prefetch in an order of its own")
            told[way + "_prefetch"] = most and str(most)
        return told


class Flats:
    """What FullyShardedDataParallel was given, around the model and inside, in the same words; it keeps most of it. How its
    units were made is seen only where accelerate or the dry device has seen it."""

    def __init__(self, root):
        self.root, self.units = root, [m for m in root.modules() if flattens(m)]
        self.handles = [(m, m._handle.flat_param) for m in self.units if m._handle is not None]
        self.paths = {id(m): clean(path + ".").rstrip(".") for path, m in root.named_modules()}

    def words(self, world):
        one = [(m.sharding_strategy.name, m.mixed_precision, m.cpu_offload.offload_params, m.limit_all_gathers,
                m.backward_prefetch, m.forward_prefetch, m._use_orig_params, m.process_group.size()) for m in self.units]
        if any(each != one[0] for each in one):
            raise ValueError("FullyShardedDataParallel was given several strategies, policies or groups")
        strategy, policy, offloads, limits, backward, forward, views, shard = one[0]
        if strategy == "NO_SHARD" or shard == 1:
            raise ValueError("NO_SHARD, which PyTorch also takes where one rank shards, is not modelled")
        replicate = self.root._inter_node_pg.size() if "HYBRID" in strategy else 1
        if shard * replicate != world:
            raise ValueError(f"FullyShardedDataParallel over {shard} x {replicate} of {world} ranks: the rest is another parallelism")
        yes = lambda value: "true" if value else "false"  # noqa: E731
        told = {"wrap": self.wrap(), "reshard_after_forward": yes(strategy in ("FULL_SHARD", "HYBRID_SHARD")), "shard": str(shard),
                "replicate": str(replicate), "use_orig_params": yes(views), "limit_all_gathers": yes(limits),
                "cpu_offload": yes(offloads), "forward_prefetch": yes(forward),
                "backward_prefetch": backward.name[len("BACKWARD_"):].lower() if backward else "none"}
        around = {"runtime": "fsdp1", "fsdp": told, "freeze": self.frozen(views)}
        around.update(self.precision(policy))
        return around

    def precision(self, policy):
        """accelerate's is autocast and outputs in fp32 as well, and casts the shards of what is trained."""
        shared = accelerated()
        half = shared.get("_mixed_precision", "no") if shared.get("fsdp_plugin") else "no"
        dtypes = {key: getattr(policy, key) for key in ("param_dtype", "reduce_dtype", "buffer_dtype")}
        named = {key: SHORT[value] for key, value in dtypes.items() if value}
        if policy.keep_low_precision_grads or policy.cast_forward_inputs or not policy.cast_root_forward_inputs:
            raise ValueError("MixedPrecision with keep_low_precision_grads, cast_forward_inputs or without cast_root_forward_inputs is not modelled")
        if half != "no" and set(named.values()) | {half} != {half} or half != "no" and len(named) < 3:
            raise ValueError("a MixedPrecision of its own beside accelerate's mixed_precision is not modelled")
        if half == "no":
            return {"policy": named}
        loaded = getattr(getattr(bare(self.root), "config", None), "dtype", None)
        told = {"dtype": SHORT[getattr(torch, loaded) if isinstance(loaded, str) else loaded]} if loaded else {}
        return {"mixed_precision": half, "autocast": None, "policy": {}, **told}

    def wrap(self):
        """layers, or classes all of whose modules are units, inner ones first."""
        taken = [bare(m) for m in self.units[1:]]
        adapters = [m for m in taken if not any(True for _ in m.children()) and self.is_trained(m)]
        if adapters and self.has_adapters():
            return "adapters+" + self.classes([m for m in taken if m not in adapters])
        return self.classes(taken)

    def has_adapters(self):
        return any("lora_" in name for name, _, _ in self.parameters())

    def is_trained(self, module):
        return any(bare(unit) is module and flat.requires_grad for unit, flat in self.handles)

    def classes(self, taken):
        if not taken:
            return "root"
        boxes = [m for m in self.root.modules() if isinstance(m, torch.nn.ModuleList) and len({own_class(x) for x in m.children()}) == 1]
        inner = {id(x) for box in boxes for child in box.children() for x in bare(child).modules()}
        layers = [bare(x) for box in boxes if id(box) not in inner for x in box.children()]
        if [id(m) for m in taken] == [id(m) for m in layers]:
            return "layers"
        names = list(dict.fromkeys(own_class(m) for m in taken))
        there = {id(m) for m in self.root.modules() if bare(m) is m and own_class(m) in names}
        if there != {id(m) for m in taken}:
            raise ValueError(f"FullyShardedDataParallel around some modules of {', '.join(names)}")
        return "+".join(reversed(names))

    def parameters(self):
        """Name, elements, and whether it is trained; views of one flat parameter know it each for itself."""
        for module, flat in self.handles:
            prefix = self.paths[id(module)]
            own = flat._params if flat._params is not None else [flat] * len(flat._fqns)
            for name, count, view in zip(flat._fqns, flat._numels, own):
                yield ".".join(filter(None, (prefix, clean(name)))), count, view.requires_grad

    def frozen(self, views):
        if not views and not self.has_adapters() and len({flat.requires_grad for _, flat in self.handles}) > 1:
            raise ValueError("units that are frozen beside others that are trained, without use_orig_params")
        return [name for name, _, trained in self.parameters() if not trained]


def ignored(model):
    """Whose gradients nobody reduces, beside parameters that are DTensors."""
    plain = {name.replace("_checkpoint_wrapped_module.", ""): p for name, p in model.named_parameters()
             if type(p.data).__name__ != "DTensor"}
    whole = [name for name, p in plain.items() if p.is_floating_point()]
    if whole and any("lora_" in name or ".base_layer." in name for name, _ in model.named_parameters()):
        raise ValueError(f"fully_shard ignores {', '.join(whole)} beside adapters")
    return "+".join((["packed"] if len(whole) < len(plain) else []) + whole)


def loading(model):
    """How accelerate brought the shards to their ranks; of other scripts it cannot be seen afterwards."""
    plugin = accelerated().get("fsdp_plugin")
    packed = any(type(p).__name__ == "Params4bit" or not p.is_floating_point() for p in model.parameters())
    return plugin and not packed and ("rank0" if plugin.cpu_ram_efficient_loading else "host")


def replicas(wrapper):
    """What DistributedDataParallel was given, in the words of a training file; its defaults are not named."""
    hooks = [hook.__name__ for hook, _ in getattr(wrapper, "_comm_hooks", ())]
    known = {"bf16_compress_hook": "bf16", "fp16_compress_hook": "fp16"}
    if any(hook not in known for hook in hooks):
        raise ValueError(f"register_comm_hook({', '.join(hooks)})")
    cap = getattr(wrapper, "bucket_bytes_cap", None)
    told = {key: True for key in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph") if getattr(wrapper, key)}
    told.update({} if wrapper.broadcast_buffers else {"broadcast_buffers": False})
    told.update({"comm_hook": known[hooks[0]]} if hooks else {})
    told.update({"bucket_cap_mb": cap // 2**20} if cap and not getattr(wrapper, "bucket_bytes_cap_default", False) else {})
    return told


def compiled(model):
    """Modules that torch.compile runs, by their paths."""
    return [path or "the model" for path, m in model.named_modules()
            if compiles(m) or getattr(m, "_compiled_call_impl", None) is not None]


class Region(typing.NamedTuple):
    """A call of a checkpoint function: which modules run again in backward, and how."""
    form: str  # As --checkpoint-impl has it.
    rng: bool  # preserve_rng_state
    kept: tuple  # Operators whose results stay, as --checkpoint has them.
    modules: tuple  # Their ids, in order.
    other: str  # What else it is around.


KEPT = {"linear": {"aten.mm.default", "aten.addmm.default"}}
ATTENTION = "aten._scaled_dot_product_"


def kept_operators(context):
    """The words of --checkpoint for what a context_fn keeps; None: it keeps by a rule of its own."""
    if getattr(context, "__name__", "") == "noop_context_fn":
        return ()
    called = getattr(getattr(context, "func", None), "__name__", "")
    if called != "create_selective_checkpoint_contexts" or len(context.args) != 1 or not isinstance(context.args[0], list):
        return None
    left, words = set(map(str, context.args[0])), []
    for word, names in KEPT.items():
        if names <= left:
            words, left = [*words, word], left - names
    if left and all(name.startswith(ATTENTION) for name in left):
        words, left = [*words, "scaled_dot_product_attention"], set()
    return None if left or not words else tuple(words)


CORE = "core_attn"  # transformers' attention function, which is no module.


def called_modules(function):
    """Whom a function runs: a module, its forward or __call__ with arguments put in, or dsplan's own run of layers."""
    while hasattr(function, "func") and hasattr(function, "keywords"):
        function = function.func
    owner, name = getattr(function, "__self__", function), getattr(function, "__name__", "")
    if isinstance(owner, torch.nn.Module):
        called = owner is function or name in ("forward", "__call__", "_call_impl", "_wrapped_call_impl")
        return [bare(owner)] if called else []
    if name == "sdpa_attention_forward" and function.__module__.startswith("transformers."):
        return [CORE]
    cells = dict(zip(getattr(getattr(function, "__code__", None), "co_freevars", ()), getattr(function, "__closure__", None) or ()))
    inside = getattr(function, "__qualname__", "")
    if inside == "CheckpointWrapper.forward.<locals>.my_function":
        return [bare(cells["self"].cell_contents)]
    run = cells["self"].cell_contents if inside == "Run.__call__.<locals>.forward" else None
    ours = (type(run).__doc__ or "").startswith("Neighbouring layers as one checkpoint.")  # dsplan emit --format checkpointing
    return [bare(m) for m in run.layers] if ours else []


def replaced(owner, name, new, undo):
    """`undo` takes it back, unless somebody else has put a function of theirs over it."""
    own, old = name in vars(owner), getattr(owner, name)
    setattr(owner, name, new)

    def back():
        if vars(owner).get(name) is new:
            setattr(owner, name, old) if own else delattr(owner, name)
    undo.append(back)


class Regions:
    """Calls of the checkpoint functions of torch and DeepSpeed while forward runs, whoever makes them. Both look for the
    function that is replaced here when they are called, so that it does not matter when a script imported them."""

    def __init__(self):
        self.seen, self.now, self.whole, self.depth, self.undo = set(), None, False, 0, []
        self.watch_generator(torch.utils.checkpoint)
        self.watch_function(torch.utils.checkpoint.CheckpointFunction, "reentrant")
        engine = sys.modules.get("deepspeed.runtime.activation_checkpointing.checkpointing")
        if engine:
            self.watch_function(engine.CheckpointFunction, "deepspeed")

    def begin_forward(self):
        self.seen, self.now, self.whole = self.forwards(), [], False

    def end_forward(self):
        self.whole = True

    def forwards(self):
        """What each made, once. What comes before the next begins, as a script's own loss, is of the last."""
        return self.seen | ({tuple(self.now)} if self.whole else set())

    def end(self):
        while self.undo:
            self.undo.pop()()

    def note(self, form, function, rng, context=None):
        backward = torch._C._current_graph_task_id() != -1  # What runs again there was counted in forward.
        if backward or self.now is None or not (torch.is_grad_enabled() or self.depth):
            return
        modules, kept = called_modules(function), kept_operators(context) if context else ()
        other = "" if modules else getattr(getattr(function, "func", function), "__qualname__", type(function).__name__)
        if self.depth:
            other = other or "modules of what is a reentrant checkpoint already"
        if kept is None:
            other = "a choice of operators that --checkpoint has no words for"
        ids = tuple(one if one is CORE else id(one) for one in modules)
        self.now.append(Region(form, bool(rng), kept or (), ids, other))

    def watch_generator(self, owner):
        name = "_checkpoint_without_reentrant_generator"
        made = getattr(owner, name)

        def counted(function, *args, **kwargs):
            told = dict(zip(("preserve_rng_state", "context_fn"), args), **kwargs)
            self.note("non_reentrant", function, told.get("preserve_rng_state", True), told.get("context_fn"))
            return made(function, *args, **kwargs)

        replaced(owner, name, counted, self.undo)

    def watch_function(self, owner, form):
        apply = owner.apply

        def counted(function, second, *args):
            self.note(form, function, second if form == "reentrant" else True)
            self.depth += 1
            try:
                return apply(function, second, *args)
            finally:
                self.depth -= 1

        replaced(owner, "apply", staticmethod(counted), self.undo)

    def words(self, model):
        """In a training file's. Empty: nothing runs again. Raises where its words do not say what was seen."""
        forwards = self.forwards()
        if forwards <= {()}:
            return {}
        if len(forwards) > 1:
            raise ValueError("checkpoints that are not the same in each forward are not stated")
        calls, names = forwards.pop(), {id(bare(m)): clean(path) for path, m in reversed(list(model.named_modules()))}
        strange = next((call for call in calls if call.other or set(call.modules) - set(names) - {CORE}), None)
        if strange:
            raise unstated([strange.other or "modules that are none of the model"])
        if nested := self.nested(model, calls):
            return nested
        if len({call.rng for call in calls}) > 1:
            raise ValueError("checkpoints with preserve_rng_state beside others without are not stated")
        told = {"preserve_rng_state": calls[0].rng, "checkpoint": of_layers(model, calls) or of_modules(model, calls, names)}
        if len({call.form for call in calls}) == 1:
            told["checkpoint_impl"] = calls[0].form
        return told

    def nested(self, model, calls):
        """Each layer, and each module within it, as accelerate 1.13 has it."""
        layers = [m for box in layers_of(model) for m in box]
        inner = {id(bare(m)) for layer in layers for m in layer.children()}
        outer = {call.rng for call in calls if call.modules[0] not in inner}
        plain = all(call.form == "non_reentrant" and not call.kept and len(call.modules) == 1 for call in calls)
        within = not any(call.rng for call in calls if call.modules[0] in inner)
        if {call.modules[0] for call in calls} != inner | set(map(id, layers)) or not plain or not within or len(outer) != 1:
            return {}
        return {"checkpoint": "nested", "checkpoint_impl": "non_reentrant", "preserve_rng_state": outer.pop()}


def unstated(what):
    more = ", ..." if what[3:] else ""
    return ValueError(f"checkpoints around {', '.join(what[:3])}{more}: how they recompute is not stated")


def of_layers(model, calls):
    """Which layers, in the words of --checkpoint; None: what runs again is no layer."""
    boxes = layers_of(model)
    at = {id(m): n for box in boxes for n, m in enumerate(box)}
    every = [one for call in calls for one in call.modules]
    if set(every) - set(at):
        return None
    alike = len({(call.form, call.kept) for call in calls}) == 1
    if set(every) == set(at) and alike and all(len(call.modules) == 1 for call in calls):
        return "keep:" + "+".join(calls[0].kept) if calls[0].kept else "full"
    if len(boxes) > 1 or len(set(every)) < len(every):
        raise ValueError("checkpoints around some layers of a model that has several lists of them, or around one twice, are not stated")
    words = []
    for call in calls:
        first, last = at[call.modules[0]], at[call.modules[-1]]
        if [at[one] for one in call.modules] != list(range(first, last + 1)):
            raise ValueError("a checkpoint around layers that are no neighbours is not stated")
        mode = "=keep+" + "+".join(call.kept) if call.kept else "" if alike else "=" + call.form
        words.append((f"{first}-{last}" if last > first else str(first)) + mode)
    return "groups:" + ",".join(words)


def of_modules(model, calls, names):
    """As `dsplan emit --checkpoint modules:` puts them: every module of a layer that has one of some names, outermost ones."""
    taken, layers = {one for call in calls for one in call.modules}, [m for box in layers_of(model) for m in box]
    leaf, meant = {names[one].rpartition(".")[2] for one in taken - {CORE}}, set()
    for layer in layers:
        done = ()
        for path, m in layer.named_modules():
            if path.rpartition(".")[2] in leaf and not (done and path.startswith(done)):
                meant.add(id(bare(m)))
                done += (path + ".",)
    cores = sum(call.modules == (CORE,) for call in calls)
    plain = all(call.form == "non_reentrant" and not call.kept and len(call.modules) == 1 for call in calls)
    if taken - {CORE} != meant or not plain or cores not in (0, len(layers)):
        raise unstated(sorted(names.get(one, CORE) for one in taken))
    return "modules:" + "+".join(sorted(leaf) + [CORE] * (cores > 0))


def layers_of(model):
    """The layers in each of the outermost lists of one class."""
    boxes, inside = [], set()
    for box in model.modules():
        if isinstance(box, torch.nn.ModuleList) and len(box) and id(box) not in inside:
            layers = [bare(m) for m in box._modules.values()]
            if len({own_class(m) for m in layers}) == 1:
                inside.update(id(m) for layer in layers for m in layer.modules())
                boxes.append(layers)
    return boxes


def checkpoints(model, regions, cached):
    """What runs again in backward: the calls that were seen, as far as is known who makes them."""
    told = regions.words(model)
    flagged = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    for way in {getattr(m, "_gradient_checkpointing_func", None) for m in flagged} - {None}:
        way = getattr(way, "func", way)
        known = (way.__module__, way.__name__) == ("torch.utils.checkpoint", "checkpoint") or "activation_checkpointing" in way.__module__
        if not known:
            raise ValueError(f"layers are checkpointed by {way.__module__}.{way.__qualname__}: how they recompute is not stated")
    if told and cached:
        raise ValueError("checkpoints beside a cache of keys and values, which is filled a second time, are not stated: use_cache=False")
    usual = flagged or told.get("checkpoint", "").startswith("modules:") or any("_checkpoint_wrapped_module" in m._modules for m in model.modules())
    hooked = getattr(model, "_require_grads_hook", None) or getattr(model, "_require_grads_hooks", None)
    if told and not usual and not hooked and any(not p.requires_grad and p.is_floating_point() for p in model.parameters()):
        raise ValueError("checkpoints of the script's own beside frozen parameters: whether their input requires a gradient is not stated")
    return told or {"checkpoint": "none"}


def finite(value):
    """JSON has no infinity (accelerate's steps_per_print, mamba2's time_step_limit): the largest number stands for it."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(1.7e308, value)
    return value


def quiet(method):
    def wrapper(self, *args, **kwargs):
        if torch.compiler.is_compiling():  # What was seen would be a guard of the graph.
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.missing.setdefault("recorder." + method.__name__, f"{type(error).__name__}: {error}")
    return wrapper


class receipt:
    @quiet
    def __init__(self, path, model=None, optimizer=None, engine=None, config=None, training_args=None):
        self.phases, self.marks, self.seen, self.shape, self.calls, self.syncs = [], [], {}, (0, 0), 0, []
        self.cuda, self.stepped, self.closed = torch.cuda.is_available(), False, False
        self.missing = {"memory.host": "not looked at", "communication": "not looked at", "snapshot": "not taken",
                        "memory.process": "capacity less free: what everybody has on this GPU"}
        self.missing.update({"memory." + key: "no GPU" for key in (*COUNTERS, "process", "peak") if not self.cuda})
        self.path, self.engine, self.config, self.args = str(path), engine, config, training_args
        self.model, self.optimizer = getattr(engine, "module", model), getattr(engine, "optimizer", optimizer)
        self.wrapper, self.outputs, self.flats, self.loss, self.labels = None, None, None, None, None
        outer = self.model
        while isinstance(inner := unwrapped(self.model), torch.nn.Module):
            self.wrapper, self.model = (self.wrapper if compiles(self.model) else self.model), inner
        if flattens(self.wrapper):
            self.flats = Flats(self.wrapper)
        while hasattr(self.optimizer, "optimizer"):  # DeepSpeed's and accelerate's hold the one that steps.
            self.optimizer = self.optimizer.optimizer
        ranks = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
        self.rank, self.world = (ranks.get_rank(), ranks.get_world_size()) if ranks else (0, 1)
        self.path = "{0}.rank{2}{1}".format(*os.path.splitext(self.path), self.rank) if self.rank else self.path
        self.save()
        self.regions, inside = Regions(), compiled(outer)
        self.watch_forward(outer, outer if inside else self.model)
        if inside:
            more = f" and {len(inside) - 1} more" if inside[1:] else ""
            self.missing["inputs.compile"] = f"torch.compile runs {inside[0]}{more}: its kernels, and what it computes again, are not modelled"
        inner = next((m for m in self.model.modules() if isinstance(m, torch.nn.Embedding)), None)
        if inner is not None and not any(map(sharded, self.model.modules())):
            inner.register_forward_pre_hook(self.inside_forward)
        self.optimizer.register_step_pre_hook(lambda *_: None if self.stepped else self.mark("before step"))
        self.optimizer.register_step_post_hook(lambda *_: setattr(self, "stepped", True))

    def watch_forward(self, outer, inner):
        """Compiled in place, a module's hooks are in its graph: they belong around what is compiled."""
        real = getattr(outer, "_compiled_call_impl", None)
        if real is None:
            outer.register_forward_pre_hook(self.before_forward, prepend=True, with_kwargs=True)  # Before ZeRO-3 gathers.
            inner.register_forward_hook(self.after_forward)
            return

        def call(*args, **kwargs):
            self.before_forward(outer, args, kwargs)
            output = real(*args, **kwargs)
            self.after_forward(outer, args, output)
            return output
        outer._compiled_call_impl = call

    def counters(self, kind):
        stats = torch.cuda.memory_stats() if self.cuda else {}
        return {key: stats.get(f"{key}_bytes.all.{kind}", 0) if self.cuda else None for key in COUNTERS}

    @quiet
    def mark(self, name):
        if torch.is_grad_enabled() and not self.closed:  # Evaluation is no step.
            if name == "before step" and self.labels and self.labels() is None and self.args is None:
                self.missing["batch.labels"] = "labels are gone before the step, and a prediction's loop holds them until its end"
            free = torch.cuda.mem_get_info() if self.cuda else None
            self.marks.append({"name": name, **self.counters("current"), "process": free and free[1] - free[0]})

    @quiet
    def inside_forward(self, module, args):
        """accelerate puts autocast around forward itself, where nobody sees it from outside."""
        kind = module.weight.device.type
        if torch.is_grad_enabled() and torch.is_autocast_enabled(kind):
            self.seen["autocast"] = SHORT[torch.get_autocast_dtype(kind)]

    @quiet
    def after_forward(self, module, args, output):
        torch.is_grad_enabled() and self.regions.end_forward()
        logits = getattr(output, "logits", None)
        self.outputs = weakref.ref(logits) if isinstance(logits, torch.Tensor) else None
        self.loss = weakref.ref(output.loss) if isinstance(getattr(output, "loss", None), torch.Tensor) else None
        layers = getattr(getattr(output, "past_key_values", None), "layers", ())
        if torch.is_grad_enabled() and any(isinstance(getattr(one, "keys", None), torch.Tensor) for one in layers):
            self.seen["use_cache"] = True  # Beside checkpoints the cache is there and stays empty.
        if self.outputs and self.seen.get("loss") is None and self.args is None:
            self.seen["loss"] = "native"  # The script's own, of the logits as they are.
        self.mark("after forward")

    def turn(self):
        if self.phases and self.outputs:  # After backward and step it is a variable of the script's that holds them.
            self.seen["loop"] = "minimal" if self.outputs() is None else "script"
        if self.phases and self.args:
            self.missing["loop.loss"] = "the Trainer holds a step's loss, their sum and the number of tokens: 20 bytes in blocks of 512"
        elif self.phases and self.seen.get("loop") == "minimal" and self.loss and self.loss() is not None:
            self.seen["loop"] = "loss"
        self.mark("end")
        peaks = {"peak_" + key: value for key, value in self.counters("peak").items()}
        for key in COUNTERS if self.cuda else ():
            most = max((mark[key] for mark in self.marks), default=0)
            if most > peaks["peak_" + key]:  # What the job itself has reset since is gone.
                self.missing["memory.peaks"] = "the job resets PyTorch's peaks: those of its phases are too low"
                peaks["peak_" + key] = most
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
        torch.is_grad_enabled() and self.regions.begin_forward()
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        if kwargs.get("labels") is ids and torch.is_grad_enabled():
            self.seen["labels_are_ids"] = True
        labels = kwargs.get("labels")
        self.labels = weakref.ref(labels) if isinstance(labels, torch.Tensor) and labels is not ids else None
        self.calls, self.shape, kind = self.calls + 1, tuple(ids.shape), ids.device.type
        group = module._get_fsdp_state()._fsdp_param_group if sharded(module) else None
        syncs = getattr(self.wrapper, "_sync_gradients", True) if self.flats else getattr(group, "reduce_grads", True)
        self.syncs = [*self.syncs[:self.calls - 1], syncs]
        self.seen["loss"] = "trl" if kwargs.get("fused_lm_head") else "hf" if kwargs.get("labels") is not None else None
        self.seen["autocast"] = SHORT[torch.get_autocast_dtype(kind)] if torch.is_autocast_enabled(kind) else "none"
        self.mark("before forward")

    __enter__ = lambda self: self  # noqa: E731
    def __exit__(self, kind=None, error=None, trace=None):
        quiet(lambda self: self.stepped and not error and not self.closed and self.turn())(self)  # The job's last step.
        self.closed = True
        self.save(error)
        quiet(lambda self: self.regions.end())(self)

    def parallel(self):
        """What is laid around the model, beside DeepSpeed. Where it cannot be said, nothing is to be predicted from it."""
        told, distributed = {}, type(self.wrapper).__name__ == "DistributedDataParallel"
        if distributed and replicas(self.wrapper):
            told["ddp"] = replicas(self.wrapper)
        if any(map(sharded, self.model.modules())):
            told.update(Shards(self.model).words(self.world))
            told["fsdp"].update({"ignored": ignored(self.model)} if ignored(self.model) else {})
            told["model_init"] = loading(self.model) or self.seen.get("model_init")
            if loading(self.model) == "host" and "ends" in told["fsdp"]["wrap"]:  # accelerate's variables.
                told["fsdp"]["wrap"] += "+held"
            if len(self.syncs) > 1:
                told["fsdp"]["gradient_sync"] = "every" if all(self.syncs) else "last"
        if type(self.optimizer).__name__ == "ZeroRedundancyOptimizer":
            if self.optimizer.parameters_as_bucket_view or self.optimizer._overlap_with_ddp or not distributed:
                raise ValueError("ZeroRedundancyOptimizer with parameters_as_bucket_view, overlap_with_ddp or without "
                                 "DistributedDataParallel is not modelled")
            told["ddp"] = {**told.get("ddp", {}), "zero_redundancy": True}
        if self.flats:
            around = self.flats.words(self.world)
            around["fsdp"].update(around.pop("policy"))
            plugin = accelerated().get("fsdp_plugin")
            around["fsdp"]["sync_module_states"] = "true" if getattr(plugin, "sync_module_states", False) else "false"
            if len(self.syncs) > 1:
                around["fsdp"]["gradient_sync"] = "every" if all(self.syncs) else "last"
            told.update(around, model_init="host")
        elif any(map(flattens, self.model.modules())):
            raise ValueError("FullyShardedDataParallel within a model that is not wrapped itself is not modelled")
        return told

    def training(self, config, deepspeed):
        optimizer = getattr(self.optimizer, "optim", self.optimizer)  # ZeroRedundancyOptimizer's own.
        named, chosen = list(self.model.named_parameters()), getattr(optimizer, "defaults", {})
        adapters = list(getattr(self.model, "peft_config", {}).values())[:1]
        around, packs = {} if deepspeed else self.parallel(), lambda p: not p.is_floating_point()
        told = {"dsplan": 1, "kind": "training", "source": "python/dsplan/receipt.py", "seq": self.shape[-1] or None,
                "attention": getattr(config, "_attn_implementation", None), "loss": self.seen.get("loss"),
                "loop": self.seen.get("loop"), **checkpoints(self.model, self.regions, self.seen.get("use_cache")),
                "freeze": [clean(name) for name, p in named if not p.requires_grad and not adapters]}
        if any(name.endswith(".experts") for name, _ in self.model.named_modules()):
            whole = getattr(config, "text_config", config)
            told["experts"] = getattr(whole, "_experts_implementation", None)
        for lora in adapters:
            told["lora"] = {"r": lora.r, "targets": list(lora.target_modules), "dropout": lora.lora_dropout,
                            "dtype": next(SHORT[p.dtype] for name, p in named if "lora_" in name)}
            more = {"save": list(lora.modules_to_save or ()), "dora": lora.use_dora, "rslora": lora.use_rslora,
                    "bias": lora.bias if lora.bias != "none" else None}
            told["lora"].update({key: value for key, value in more.items() if value})
        if not deepspeed:
            each = chosen["foreach"] if chosen.get("foreach") is not None else named[0][1].device.type == "cuda"
            how = "fused" if chosen.get("fused") else "foreach" if each else "for-loop"
            told["optimizer"] = {"name": type(optimizer).__name__.lower(), "implementation": how}
            dtype = next(p.dtype for name, p in named if not packs(p) and "lora_" not in name)
            told.update(dtype=SHORT[dtype], micro_batch=self.shape[0], **self.seen)
            told["cast_model"] = not self.flats and dtype != torch.float32 and any(
                name.endswith("inv_freq") and buffer.dtype == dtype for name, buffer in self.model.named_buffers())
        if self.args:
            half = "bf16" if self.args.bf16 else "fp16" if self.args.fp16 else "none"
            told["loop"], told["max_grad_norm"] = "trainer", self.args.max_grad_norm
            told.update({} if deepspeed else {"param_groups": "decay"})
            told.update({} if deepspeed or "fsdp" in around else {"autocast": half})
        told.update({key: value for key, value in around.items() if key != "freeze" or not adapters})
        return {key: value for key, value in told.items() if value or key == "preserve_rng_state"}

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
        if self.flats:
            sizes = [row[1:] for row in self.flats.parameters()]
        version = {key: str(getattr(sys.modules.get(key), "__version__", "")).split("+")[0] or None
                   for key in ("torch", "transformers", "deepspeed", "peft")}
        environment = {"gpu": torch.cuda.get_device_name() if self.cuda else None, "driver": None, "limit_bytes": None,
                       "capacity_bytes": torch.cuda.mem_get_info()[1] if self.cuda else None, **version,
                       "allocator_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), "cuda": torch.version.cuda,
                       "recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "python": sys.version.split()[0]}
        training, _ = None, self.missing.pop("inputs.training", None)
        try:
            training = self.training(config, deepspeed)
        except Exception as unseen:
            self.missing["inputs.training"] = str(unseen) if isinstance(unseen, ValueError) else repr(unseen)
        if config is None:
            kind = type(self.model)
            self.missing["inputs.model"] = f"{kind.__module__}.{own_class(self.model)} has no config of transformers"
        rank = {"rank": self.rank, "communication": None, "snapshot": None,
                "parameters": {"total": sum(n for n, _ in sizes), "trainable": sum(n for n, trains in sizes if trains)},
                "memory": {"persistent": {key: marks[-1][key] for key in COUNTERS[:2]} if done else None,
                           "peak": peak, "phases": self.phases, "host": None},
                "not_measured": [{"what": what, "why": why} for what, why in self.missing.items()]}
        inputs = {"model": json.loads(config.to_json_string(use_diff=False)) if config else {}, "deepspeed": deepspeed,
                  "training": training, "training_arguments": self.args and self.args.to_dict(),
                  "options": ["--gpus", str(self.world)] if self.world > 1 else [], "fingerprint": None}
        outcome = "ran" if done or not error else "out_of_memory" if "out of memory" in why else "error"
        value = {"schema": "dsplan.receipt/1", "source": "python/dsplan/receipt.py", "level": "framework", "samples": [],
                 "name": os.path.splitext(os.path.basename(self.path))[0], "device": "cuda" if self.cuda else "cpu",
                 "ranks_are": "process", "complete": done, "outcome": outcome, "message": None if done else why,
                 "environment": environment, "inputs": inputs, "world_size": self.world, "ranks": [rank]}
        with open(self.path + ".part", "w") as file:
            json.dump(finite(value), file, indent=1, default=str, allow_nan=False)
        os.replace(self.path + ".part", self.path)


def ReceiptCallback(path="receipt.json"):
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            self.receipt = receipt(path, model, optimizer, training_args=args)
        on_train_end = lambda self, *_, **__: self.receipt.__exit__()  # noqa: E731
    return Callback()
