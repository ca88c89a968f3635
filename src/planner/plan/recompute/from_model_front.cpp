// The recompute plans of a model that no other one beats in time and memory.
#include <algorithm>

#include "core/error.h"
#include "core/format.h"
#include "model/traits.h"
#include "planner/plan/recompute/blocks.h"
#include "planner/plan/recompute/flat.h"
#include "planner/plan/recompute/from_model.h"

namespace dsplan {
namespace {

using detail::ChainCosts;
using detail::FlatPlan;

std::vector<Op> operators_of(const std::string& option) {
  std::vector<Op> ops;
  for (std::size_t from = 0; from < option.size();) {
    const std::size_t to = std::min(option.find('+', from), option.size());
    const std::optional<Op> op = operator_named(std::string_view(option).substr(from, to - from));
    DSPLAN_CHECK(op.has_value(), "an option names its operators");
    ops.push_back(*op);
    from = to + 1;
  }
  return ops;
}

std::vector<CheckpointGroup> groups_of(const Chain& chain, const std::vector<ChainSegment>& segments,
                                       const Checkpointing& like) {
  std::vector<CheckpointGroup> groups;
  for (const ChainSegment& segment : segments) {
    const bool selective = segment.option != kNoOption;
    if (segment.mode == ChainSegment::Mode::Store && !selective) continue;
    CheckpointGroup group{segment.first - 1, segment.last - 1, like.kind, like.preserve_rng_state};
    if (selective) {
      const ChainStage& stage = chain.stages[static_cast<std::size_t>(segment.first - 1)];
      group.kept = operators_of(stage.options[static_cast<std::size_t>(segment.option)].name);
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

std::string checkpointing_text(const std::vector<CheckpointGroup>& groups) {
  if (groups.empty()) return "none";
  std::string text;
  for (std::size_t at = 0; at < groups.size();) {
    const CheckpointGroup& group = groups[at];
    const std::int32_t length = group.last - group.first + 1;
    std::size_t next = at + 1;
    while (next < groups.size() && groups[next].first == groups[next - 1].last + 1 &&
           groups[next].last - groups[next].first + 1 == length && groups[next].kept == group.kept) {
      ++next;
    }
    if (!text.empty()) text += ",";
    text += group.first == groups[next - 1].last ? formatted("{}", group.first)
                                                 : formatted("{}-{}", group.first, groups[next - 1].last);
    if (length > 1) text += formatted("/{}", length);
    for (std::size_t i = 0; i < group.kept.size(); ++i)
      text += (i == 0 ? " keep:" : "+") + std::string(name(group.kept[i]));
    at = next;
  }
  return "auto:" + text;
}

void cut_at_lists(Checkpointing& checkpoint, const ModelSpec& model) {
  const std::vector<ModuleId> lists = lists_of_layers(model);
  std::vector<CheckpointGroup> groups;
  for (const CheckpointGroup& group : checkpoint.groups) {
    CheckpointGroup part = group;
    for (std::int32_t layer = group.first; layer <= group.last; ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      part.last = layer;
      if (layer < group.last && lists[at] == lists[at + 1]) continue;
      groups.push_back(part);
      part.first = layer + 1;
    }
  }
  if (groups.size() == checkpoint.groups.size()) return;
  checkpoint.groups = std::move(groups);
  checkpoint.text = checkpointing_text(checkpoint.groups);
}

std::vector<SegmentationChoice> front_of(const Chain& chain, const Checkpointing& like, std::size_t most,
                                         std::size_t most_labels) {
  const ChainCosts costs(chain);
  std::optional<std::vector<FlatPlan>> all = detail::flat_plans(costs, {true, true, most_labels}, most);
  const std::vector<FlatPlan> plans = all ? std::move(*all) : detail::block_plans(costs, most);
  std::vector<SegmentationChoice> choices;
  for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan) {
    SegmentationChoice choice;
    choice.checkpoint = like;
    choice.checkpoint.groups = groups_of(chain, plan->segments, like);
    choice.checkpoint.text = checkpointing_text(choice.checkpoint.groups);
    choice.extra_seconds = chain.time(Ticks(plan->extra));
    choice.need = chain.input + Bytes(plan->need);
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace dsplan
