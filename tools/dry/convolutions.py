"""What cuDNN takes as workspace for the convolutions of the bundled models, asked on the dry device; src/core reads it.

  tools/dry/run --device h100-sxm --world 1 -- python tools/dry/convolutions.py measure [MODEL...] > h100-sxm.jsonl     (minutes)
  python tools/dry/convolutions.py write *.jsonl                         (src/core/cudnn/convolution_rows.cpp; needs no torch)

What was not measured anew stays as it is.

cuDNN's heuristics answer by shape, type, release and device; nobody else can. A device is its capability and its
multiprocessors here: where two of the same part, a number of pictures is left out.
"""

import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = ROOT / "src/core/cudnn/convolution_rows.cpp"
FEW = [*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64]  # Pictures or recordings at once.
CLASSIFIED = [96, 128, 192, 256]
MERGED = [*range(1, 513), *range(528, 2049, 16)]  # Places that become one, of all pictures.
PATCHES = [*range(4, 2049, 4), *range(2112, 8193, 64)]  # Of all pictures, where each is a convolution by itself.
SIDES = [(s, s) for s in (224, 280, 336, 448, 560, 672, 784, 896, 1008, 1120, 1344, 1540)] + [(280, 448), (320, 448), (448, 672)]
# Towers that people train and that are not bundled: clip (ViT-L/14, ViT-B/16 and /32) and siglip (so400m, base), by side, patch, width.
OTHERS = [(224, 14, 1024), (336, 14, 1024), (224, 16, 768), (224, 32, 768), (384, 14, 1152), (224, 14, 1152), (224, 16, 1024), (384, 16, 768), (384, 16, 1024)]
HALF, ALL = ("bf16", "fp32"), ("bf16", "fp16", "fp32")


def vision(config):
    seen = config.get("vision_config") or {}
    return {**config, **seen, "model_type": config["model_type"]} if seen else config


def shapes_of(config):
    """(types, counts, input without the count, weight, steps, padding), of a model's convolutions."""
    kind, seen = config["model_type"], vision(config)
    if kind == "whisper":
        width, bins, frames = config["d_model"], config["num_mel_bins"], 2 * config["max_source_positions"]
        yield ALL, FEW, (bins, frames), (width, bins, 3), (1,), (1,)
        yield ALL, FEW, (width, frames), (width, width, 3), (2,), (1,)
    elif "patch_size" in seen and kind not in ("llama4", "gemma4"):
        patch = seen["patch_size"] if isinstance(seen["patch_size"], int) else seen["patch_size"][0]
        width = seen.get("embed_dim") or seen["hidden_size"]
        if "temporal_patch_size" in seen:
            place = (3, seen["temporal_patch_size"], patch, patch)
            yield HALF, PATCHES, place, (width, *place), place[1:], (0, 0, 0)
            if kind.startswith("glm4"):  # Behind the tower, whose own width this is.
                beside = (seen["spatial_merge_size"],) * 2
                own = seen["hidden_size"]
                yield HALF, MERGED, (own, *beside), (seen["out_hidden_size"], own, *beside), beside, (0, 0)
            return
        side = seen["image_size"] if isinstance(seen["image_size"], int) else seen["image_size"][0]
        sides = SIDES if kind == "mistral3" else [(side, side)]
        if kind == "mllama":  # Each picture is so many tiles.
            counts = [seen["max_num_tiles"] * one for one in FEW]
            yield ALL, counts, (3, side, side), (width, 3, patch, patch), (patch, patch), (0, 0)
            return
        counts = FEW[:8] if kind == "mistral3" else FEW + CLASSIFIED * (kind in ("vit", "clip", "siglip"))
        for down, across in sides:
            yield ALL, counts, (3, down, across), (width, 3, patch, patch), (patch, patch), (0, 0)


def all_shapes(models):
    found = {}
    for path in sorted((ROOT / "models").glob("*.json")):
        for shape in shapes_of(json.loads(path.read_text())) if not models or path.stem in models else ():
            found[shape[2:]] = shape[:2]
    for side, patch, width in OTHERS if not models else ():
        found[(3, side, side), (width, 3, patch, patch), (patch, patch), (0, 0)] = (ALL, FEW + CLASSIFIED)
    return [(*how, *shape) for shape, how in sorted(found.items())]


