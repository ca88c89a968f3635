// What the tests of resolving share: a small model, inputs as texts, and what came of them.
#pragma once

#include <doctest/doctest.h>
#include <algorithm>
#include <string>
#include <vector>

#include "core/format.h"
#include "io/deepspeed.h"
#include "io/machine_files.h"
#include "io/text.h"
#include "io/dialects/dialect_file.h"
#include "io/training_file.h"
#include "planner/resolve/checkpointing.h"
#include "planner/resolve/resolve.h"

namespace resolving {

using namespace dsplan;

// Three parameters of 4096^2, 100,001 and 40,960 elements.
inline ModelSpec small_model() {
  ModelSpec model;
  model.name = "small";
  model.family = "llama";
  model.dims.layers = 6;
  model.dims.hidden = 4096;
  model.dims.heads = 32;
  model.dims.kv_heads = 8;
  model.dims.head_dim = 128;
  model.dims.ffn = 14336;
  model.dims.vocab = 128256;
  model.dims.max_positions = 8192;
  model.modules = {{"", "Root", kNone, kNone}};
  model.parameters = {{"embed.weight", Shape({4096, 4096}), 0, kNone, true, Split::Vocabulary, 0, {}},
                      {"norm.weight", Shape({100'001}), 0, kNone, true, Split::Replicated, 0, {}},
                      {"head.bias", Shape({40'960}), 0, kNone, true, Split::Replicated, 0, {}}};
  return model;
}

// What a user may give, as texts.
struct Given {
  std::string deepspeed = {};  // Empty: none.
  Request request = {};
  const Hardware* hardware = nullptr;
  const Cluster* cluster = nullptr;
  ModelSpec model = small_model();
};

inline Job run(const Given& given) {
  if (given.deepspeed.empty()) return resolve(given.model, given.request, nullptr, given.hardware, given.cluster);
  const DeepSpeedInput input = read_deepspeed(parse_hjson("ds.json", given.deepspeed));
  return resolve(given.model, given.request, &input, given.hardware, given.cluster);
}

inline std::string refusal(const Given& given) {
  try {
    (void)run(given);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

template <class T>
inline void set(Setting<T>& setting, T value, const char* name) {
  setting = {std::move(value), option(name)};
}

inline Request gpus(std::int64_t count) {
  Request request = {};
  set(request.gpus, count, "--gpus");
  return request;
}

inline Request trainer(const std::string& yaml, std::int64_t ranks = 8) {
  return overlay(read_training_arguments(parse_yaml("args.yaml", yaml)), gpus(ranks));
}

inline const ResolvedInput& input(const Job& job, const std::string& name) {
  const auto at =
      std::find_if(job.inputs.begin(), job.inputs.end(), [&](const ResolvedInput& one) { return one.name == name; });
  REQUIRE_MESSAGE(at != job.inputs.end(), name);
  return *at;
}

inline const Notice* find_notice(const Job& job, const std::string& part) {
  const auto at = std::find_if(job.notices.begin(), job.notices.end(),
                               [&](const Notice& notice) { return notice.message.find(part) != std::string::npos; });
  return at == job.notices.end() ? nullptr : &*at;
}

inline void says(const Given& given, const std::string& part) {
  const std::string said = refusal(given);
  INFO(said);
  CHECK_MESSAGE(said.find(part) != std::string::npos, part);
}

}  // namespace resolving
