#include "report/compare_operators.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/format.h"
#include "model/catalogue.h"
#include "model/operator_words.h"
#include "report/compare_optimizers.h"

namespace dsplan {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool is_temporary(const std::string& word) { return word.starts_with("+t:") || word.starts_with("-t:"); }

OperatorDifference::Kind kind_of(const std::string& predicted, const std::string& measured, bool unmodelled) {
  std::vector<std::string> ours = split(predicted);
  std::vector<std::string> theirs = split(measured);
  if (unmodelled) {
    std::erase_if(ours, is_temporary);
    std::erase_if(theirs, is_temporary);
    if (ours == theirs) return OperatorDifference::Kind::Unmodelled;
  }
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  return ours == theirs ? OperatorDifference::Kind::Order : OperatorDifference::Kind::Contents;
}

void compare(const OperatorRun& run, RunLevel level, const CatalogueOptions& options, OperatorRow& row) {
  const Node& node = run.graph.nodes[0];
  Recipe recipe;
  recipe_of(run.graph, node, recipe, options);
  const OperatorWords ours = catalogue_words(run.graph, level, options);
  const std::size_t before = row.differences.size();
  const auto part = [&](const char* what, const std::string& predicted, const std::string& measured) {
    if (predicted == measured) return;
    row.differences.push_back(
        {kind_of(predicted, measured, recipe.unknown != nullptr), run.title, what, predicted, measured});
  };
  part("forward", ours.forward, run.words.forward);
  part("saved", formatted("{}", joined(ours.saved, " ")), formatted("{}", joined(run.words.saved, " ")));
  if (!run.artefact) part("backward", ours.backward, run.words.backward);
  part("passes", formatted("{}", joined(ours.passes, " ")), formatted("{}", joined(run.words.passes, " ")));
  ++row.cases;
  row.artefact |= run.artefact;
  if (row.differences.size() == before) ++row.equal;
}

// "2.11.0+cu130": the build's tag moves no byte.
Version torch_of(const OperatorRuns& file) {
  const std::optional<Version> version = Version::parse(file.torch.substr(0, file.torch.find('+')));
  if (!version) throw Refusal(file.path, "no version of torch: \"" + file.torch + "\"");
  return *version;
}

}  // namespace

OperatorComparison compare_operators(std::span<const OperatorRuns> files) {
  OperatorComparison comparison;
  for (std::size_t i = 0; i < kOps; ++i) comparison.rows.emplace_back().op = static_cast<Op>(i);
  if (!files.empty()) {
    comparison.level = files.front().level;
    comparison.device = files.front().device;
    comparison.torch = files.front().torch;
  }
  for (const OperatorRuns& file : files) {
    DSPLAN_CHECK(file.level == comparison.level, file.path);
    comparison.complete = comparison.complete && file.complete;
    compare_optimizers(file, comparison);
    const CatalogueOptions options{torch_of(file)};
    for (const OperatorRun& run : file.runs) {
      compare(run, file.level, options, comparison.rows[static_cast<std::size_t>(run.graph.nodes[0].op)]);
    }
    for (const FailedRun& failed : file.failed) {
      const std::optional<Op> op = operator_named(failed.operation);
      if (op) ++comparison.rows[static_cast<std::size_t>(*op)].failed;
    }
  }
  return comparison;
}

std::vector<Op> confirmed_on_cuda(std::span<const OperatorRuns> files) {
  std::vector<OperatorRuns> of_cuda;
  std::copy_if(files.begin(), files.end(), std::back_inserter(of_cuda),
               [](const OperatorRuns& file) { return file.device == "cuda" && file.level == RunLevel::Kernel; });
  std::vector<Op> confirmed;
  for (const OperatorRow& row : compare_operators(of_cuda).rows) {
    if (row.confirmed()) confirmed.push_back(row.op);
  }
  return confirmed;
}

}  // namespace dsplan
