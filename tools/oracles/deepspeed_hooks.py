"""Where the log of a rank is written from: torch.distributed's collectives, ZeRO-1/2's buckets and ZeRO-3's parameter
coordinator. Everything is wrapped, and nothing replaced but the order of a set: what DeepSpeed decides stays its own.
"""

import sys

import torch
import torch.distributed

from deepspeed_meter import SHORT

# name -> (position of the buffer whose size is the payload, keyword); what torch.distributed's functions take.
COLLECTIVES = {
    "all_reduce": (0, "tensor"), "reduce": (0, "tensor"), "broadcast": (0, "tensor"),
    "all_gather_into_tensor": (0, "output_tensor"), "reduce_scatter_tensor": (1, "input"),
    "all_to_all_single": (1, "input"),
}
PRINTED = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
           "all_to_all_single": "all_to_all"}


class Done:
    """A work that is finished already."""

    def wait(self, *_, **__):
        return True

    def is_completed(self):
        return True


def log_collectives(meter):
    """Each collective runs at once and on copies: gloo's threads would hold the tensors for as long as they please.
    So nothing here says how long a work that is under way keeps its buffers."""
    def wrap(name, position, keyword):
        call = getattr(torch.distributed, name)

        def logged(*args, group=None, async_op=False, **kwargs):
            tensor = args[position] if len(args) > position else kwargs[keyword]
            size = torch.distributed.get_world_size(group)
            ends = "".join(f" {end}={kwargs[end]}" for end in ("src", "dst") if end in kwargs)
            if not ends and name in ("reduce", "broadcast"):
                ends = f" {'dst' if name == 'reduce' else 'src'}={args[1]}"
            meter.write(f"c {PRINTED.get(name, name)} {SHORT[tensor.dtype]} {tensor.numel()} of={size}"
                        f" in={meter.number_of(tensor)}{ends}")
            on_copies(meter, call, args, {**kwargs, "group": group})
            return Done() if async_op else None

        setattr(torch.distributed, name, logged)

    for name, (position, keyword) in COLLECTIVES.items():
        wrap(name, position, keyword)
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        def refused(*args, _name=name, **kwargs):
            raise NotImplementedError(_name + " of lists")

        setattr(torch.distributed, name, refused)
    barrier = torch.distributed.barrier

    def quiet(*args, **kwargs):
        meter.pause += 1
        try:
            return barrier(*args, **kwargs)
        finally:
            meter.pause -= 1

    torch.distributed.barrier = quiet


def on_copies(meter, call, args, kwargs):
    meter.pause += 1
    try:
        copies = {}

        def copy(value):
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in copies:
                copies[id(value)] = (value, value.detach().clone())
            return copies[id(value)][1]

        call(*map(copy, args), **{key: copy(value) for key, value in kwargs.items()})
        for original, changed in reversed(list(copies.values())):  # What is given last is read only.
            original.detach().copy_(changed)
    finally:
        meter.pause -= 1


def wrap(owner, name, before=None, after=None):
    call = getattr(owner, name)

    def wrapped(*args, **kwargs):
        if before:
            before(*args, **kwargs)
        out = call(*args, **kwargs)
        if after:
            after(*args, **kwargs)
        return out

    wrapped.__wrapped__ = call
    setattr(owner, name, wrapped)


def log_streams(meter):
    """A CPU has no streams; who would have been told of one is written down."""
    torch.Tensor.record_stream = lambda self, stream: meter.write(f"record_stream {meter.number_of(self)}")


class Names:
    """Numbers that stand for names in the log: of parameters in registration order, and of modules."""

    def __init__(self):
        self.parameters, self.parameter_names = {}, []
        self.modules, self.module_names = {}, []

    def learn(self, model):
        for name, parameter in model.named_parameters():
            self.parameters[id(parameter)] = len(self.parameter_names)
            self.parameter_names.append(name)
        for name, module in model.named_modules():
            self.modules[id(module)] = len(self.module_names)
            self.module_names.append(name or ".")

    def of(self, parameter):
        return self.parameters[id(parameter)]

    def module(self, module):
        return self.modules[id(module)]

    def listed(self, parameters):
        return ",".join(map(str, map(self.of, parameters)))


