// What differs between releases of torch and transformers, and the published figures taken with older ones
// (pytorch-memory.md, section 3.8).
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "io/text.h"
#include "lowered.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;

namespace {

Setting<std::string> given(const char* text) { return {std::string(text), Place{"--option", 0, 0, {}}}; }

Job job_with(const ModelSpec& model, const char* torch, const char* transformers) {
  Request request;
  request.torch_version = given(torch);
  request.transformers_version = given(transformers);
  request.seq = {4096, Place{"--seq", 0, 0, {}}};
  request.optimizer = given("adamw:fused");
  return resolve(model, request, nullptr, nullptr, nullptr);
}

// Bytes that the nodes of `layer` save and that are made inside it: each storage once.
Bytes saved_by_layer(const Graph& graph, const RecipeBook& recipes, std::int32_t layer) {
  std::set<StorageId> made;
  std::set<StorageId> counted;
  Bytes total;
  bool inside = false;
  const auto save = [&](TensorId id) {
    const StorageId storage = graph.tensor(id).storage;
    if (made.contains(storage) && counted.insert(storage).second) total += graph.storages[storage].bytes;
  };
  for (const Instruction& at : graph.program) {
    if (at.kind == Instruction::Kind::RegionBegins) inside = at.region() == layer;
    if (at.kind == Instruction::Kind::RegionEnds) inside = false;
    if (!inside || at.kind != Instruction::Kind::Run) continue;
    const Node& node = graph.node(at.node());
    for (TensorId out : graph.out(node)) {
      const bool alias = recipes.entry(at.node()).alias || recipes.entry(at.node()).in_place;
      if (!alias) made.insert(graph.tensor(out).storage);
    }
    for (const Saved& saved : recipes.saved(at.node())) {
      if (saved.kind == Saved::Kind::Input) save(graph.input(node, saved.index));
      if (saved.kind == Saved::Kind::Output) save(graph.output(node, saved.index));
      if (saved.kind != Saved::Kind::Extra) continue;
      for (const Slot& slot : recipes.slots(at.node())) {
        if (slot.kind == SlotKind::Extra && slot.index == saved.index) total += slot.bytes;
      }
    }
  }
  return total;
}

Bytes saved_by_layer(const ModelSpec& model, const char* torch, const char* transformers) {
  const Job job = job_with(model, torch, transformers);
  const Graph graph = build_graph(model, graph_options(model, job));
  return saved_by_layer(graph, RecipeBook(graph, Level::Kernel, {job.training.torch}), 1);
}

}  // namespace

TEST_CASE("what a Llama layer saves, by version") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  constexpr std::int64_t kTokens = 4096;
  constexpr std::int64_t kHidden = 4096;
  constexpr std::int64_t kFfn = 14336;
  constexpr std::int64_t kHeads = 32;
  const std::int64_t formula = 24 * kTokens * kHidden + 8 * kTokens * kFfn + 4 * kHeads * kTokens + 8 * kTokens;
  CHECK(formula == 872'972'288);
  CHECK(saved_by_layer(model, "2.6", "4") == Bytes(formula));
  // The flash kernel keeps its random state on the GPU since torch 2.7.
  CHECK(saved_by_layer(model, "2.7", "4") == Bytes(formula + 24));
  // 4.48 to 4.53 copy the queries, and with them the result.
  CHECK(saved_by_layer(model, "2.6", "4.53") == Bytes(formula + 2 * kTokens * kHidden));
  // Since 4.54 keys and values keep their 8 heads.
  CHECK(saved_by_layer(model, "2.6", "4.57") == Bytes(formula - 2 * 2 * kTokens * kHidden * 3 / 4));
  CHECK(saved_by_layer(model, "2.11", "5.17") == Bytes(formula - 2 * 2 * kTokens * kHidden * 3 / 4 + 24));
}

TEST_CASE("Llama-3-8B's published peak under the versions that it was taken with") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  const Prediction prediction = predict(model, job_with(model, "2.6", "4"), 0);
  REQUIRE(prediction.peak);
  const double gib = static_cast<double>(prediction.peak->requested.value()) / (1024.0 * 1024.0 * 1024.0);
  CHECK(dsplan::formatted("{:.3f}", gib) == "76.887");
}

TEST_CASE("the flash kernel's backward rounds wide heads to 32 before torch 2.7, to 64 since") {
  const ModelSpec model = lowered::inlined("wide", R"({"model_type": "llama", "hidden_size": 320,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 160, "vocab_size": 97})");
  for (const auto& [torch, width] : {std::pair{"2.6", 160}, std::pair{"2.11", 192}}) {
    const Job job = job_with(model, torch, "5.17");
    const Graph graph = build_graph(model, graph_options(model, job));
    const RecipeBook recipes(graph, Level::Kernel, {job.training.torch});
    std::set<std::int64_t> temporaries;
    for (const NodeId at : graph.nodes.ids()) {
      if (graph.node(at).op != Op::Attention) continue;
      for (const Slot& slot : recipes.slots(at)) {
        if (slot.kind == SlotKind::Temporary) temporaries.insert(slot.bytes.value());
      }
    }
    CHECK(temporaries.contains(4 * 4096 * 2 * width));
  }
}

