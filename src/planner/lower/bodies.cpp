// What each piece of a runtime's work does to its bytes. Runtimes name their work for people; an executor goes by this
// list. What is not on it cannot be executed yet, and a run that meets it is refused by name.
#include <algorithm>
#include <array>
#include <string_view>

#include "planner/lower/recording.h"

namespace dsplan {
namespace {

struct Row {
  std::string_view work;
  Body body;
};

constexpr Row kRows[] = {
    {"absolute gradients", Body::Copy},
    {"accumulate gradient", Body::Add},
    {"add gradients", Body::Add},
    {"add gradients in partition", Body::Add},
    {"add to gradient partition", Body::Add},
    {"add to sums of gradients", Body::Add},
    {"barrier", Body::Clear},
    {"cast gradient", Body::Copy},
    {"cast gradients", Body::Copy},
    {"cast parameter", Body::Copy},
    {"cast partitions", Body::Copy},
    {"cast reduced gradient", Body::Copy},
    {"cast to master", Body::Copy},
    {"cast to partitions", Body::Copy},
    {"clone", Body::Copy},
    {"clone gradient", Body::Copy},
    {"clone master", Body::Copy},
    {"clone parameter", Body::Copy},
    {"clone parameters", Body::Copy},
    {"clone partition", Body::Copy},
    {"concatenate gradients", Body::Copy},
    {"convert on the host", Body::Copy},
    {"copy argument to device", Body::Copy},
    {"copy argument to host", Body::Copy},
    {"copy argument to slot", Body::Copy},
    {"copy gathered parameter", Body::Copy},
    {"copy gathered parameters", Body::Copy},
    {"copy gradient to bucket", Body::Copy},
    {"copy gradient to device", Body::Copy},
    {"copy gradient to host", Body::Copy},
    {"copy gradient to the optimizer", Body::Copy},
    {"copy gradients back", Body::Copy},
    {"copy gradients to bucket", Body::Copy},
    {"copy master to 16 bit", Body::Copy},
    {"copy master to parameters", Body::Copy},
    {"copy master to partitions", Body::Copy},
    {"copy partition to device", Body::Copy},
    {"copy partition to its place", Body::Copy},
    {"copy partitions to device", Body::Copy},
    {"copy partitions to host", Body::Copy},
    {"copy reduced gradients back", Body::Copy},
    {"copy state to swap buffer", Body::Copy},
    {"copy to device", Body::Copy},
    {"copy to gradient partitions", Body::Copy},
    {"copy to host", Body::Copy},
    {"copy trace to device", Body::Clear},
    {"copy weight to host", Body::Copy},
    {"create optimizer state", Body::Clear},
    {"dequantize", Body::Dequantize},
    // DeepSpeed's step with zero gradients, which makes the states. It is left without effect on the weights: with
    // weight decay the real one takes a step of decay.
    {"dummy optimizer step", Body::Nothing},
    {"empty", Body::Clear},
    {"flatten gradient", Body::Copy},
    {"flatten gradients", Body::Copy},
    {"flatten parameters", Body::Copy},
    {"found inf", Body::Clear},
    {"get_rng_state", Body::RandomState},
    {"global gradient norm", Body::Nothing},  // A copy of a number that nobody reads.
    {"gradient in fp64", Body::SquareSum},
    {"gradient norm", Body::Norm},
    {"gradient norm of a sub-group", Body::Norm},
    {"gradients in accumulation dtype", Body::Copy},
    {"growth tracker", Body::Clear},
    {"inverse of the loss scale", Body::Clear},
    {"join partitions", Body::Copy},
    {"keep gradient in partition", Body::Copy},
    {"load buffer", Body::LoadBuffer},
    {"load parameter", Body::LoadParameter},
    {"local copy", Body::Copy},
    {"loss by micro-batches", Body::Copy},
    {"loss scale", Body::Clear},  // The executor's own number counts (exec/loss_scale.h).
    {"loss scale in fp64", Body::Clear},
    {"make swap buffers", Body::Clear},
    {"move partition to flat buffer", Body::Copy},
    {"move to device", Body::Copy},
    {"optimizer update", Body::Update},
    {"optimizer update on the host", Body::Update},
    {"overflow flag", Body::OverflowScan},
    {"overflow scan", Body::OverflowScan},
    {"pad gradient", Body::Copy},
    {"partition parameter", Body::Copy},
    {"pin memory", Body::Copy},
    {"pin tensor", Body::Clear},
    {"quantize", Body::Quantize},
    {"read from NVMe", Body::FileRead},
    {"read the outputs", Body::Nothing},
    {"scaled gradients", Body::Copy},
    {"scaled loss", Body::Copy},
    {"set workspace", Body::Nothing},
    {"stand-in", Body::Clear},
    {"touch pages", Body::Nothing},
    {"unscale gradients", Body::Unscale},
    {"write to NVMe", Body::FileWrite},
    {"zero and copy partitions", Body::Copy},
    {"zero gradient partition", Body::Clear},
    {"zero gradient partitions", Body::Clear},
    {"zero gradients", Body::Clear},
    {"zero overflow buffer", Body::Clear},
    {"zero overflow tracker", Body::Clear},
    {"zero padding", Body::Clear},
    {"zero scratch", Body::Clear},
    {"zero sums of gradients", Body::Clear},
    {"zeros on the host", Body::Clear},
};

constexpr bool sorted() {
  for (std::size_t at = 1; at < std::size(kRows); ++at) {
    if (kRows[at - 1].work >= kRows[at].work) return false;
  }
  return true;
}
static_assert(sorted(), "the rows are found by bisection");

}  // namespace

std::optional<Body> Recording::body_of(Label work) const {
  if (said_) return said_;
  const std::string_view wanted = work;
  const auto* row = std::lower_bound(std::begin(kRows), std::end(kRows), wanted,
                                     [](const Row& r, std::string_view label) { return r.work < label; });
  if (row == std::end(kRows) || row->work != wanted) return std::nullopt;
  return row->body;
}

}  // namespace dsplan
