// --alloc-conf, --stream-frees and --phase from what was said to the job.
#include <doctest/doctest.h>

#include <algorithm>

#include "lowered.h"
#include "planner/resolve/resolve.h"

using namespace dsplan;

namespace {

template <class T>
void set(Setting<T>& setting, T value, const char* name) {
  setting = {std::move(value), option(name)};
}

Job run(const Request& request) {
  static const ModelSpec kModel = lowered::bundled("tiny-llama");
  return resolve(kModel, request, nullptr, nullptr, nullptr);
}

void says(const Request& request, const std::string& part) {
  std::string said = "accepted";
  try {
    (void)run(request);
  } catch (const Refusal& refusal) {
    said = refusal.what();
  }
  CHECK_MESSAGE(said.find(part) != std::string::npos, said);
}

bool noticed(const Job& job, const std::string& part) {
  return std::any_of(job.notices.begin(), job.notices.end(),
                     [&](const Notice& notice) { return notice.message.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("resolve: the allocator's conf follows PyTorch's version") {
  const auto with = [](const std::string& conf, const std::string& torch = "") {
    Request given;
    set(given.alloc_conf, conf, "--alloc-conf");
    if (!torch.empty()) set(given.torch_version, torch, "--torch-version");
    return given;
  };
  const Job job = run(with("expandable_segments:True,pinned_use_background_threads:True"));
  CHECK(job.allocator.expandable_segments);
  CHECK(job.allocator_conf == "expandable_segments:True,pinned_use_background_threads:True");
  CHECK(noticed(job, "pinned_use_background_threads moves no byte on the device"));
  CHECK(run(with("PYTORCH_CUDA_ALLOC_CONF=large_segment_size_mb:40")).allocator.large_segment_size == Bytes(40 << 20));
  CHECK(run(with("PYTORCH_ALLOC_CONF=expandable_segments:True", "2.10")).allocator_conf == "expandable_segments:True");
  CHECK(noticed(run(with("garbage_collection_threshold:0.5")),
                "garbage_collection_threshold has no effect here: it needs a memory fraction below 1"));
  says(with("PYTORCH_ALLOC_CONF=expandable_segments:True", "2.9.1"),
       "--alloc-conf:1:1: error: the CUDA allocator of PyTorch 2.9.1 does not read PYTORCH_ALLOC_CONF");
  says(with("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:20", "2.6"),
       "--alloc-conf:1:43: error: max_split_size_mb is 20, but must be more than 20 (MiB)");
  says(with("backend:native,per_process_memory_fraction:0.5", "2.9"),
       "--alloc-conf:1:16: error: PyTorch 2.9.0 does not know per_process_memory_fraction yet; it came with 2.10");
  says(with("expandable_segments:True,backend:cudaMallocAsync"),
       "--alloc-conf:1:34: error: backend:cudaMallocAsync is another allocator, which dsplan does not model");
  says(with("large_segment_size_mb:40,max_split_size_mb:30"),
       "max_split_size_mb is 30, but must be at least 40 (MiB), the size of a large segment");
  Request file;
  file.alloc_conf = {std::string("max_split_size_mb:none"),
                     {"t.json", 3, 22, "  \"allocator_conf\" : \"max_split_size_mb:none\""}};
  says(file, "t.json:3:41: error: max_split_size_mb must be a whole number, not 'none'");

  Request frees;
  set(frees.stream_frees, std::string("immediate"), "--stream-frees");
  CHECK(run(frees).stream_frees == StreamFrees::Immediate);
  set(frees.stream_frees, std::string("never"), "--stream-frees");
  says(frees, "--stream-frees: error: stream-frees \"never\" is neither at-sync nor immediate");
  Request phase;
  set(phase.phase, std::string("first_step"), "--phase");
  CHECK(run(phase).phase == "first_step");
  set(phase.phase, std::string("saving"), "--phase");
  says(phase, "--phase: error: phase \"saving\" is not known");
  says(phase,
       "known are init, first_step, record, middle_steps, steady, forward, outputs_released, backward, step, save");
  set(phase.phase, std::string("stedy"), "--phase");
  says(phase, "did you mean \"steady\"?");
  set(phase.phase, std::string("outputs_released"), "--phase");
  CHECK(run(phase).phase == "outputs_released");
  set(phase.phase, std::string("record"), "--phase");
  says(phase, "--phase: error: phase \"record\" is of ZeRO stage 3");
  set(phase.phase, std::string("save"), "--phase");
  says(phase, "--phase: error: phase \"save\" takes no memory of the device here");
}
