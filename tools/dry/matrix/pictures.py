"""Batches of models that see pictures, as their processors make them: what is small is there on the device as well."""


import sys


def batch(config, training, rows, dtype):
    import torch

    def there(shape, dtype=torch.int64):
        return torch.zeros(shape, dtype=dtype).to("cuda")

    seen = config.get("vision_config", config)
    images = training.get("images", 1)
    if "text_config" in config and "images" not in training and "For" not in config["architectures"][0]:  # Compared with texts.
        side, shape = seen["image_size"], (rows, training["seq"])
        return {"input_ids": there(shape), "pixel_values": there((rows, 3, side, side), torch.float32)}
    if "images" not in training:  # A classifier of pictures.
        side = seen["image_size"]
        if config["model_type"] == "dinov2":  # Of as many patches as the sequence has, beside a class token.
            side = round((training["seq"] - 1) ** 0.5) * config["patch_size"]
        return {"pixel_values": there((rows, 3, side, side), torch.float32), "labels": there((rows,))}
    if config["model_type"] == "mllama":
        return tiled(seen, training, rows, there)
    ids, types = tokens(config, training, rows)
    made = {"input_ids": ids.to("cuda"), "labels": there(tuple(ids.shape))}
    if "image_size" in training:
        if "image_grid_pinpoints" in config:
            down, across = squares(config, training)
            pixels = there((rows * images, 1 + down * across, 3, seen["image_size"], seen["image_size"]), torch.float32)
            return {**made, "pixel_values": pixels, "image_sizes": torch.tensor([training["image_size"]] * rows * images).to("cuda")}
        most = config.get("vision_soft_tokens_per_image")
        return {**made, **sized(seen, training, rows * images, types, there, most)}
    side = seen["image_size"]
    side = side if isinstance(side, int) else side[0]
    # The weights' own dtype is what llama4's product takes in the place of a convolution.
    pixels = dtype if config["model_type"] == "llama4" else torch.float32
    if config["model_type"] in ("idefics3", "smolvlm"):  # A picture is more than zeros.
        ones = {"pixel_values": (rows, images, 3, side, side), "pixel_attention_mask": (rows, images, side, side)}
        return {**made, **{name: followed_ones(shape) for name, shape in ones.items()}}
    made["pixel_values"] = there((rows * images, 3, side, side), pixels)
    if config["model_type"] in ("gemma3", "paligemma"):
        made["token_type_ids"] = types.to("cuda")
    return made


def tiled(seen, training, rows, there):
    """mllama's: tiles of each picture, the number of its shape, which tiles it has, and which of them each token sees."""
    import torch

    images, tiles, side, seq = training["images"], seen["max_num_tiles"], seen["image_size"], training["seq"]
    return {
        "input_ids": there((rows, seq)),
        "labels": there((rows, seq)),
        "pixel_values": there((rows, images, tiles, 3, side, side), torch.float32),
        "aspect_ratio_ids": there((rows, images)),
        "aspect_ratio_mask": there((rows, images, tiles)),
        "cross_attention_mask": there((rows, seq, images, tiles)),
    }


def followed_ones(shape):
    """Numbers that the dry device knows, though they are too many for a copy that it carries out."""
    import torch

    made = torch.ones(shape).to("cuda")
    made.dsplan_share = "passed on"
    if "dsplan_dry.values" in sys.modules:
        sys.modules["dsplan_dry.values"].on_host(made).fill_(1)
    return made


def tokens(config, training, rows):
    """A row is a mark, a picture, two marks, a picture, ..., and text."""
    import torch

    types = torch.zeros((rows, training["seq"]), dtype=torch.int64)
    count = tokens_of_a_picture(config, training)
    for picture in range(training["images"]):
        begin = 1 + picture * (count + 2)
        types[:, begin : begin + count] = 1
    return types * config.get("image_token_id", config.get("image_token_index")), types


def tokens_of_a_picture(config, training):
    seen = config["vision_config"]
    if "image_grid_pinpoints" in config:
        return tokens_of_squares(config, training)
    if "image_size" in training:
        merge = config.get("spatial_merge_size") or seen.get("pooling_kernel_size") or seen["spatial_merge_size"]
        height, width = (side // seen["patch_size"] for side in training["image_size"])
        return height * width // merge**2
    if "mm_tokens_per_image" in config:
        return config["mm_tokens_per_image"]
    side, patch = (value if isinstance(value, int) else value[0] for value in (seen["image_size"], seen["patch_size"]))
    if "scale_factor" in config:
        return (side // patch // config["scale_factor"]) ** 2
    places = (side // patch) ** 2
    return places // 4 if config["model_type"] in ("internvl", "llama4") else places


def squares(config, training):
    """How a picture is cut up: into so many squares below and beside each other."""
    from transformers.image_processing_utils import select_best_resolution

    side = config["vision_config"]["image_size"]
    height, width = select_best_resolution(training["image_size"], config["image_grid_pinpoints"])
    return height // side, width // side


def tokens_of_squares(config, training):
    """Places of the whole, and rows of the squares' without padding, each with an end (LlavaNextProcessor)."""
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    side = config["vision_config"]["image_size"] // config["vision_config"]["patch_size"]
    down, across = squares(config, training)
    left, ends = LlavaNextProcessor._get_unpadded_features(None, *training["image_size"], side, side, down, across)
    return side**2 + left + ends


def padded(seen, training, pictures, types, there, most):
    """Gemma 4's: as many patches as the largest picture may have, and column and row of each, or -1."""
    import torch

    patch, side = seen["patch_size"], seen["pooling_kernel_size"]
    down, across = (pixels // patch for pixels in training["image_size"])
    places = torch.full((pictures, most * side**2, 2), -1)
    places[:, : down * across, 0] = torch.arange(across).repeat(down)
    places[:, : down * across, 1] = torch.arange(down).repeat_interleave(across)
    return {
        "pixel_values": there((pictures, most * side**2, 3 * patch**2), torch.float32),
        "image_position_ids": places.to("cuda"),
        "mm_token_type_ids": types.to("cuda"),
    }


def sized(seen, training, pictures, types, there, most):
    """Of all sizes: patches row by row with the grid of each picture, or whole pictures with their sizes."""
    import torch

    if seen.get("model_type") == "gemma4_vision":
        return padded(seen, training, pictures, types, there, most)
    height, width = training["image_size"]
    if seen.get("model_type") == "pixtral":
        sizes = torch.tensor([[height, width]] * pictures).to("cuda")
        return {"pixel_values": there((pictures, 3, height, width), torch.float32), "image_sizes": sizes}
    patch, frames = seen["patch_size"], seen.get("temporal_patch_size", 2)
    down, across = height // patch, width // patch
    return {
        "pixel_values": there((pictures * down * across, 3 * frames * patch**2), torch.float32),
        "image_grid_thw": torch.tensor([[1, down, across]] * pictures).to("cuda"),
        "mm_token_type_ids": types.to("cuda"),
    }


def layers_of(model):
    """Those of the tower, then those of the text."""
    import torch

    lists = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(outer + ".") for outer in lists)
        if name.endswith(("vision_model.transformer.layers", "vision_model.global_transformer.layers")):
            continue  # mllama's, which no checkpoint runs.
        if isinstance(module, torch.nn.ModuleList) and name.endswith((".layers", ".layer", ".blocks")) and not inside:
            lists[name] = module
    return [layer for module in lists.values() for layer in module]