TEST_CASE("versions may be short, and what was not compared is said") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (const char* text : {"2.6", "2.6.0", "2.6.0+cu124"}) {
    Request request;
    request.torch_version = given(text);
    CHECK(resolve(model, request, nullptr, nullptr, nullptr).training.torch.major == 2);
  }
  Request request;
  request.transformers_version = given("4");
  const Job old = resolve(model, request, nullptr, nullptr, nullptr);
  bool warned = false;
  for (const Notice& notice : old.notices)
    warned = warned || notice.message.find("was not compared") != std::string::npos;
  CHECK(warned);
}

TEST_CASE("Liger's release is one that was run, and says nothing of another loss") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto with = [&](const char* loss, const char* release) {
    Request request;
    request.loss = given(loss);
    if (release != nullptr) request.liger_version = given(release);
    return resolve(model, request, nullptr, nullptr, nullptr);
  };
  CHECK(with("liger", nullptr).training.liger == kWitnessLiger);
  CHECK(kWitnessLiger == Version::parse(kLigerVersion));
  CHECK(with("liger", "0.6.1").training.liger == Version{0, 6, 1});
  CHECK_THROWS_WITH(with("liger", "0.5.9"), doctest::Contains("liger 0.5.9 is not modelled; the oldest is 0.5.10"));
  CHECK_THROWS_WITH(with("liger", "0.8.6"), doctest::Contains("liger 0.8.6 is not modelled; the newest is 0.8.5"));
  const Job other = with("hf", "0.6.1");
  CHECK(other.training.liger == kWitnessLiger);
  REQUIRE(!other.notices.empty());
  CHECK(std::any_of(other.notices.begin(), other.notices.end(), [](const Notice& notice) {
    return notice.kind == Notice::Kind::Inert && notice.message.find("Liger's version") != std::string::npos;
  }));
}

TEST_CASE("Liger's kernels are named one by one, or all") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto with = [&](const char* kernels) {
    Request request;
    request.liger_kernels = given(kernels);
    return name(resolve(model, request, nullptr, nullptr, nullptr).training.liger_kernels);
  };
  CHECK(with("all") == "rope,rms_norm,swiglu");
  CHECK(with("none") == "none");
  CHECK(with("swiglu,rope") == "rope,swiglu");
  CHECK_THROWS_WITH(with("rope,rmsnorm"),
                    doctest::Contains("\"rmsnorm\" is none of Liger's kernels; did you mean \"rms_norm\"?"));
  CHECK_THROWS_WITH(with("geglu"), doctest::Contains("\"geglu\" is none of Liger's kernels"));
  CHECK_THROWS_WITH(with(""), doctest::Contains("\"\" is none of Liger's kernels"));
  CHECK_THROWS_WITH(with("rope,"), doctest::Contains("\"\" is none of Liger's kernels"));
}

TEST_CASE("axolotl's kernels for adapters are named, and want adapters") {
  ModelSpec model = lowered::bundled("tiny-llama");
  const auto with = [&](const char* kernels) {
    Request request;
    request.lora_kernels = given(kernels);
    return resolve(model, request, nullptr, nullptr, nullptr);
  };
  CHECK(name(with("all").training.lora_kernels) == "none");
  const Job without = with("all");
  CHECK(std::any_of(without.notices.begin(), without.notices.end(), [](const Notice& notice) {
    return notice.kind == Notice::Kind::Inert && notice.message.find("there are no adapters") != std::string::npos;
  }));
  model.causal = 1;
  CHECK(name(with("mlp,qkv").training.lora_kernels) == "qkv,mlp");
  CHECK_THROWS_WITH(with("qvk"), doctest::Contains("\"qvk\" is none of axolotl's adapter kernels; did you mean"));
}

TEST_CASE("losses are named, and a number of chunks divides the sequence") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  const auto with = [&](const char* loss) {
    Request request;
    request.seq = {16, Place{"--seq", 0, 0, {}}};
    request.loss = given(loss);
    return resolve(model, request, nullptr, nullptr, nullptr).training;
  };
  CHECK(with("hf").loss == Loss::HuggingFace);
  CHECK(with("native").loss == Loss::Native);
  CHECK(with("chunked:4").loss == Loss::Chunked);
  CHECK(with("chunked:4").loss_chunks == 4);
  for (const char* wrong : {"chunked:3", "chunked:0", "chunked:", "chunked:4x", "chunked:-1", "float"}) {
    CHECK_THROWS_AS((void)with(wrong), Refusal);
  }
}

