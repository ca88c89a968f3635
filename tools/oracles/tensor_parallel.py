"""One tensor-parallel rank for memory.py: a transformers model whose layers are cut as Megatron-LM cuts them, around
the functions of Megatron-LM itself.

MEGATRON names a checkout of NVIDIA/Megatron-LM; read from it are core/tensor_parallel/mappings.py and cross_entropy.py.
What they import from the rest of it is asked of torch.distributed's fake process group, in which nothing is sent. The
layers' own few lines (layers.py) are written out here in their synchronous form: one copy_to for all that reads a
block's input, sums of what was cut along its inputs before the bias is added.
"""

import importlib.util
import os
import sys
import types

import torch
import torch.distributed as dist
import torch.nn.functional as F

COLUMN = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "c_fc"}
ROW = {"o_proj", "down_proj", "c_proj"}


class Megatron:
    """Its functions over `ranks` ranks, of which this is the first."""

    def __init__(self, ranks):
        from torch.testing._internal.distributed.fake_pg import FakeStore
        if not dist.is_initialized():
            dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
        assert dist.get_world_size() == ranks, "one process for each degree"
        self.ranks = ranks
        stand_ins()
        self.mappings = loaded("mappings")
        self.loss = loaded("cross_entropy")

    def copy_to(self, x):
        return self.mappings.copy_to_tensor_model_parallel_region(x, group=dist.group.WORLD)

    def reduce_from(self, x):
        return self.mappings.reduce_from_tensor_model_parallel_region(x, group=dist.group.WORLD)

    def cross_entropy(self, logits, target):
        return self.loss.vocab_parallel_cross_entropy(logits, target, tp_group=dist.group.WORLD)


def stand_ins():
    """The few names that the two files import from elsewhere in Megatron-LM."""
    def module(name, **members):
        made = types.ModuleType(name)
        made.__path__ = []
        made.__dict__.update(members)
        sys.modules[name] = made

    module("megatron")
    module("megatron.core")
    module("megatron.core.tensor_parallel")
    module("megatron.core.parallel_state", get_global_memory_buffer=None, get_tensor_model_parallel_group=None)
    module("megatron.core.utils", get_tensor_model_parallel_group_if_none=lambda group: group,
           is_torch_min_version=lambda version: True, get_pg_rank=lambda group: group.rank(),
           get_pg_size=lambda group: group.size())
    first_words = types.SimpleNamespace(
        vocab_range_from_per_partition_vocab_size=lambda size, rank, ranks: (rank * size, (rank + 1) * size))
    module("megatron.core.tensor_parallel.utils", split_tensor_along_last_dim=None, VocabUtility=first_words)


def loaded(name):
    full = "megatron.core.tensor_parallel." + name
    path = os.path.join(os.environ["MEGATRON"], "megatron", "core", "tensor_parallel", name + ".py")
    spec = importlib.util.spec_from_file_location(full, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[full] = made
    spec.loader.exec_module(made)
    return made


def smaller(parameter, dimension, size):
    shape = list(parameter.shape)
    shape[dimension] = size
    return torch.nn.Parameter(torch.empty(shape, dtype=parameter.dtype, device=parameter.device))


def cut(linear, dimension, size):
    """A Linear, or a Conv1D, whose weight is the other way round. `dimension`: 0 for outputs, 1 for inputs."""
    direct = type(linear).__name__ == "Conv1D"
    linear.weight = smaller(linear.weight, 1 - dimension if direct else dimension, size)
    if dimension == 0 and linear.bias is not None:
        linear.bias = smaller(linear.bias, 0, size)
    if direct and dimension == 0:
        linear.nf = size


def row_forward(megatron, linear):
    direct = type(linear).__name__ == "Conv1D"

    def forward(x):
        if direct:
            part = torch.mm(x.view(-1, x.size(-1)), linear.weight).view(*x.size()[:-1], linear.nf)
        else:
            part = F.linear(x, linear.weight)
        whole = megatron.reduce_from(part)
        return whole if linear.bias is None else whole + linear.bias
    return forward


def table_forward(megatron, table):
    last = table.weight.shape[0]
    scale = getattr(table, "embed_scale", None)

    def forward(ids):
        elsewhere = (ids < 0) | (ids >= last)
        local = ids.clone() - 0
        local[elsewhere] = 0
        found = F.embedding(local, table.weight)
        found[elsewhere, :] = 0.0
        return megatron.reduce_from(found)

    def scaled(ids):
        return forward(ids) * scale.to(table.weight.dtype)
    return forward if scale is None else scaled


def behind_copy(megatron, module):
    inner = module.forward

    def forward(hidden_states, *args, **kwargs):
        return inner(megatron.copy_to(hidden_states), *args, **kwargs)
    return forward


def loss_of(megatron):
    def loss(logits, labels, vocab_size, **kwargs):
        padded = F.pad(labels, (0, 1), value=-100)
        shifted = padded[..., 1:].contiguous()
        losses = megatron.cross_entropy(logits, shifted)
        counted = shifted != -100
        return (losses * counted).sum() / counted.sum()
    return loss


def parallel(model, ranks):
    """Turns `model` into its first rank's part."""
    megatron = Megatron(ranks)
    config = model.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", heads)
    for name, module in list(model.named_modules()):
        leaf = name.rsplit(".", 1)[-1]
        if leaf in ("self_attn", "attn", "mlp"):
            module.forward = behind_copy(megatron, module)
        if leaf == "self_attn":
            module.num_key_value_groups = (heads // ranks) // max(1, kv_heads // ranks)
        if leaf == "attn":
            module.split_size //= ranks
        if leaf in COLUMN or leaf == "c_attn":
            whole = module.weight.shape[1 if type(module).__name__ == "Conv1D" else 0]
            shared = leaf in ("k_proj", "v_proj") and kv_heads < ranks
            cut(module, 0, whole // (kv_heads if shared else ranks))
        if leaf in ROW:
            cut(module, 1, module.weight.shape[0 if type(module).__name__ == "Conv1D" else 1] // ranks)
            module.forward = row_forward(megatron, module)
    cut_vocabulary(megatron, model)
    model.loss_function = loss_of(megatron)
    return model


def cut_vocabulary(megatron, model):
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head.weight is table.weight
    block = 128 * megatron.ranks
    words = (table.weight.shape[0] + block - 1) // block * block // megatron.ranks
    table.weight = smaller(table.weight, 0, words)
    head.weight = table.weight if tied else smaller(head.weight, 0, words)
    table.forward = table_forward(megatron, table)
    head.forward = behind_copy(megatron, head)
