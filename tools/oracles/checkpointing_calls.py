"""Outside oracle for the Python that `dsplan emit --format checkpointing` writes: it runs on small transformers models.

    checkpointing_calls.py DSPLAN OUT_FILE

For each case the same model takes one training step twice, without the lines and with them. The loss and every gradient
must be equal, and so must the names of the parameters; written down are how many checkpoints the forward makes and which
layers run again in backward. tests/emitted_test.cpp emits the lines again and holds both against the job's own groups.
"""

import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import torch.utils.checkpoint
import transformers
import transformers.modeling_utils

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYERS = 6

# The model, and words behind `emit MODEL`; `recomputed` counts calls of this module of a layer instead of the layer.
CASES = [
    ("llama", "--checkpoint none", None),
    ("llama", "--checkpoint full", None),
    ("llama", "--checkpoint full --checkpoint-impl reentrant", None),
    ("llama", "--checkpoint nth:2", None),
    ("llama", "--checkpoint nth:4", None),
    ("llama", "--checkpoint every:4", None),
    ("llama", "--checkpoint every:2 --checkpoint-impl reentrant", None),
    ("llama", "--checkpoint segments:3", None),
    ("llama", "--checkpoint groups:0-2,4,5=reentrant", None),
    ("llama", "--checkpoint groups:1-3=keep+linear,4-5", None),
    ("llama", "--checkpoint keep:linear", None),
    ("llama", "--checkpoint modules:mlp", "mlp"),
    ("llama", "--checkpoint modules:layernorm+core_attn", "input_layernorm"),
    ("llama", "--checkpoint every:2 --lora r=4,targets=q_proj", None),
    ("llama", "--checkpoint full --checkpoint-impl deepspeed --zero-stage 0", None),
    ("llama", "--checkpoint every:3 --checkpoint-impl deepspeed --zero-stage 0", None),
    ("gpt2", "--checkpoint full", None),
    ("gpt2", "--checkpoint every:4", None),
    ("gpt2", "--checkpoint groups:0,2-5=keep+linear", None),
]


def deeper(name):
    """The bundled small model with more layers."""
    with open(f"{ROOT}/models/tiny-{name}.json") as file:
        config = json.load(file)
    config["n_layer" if name == "gpt2" else "num_hidden_layers"] = LAYERS
    for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if key in config:
            config[key] = 0.0
    return config


def model_of(folder, lora):
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).train()
    if lora:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    return model


def layers_of(model):
    return next(module for name, module in model.named_modules()
                if isinstance(module, torch.nn.ModuleList) and len(list(module.children())) == LAYERS)


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def step(folder, lines, lora, counted):
    made, again, backward = [0], [0] * LAYERS, [False]
    real = torch.utils.checkpoint.checkpoint

    def checkpoint(*args, **kwargs):
        made[0] += 1
        return real(*args, **kwargs)

    import deepspeed
    real_deepspeed = deepspeed.checkpointing.checkpoint

    def checkpoint_deepspeed(*args, **kwargs):
        made[0] += 1
        return real_deepspeed(*args, **kwargs)

    torch.utils.checkpoint.checkpoint = transformers.modeling_utils.checkpoint = checkpoint
    deepspeed.checkpointing.checkpoint = checkpoint_deepspeed
    try:
        model = model_of(folder, lora)
        for index, layer in enumerate(layers_of(model).children()):
            module = layer if counted is None else layer.get_submodule(counted)

            def ran(*_, index=index):
                again[index] += backward[0]

            patch(module, ran)
        exec(lines, {"model": model})
        rows = torch.arange(64).reshape(2, 32) % model.config.vocab_size
        loss = model(input_ids=rows, labels=rows).loss
        backward[0] = True
        with Products() as products:
            loss.backward()
    finally:
        torch.utils.checkpoint.checkpoint = transformers.modeling_utils.checkpoint = real
        deepspeed.checkpointing.checkpoint = real_deepspeed
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    return loss.detach(), gradients, made[0], again, products.count


def patch(module, ran):
    """Counts calls of the module's function, before anybody wraps it."""
    forward = module.forward

    def counted(*args, **kwargs):
        ran()
        return forward(*args, **kwargs)

    module.forward = counted


def main(dsplan, out):
    import deepspeed
    with tempfile.TemporaryDirectory() as folder:
        deepspeed.init_distributed(dist_backend="gloo", init_method=f"file://{folder}/store", rank=0, world_size=1,
                                   auto_mpi_discovery=False, verbose=False)
        for name in ("llama", "gpt2"):
            os.mkdir(f"{folder}/six-{name}")
            with open(f"{folder}/six-{name}/config.json", "w") as file:
                json.dump(deeper(name), file)
        os.chdir(folder)
        with open("ds_config.json", "w") as file:
            json.dump({"train_batch_size": 1, "activation_checkpointing": {}}, file)
        cases = []
        for name, words, counted in CASES:
            line = [dsplan, "emit", f"six-{name}", *words.split(), "--seq", "32", "--dtype", "fp32", "--format", "checkpointing"]
            ran = subprocess.run(line, text=True, capture_output=True)
            if ran.returncode != 0:
                raise SystemExit(f"{name} {words}: {ran.stderr}")
            lora = "--lora" in words
            plain = step(f"six-{name}", "", lora, counted)
            with_lines = step(f"six-{name}", ran.stdout, lora, counted)
            if not torch.equal(plain[0], with_lines[0]) or plain[1].keys() != with_lines[1].keys():
                raise SystemExit(f"{name} {words}: another loss or other parameters")
            for key, gradient in plain[1].items():
                if not torch.allclose(gradient, with_lines[1][key], rtol=1e-5, atol=1e-7):
                    raise SystemExit(f"{name} {words}: another gradient of {key}")
            cases.append({"model": name, "words": words, "checkpoints": with_lines[2], "again": with_lines[3],
                          "products_again": with_lines[4] - plain[4], "emitted": ran.stdout})
            print(f"{name} {words}: {with_lines[2]} checkpoints, again {with_lines[3]}, "
                  f"{with_lines[4] - plain[4]} products", file=sys.stderr)
    head = {"source": "tools/oracles/checkpointing_calls.py",
            "versions": {name: module.__version__.split("+")[0] for name, module in
                         (("torch", torch), ("transformers", transformers), ("deepspeed", deepspeed))}}
    with open(out, "w") as file:
        json.dump({**head, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
