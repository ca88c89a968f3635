// What checkpoints around layers take, from the model's dimensions alone. T tokens of a micro-batch, H the hidden size,
// b bytes of an element, P the ranks that share layers, K "number_checkpoints".
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/predict/footprint.h"

#include "core/format.h"

namespace dsplan {
namespace {

// torch.get_rng_state(): the Mersenne twister's 624 words and its caches. torch.cuda.get_rng_state(): seed and offset.
constexpr std::int64_t kTwister = 5056;
constexpr std::int64_t kSeedAndOffset = 2 * 8;
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kIndex = 8;
constexpr std::int64_t kHiddenDimensions = 3;  // Rows, tokens, H.

struct KeptRule {
  std::string_view label;
  Bytes CheckpointFootprint::*size;
};

// `slot`: of a part, since arguments are stored as parts; without partitioning a part is the whole.
constexpr std::array kRules = {
    KeptRule{"random state of the host", &CheckpointFootprint::host_random},
    KeptRule{"random state of the device", &CheckpointFootprint::device_random},
    KeptRule{"partition of an argument", &CheckpointFootprint::part},
    KeptRule{"contiguous checkpoint", &CheckpointFootprint::part},
    KeptRule{"argument on the host", &CheckpointFootprint::part},
    KeptRule{"index of pages", &CheckpointFootprint::page_index},
    KeptRule{"sizes of arguments", &CheckpointFootprint::shape_note},
    KeptRule{"pinned copy of an argument", &CheckpointFootprint::argument},
    KeptRule{"emptied argument", &CheckpointFootprint::emptied},
};

std::vector<std::int64_t> lengths(const Training& training) {
  return training.seq_list.empty() ? std::vector<std::int64_t>{training.seq} : training.seq_list;
}

}  // namespace

CheckpointFootprint checkpoint_footprint(const ModelSpec& model, const Job& job, std::int64_t seq) {
  const Training& t = job.training;
  const DeepSpeedCheckpointing& config = t.checkpoint.deepspeed;
  const std::int64_t tokens = checked_mul(t.rows(), seq);
  CheckpointFootprint result;
  result.argument = storage(Elements(checked_mul(tokens, model.dims.hidden)), t.dtype);
  result.part = config.partition ? Bytes(result.argument.value() / job.parallelism.tp) : result.argument;
  result.page_index = Bytes(kIndex * ((result.part.value() + kPage - 1) / kPage));
  // One note for all slots of a position, or one for each argument.
  result.shape_note = Bytes(kIndex * kHiddenDimensions * (config.contiguous ? config.number_checkpoints : 1));
  result.emptied = Bytes(4);  // torch.empty([]), in torch's default dtype.
  result.host_random = Bytes(kTwister);
  result.device_random = Bytes(kSeedAndOffset);
  return result;
}

namespace {

// What tensors of checkpoints may be as large as.
class KeptSizes {
 public:
  KeptSizes(const ModelSpec& model, const Job& job) {
    const Checkpointing& checkpoint = job.training.checkpoint;
    gathers_ = checkpoint.by_deepspeed() && checkpoint.deepspeed.partition;
    for (const std::int64_t seq : lengths(job.training)) known_.push_back(checkpoint_footprint(model, job, seq));
  }

  // Whether a label is of a checkpoint's tensor at all.
  [[nodiscard]] static bool rules(std::string_view label) {
    return label == kArgument ||
           std::any_of(kRules.begin(), kRules.end(), [label](const KeptRule& rule) { return label == rule.label; });
  }
  [[nodiscard]] std::string fault_of(const Buffer& buffer) const {
    const std::string_view label = buffer.label;
    for (const KeptRule& rule : kRules) {
      if (label != rule.label || fits(buffer, rule.size)) continue;
      return formatted("\"{}\" of {}, by formula {}", label, human(buffer.size), human(known_.front().*rule.size));
    }
    if (label != kArgument || fits(buffer, &CheckpointFootprint::argument)) return {};
    if (gathers_ && fits(buffer, &CheckpointFootprint::part)) return {};
    return formatted("\"{}\" of {}, by formula {}", label, human(buffer.size), human(known_.front().argument));
  }

 private:
  // Whole again, or a part on its way there.
  static constexpr std::string_view kArgument = "argument of a checkpoint";

  [[nodiscard]] bool fits(const Buffer& buffer, Bytes CheckpointFootprint::*size) const {
    return std::any_of(known_.begin(), known_.end(),
                       [&](const CheckpointFootprint& one) { return one.*size == buffer.size; });
  }

  std::vector<CheckpointFootprint> known_;
  bool gathers_ = false;
};

}  // namespace

std::string checkpoint_fault(const ModelSpec& model, const Job& job, const Schedule& schedule) {
  const Checkpointing& checkpoint = job.training.checkpoint;
  if (checkpoint.groups.empty() || !checkpoint.modules.empty()) return {};
  const KeptSizes sizes(model, job);
  // Most buffers are something else, and have one of a few labels.
  std::array<Label, 64> others{};
  for (const Buffer& buffer : schedule.buffers) {
    Label& other = others[reinterpret_cast<std::uintptr_t>(buffer.label) / 8 % others.size()];
    if (other == buffer.label) continue;
    if (!KeptSizes::rules(buffer.label)) {
      other = buffer.label;
      continue;
    }
    if (std::string fault = sizes.fault_of(buffer); !fault.empty()) return fault;
  }
  return {};
}

}  // namespace dsplan
