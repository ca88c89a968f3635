// Pictures beside text: how many a row has, and what of a tower has no schedule yet.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/format.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "model/families.h"
#include "model/graphs/graphs.h"
#include "model/parts.h"
#include "model/pictures.h"
#include "paths.h"
#include "planner/lower/shapes.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;

namespace {

constexpr const char* kClip = R"("model_type": "clip_vision_model")";
constexpr const char* kSiglip = R"("model_type": "siglip_vision_model", "vision_use_head": false)";

// 36 patches, which are a picture's tokens.
ModelSpec shown(const std::string& tower = kClip, const std::string& more = "") {
  const std::string config = R"({"model_type": "llava", "vision_config": {)" + tower +
                             R"(, "hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 2, "image_size": 48, "patch_size": 8}, "text_config": {"hidden_size": 64,
    "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512})" +
                             more + "}";
  return build_model(parse_json("config.json", config), "llava");
}

Request asked(std::int64_t seq) {
  Request request;
  request.seq = {seq, option("--seq")};
  request.freeze = {{"model.vision_tower.*"}, option("--freeze")};
  return request;
}

Job job_of(const ModelSpec& model, const Request& request) {
  return resolve(model, request, nullptr, nullptr, nullptr);
}

std::string refusal(const ModelSpec& model, const Request& request) {
  try {
    (void)job_of(model, request);
    return {};
  } catch (const Refusal& refused) {
    return refused.what();
  }
}

std::string why(const ModelSpec& model, const Request& request) {
  return unsupported(model, job_of(model, request)).value_or("none");
}

}  // namespace

TEST_CASE("pictures: one for each row unless somebody says more, and their tokens fit into the row") {
  const ModelSpec model = shown();
  Request request = asked(72);
  CHECK(job_of(model, request).training.images == 1);
  request.images = {2, option("--images")};
  CHECK(job_of(model, request).training.images == 2);
  CHECK(why(model, request) == "none");
  request.images = {3, option("--images")};
  CHECK(refusal(model, request) ==
        "--images: error: 3 pictures of 36 tokens each are more than seq 72; pictures' tokens are part of the "
        "sequence\n");
  CHECK(refusal(model, asked(35)) ==
        "--seq: error: 1 pictures of 36 tokens each are more than seq 35; pictures' tokens are part of the sequence\n");
  const ModelSpec text = build_model(parse_json("config.json", R"({"model_type": "gpt2"})"), "gpt2");
  Request other;
  other.images = {1, option("--images")};
  CHECK(refusal(text, other) == "--images: error: images 1 of gpt2, which reads no pictures beside text\n");
}

TEST_CASE("pictures: each takes its pixels, in fp32") {
  const ModelSpec model = shown();
  Request one = asked(96);
  one.micro_batch = {2, option("--micro-batch")};
  Request two = one;
  two.images = {2, option("--images")};
  const Footprint a = footprint(model, job_of(model, one));
  const Footprint b = footprint(model, job_of(model, two));
  CHECK(fingerprint(model, job_of(model, one)) != fingerprint(model, job_of(model, two)));
  const Bytes pixels = Bytes(2 * 3 * 48 * 48 * 4);
  CHECK(b.persistent[Role::Inputs] - a.persistent[Role::Inputs] == pixels);
}

TEST_CASE("pictures: what the projector reads is part of the fingerprint") {
  const ModelSpec usual = shown();
  const Job job = job_of(usual, asked(96));
  for (const char* more : {R"(, "vision_feature_layer": -1)", R"(, "vision_feature_select_strategy": "full")",
                           R"(, "projector_hidden_act": "silu")"}) {
    CHECK_MESSAGE(fingerprint(shown(kClip, more), job) != fingerprint(usual, job), more);
  }
}