def log_stage12(meter, names):
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer as Optimizer

    def flush(self, comm_dtype=None, *args, **kwargs):
        for dtype, bucket in self.ipg_buckets.items():
            params = [self.bit16_groups[i][index] for i, index, _ in bucket.params]
            if params and (comm_dtype is None or dtype == comm_dtype):
                meter.write("flush " + names.listed(params))

    wrap(Optimizer, "reduce_ipg_grads", flush)


class InOrder(set):
    """Parameters lie in Python's sets by their addresses, which is chance: here they come by their numbers."""

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=lambda one: getattr(one, "ds_id", one)))


def log_stage3(meter, names):
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator
    coordinator.set = InOrder
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Optimizer
    Coordinator = coordinator.PartitionedParameterCoordinator

    def names_of(parameters):
        return names.listed(sorted(parameters, key=lambda p: p.ds_id))

    def fetch(self, module, forward=True):
        waits["line"] = -1
        mode = getattr(self, "_PartitionedParameterCoordinator__trace_mode").name.lower()
        step = getattr(self, "_PartitionedParameterCoordinator__step_id")
        meter.write(f"{'enter' if forward else 'enter_backward'} {names.module(module)} {mode} {step}")

    def gather(self, params, forward):
        frame = sys._getframe(1)
        while frame.f_code.co_name != "_fetch_sub_module_impl":
            frame = frame.f_back
        kind = "prefetch" if frame.f_locals.get("params_to_prefetch") is params else "fetch"
        wanted = [p for p in params if p.ds_status.name == "NOT_AVAILABLE"]
        if wanted:
            meter.write(f"{kind} {names_of(wanted)}")

    wrap(Coordinator, "fetch_sub_module", fetch)
    wrap(Coordinator, "_PartitionedParameterCoordinator__all_gather_params", gather)
    waits = {}

    def wait(self, param):
        """One line for each module, where it waits first: the order within is that of a hash table."""
        if waits.get("line", -1) < 0:
            waits.update(line=len(meter.log), params=[])
            meter.write("")
        waits["params"].append(param)
        meter.log[waits["line"]] = f"wait {names_of(waits['params'])}"

    wrap(coordinator.InflightParamRegistry, "pop", wait)
    wrap(Coordinator, "_clean_inflight_param_registry",
         lambda self: self._PartitionedParameterCoordinator__inflight_param_registry and meter.write(
             "clean " + names_of(self._PartitionedParameterCoordinator__inflight_param_registry)))
    released = []
    inner = Coordinator._PartitionedParameterCoordinator__release_param

    def release_param(self, param, *args, **kwargs):
        was = param.ds_status
        inner(self, param, *args, **kwargs)
        if param.ds_status != was:
            released.append(param)

    Coordinator._PartitionedParameterCoordinator__release_param = release_param

    def release_begins(self, module, forward=False):
        released.clear()
        meter.write(f"{'leave' if forward else 'leave_backward'} {names.module(module)}")

    def release_ends(self, *args, **kwargs):
        if released:
            meter.write(f"release {names_of(released)}")
            released.clear()

    wrap(Coordinator, "release_sub_module", release_begins, release_ends)
    wrap(Coordinator, "release_and_reset_all", lambda self, module: meter.write("release_all"), release_ends)
    wrap(Coordinator, "release_backward_leftovers", None, release_ends)
    wrap(Coordinator, "_invalidate_trace", lambda self: meter.write("invalidate"), release_ends)
    wrap(Coordinator, "reset_step", None, lambda self: meter.write("reset_step"))
    log_reductions(meter, names, Optimizer)


def log_reductions(meter, names, Optimizer):
    mangled = "_DeepSpeedZeroOptimizer_Stage3__"

    def flush(self, communication_data_type, *args, **kwargs):
        params = self.ipg_buckets[communication_data_type].params
        if params:
            meter.write("flush " + names.listed(params))

    wrap(Optimizer, mangled + "reduce_and_partition_ipg_grads", flush)
