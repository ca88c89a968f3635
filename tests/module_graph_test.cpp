// Recorded modules (tools/export_graph.py) against real PyTorch's storages, allocation by allocation, and what an edit
// makes nonsense of.
#include <doctest/doctest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "io/json_parse.h"
#include "io/machine_files.h"
#include "io/module_graph.h"
#include "io/text.h"
#include "model/graphs/graphs.h"
#include "model/recorded.h"
#include "moves.h"
#include "paths.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/predict.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;
using namespace dsplan::testing;
namespace fs = std::filesystem;

namespace {

const fs::path kModules = fs::path(test_paths::source_dir()) / "tests" / "witnesses" / "modules";

ModelSpec recorded(const std::string& path, const std::string& text) {
  return build_recorded_model(read_module_graph(parse_json(path, text)), "recorded");
}

Request shape_of(const ModelSpec& model) {
  Request request;
  const Place place{"test", 0, 0, {}};
  request.micro_batch = {model.recording->micro_batch, place};
  request.seq = {model.recording->seq, place};
  request.dtype = {std::string(name(model.recording->dtype)), place};
  request.level = {"dispatch", place};
  return request;
}

// The moves of the first micro-batch, from the beginning of its forward to the end of its backward.
class FirstMoves {
 public:
  explicit FirstMoves(const Schedule& schedule) : schedule_(schedule) {
    replay(schedule, *this);
    for (Moves& moves : log) moves.sort();
  }
  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (open_ && buffer.space == Space::Device) log.push_back({{buffer.size.value()}, {}, std::string(buffer.label)});
  }
  void on(std::size_t, const Release& event) {
    const Buffer& buffer = schedule_.buffers[event.buffer];
    if (open_ && buffer.space == Space::Device && !log.empty()) log.back().freed.push_back(buffer.size.value());
  }
  void on(std::size_t, const Compute&) {}
  void on(std::size_t, const Communicate&) {}
  void on(std::size_t, const RecordEvent&) {}
  void on(std::size_t, const WaitEvent&) {}
  void on(std::size_t, const EmptyCache&) {}
  void on(std::size_t, const Enter&) {}
  void on(std::size_t, const Exit&) {}
  void on(std::size_t, const Mark& event) {
    if (event.stretch != Stretch::FirstStep) return;
    if (event.moment == Moment::ForwardBegins) open_ = true;
    if (event.moment == Moment::BackwardEnds) open_ = false;
  }
  std::vector<Moves> log;

 private:
  const Schedule& schedule_;
  bool open_ = false;
};

