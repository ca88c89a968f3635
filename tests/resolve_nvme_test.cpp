// Buffers of NVMe offload that DeepSpeed would refuse at an assertion, in the file's own position.
#include "resolving.h"

#include "lowered.h"
#include "texts.h"

using namespace dsplan;
using namespace resolving;

namespace {

// Llama-3-8B: the embedding has 525,336,576 elements.
std::string refused(std::int64_t ranks, const std::string& blocks) {
  Given given{dsplan::formatted(R"({{"zero_optimization": {{"stage": 3, {}}}}})", blocks), gpus(ranks)};
  given.model = lowered::bundled("llama-3-8b");
  return refusal(given);
}

using dsplan::test::has;

}  // namespace

TEST_CASE("parameters on NVMe: a partition must fit into a buffer") {
  const std::string nvme = R"("offload_param": {"device": "nvme", "nvme_path": "/x")";
  CHECK(refused(8, nvme + "}") == "accepted");
  // 525,336,576 / 4 = 131,334,144, above the default of 1e8.
  CHECK(has(refused(4, nvme + "}"),
            "\"buffer_size\" 100000000 is less than the 131334144 elements of model.embed_tokens.weight's partition"));
  CHECK(has(refused(4, nvme + R"(, "buffer_size": 131334143})"), "ds.json:1:106: error: \"buffer_size\" 131334143"));
  CHECK(refused(4, nvme + R"(, "buffer_size": 131334144})") == "accepted");
  CHECK(has(refused(8, nvme + R"(, "buffer_count": 0})"), "parameters on NVMe without a buffer"));
  // What is smaller than a block stays in memory, and needs no buffer.
  CHECK(has(refused(8, nvme + R"(, "buffer_size": 10})"), "\"buffer_size\" 10"));
  CHECK(refused(8, R"("offload_param": {"device": "cpu", "buffer_size": 10})") == "accepted");
}

TEST_CASE("optimizer on NVMe: a sub-group takes a buffer for its master, its gradient and each state") {
  const auto optimizer = [](const std::string& more, const std::string& beside = "") {
    return beside + R"("offload_optimizer": {"device": "nvme", "nvme_path": "/x")" + more + "}";
  };
  CHECK(refused(8, optimizer("")) == "accepted");
  CHECK(has(refused(8, optimizer(R"(, "buffer_count": 3)")), "\"buffer_count\" 3 is less than the 4 buffers"));
  // One sub-group has nothing to be overlapped with.
  const std::string read = R"(, "pipeline_read": true)";
  const std::string both = R"(, "pipeline_read": true, "pipeline_write": true)";
  CHECK(refused(8, optimizer(both)) == "accepted");
  const std::string cut = R"("sub_group_size": 200000000, )";
  CHECK(has(refused(8, optimizer(read, cut)), "\"buffer_count\" 4 is less than the 8 buffers"));
  CHECK(has(refused(8, optimizer(both + R"(, "buffer_count": 11)", cut)), "is less than the 12 buffers"));
  CHECK(refused(8, optimizer(both + R"(, "buffer_count": 12)", cut)) == "accepted");
}
