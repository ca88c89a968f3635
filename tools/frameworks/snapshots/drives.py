"""Runs whose allocations are worth a snapshot: training of small models, fragmentation, several streams, memory that
runs short. Each takes a World and does its work; what it throws is the caller's."""
import contextlib
import random

import torch

MIB = 1 << 20


class World:
    """The device, and what only a GPU has: on the CPU there are no streams, and sizes are a hundredth."""

    def __init__(self, device):
        self.device, self.at = device, device.torch_device
        self.cuda = device.name == "cuda"
        self.scale = 1 if self.cuda else 100
        self.failures = 0

    def bytes(self, count):
        return torch.empty(max(1, count // self.scale), dtype=torch.uint8, device=self.at)

    def stream(self):
        return torch.cuda.Stream() if self.cuda else None

    def on(self, stream):
        return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()

    def used_on(self, tensor, stream):
        """Work on `tensor` in `stream`, which the allocator is told of."""
        with self.on(stream):
            tensor.add_(1)
        if stream is not None:
            tensor.record_stream(stream)

    def waits(self, waiting, other):
        if self.cuda:
            (waiting or torch.cuda.current_stream()).wait_stream(other or torch.cuda.current_stream())


def model_of(family, dtype, world, layers=4, width=512, vocabulary=8192):
    """(a model of transformers with random weights, its vocabulary)"""
    import transformers
    if not world.cuda:
        layers, width, vocabulary = 2, 32, 128
    common = {"vocab_size": vocabulary}
    if family == "gpt2":
        config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=8, n_positions=1024, **common)
        kind = transformers.GPT2LMHeadModel
    else:
        config = transformers.LlamaConfig(hidden_size=width, intermediate_size=width * 3, num_hidden_layers=layers,
                                          num_attention_heads=8, num_key_value_heads=4, **common)
        kind = transformers.LlamaForCausalLM
    config.use_cache = False
    return kind(config).to(world.at, dtype).train(), vocabulary


def step(world, model, optimizer, vocabulary, batch, length):
    length = max(8, length // (1 if world.cuda else 16))
    ids = torch.randint(0, vocabulary, (batch, length)).to(world.at)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    del loss
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def train(world, family="gpt2", lengths=(512, 512, 512), batch=4, dtype=torch.float32, fused=False, checkpointed=False,
          empty_cache_after=(), **shape):
    model, vocabulary = model_of(family, dtype, world, **shape)
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    form = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **form)
    for at, length in enumerate(lengths):
        step(world, model, optimizer, vocabulary, batch, length)
        if at in empty_cache_after:
            world.device.empty_cache()


def fragment(world, seed=0, count=2000, most_live=1 << 30, largest=64 * MIB, streams=1, empty_cache_every=0):
    """Tensors of all sizes that come and go in no order. When memory runs out, half of what is held is let go."""
    chance = random.Random(seed)
    lanes = [None] + [world.stream() for _ in range(streams - 1)]
    held, live = [], 0
    for at in range(count):
        while held and (live > most_live or chance.random() < 0.4):
            size, tensor = held.pop(chance.randrange(len(held)))
            live -= size
            del tensor
        size = int(512 * (largest / 512) ** chance.random())
        try:
            with world.on(chance.choice(lanes)):
                tensor = world.bytes(size)
        except Exception as error:
            if not world.device.is_out_of_memory(error):
                raise
            world.failures += 1
            held = held[len(held) // 2:]
            live = sum(size for size, _ in held)
            continue
        if len(lanes) > 1 and chance.random() < 0.3:
            world.used_on(tensor, chance.choice(lanes[1:]))
        held.append((size, tensor))
        live += size
        if empty_cache_every and at % empty_cache_every == empty_cache_every - 1:
            world.device.empty_cache()


def prefetch(world, steps=40):
    """Batches are copied on a second stream while the first one computes, results leave on a third."""
    loader, saver = world.stream(), world.stream()
    weight = torch.ones(1024, 1024, device=world.at)
    kept = []
    for at in range(steps):
        rows = 256 * (1 + at % 5)
        with world.on(loader):
            batch = torch.ones(rows, 1024).to(world.at, non_blocking=True)
        world.waits(None, loader)
        if loader is not None:
            batch.record_stream(torch.cuda.current_stream())
        result = (batch @ weight).relu_()
        world.waits(saver, None)
        with world.on(saver):
            kept.append(result.to("cpu", non_blocking=True))
        if saver is not None:
            result.record_stream(saver)
        del batch, result
        kept = kept[-3:]


def until_out_of_memory(world, family="llama", batch=4):
    """Sequences grow until a step fails; the model then takes short ones again."""
    model, vocabulary = model_of(family, torch.float32, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    length = 128
    while length <= (65536 if world.cuda else 512):
        try:
            step(world, model, optimizer, vocabulary, batch, length)
        except Exception as error:
            if not world.device.is_out_of_memory(error):
                raise
            world.failures += 1
            break
        length = length * 3 // 2
    optimizer.zero_grad(set_to_none=True)
    for length in (128, 256):
        step(world, model, optimizer, vocabulary, batch, length)
    if world.cuda and world.failures == 0:
        raise RuntimeError("memory did not run out")


def device_is_full(world, parts=24):
    """Not a limit of ours but the driver says no."""
    held = []
    size = (world.device.about()["capacity_bytes"] or parts * MIB) // parts
    for _ in range(2 * parts):
        try:
            held.append(world.bytes(size))
        except Exception as error:
            if not world.device.is_out_of_memory(error):
                raise
            world.failures += 1
            if world.failures == 1:  # Half of it is cached now and too small: it goes back to the driver first.
                held, size = held[::2], size * 2
            if world.failures == 3:
                break
    held.clear()
    if world.cuda and world.failures == 0:
        raise RuntimeError("the device did not fill up")
