// Peaks by part of a step, held against a walk of their own over the schedule; and the micro-batch that ZeRO-3 records.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "lowered.h"
#include "planner/predict/predict.h"

using namespace dsplan;

namespace {

// Largest requested bytes up to each mark, since the mark before; by phase and then by what goes on.
class Walker : public Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit> {
 public:
  explicit Walker(const Schedule& schedule) : schedule_(schedule) {}
  using Ignores<Compute, Communicate, RecordEvent, WaitEvent, EmptyCache, Enter, Exit>::on;
  void on(std::size_t, const Allocate& event) {
    live_ += size(event.buffer);
    most_ = std::max(most_, live_);
  }
  void on(std::size_t, const Release& event) { live_ -= size(event.buffer); }
  void on(std::size_t, const Mark& mark) {
    static const std::map<Moment, std::string> kParts = {{Moment::ForwardBegins, "forward"},
                                                         {Moment::ForwardEnds, "forward"},
                                                         {Moment::BackwardBegins, "outputs_released"},
                                                         {Moment::BackwardEnds, "backward"},
                                                         {Moment::StepEnds, "step"}};
    const auto part = kParts.find(mark.moment);
    if (part != kParts.end()) {
      Bytes& peak = parts[std::string(name(mark.stretch))][part->second];
      peak = std::max(peak, most_);
      if (mark.stretch == Stretch::FirstStep && mark.micro_batch == 0 && part->second != "step") {
        recorded = std::max(recorded, most_);
      }
    }
    most_ = live_;
  }

  std::map<std::string, std::map<std::string, Bytes>> parts;
  Bytes recorded;

 private:
  [[nodiscard]] Bytes size(BufferId id) const {
    const Buffer& buffer = schedule_.buffers[id];
    return buffer.space == Space::Device ? buffer.size : Bytes(0);
  }
  const Schedule& schedule_;
  Bytes live_;
  Bytes most_;
};

const Phase* phase_of(const Prediction& p, const std::string& name) {
  const auto at = std::find_if(p.phases.begin(), p.phases.end(), [&](const Phase& one) { return one.name == name; });
  return at == p.phases.end() ? nullptr : &*at;
}

}  // namespace

TEST_CASE("forward, outputs released, backward and step have ledgers of their own") {
  const ModelSpec model = lowered::bundled("tiny-llama");
  for (int stage = -1; stage <= 3; ++stage) {
    for (const std::int64_t accumulation : {1, 3}) {
      CAPTURE(stage);
      CAPTURE(accumulation);
      Job job = lowered::job(stage, 2);
      job.training.grad_accum = accumulation;
      const Prediction p = predict(model, job, 0);
      const Schedule schedule = lower(model, job, build_shapes(model, job), 0);
      Walker walker(schedule);
      replay(schedule, walker);
      for (const char* name : {"first_step", "steady"}) {
        const Phase* phase = phase_of(p, name);
        REQUIRE(phase != nullptr);
        REQUIRE(phase->parts.size() == 4);
        Bytes most;
        for (const PhasePart& part : phase->parts) {
          CHECK(part.peak.requested == walker.parts.at(name).at(part.name));
          CHECK(part.peak.requested <= part.peak.allocated);
          CHECK(part.peak.allocated <= part.peak.active);
          CHECK(part.peak.active <= part.peak.reserved);
          CHECK(part.peak.reserved <= phase->peak_reserved);
          most = std::max(most, part.peak.requested);
        }
        CHECK(most == phase->peak_requested);
      }
      const Phase* record = phase_of(p, "record");
      CHECK((record != nullptr) == (stage == 3));
      if (record == nullptr) continue;
      CHECK(record == phase_of(p, "first_step") + 1);
      CHECK(record->peak_requested == walker.recorded);
      CHECK(record->parts.size() == 3);
      CHECK(record->marks.back().name == "after backward");
    }
  }
}