std::string refused(const std::string& text) {
  try {
    (void)recorded("edited.json", text);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

std::string edited(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("recorded modules equal real PyTorch to the byte") {
  std::size_t compared = 0;
  for (const auto& entry : fs::directory_iterator(kModules)) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path().stem().string());
    const ModelSpec model = recorded(entry.path().string(), read_file(entry.path().string()));
    const Job job = resolve(model, shape_of(model), nullptr, nullptr, nullptr);
    REQUIRE(unsupported(model, job) == std::nullopt);
    const Graph graph = build_graph(model, graph_options(model, job));
    const FirstMoves ours(lower(model, job, graph, RecipeBook(graph, job.training.level), 0));
    std::vector<Moves> witness;
    std::ifstream file(fs::path(entry.path()).replace_extension(".log"));
    for (std::string line; std::getline(file, line);) read_log_line(line, witness);
    for (Moves& moves : witness) moves.sort();
    REQUIRE(!witness.empty());
    const std::string difference = first_difference(witness, grouped_like(witness, ours.log));
    CHECK_MESSAGE(difference.empty(), difference);
    ++compared;
  }
  CHECK(compared == 10);
}

// Formulas and schedule agree: a prediction holds its persistent bytes against a second derivation. A device has
// workspaces, of which a recording says nothing.
TEST_CASE("recorded modules are predicted under every stage, on a device with a name") {
  const Hardware hardware = load_hardware("h100-sxm");
  std::size_t predicted = 0;
  for (const auto& entry : fs::directory_iterator(kModules)) {
    if (entry.path().extension() != ".json") continue;
    const ModelSpec model = recorded(entry.path().string(), read_file(entry.path().string()));
    for (std::int64_t stage = -1; stage <= 3; ++stage) {
      INFO(entry.path().stem().string(), ", stage ", stage);
      Request request = shape_of(model);
      request.level = {};
      request.gpus = {8, Place{"test", 0, 0, {}}};
      if (stage >= 0) request.zero_stage = {stage, Place{"test", 0, 0, {}}};
      const Job job = resolve(model, request, nullptr, &hardware, nullptr);
      if (unsupported(model, job)) continue;
      const Prediction p = predict(model, job, 0);
      CHECK(p.peak.has_value());
      CHECK(!p.time.has_value());
      CHECK(std::count_if(p.not_modelled.begin(), p.not_modelled.end(),
                          [](const Absence& one) { return one.what == "workspace"; }) == 1);
      ++predicted;
    }
  }
  CHECK(predicted >= 40);
}

TEST_CASE("a recording of another shape, dtype or run is refused by name") {
  const std::string path = (kModules / "nanogpt.json").string();
  const ModelSpec model = recorded(path, read_file(path));
  const auto reason = [&](auto&& change) {
    Training training = resolve(model, shape_of(model), nullptr, nullptr, nullptr).training;
    change(training);
    return graph_unsupported(model, training, 1).value_or("");
  };
  CHECK(reason([](Training&) {}).empty());
  CHECK(reason([](Training& t) { t.micro_batch = 7; }) ==
        "micro-batch 7 of a module that was recorded with 2: record it again");
  CHECK(reason([](Training& t) { t.seq = 9; }) == "seq 9 of a module that was recorded with 16: record it again");
  CHECK(reason([](Training& t) { t.dtype = DType::BFloat16; }) ==
        "bf16 for a module that was recorded in fp32: record it again with --dtype");
  CHECK(reason([](Training& t) { t.runtime = Runtime::Fsdp2; }) == "a recorded module under fully_shard");
}

// PyTorch's own attention reads a weight of a module that it does not call.
TEST_CASE("a recording that does not say where a parameter is asked for is refused under ZeRO-3 alone") {
  const std::string path = (kModules / "attention.json").string();
  std::string text = read_file(path);
  const ModelSpec model = recorded(path, text);
  for (std::size_t at = text.find("    {\"ask\""); at != std::string::npos; at = text.find("    {\"ask\"")) {
    text.erase(at, text.find('\n', at) + 1 - at);
  }
  const ModelSpec silent = recorded(path, text);
  Training training = resolve(model, shape_of(model), nullptr, nullptr, nullptr).training;
  CHECK(!graph_unsupported(silent, training, 1));
  training.runtime = Runtime::DeepSpeed;
  training.zero.stage = 3;
  CHECK(!graph_unsupported(model, training, 1));
  CHECK(graph_unsupported(silent, training, 1) ==
        "blocks.0.attention.out_proj.weight, which a recorded module reads while nobody calls the module that has it, "
        "under ZeRO-3: record it again");
}

TEST_CASE("a recording that was edited into nonsense is refused with its line") {
  const std::string text = read_file((kModules / "hand-written-function.json").string());
  CHECK(refused(text) == "accepted");
  CHECK(refused(edited(text, "\"reads\": [0]", "\"reads\": [999]")).find("a storage is an integer from 0 to") !=
        std::string::npos);
  CHECK(refused(edited(text, "{\"enter\": 1}", "{\"enter\": 77}")).find("a module is an integer from 0 to 2") !=
        std::string::npos);
  CHECK(refused(edited(text, "\"back\": [\"+", "\"back\": [\"*")).find("a step of a backward function is") !=
        std::string::npos);
  CHECK(refused(edited(text, "\"float32\"", "\"floot32\"")).find("did you mean \"float32\"?") != std::string::npos);
  CHECK(refused(edited(text, "{\"exit\": 1}", "{\"exit\": 2}")).find("not the module that was entered last") !=
        std::string::npos);
  const std::string left_open = edited(text, "{\"exit\": 0}", "{\"enter\": 0}");
  CHECK(refused(edited(left_open, "\"modules\"", "\"moduLes\"")).find("\"modules\" is missing") != std::string::npos);
  CHECK(refused(edited(text, "\"loss\": ", "\"loss\": 99")).find("the loss is value") != std::string::npos);
  // What the exporter saw and could not place, and what nothing lets go of.
  CHECK(refused(edited(text, "[0, 0, 1, 1], [-2", "[0, null, 1, 1], [-2")).find("neither made nor was given") !=
        std::string::npos);
  CHECK(refused(edited(text, "\"outs\": [[5,", "\"outs\": [[null,")).find("nobody saw where this result lies") !=
        std::string::npos);
  CHECK(refused(edited(text, "    {\"drop\": 7},\n", "")).find("storage 7 stays after the forward") !=
        std::string::npos);
  // Who made a tied weight.
  const std::string born = read_file((kModules / "nanogpt.json").string());
  const std::string row = R"(["wte.weight", "lm_head", 0])";
  CHECK(refused(born) == "accepted");
  const auto made = [&](const std::string& other) { return refused(edited(born, row, other)); };
  CHECK(made(R"(["wte.weigth", "lm_head", 0])").find("did you mean \"wte.weight\"?") != std::string::npos);
  CHECK(made(R"(["wte.weight", "lm_haed", 0])").find("no module \"lm_haed\"") != std::string::npos);
  CHECK(made(R"(["wte.weight", "lm_head", -1])").find("a number of children is an integer from 0") !=
        std::string::npos);
  CHECK(made(R"(["wte.weight", "lm_head", 99999])").find("a number of children is an integer from 0 to") !=
        std::string::npos);
  CHECK(made(R"(["wte.weight", "lm_head"])").find("a parameter's maker is a list of 3") != std::string::npos);
}
