// What ranks that share layers and ranks that share data send each other, group by group: the counters of the
// executor's transport against the rule that receipts follow, and payloads against the formulas that see no schedule.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "planner/predict/footprint.h"
#include "running.h"

using namespace dsplan;

namespace {

// Payload is the full logical buffer; on the wire, for each row, one rank sends floor(k (W - 1) payload / W) of a ring,
// with k = 2 for an all-reduce and 1 for what gathers or scatters. Broadcast and reduce: the payload.
std::int64_t on_the_wire(const std::string& collective, std::int64_t payload, std::int64_t ranks) {
  if (collective == "broadcast" || collective == "reduce") return payload;
  const std::int64_t k = collective == "all_reduce" ? 2 : 1;
  return k * (ranks - 1) * payload / ranks;
}

struct Groups {
  std::int64_t dp;
  std::int64_t tp;
};

std::set<std::string> check_rank(const ModelSpec& model, const Job& job, const RankFigures& figures) {
  std::set<std::string> groups;
  std::map<std::string, std::int64_t> sums;
  for (const TrafficFigure& row : *figures.communication) {
    const bool shares_layers = row.group == "tp";
    REQUIRE((shares_layers || row.group == "dp"));
    groups.insert(row.group);
    CAPTURE(row.collective);
    CAPTURE(row.group);
    CAPTURE(row.phase);
    const std::int64_t ranks = shares_layers ? job.parallelism.tp : job.parallelism.dp;
    REQUIRE(row.payload.has_value());
    REQUIRE(row.wire.has_value());
    CHECK(row.wire->value() == on_the_wire(row.collective, row.payload->value(), ranks));
    if (row.kind == "data") {
      sums[row.group + " " + row.collective + " " + row.phase + " " + row.dtype] += row.payload->value();
    }
  }
  for (const TrafficRow& row : traffic_formulas(model, job)) {
    const std::string key =
        dsplan::formatted("{} {} {} {}", name(row.group), name(row.collective), name(row.phase), name(row.dtype));
    CAPTURE(key);
    CHECK(sums[key] == row.payload.value());
  }
  return groups;
}

}  // namespace

TEST_CASE("each group sends what its size says: payload and wire, of layers and of data apart") {
  std::size_t ran = 0;
  for (const char* config : {running::kGpt2Dropout, running::kLlama}) {
    const ModelSpec model = running::model(config);
    for (int stage = -1; stage <= 3; ++stage) {
      for (const Groups groups : {Groups{1, 2}, Groups{2, 2}, Groups{3, 2}, Groups{2, 4}}) {
        if (model.dims.kv_heads % groups.tp != 0) continue;
        Job job = lowered::job(stage, groups.dp);
        job.parallelism.tp = groups.tp;
        job.parallelism.world = groups.dp * groups.tp;
        job.training.grad_accum = 2;
        job.training.zero.prefetch_bucket_size = job.training.zero.max_reuse_distance = Elements(0);
        CAPTURE(stage);
        CAPTURE(groups.dp);
        CAPTURE(groups.tp);
        const exec::RunResult result = running::run(model, job);
        REQUIRE_MESSAGE(result.message == "", result.message);
        for (const exec::RankRun& rank : result.ranks) {
          const std::set<std::string> seen = check_rank(model, job, rank.figures);
          CHECK(seen.contains("tp"));
          CHECK(seen.contains("dp") == (groups.dp > 1));
        }
        ++ran;
      }
    }
  }
  CHECK(ran == 35);
}
