"""Outside oracle for dsplan's DeepSpeed runtime: real DeepSpeed on its CPU accelerator, one process per rank, gloo.

    deepspeed_witness.py OUT_DIR [NAME...]     one NAME.json and NAME.log per configuration (all of them without NAME)

What a rank did is written in program order: collectives, storages that DeepSpeed's code makes and frees, buckets,
gathers and releases. See README.md for the format and for what a CPU cannot show.
"""

import gc
import json
import logging
import os
import sys
import tempfile
import traceback

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import transformers

torch.set_num_threads(1)

import deepspeed
import deepspeed.comm.torch
import torch._dynamo  # What the ranks would each import for themselves.
import torch.export
import torch._inductor.lowering
import transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama
import transformers.models.t5.modeling_t5

from deepspeed.accelerator import get_accelerator
from deepspeed_cases import CASES
from deepspeed_held import held
from deepspeed_hooks import Names, log_collectives, log_stage12, log_stage3, log_streams
from deepspeed_meter import Meter
from deepspeed_models import batch_of, loss_of, model_of


def one_rank(case, rank, rendezvous):
    deepspeed.comm.torch.build_shm_op = lambda: None  # Shared-memory kernels for inference only.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case["world"]), LOCAL_SIZE=str(case["world"]))
    get_accelerator().is_fp16_supported = lambda: True  # torch's CPU operators are, DeepSpeed's own question is not.
    meter, names = Meter(), Names()
    log_collectives(meter)
    deepspeed.init_distributed(dist_backend="gloo", init_method="file://" + rendezvous, rank=rank,
                               world_size=case["world"], auto_mpi_discovery=False, verbose=False)
    log_streams(meter)
    log_stage12(meter, names)
    log_stage3(meter, names)
    moments = {}
    with meter:
        meter.write("# construct")
        model = model_of(case)
        names.learn(model)
        for parameter in model.parameters():
            meter.name(getattr(parameter, "ds_tensor", parameter), "p", names.of(parameter))
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p: meter.name(p.grad, "g", names.of(p)))
        for name, buffer in model.named_buffers():
            meter.name(buffer, "b", name)
        # Off, so that runs repeat; in models of usual size it has run before the engine begins, as the dry device shows:
        # a head that was tied away is held by a cycle of its own (partition_parameters.py, _convert_to_deepspeed_param).
        gc.collect()
        meter.write("# init")
        engine, *_ = deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad],
                                          config=case["deepspeed"])
        moments["init"] = held(engine, names)
        loop(case, rank, engine, names, meter, moments)
    return {"log": meter.log, "held": moments, "parameters": names.parameter_names, "modules": names.module_names,
            "trained": [names.of(p) for p in model.parameters() if p.requires_grad]}


def loop(case, rank, engine, names, meter, moments):
    accumulation = case["deepspeed"]["gradient_accumulation_steps"]
    for step in range(case["steps"]):
        if step in case.get("evaluate", []):
            meter.write(f"# evaluate before step {step}")
            engine.eval()
            with torch.no_grad():
                engine(**batch_of(case, rank))
            engine.train()
        for micro in range(accumulation):
            batch = batch_of(case, rank)
            meter.write(f"# forward {step}.{micro}")
            loss = loss_of(case, engine, batch)
            meter.write(f"# backward {step}.{micro}")
            engine.backward(loss)
            del loss
            moments[f"backward {step}.{micro}"] = held(engine, names)
            if micro + 1 < accumulation:
                engine.step()
        meter.write(f"# step {step}")
        engine.step()
        moments[f"step {step}"] = held(engine, names)
        meter.write(f"# end {step}")


def child(case, rank, rendezvous, path):
    output = os.open(path + ".out", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        gc.disable()
        result = one_rank(case, rank, rendezvous)
        with open(path, "w") as file:
            json.dump(result, file)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(case, folder):
    """Every rank is a fork of this process, which has imported everything already."""
    rendezvous = os.path.join(folder, "rendezvous")
    paths = [os.path.join(folder, f"rank{rank}.json") for rank in range(case["world"])]
    children = []
    for rank, path in enumerate(paths):
        pid = os.fork()
        if pid == 0:
            child(case, rank, rendezvous, path)
        children.append(pid)
    alive = set(children)
    failed = False
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        if status and not failed:  # The others would wait for it.
            failed = True
            for other in alive:
                os.kill(other, 9)
    if failed:
        raise RuntimeError("".join(open(path + ".out").read()[-1500:] for path in paths))
    return [json.load(open(path)) for path in paths]


def compact(value):
    """One line per top-level key: short files, readable differences."""
    rows = [f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + "\n}"


def write(out, name, case, ranks):
    result = {
        "dsplan": 1, "kind": "deepspeed_witness",
        "source": "tools/oracles/deepspeed_witness.py: DeepSpeed's CPU accelerator, gloo, one process per rank",
        "versions": {"deepspeed": deepspeed.__version__, "torch": torch.__version__,
                     "transformers": transformers.__version__},
        "config": case["model"], "deepspeed": case["deepspeed"], "world": case["world"],
        "loop": {key: value for key, value in case.items() if key not in ("model", "deepspeed", "world")},
    }
    for key in ("parameters", "modules", "trained"):
        result[key] = ranks[0][key]
    for rank, answer in enumerate(ranks):
        same = next((other for other in range(rank) if ranks[other]["held"] == answer["held"]), None)
        last = {}
        moments = {}
        for moment, row in answer["held"].items():  # Only what has changed since the moment before.
            moments[moment] = {key: value for key, value in row.items() if last.get(key) != value}
            last = row
        result[f"held_by_rank_{rank}"] = moments if same is None else same
    with open(os.path.join(out, name + ".json"), "w") as file:
        file.write(compact(result) + "\n")
    with open(os.path.join(out, name + ".log"), "w") as file:
        for rank, answer in enumerate(ranks):
            same = next((other for other in range(rank) if ranks[other]["log"] == answer["log"]), None)
            file.write(f"## rank {rank}" + (f" as rank {same}\n" if same is not None else "\n"))
            if same is None:
                file.write("\n".join(answer["log"]) + "\n")


def load_operators():
    """FusedAdam and CPUAdam are compiled on first use: before the forks, and never twice."""
    import torch.utils.cpp_extension
    for name in ("FusedAdamBuilder", "CPUAdamBuilder"):
        get_accelerator().create_op_builder(name).load(verbose=False)


def main():
    out = sys.argv[1]
    load_operators()
    failed = []
    for name in sys.argv[2:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                ranks = run(CASES[name], folder)
            except RuntimeError as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr)
                continue
        write(out, name, CASES[name], ranks)
        print(name, *(len(answer["log"]) for answer in ranks), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
