#include "io/dialects/slots.h"

#include <doctest/doctest.h>

#include <string>

#include "io/dialects/dialect_file.h"
#include "io/text.h"

using namespace dsplan;

namespace {

template <class Read>
std::string refusal(Read read) {
  try {
    (void)read();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

std::string refused(const std::string& text) {
  return refusal([&] { return read_training_document(parse_yaml("f.yaml", text)); });
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("files that stand at another option's place") {
  const auto as = [](const char* name, const std::string& text, FileSlot slot) {
    return refusal([&] {
      const std::string path = name;
      refuse_other_slot(path.ends_with("json") ? parse_json(path, text) : parse_yaml(path, text), slot);
      return 0;
    });
  };
  const std::string factory = "template: llama3\nfinetuning_type: lora\n";
  CHECK(has(as("l.yaml", factory, FileSlot::Model),
            "this is a LLaMA-Factory configuration, and no model; say --training l.yaml"));
  CHECK(has(as("l.yaml", factory, FileSlot::DeepSpeed), "and no DeepSpeed JSON; say --training l.yaml"));
  CHECK(as("l.yaml", factory, FileSlot::Training) == "accepted");
  const std::string model = R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 8})";
  CHECK(has(as("config.json", model, FileSlot::Training),
            "this is a model's config.json, and no training file; it is MODEL: dsplan simulate config.json"));
  CHECK(has(as("config.json", model, FileSlot::DeepSpeed), "this is a model's config.json"));
  const std::string zero = R"({"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})";
  CHECK(has(as("z.json", zero, FileSlot::Model), "this is a DeepSpeed JSON, and no model; say --deepspeed z.json"));
  CHECK(as("z.json", zero, FileSlot::Training) == "accepted");
  CHECK(as("z.json", zero, FileSlot::DeepSpeed) == "accepted");
  CHECK(as("b.json", R"({"bf16": {"enabled": true}})", FileSlot::DeepSpeed) == "accepted");
  CHECK(has(refused("seq: 2048\n"), "dsplan's own training file has it, and begins with"));
  CHECK(has(refused("per_device_eval_batch_size: 1\nseq: 2048\n"), "dsplan's own training file has it"));
}
