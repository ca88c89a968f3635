"""Outside oracle for NVMe offload: deepspeed_witness.py with partitions and optimizer states in files.

    deepspeed_nvme.py OUT_DIR [NAME...]     one NAME.json and NAME.log per configuration (all of them without NAME)

The compiled parts are stand-ins (deepspeed_aio.py), so nothing is compiled. Lines besides those of
deepspeed_witness.py: "read BYTES FILE" and "write BYTES FILE", in the order in which DeepSpeed asks for them.
"""

import copy
import logging
import sys

import deepspeed_witness as witness
from deepspeed_aio import METER, install
from deepspeed_cases import case, z3

# Partitions below 1 MiB stay in memory. Of two ranks the embedding, the head and the MLP's three weights are above,
# none a multiple of 1,024 bytes. The head is more than twice as large as what is in flight before it: else its
# partition is read ahead twice, for its forward and for its backward, and DeepSpeed stops at an assertion.
LLAMA = {"model_type": "llama", "vocab_size": 4500, "hidden_size": 504, "intermediate_size": 2081,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
         "tie_word_embeddings": False}
# Of a single rank: attention's weights are above as well.
GROUPS = {"sub_group_size": 1200000}


def optimizer(**keys):
    return {"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", **keys}}


def param(**keys):
    return {"offload_param": {"device": "nvme", "nvme_path": "/nvme", "buffer_size": 1200000, "max_in_cpu": 0, **keys}}


CPU = {"offload_optimizer": {"device": "cpu"}}
BUCKET = {"reduce_bucket_size": 2500000, "stage3_prefetch_bucket_size": 100}
READ = {"pipeline_read": True}
WRITE = {"pipeline_write": True}


def nvme(*blocks, **more):
    keys = {**BUCKET}
    for block in blocks:
        keys.update(block)
    return case(LLAMA, z3(**keys), **more)


CASES = {
    "z3-nvme-optimizer": nvme(optimizer(), accumulation=2),
    "z3-nvme-optimizer-groups": nvme(optimizer(), GROUPS, steps=3),
    "z3-nvme-optimizer-read": nvme(optimizer(buffer_count=8, **READ), GROUPS),
    "z3-nvme-optimizer-write": nvme(optimizer(buffer_count=8, **WRITE), GROUPS),
    "z3-nvme-optimizer-pipelined": nvme(optimizer(buffer_count=13, **READ, **WRITE), GROUPS, accumulation=2, steps=3),
    "z3-nvme-optimizer-sums-fp32": nvme(optimizer(pin_memory=False), GROUPS,
                                        deepspeed={"data_types": {"grad_accum_dtype": "fp32"}}),
    "z3-nvme-optimizer-fp32": nvme(optimizer(), GROUPS, dtype="fp32"),
    "z3-nvme-param": nvme(CPU, param(), GROUPS),
    "z3-nvme-param-in-cpu": nvme(CPU, param(max_in_cpu=1000000000), GROUPS),
    "z3-nvme-param-alone": nvme(param(pin_memory=False), GROUPS),
    "z3-nvme-param-ahead": nvme(CPU, param(buffer_count=8), GROUPS,
                                {"stage3_prefetch_bucket_size": 1000000, "stage3_max_reuse_distance": 3000000}),
    "z3-nvme-param-persist": nvme(CPU, param(buffer_count=9), GROUPS,
                                  {"stage3_param_persistence_threshold": 1050000}),
    "z3-nvme-param-frozen": nvme(CPU, param(), GROUPS, freeze=["*embed_tokens*", "*up_proj*"]),
    "z3-nvme-param-one-rank": nvme(CPU, param(buffer_size=2300000), world=1),
    "z3-nvme-both": nvme(optimizer(), param(max_in_cpu=2500000), GROUPS, accumulation=2),
}


def prepare():
    """What each rank does before the rest."""
    inner = witness.one_rank

    def one_rank(case, rank, rendezvous):
        case = copy.deepcopy(case)
        for block in case["deepspeed"]["zero_optimization"].values():
            if isinstance(block, dict) and "nvme_path" in block:
                block["nvme_path"] = rendezvous + "-nvme"
        return inner(case, rank, rendezvous)

    witness.one_rank = one_rank
    meter = witness.Meter

    def made():
        METER[:] = [meter()]
        return METER[0]

    witness.Meter = made
    witness.load_operators = install
    witness.CASES = CASES


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    prepare()
    sys.exit(witness.main())