TEST_CASE("a loss in chunks holds one piece in fp32, a native one none") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  const auto peak = [&](Loss loss, std::int64_t chunks) {
    Job job = lowered::job(-1, 1);
    job.training.loss = loss;
    job.training.loss_chunks = chunks;
    job.training.seq = 2048;
    return predict(model, job, 0).peak->requested;
  };
  CHECK(peak(Loss::Native, 0) < peak(Loss::HuggingFace, 0));
  CHECK(peak(Loss::Chunked, 4) < peak(Loss::HuggingFace, 0));
}

TEST_CASE("before torch 2.9 the head's hidden states are sliced along each dimension, and since along none") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  const auto slices = [&](const char* torch) {
    const Graph graph = build_graph(model, graph_options(model, job_with(model, torch, "5.17.0")));
    return std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.op == Op::Slice; });
  };
  CHECK(slices("2.11.0") == slices("2.9.0"));
  CHECK(slices("2.8.0") == slices("2.9.0") + 3);
}

TEST_CASE("releases older than what is modelled are refused, all in one answer") {
  const ModelSpec model = lowered::bundled("gpt2");
  Request request;
  request.runtime = given("deepspeed");
  request.torch_version = given("1.13");
  request.deepspeed_version = given("0.4.0");
  std::string said;
  try {
    (void)resolve(model, request, nullptr, nullptr, nullptr);
  } catch (const Refusal& refusal) {
    said = refusal.what();
  }
  CHECK(said.find("torch 1.13.0 is not modelled; the oldest is 2.5.0") != std::string::npos);
  CHECK(said.find("deepspeed 0.4.0 is not modelled; the oldest is 0.12.0") != std::string::npos);
  request.torch_version = given("2");  // It is 2.0.0, and not whatever is newest.
  request.deepspeed_version = {};
  CHECK_THROWS_AS((void)resolve(model, request, nullptr, nullptr, nullptr), Refusal);
  request.torch_version = given("2.5");
  request.deepspeed_version = given("0.12");
  CHECK(resolve(model, request, nullptr, nullptr, nullptr).training.torch == Version{2, 5, 0});
}

TEST_CASE("a release that nobody measured, and one that is of no program here, are said to be") {
  const ModelSpec model = lowered::bundled("gpt2");
  const auto said = [&](const char* torch, const char* runtime) {
    Request request;
    request.torch_version = given(torch);
    request.deepspeed_version = given("0.16.0");
    request.runtime = given(runtime);
    std::string all;
    for (const Notice& one : resolve(model, request, nullptr, nullptr, nullptr).notices) all += one.message + "\n";
    return all;
  };
  constexpr const char* kOlder = "torch 2.5.0 is older than 2.6.0, the oldest that was measured";
  constexpr const char* kInert = "DeepSpeed's version has no effect";
  CHECK(said("2.5.0", "pytorch").find(kOlder) != std::string::npos);
  CHECK(said("2.6.0", "pytorch").find("is older than") == std::string::npos);
  CHECK(said("2.6.0", "pytorch").find(kInert) != std::string::npos);
  CHECK(said("2.6.0", "deepspeed").find(kInert) == std::string::npos);
}

TEST_CASE(
    "a version that is not modelled is refused where nothing of the program runs, and so is another line of one") {
  const ModelSpec model = lowered::bundled("gpt2");
  const auto refused = [&](Setting<std::string> Request::*which, const char* version) -> std::string {
    Request request;
    request.*which = given(version);
    try {
      (void)resolve(model, request, nullptr, nullptr, nullptr);
    } catch (const Refusal& refusal) {
      return refusal.what();
    }
    return "answered";
  };
  CHECK(refused(&Request::deepspeed_version, "0.4.0").find("deepspeed 0.4.0 is not modelled") != std::string::npos);
  CHECK(refused(&Request::deepspeed_version, "9.9").find("deepspeed 9.9.0 is not modelled") != std::string::npos);
  CHECK(refused(&Request::deepspeed_version, "new").find("is no version") != std::string::npos);
  CHECK(refused(&Request::deepspeed_version, "0.16.0") == "answered");
  CHECK(refused(&Request::liger_version, "0.3.0").find("liger 0.3.0 is not modelled") != std::string::npos);
  CHECK(refused(&Request::torch_version, "3.0").find("the newest that was measured is 2.11.0") != std::string::npos);
  CHECK(refused(&Request::transformers_version, "6.0").find("transformers 6.0.0 is not modelled") != std::string::npos);
}

TEST_CASE("a release newer than what was measured is answered, and said to be") {
  const ModelSpec model = lowered::bundled("gpt2");
  const auto notes = [&](const char* torch) {
    Request request;
    request.torch_version = given(torch);
    const Job job = resolve(model, request, nullptr, nullptr, nullptr);
    return std::count_if(job.notices.begin(), job.notices.end(), [](const Notice& one) {
      return one.message.find("is newer than 2.11.0, the newest that was measured") != std::string::npos;
    });
  };
  CHECK(notes("2.12.0") == 1);
  CHECK(notes("2.11.0") == 0);
  CHECK(notes("2.8.0") == 0);
}
