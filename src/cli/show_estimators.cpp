#include "cli/show.h"

#include "core/format.h"

namespace dsplan {
namespace {

std::string_view offload_name(EstimatorOffload offload) {
  switch (offload) {
    case EstimatorOffload::None: return "none";
    case EstimatorOffload::Optimizer: return "optimizer";
    case EstimatorOffload::OptimizerAndParameters: return "optimizer+param";
  }
  return "";
}

std::string ours_text(const OurStates& ours, int stage, EstimatorOffload offload) {
  const std::optional<Bytes> states = ours ? ours(stage, offload) : std::nullopt;
  return states ? human(*states) : "-";
}

struct Row {
  int stage;
  EstimatorOffload offload;
  std::string_view zero_init;
  std::string older;  // GPU, before the ZeRO-2 change.
  std::string newer;
  Bytes host;
};

std::string line(const Row& row, const OurStates& ours) {
  return formatted("{:<6}{:<17}{:<6}{:>12}{:>12}{:>12}{:>13}\n", row.stage, offload_name(row.offload), row.zero_init,
                   row.older, row.newer, ours_text(ours, row.stage, row.offload), human(row.host));
}

}  // namespace

std::string show_estimators(const ModelSpec& model, const EstimatorQuery& query, const OurStates& ours) {
  const EstimatorInput input{total_elements(model), largest_layer(model), query.nodes, query.gpus_per_node};
  std::string text = formatted("{}: {} parameters, largest layer {}\n", model.name, grouped(input.parameters.value()),
                               grouped(input.largest_layer.value()));
  text += formatted("{} node{} with {} GPU{} each; DeepSpeed's own estimators beside dsplan, states only\n\n",
                    query.nodes, query.nodes == 1 ? "" : "s", query.gpus_per_node, query.gpus_per_node == 1 ? "" : "s");
  const bool old = query.deepspeed < kZero2EstimatorChanged;
  text += formatted("{:<6}{:<17}{:<6}{:>12}{:>12}{:>12}{:>13}\n", "", "", "zero.", old ? "*<0.14.3" : "<0.14.3",
                    old ? ">=0.14.3" : "*>=0.14.3", "dsplan", "host");
  text += formatted("{:<6}{:<17}{:<6}{:>12}{:>12}{:>12}{:>13}\n", "stage", "offload", "Init", "per GPU", "per GPU",
                    "per GPU", "per node");
  for (EstimatorOffload offload : {EstimatorOffload::Optimizer, EstimatorOffload::None}) {
    const Estimate older = estimate_zero2(input, offload, kFirstEstimators);
    const Estimate newer = estimate_zero2(input, offload, kZero2EstimatorChanged);
    text += line({2, offload, "-", human(older.per_gpu), human(newer.per_gpu), newer.per_cpu}, ours);
  }
  for (EstimatorOffload offload :
       {EstimatorOffload::OptimizerAndParameters, EstimatorOffload::Optimizer, EstimatorOffload::None}) {
    for (bool zero_init : {true, false}) {
      const Estimate all = estimate_zero3(input, offload, zero_init, kZero2EstimatorChanged);
      text += line({3, offload, zero_init ? "yes" : "no", human(all.per_gpu), human(all.per_gpu), all.per_cpu}, ours);
    }
  }
  text += formatted("\n* the version in use, {}. DeepSpeed has no estimator for ZeRO-1.\n", query.deepspeed.text());
  text +=
      "The estimators count no activations, buckets, gathered layers or padding, and\n"
      "assume 16-bit Adam; they print GiB as \"GB\". Host figures hold a factor 3/2.\n";
  return text;
}

}  // namespace dsplan