namespace {

// Patches of 4 pixels, of which four are a token; windows of two tokens a side.
ModelSpec sized(const std::string& more = "") {
  const std::string config = R"({"model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 176,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "image_token_id": 500,
    "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 72, "num_heads": 2, "patch_size": 4,
    "spatial_merge_size": 2, "window_size": 16, "out_hidden_size": 64, "fullatt_block_indexes": [1]})" +
                             more + "}";
  return build_model(parse_json("config.json", config), "qwen");
}

Request of_size(const std::string& size, std::int64_t seq = 96) {
  Request request;
  request.seq = {seq, option("--seq")};
  request.image_size = {size, option("--image-size")};
  return request;
}

}  // namespace

TEST_CASE("pictures of all sizes: sides become whole tokens, and a row has room for them and their marks") {
  const ModelSpec model = sized();
  using Sides = std::vector<std::int64_t>;
  CHECK(job_of(model, of_size("32")).training.image_size == Sides{32, 32});
  CHECK(job_of(model, of_size("40x24")).training.image_size == Sides{40, 24});
  CHECK(job_of(model, of_size("40,24")).training.image_size == Sides{40, 24});
  CHECK(job_of(model, of_size("44x29")).training.image_size == Sides{48, 32});  // 5.5 and 3.6 tokens of 8 pixels.
  CHECK(job_of(model, of_size("3")).training.image_size == Sides{8, 8});
  Request unsaid;
  unsaid.seq = {4096, option("--seq")};
  CHECK(job_of(model, unsaid).training.image_size == Sides{448, 448});
  CHECK(refusal(model, of_size("big", 4096)) ==
        "--image-size: error: \"big\" is no size of a picture; write it as 448, or 672x448 for height and width\n");
  CHECK(refusal(shown(), of_size("48")) ==
        "--image-size: error: image_size 48 of llava, which does not take pictures of all sizes\n");
  CHECK(refusal(model, of_size("32", 17)) ==
        "--seq: error: 1 pictures of 16 tokens each are more than seq 17; pictures' tokens are part of the sequence\n");
  CHECK(refusal(model, of_size("32", 18)).empty());
  CHECK(fingerprint(model, job_of(model, of_size("32"))) != fingerprint(model, job_of(model, of_size("40"))));
}

namespace {

// As llava-v1.6 has it: squares of 336 pixels, 24 patches a side.
ModelSpec cut_up() {
  return build_model(parse_json("config.json", R"({"model_type": "llava_next", "vision_config": {"hidden_size": 32,
    "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 336, "patch_size": 14},
    "text_config": {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 512}})"),
                     "llava-next");
}

}  // namespace

TEST_CASE("pictures that are cut up: as many tokens as transformers counts, and squares as its processor gives") {
  const ModelSpec model = cut_up();
  const TowerParts& tower = *model.parts->tower;
  // What transformers' own forward said of such pictures.
  CHECK(tokens_of(tower, {480, 672}) == 2242);
  CHECK(tokens_of(tower, {900, 320}) == 2276);
  CHECK(tokens_of(tower, {336, 1008}) == 2328);
  CHECK(tiling_of(tower, {480, 672}).squares() == 5);
  CHECK(tiling_of(tower, {900, 320}).squares() == 4);
  CHECK(job_of(model, of_size("480x671", 4096)).training.image_size == std::vector<std::int64_t>{480, 671});
  CHECK(refusal(model, of_size("480x672", 2241)) ==
        "--seq: error: 1 pictures of 2242 tokens each are more than seq 2241; pictures' tokens are part of the "
        "sequence\n");
  CHECK(refusal(model, of_size("480x672", 2242)).empty());
  CHECK(refusal(model, of_size("1x4000", 4096)) ==
        "--image-size: error: of a picture of 1x4000 no place is left where its padding goes; its sides are too far "
        "apart\n");
}