def measure(models):
    import torch

    def peak_over(call):
        torch.cuda.reset_peak_memory_stats()
        begin = torch.cuda.memory_stats()["requested_bytes.all.current"]
        made = [one for one in call() if one is not None]
        own = sum(one.numel() * one.element_size() for one in made)
        return torch.cuda.memory_stats()["requested_bytes.all.peak"] - begin - own

    device = torch.cuda.get_device_properties(0)
    cudnn = torch.backends.cudnn.version()
    print(json.dumps({"cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}", "capability": device.major * 10 + device.minor,
                      "multiprocessors": device.multi_processor_count}))
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    for names, counts, image, weight, steps, padding in all_shapes(models):
        for name in names:
            w = torch.empty(weight, dtype=types[name], device="cuda")
            nothing = [0] * len(steps)
            for count in counts:
                x = torch.empty((count, *image), dtype=types[name], device="cuda")
                if counts is MERGED:  # Whose places lie one by one: the copies that PyTorch makes are counted as well.
                    x = x.to(memory_format=torch.channels_last)
                how = (steps, padding, [1] * len(steps), False, nothing, 1)
                forward = peak_over(lambda: [torch.ops.aten.convolution(x, w, None, *how)])
                y = torch.ops.aten.convolution(x, w, None, *how)
                back = [peak_over(lambda m=mask: torch.ops.aten.convolution_backward(y, x, w, None, *how, m))
                        for mask in ([True, False, False], [False, True, False])]
                print(json.dumps([name, count, image, weight, list(y.shape[2:]), [forward, *back]]), flush=True)


def padded(channels, size):
    """Eight halves or four floats are read at once."""
    few = 16 // size
    return (channels + few - 1) // few * few


def bases(name, count, image, weight, out):
    """What tensors take that are copied beforehand, place by place, by the letters of src/core/cudnn/convolution_scratch.cpp."""
    size = 4 if name == "fp32" else 2
    channels = padded(weight[1], size)
    x = count * channels * math.prod(image[1:]) * size
    w = weight[0] * channels * math.prod(weight[2:]) * size
    whole = count * weight[0] * math.prod(out) * size
    y = whole if math.prod(out) > 1 else 0
    narrow = (count * math.prod(image) + math.prod(weight)) * size
    return {"=": 0, "t": x + w + y, "a": x + w + whole, "v": x + w, "u": narrow}


def runs_of(points):
    """"FIRST-LAST/STEP:LETTERBYTES" of so many at once, as few as go."""
    found, at = [], 0
    while at < len(points):
        best = None
        for letter in "=tvua":
            end, by = at, points[at][1] - points[at][2][letter]
            step = points[at + 1][0] - points[at][0] if at + 1 < len(points) else 1
            while end + 1 < len(points) and points[end + 1][0] - points[end][0] == step and points[end + 1][1] - points[end + 1][2][letter] == by:
                end += 1
            if by + points[at][2][letter] >= 0 and (best is None or end > best[0]):
                best = end, letter, by, step
        end, letter, by, step = best
        first, last = points[at][0], points[end][0]
        many = str(first) if first == last else f"{first}-{last}" + (f"/{step}" if step != 1 else "")
        found.append(f"{many}:{letter}{by}")
        at = end + 1
    return " ".join(found)


HEAD = """// Written by tools/dry/convolutions.py: what cuDNN answered. convolution_scratch.cpp says how a row is read.
#include "core/cudnn/convolution_scratch.h"

namespace dsplan {
namespace {

// clang-format off
constexpr std::string_view kRows[] = {
"""
TAIL = """};
// clang-format on

}  // namespace

std::span<const std::string_view> convolution_rows() { return kRows; }

}  // namespace dsplan
"""


def write(paths):
    rows = {}
    for path in paths:
        lines = [json.loads(line) for line in open(path)]
        device = "{cudnn} {capability}/{multiprocessors}".format(**lines[0])
        for name, count, image, weight, out, taken in lines[1:]:
            for what, bytes in zip(("forward", "input", "weight"), taken):
                if what == "input" and image[0] == 3:  # Nobody asks for the gradient of a picture.
                    continue
                shape = " ".join("x".join(map(str, dims)) for dims in (image, weight, out))
                points = rows.setdefault(f"{device} {name} {shape} {what}", {})
                others = points.setdefault(count, (bytes, bases(name, count, image, weight, out)))
                if others[0] != bytes:
                    points[count] = (None, None)
    told = {line.split(": ")[0].strip(' "'): line for line in ROWS.read_text().splitlines(True) if line.startswith('    "')}
    for key, points in sorted(rows.items()):
        known = [(count, *point) for count, point in sorted(points.items()) if point[0] is not None]
        told[key] = f'    "{key}: {runs_of(known)}",\n'
    ROWS.write_text(HEAD + "".join(told[key] for key in sorted(told)) + TAIL)


if __name__ == "__main__":
    measure(sys.argv[2:]) if sys.argv[1:2] == ["measure"] else write(sys.argv[2:])
