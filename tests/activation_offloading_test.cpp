// TRL's activation offloading, against the real class around steps of real models on the dry device
// (tools/oracles/activation_offloading.py): which saved tensors go to the host, which are copied before, and in which
// order they come back.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/audit.h"
#include "io/dialects/dialect_file.h"
#include "io/text.h"
#include "io/training_file.h"
#include "lowered.h"
#include "paths.h"
#include "planner/lower/shapes.h"
#include "planner/lower/unsupported.h"
#include "planner/resolve/programs.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;
using Json = nlohmann::ordered_json;
using Sizes = std::vector<std::int64_t>;

namespace {

Json witnesses() {
  std::ifstream file(test_paths::source_dir() + "/tests/witnesses/activation_offloading.json");
  return Json::parse(file).at("jobs");
}

Request request_of(const Json& training) {
  Json file{{"dsplan", 1}, {"kind", "training"}, {"source", "a test"}, {"loop", "minimal"}};
  file.update(training);
  return read_training_file(parse_json("training", file.dump()));
}

// Of the second step, in order.
struct Moved : Ignores<Release, Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
  explicit Moved(const Schedule& of) : schedule(of) { replay(of, *this); }

  using Ignores<Release, Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t, const Allocate& event) {
    const Buffer& buffer = schedule.buffers[event.buffer];
    const std::string_view label = buffer.label;
    if (!counts) return;
    if (label == "pinned copy of an activation") sent.push_back(buffer.size.value());
    if (label == "contiguous copy") copied.push_back(buffer.size.value());
    if (label == "activation brought back") back.push_back(buffer.size.value());
  }
  void on(std::size_t, const Mark& event) { counts = event.stretch == Stretch::SecondStep; }

  const Schedule& schedule;
  bool counts = false;
  Sizes sent;
  Sizes copied;
  Sizes back;
};

}  // namespace

TEST_CASE("activation offloading: what is sent, copied and brought back, as TRL's class does it") {
  const Json all = witnesses();
  for (const auto& [name, one] : all.items()) {
    INFO(name);
    const Request request = request_of(one.at("training"));
    const ModelSpec model = model_of(lowered::inlined(name, one.at("config").dump()), request);
    const Job job = resolve(model, request, nullptr, nullptr, nullptr);
    CHECK(unsupported(model, job).has_value() == !one.at("training").contains("checkpoint"));
    const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
    // The rows that SFTTrainer's loss picks have temporaries that go with no kernel in between, hooks or not.
    if (!one.at("training").contains("loss")) CHECK(audit(schedule).empty());
    const Moved moved(schedule);
    CHECK(moved.sent == one.at("sent").get<Sizes>());
    CHECK(moved.copied == one.at("copied").get<Sizes>());
    Sizes back;
    for (const Json& size : one.at("back")) {
      if (size.is_number()) back.push_back(size.get<std::int64_t>());
    }
    CHECK(moved.back == back);
  }
}

TEST_CASE("activation offloading: what was not compared is refused by name") {
  const ModelSpec model = lowered::bundled("llama-3.2-1b");
  const auto why = [&](const Json& more) {
    Json training{{"seq", 512}, {"micro_batch", 1}, {"checkpoint", "full"}, {"activation_offloading", "streams"}};
    training.update(more);
    const Request request = request_of(training);
    const Job job = resolve(model, request, nullptr, nullptr, nullptr);
    return unsupported(model, job).value_or("");
  };
  const auto beside = [](const std::string& what) {
    return "activation offloading beside " + what + ", not compared with TRL's yet";
  };
  CHECK(why(Json::object()).empty());
  CHECK(why({{"activation_offloading", "single-stream"}}).empty());
  CHECK(why({{"checkpoint", "none"}, {"activation_offloading", "none"}}).empty());
  CHECK(why({{"checkpoint", "none"}}) == beside("--checkpoint none of the form non_reentrant"));
  CHECK(why({{"checkpoint", "every:2"}}) == beside("--checkpoint every:2 of the form non_reentrant"));
  CHECK(why({{"checkpoint_impl", "reentrant"}}) == beside("--checkpoint full of the form reentrant"));
  CHECK(why({{"optimizer", {{"name", "adam8bit"}}}}) == beside("bitsandbytes"));
  CHECK(why({{"runtime", "fsdp2"}, {"gpus", 4}}) == beside("fsdp2"));
  CHECK(why({{"loss", "native"}}) == beside("the loss native"));
  CHECK(why({{"dtype", "fp32"}, {"autocast", "bf16"}, {"loss", "trl"}}).empty());
  CHECK(why({{"optimizer", {{"name", "lion8bit"}}}}) == beside("bitsandbytes"));
}

TEST_CASE("activation offloading: what TRL's and axolotl's files say of it") {
  const ModelSpec model = lowered::bundled("llama-3-8b");
  const auto request = [&](const std::string& text) {
    return with_program(read_training_document(parse_yaml("f.yaml", text)), model, nullptr);
  };
  const auto refused = [&](const std::string& text) {
    const Request made = request(text);
    return made.not_modelled.empty() ? std::string() : made.not_modelled.front().feature;
  };
  const std::string trl = "model_name_or_path: llama-3-8b\nuse_peft: false\n";
  CHECK(request(trl + "activation_offloading: true\n").activation_offloading.value_or("") == "streams");
  CHECK(request(trl + "activation_offloading: false\n").activation_offloading.value_or("") == "none");
  CHECK_FALSE(request(trl).activation_offloading.given());
  const std::string axolotl =
      "base_model: llama-3-8b\nbf16: true\nflash_attention: true\ngradient_checkpointing: true\n";
  const Request wrapped = request(axolotl + "activation_offloading: true\n");
  CHECK(wrapped.activation_offloading.value_or("") == "streams");
  CHECK(wrapped.checkpoint_impl.value_or("") == "non_reentrant");
  CHECK(wrapped.not_modelled.empty());
  CHECK(request(axolotl + "activation_offloading: legacy\n").activation_offloading.value_or("") == "single-stream");
  CHECK(refused(axolotl + "activation_offloading: hidden_states\n") ==
        "activation offloading of the form hidden_states");
  CHECK(refused(axolotl + "activation_offloading: disk\n") == "activation offloading of the form disk");
  CHECK(refused(axolotl + "adapter: lora\nlora_r: 8\nlora_target_linear: true\nactivation_offloading: true\n") ==
        "activation offloading beside adapters in axolotl");
  CHECK(refused("base_model: llama-3-8b\nflash_attention: true\nactivation_offloading: true\n") ==
        "activation offloading without gradient_checkpointing");
}