TEST_CASE("pictures of all sizes: windows come row by row, and those that hold nothing are listed") {
  const TowerParts& tower = *sized().parts->tower;
  const Windows uneven = windows_of(tower, grid_of(tower, {40, 24}));  // Five by three tokens.
  CHECK(uneven.patches == std::vector<std::int64_t>{16, 8, 16, 8, 8, 4});
  CHECK(uneven.listed == 6);
  const Windows even = windows_of(tower, grid_of(tower, {32, 32}));
  CHECK(even.patches == std::vector<std::int64_t>{16, 16, 16, 16});
  CHECK(even.listed == 9);
  CHECK(tokens_of(tower, {40, 24}) == 15);
}

TEST_CASE("pictures of all sizes: what has no schedule is refused by name") {
  CHECK(why(sized(), of_size("32")) == "none");
  CHECK(why(sized(), of_size("144", 400)) == "more than 64 windows at once");
  Request lengths = of_size("32");
  lengths.seq = {};
  lengths.seq_list = {"64,96", option("--seq-list")};
  CHECK(why(sized(), lengths) == "lengths in turn of a model that keeps how far its positions are");
  CHECK_THROWS_AS(sized(R"(, "text_config": {"hidden_size": 32, "num_attention_heads": 4})"), Refusal);
}

// Text alone: no part of a tower gets a gradient.
TEST_CASE("pictures: none in a row, and a tower that is trained has no states of PyTorch's and those of ZeRO") {
  const ModelSpec model = shown();
  Request text = asked(96);
  text.images = {0, option("--images")};
  Request whole = text;
  whole.freeze = {};
  const auto states = [&](const Request& request) { return footprint(model, job_of(model, request)).states.optimizer; };
  CHECK(states(whole) == states([&] {
          Request frozen = text;
          frozen.freeze = {{"model.vision_tower.*", "model.multi_modal_projector.*"}, option("--freeze")};
          return frozen;
        }()));
  whole.gpus = {1, option("--gpus")};
  for (const std::int64_t stage : {1, 2, 3}) {
    whole.zero_stage = {stage, option("--zero-stage")};
    CHECK(states(whole) == Bytes(12) * (footprint(model, job_of(model, whole)).parameters_total.value()));
    CHECK(why(model, whole) == "none");
  }
  whole.zero_stage = {};
  whole.gpus = {2, option("--gpus")};
  CHECK(why(model, whole).find("that no loss reaches:") != std::string::npos);
  CHECK(refusal(model, [&] {
          Request less = text;
          less.images = {-1, option("--images")};
          return less;
        }()) == "--images: error: images -1; it is the number of pictures in a row, 0 or more\n");
}

// Each under one of the runtimes in turn.
TEST_CASE("pictures: a bundled model trains on text alone, or says why not") {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(test_paths::source_dir() + std::string("/models"))) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::size_t tried = 0;
  for (const std::filesystem::path& path : paths) {
    const ModelSpec model = build_model(parse_json(path.string(), read_file(path.string())), path.stem().string());
    if (model.parts == nullptr || model.parts->tower == nullptr || !model.parts->tower->beside_text()) continue;
    Request request;
    request.images = {0, option("--images")};
    request.seq = {64, option("--seq")};
    const std::size_t runtime = tried++ % 5;
    CAPTURE(path.stem().string());
    CAPTURE(runtime);
    if (runtime > 0) request.gpus = {2, option("--gpus")};
    if (runtime == 1 || runtime == 2) request.zero_stage = {static_cast<std::int64_t>(runtime + 1), option("--zero-stage")};
    if (runtime == 3) request.runtime = {"fsdp2", option("--runtime")};
    if (runtime == 4) request.freeze = {{"*vi*"}, option("--freeze")};
    try {
      CHECK_NOTHROW(predict(model, job_of(model, request), 0));
    } catch (const Refusal& refused) {
      CHECK_MESSAGE(false, refused.what());
    }
  }
  CHECK(tried >= 20);
}

