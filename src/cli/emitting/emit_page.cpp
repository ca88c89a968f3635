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
#include "core/machine/in_parallel.h"
#include "io/png.h"
#include "planner/plan/space.h"
#include "planner/predict/predict.h"
#include "report/page.h"
#include "report/page/slide.h"
#include "sim/allocator.h"
#include "sim/placement.h"

namespace dsplan {
namespace {

struct Variation {
  std::string option;
  std::function<void(Inputs&)> change;
};

// The optimizer in the host's memory. None of the options says that: it is a key of the DeepSpeed JSON.
Variation with_offload() {
  return {"\"offload_optimizer\": {\"device\": \"cpu\"}", [](Inputs& inputs) {
            if (!inputs.deepspeed) inputs.deepspeed = own_deepspeed_file(inputs.request);
            OffloadInput& into = inputs.deepspeed->zero.offload_optimizer;
            into = {};
            into.present = true;
            into.place = option("what if");
            into.device = {OffloadDevice::Cpu, into.place};
            into.pin_memory = {true, into.place};
          }};
}

// What somebody tries first whose job does not fit, or fits with room to spare.
std::vector<Variation> variations(const Job& job) {
  std::vector<Variation> list;
  const Training& training = job.training;
  for (const char* mode : {"none", "full"}) {
    if (training.checkpoint.text == mode) continue;
    list.push_back({formatted("--checkpoint {}", mode), [mode](Inputs& inputs) {
                      inputs.request.checkpoint = {mode, option("--checkpoint")};
                    }});
  }
  const std::int64_t now = training.runtime == Runtime::DeepSpeed ? training.zero.stage : -1;
  for (std::int64_t stage = 0; stage <= 3 && job.parallelism.world > 1; ++stage) {
    if (stage == now) continue;
    list.push_back({formatted("--zero-stage {}", stage), [stage](Inputs& inputs) {
                      inputs.request.zero_stage = {stage, option("--zero-stage")};
                    }});
  }
  for (const std::int64_t rows : {training.micro_batch / 2, training.micro_batch * 2}) {
    if (rows < 1) continue;
    list.push_back({formatted("--micro-batch {}", rows), [rows](Inputs& inputs) {
                      inputs.request.micro_batch = {rows, option("--micro-batch")};
                    }});
  }
  if (now > 0 && training.zero.offload_optimizer.device == OffloadDevice::None) list.push_back(with_offload());
  if (training.seq > 1) {
    const std::int64_t tokens = training.seq / 2;
    list.push_back({formatted("--seq {}", tokens), [tokens](Inputs& inputs) {
                      inputs.request.seq = {tokens, option("--seq")};
                    }});
  }
  return list;
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

// What html_page and page_view are of; `predicted` and `timeline` outlive it.
PageInput page_input(const Predicted& predicted, const Timeline& timeline) {
  const std::optional<Bytes> limit =
      predicted.limit == CachingAllocator::kUnlimited ? std::nullopt : std::optional(predicted.limit);
  return {timeline,
          predicted.schedule,
          predicted.inputs.model,
          predicted.prediction,
          predicted.job,
          "",
          limit,
          runs_out_at(predicted),
          {},
          std::nullopt};
}

PageChange predicted_with(Inputs inputs, const Variation& variation) {
  PageChange change;
  change.option = variation.option;
  variation.change(inputs);
  try {
    const Predicted predicted = predicted_schedule(std::move(inputs), "--format html");
    const Prediction& prediction = predicted.prediction;
    change.verdict = prediction.verdict;
    change.needed = prediction.needed;
    if (prediction.peak) change.process = prediction.peak->process;
    if (prediction.time) change.seconds = prediction.time->total;
    const Timeline timeline = timeline_of(predicted);
    change.view = page_view(page_input(predicted, timeline));
  } catch (const Refusal& refusal) {
    change.refused = refusal.diagnostics().front().message;
  }
  return change;
}

}  // namespace

int emit_page(const SimulateWords& said, const Words& words, const std::string& measured) {
  Output output(said.options.out.value_or(""));
  const Predicted predicted = predicted_schedule(said, "--format html");
  const Timeline timeline = timeline_of(predicted);
  PageInput page = page_input(predicted, timeline);
  page.command = command_line("emit", words);
  if (!measured.empty()) page.measured = held_against(measured, predicted);
  const std::vector<Variation> list = variations(predicted.job);
  page.changes.resize(list.size());
  in_parallel(list.size(), [&](std::size_t i) { page.changes[i] = predicted_with(predicted.inputs, list[i]); });
  output.add(html_page(page));
  output.finish();
  return kDone;
}

std::string chart_of(const SimulateWords& said) {
  const Predicted predicted = predicted_schedule(said, "the chart");
  const Timeline timeline = timeline_of(predicted);
  return page_view(page_input(predicted, timeline));
}

int emit_slide(const SimulateWords& said, const std::string& format) {
  if (format == "png" && !said.options.out.given()) {
    throw Refusal("--out", "is missing: a picture in pixels is binary", "name a file, such as --out memory.png");
  }
  Output output(said.options.out.value_or(""));
  const Predicted predicted = predicted_schedule(said, "--format " + format);
  const Timeline timeline = timeline_of(predicted);
  const std::string picture = svg_slide(page_input(predicted, timeline));
  output.add(format == "png" ? png_of(picture) : picture);
  output.finish();
  return kDone;
}

}  // namespace dsplan
