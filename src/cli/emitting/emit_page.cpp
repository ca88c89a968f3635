#include "cli/emitting/emit_page.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cli/assemble.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/predicted.h"
#include "core/error.h"
#include "core/format.h"
#include "planner/predict/predict.h"
#include "report/page.h"
#include "sim/allocation_log.h"
#include "sim/placement.h"

namespace dsplan {
namespace {

// A word as a shell reads it back.
std::string shell_word(const std::string& word) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:,+=@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string command_line(const Words& words) {
  std::string text = "dsplan emit";
  for (const std::string& word : words) text += " " + shell_word(word);
  return text;
}

struct Variation {
  std::string option;
  std::function<void(Request&)> change;
};

// What somebody tries first whose job does not fit, or fits with room to spare.
std::vector<Variation> variations(const Job& job) {
  std::vector<Variation> list;
  const Training& training = job.training;
  for (const char* mode : {"none", "full"}) {
    if (training.checkpoint.text == mode) continue;
    list.push_back({formatted("--checkpoint {}", mode), [mode](Request& request) {
                      request.checkpoint = {mode, option("--checkpoint")};
                    }});
  }
  const std::int64_t now = training.runtime == Runtime::DeepSpeed ? training.zero.stage : -1;
  for (std::int64_t stage = 0; stage <= 3 && job.parallelism.world > 1; ++stage) {
    if (stage == now) continue;
    list.push_back({formatted("--zero-stage {}", stage), [stage](Request& request) {
                      request.zero_stage = {stage, option("--zero-stage")};
                    }});
  }
  for (const std::int64_t rows : {training.micro_batch / 2, training.micro_batch * 2}) {
    if (rows < 1) continue;
    list.push_back({formatted("--micro-batch {}", rows), [rows](Request& request) {
                      request.micro_batch = {rows, option("--micro-batch")};
                    }});
  }
  if (training.seq > 1) {
    const std::int64_t tokens = training.seq / 2;
    list.push_back({formatted("--seq {}", tokens), [tokens](Request& request) {
                      request.seq = {tokens, option("--seq")};
                    }});
  }
  return list;
}

PageChange predicted_with(Inputs inputs, const Variation& variation) {
  PageChange change;
  change.option = variation.option;
  variation.change(inputs.request);
  try {
    const Job job = resolve(inputs);
    const Prediction prediction = predict_asked(inputs.model, job).front();
    change.verdict = prediction.verdict;
    change.least = least_of(prediction);
    if (prediction.peak) change.process = prediction.peak->process;
    if (prediction.time) change.seconds = prediction.time->total;
  } catch (const Refusal& refusal) {
    change.refused = refusal.diagnostics().front().message;
  }
  return change;
}

std::optional<std::size_t> runs_out_at(const Predicted& predicted) {
  if (predicted.limit == CachingAllocator::kUnlimited) return std::nullopt;
  PlacementOptions options;
  options.config = predicted.config;
  options.limit = predicted.limit;
  if (predicted.prediction.capacity) options.device = *predicted.prediction.capacity;
  options.frees = predicted.job.stream_frees;
  return place(predicted.schedule, options).failed_event;
}

}  // namespace

int emit_page(const SimulateWords& said, const Words& words) {
  Output output(said.options.out.value_or(""));
  const Predicted predicted = predicted_schedule(said, "--format html");
  const Timeline timeline =
      timeline_of(predicted.schedule, predicted.inputs.model, predicted.config, predicted.job.stream_frees);
  std::vector<PageChange> changes;
  for (const Variation& variation : variations(predicted.job)) {
    changes.push_back(predicted_with(predicted.inputs, variation));
  }
  const std::optional<Bytes> limit =
      predicted.limit == CachingAllocator::kUnlimited ? std::nullopt : std::optional(predicted.limit);
  output.add(html_page({timeline, predicted.schedule, predicted.inputs.model, predicted.prediction, predicted.job,
                        command_line(words), limit, runs_out_at(predicted), std::move(changes)}));
  output.finish();
  return kDone;
}

}  // namespace dsplan