TEST_CASE("pictures: what of a tower has no schedule is refused by name") {
  Request whole = asked(96);
  whole.micro_batch = {2, option("--micro-batch")};
  whole.freeze = {};
  CHECK(why(shown(), whole) == "none");  // Optimizers skip what has no gradient.
  whole.gpus = {2, option("--gpus")};
  CHECK(why(shown(), whole) ==
        "parts of a tower that are trained and that no loss reaches: --freeze 'model.vision_tower.post_layernorm.*' "
        "--freeze 'model.vision_tower.encoder.layers.2.*'");
  whole.freeze = {{"*.post_layernorm.*"}, option("--freeze")};
  CHECK(why(shown(), whole) ==
        "parts of a tower that are trained and that no loss reaches: --freeze 'model.vision_tower.encoder.layers.2.*'");
  whole.freeze = {{"*.post_layernorm.*", "*tower.encoder.layers.2.*"}, option("--freeze")};
  CHECK(why(shown(), whole) == "none");
  whole.micro_batch = {1, option("--micro-batch")};
  CHECK(why(shown(), whole) == "none");
  whole.zero_stage = {2, option("--zero-stage")};
  whole.gpus = {2, option("--gpus")};
  CHECK(why(shown(), whole) == "none");
  Request many = asked(96);
  many.micro_batch = {65, option("--micro-batch")};
  CHECK(why(shown(), many) == "more than 64 pictures at once");
  CHECK(why(shown(R"("model_type": "siglip_vision_model")"), asked(96)) ==
        "the pooling head of siglip's tower: \"vision_use_head\": false");
  Request nested = asked(96);
  nested.checkpoint = {"full", option("--checkpoint")};
  nested.checkpoint_impl = {"reentrant", option("--checkpoint-impl")};
  CHECK(why(shown(), nested) == "none");
  CHECK(why(shown(kSiglip), nested) ==
        "reentrant checkpoints of siglip's layers, whose hidden states lie column by column");
  CHECK(why(shown(kClip, R"(, "projector_hidden_act": "laplace")"), asked(96)) == "the activation laplace");
}

namespace {

// A tower that checkpoints do not make require a gradient, with biases that the text has not.
ModelSpec deep() {
  return build_model(parse_json("config.json", R"({"model_type": "qwen3_vl", "image_token_id": 500,
    "text_config": {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512}, "vision_config": {"depth": 2, "hidden_size": 32,
    "intermediate_size": 72, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "out_hidden_size": 64,
    "num_position_embeddings": 36, "deepstack_visual_indexes": [0]}})"),
                     "deep");
}

Bytes workspace(const std::string& frozen) {
  const ModelSpec model = deep();
  Request request = of_size("32");
  request.checkpoint = {"full", option("--checkpoint")};
  if (!frozen.empty()) request.freeze = {{frozen}, option("--freeze")};
  Job job = job_of(model, request);
  const std::string device = test_paths::source_dir() + std::string("/configs/hardware/a100-sxm-80.json");
  job.hardware = read_hardware(parse_json(device, read_file(device)));
  (void)predict(model, job, 0);  // Which holds schedule and formulas together.
  return footprint(model, job).persistent[Role::Workspace];
}

}  // namespace

TEST_CASE("pictures: siglip's norms copy what its convolution left column by column, and clip's have nothing to copy") {
  const auto copied = [](const char* tower) {
    const ModelSpec model = shown(tower);
    const Job job = job_of(model, asked(64));
    const Graph graph = build_graph(model, graph_options(model, job));
    return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                         [](const Node& node) { return node.op == Op::LayerNorm && node.by_head; });
  };
  CHECK(copied(kClip) == 0);
  CHECK(copied(kSiglip) == 7);  // Two in each of three layers, and the last one.
}

TEST_CASE("pictures: of a frozen tower that no checkpoint reaches, no product with a bias is run again") {
  const Bytes usual = workspace("");
  CHECK(workspace("model.visual.*") < usual);
  CHECK(workspace("model.visual.blocks.*") == usual);  // Behind a table that is trained.
}
