// Ranks as processes, over the stand-in of NCCL. Each child says by its exit status whether all was as it should be.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "calls.h"
#include "dry/reduce.h"

using namespace dsplan::dry;

namespace {

enum Type : int { kInt32 = 2, kInt64 = 4, kHalf = 6, kFloat = 7, kBfloat16 = 9 };

// Whether each of `ranks` processes found `body(communicator, rank)` true.
bool in_processes(int ranks, const std::function<bool(void*, int)>& body) {
  NcclId id{};
  ncclGetUniqueId(&id);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      void* communicator = nullptr;
      const bool good = ncclCommInitRank(&communicator, ranks, id, rank) == 0 && body(communicator, rank) &&
                        ncclCommDestroy(communicator) == 0;
      _exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  bool all = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return all;
}

}  // namespace

TEST_CASE("collectives between processes give what NCCL gives") {
  constexpr int kRanks = 4;
  CHECK(in_processes(kRanks, [](void* c, int rank) {
    std::vector<float> mine{1.0F + static_cast<float>(rank), 10};
    std::vector<float> sum(2);
    bool good = ncclAllReduce(mine.data(), sum.data(), 2, kFloat, kSum, c, nullptr) == 0;
    good = good && sum == std::vector<float>{10, 40};
    good = good && ncclAllReduce(mine.data(), mine.data(), 2, kFloat, kAverage, c, nullptr) == 0;
    good = good && mine == std::vector<float>{2.5F, 10};

    std::vector<std::int64_t> all(kRanks);
    const std::int64_t own = (std::int64_t{1} << 60) + rank;
    good = good && ncclAllGather(&own, all.data(), 1, kInt64, c, nullptr) == 0;
    for (int r = 0; r < kRanks; ++r) good = good && all[static_cast<std::size_t>(r)] == (std::int64_t{1} << 60) + r;

    std::vector<int> parts(kRanks);
    std::iota(parts.begin(), parts.end(), 100 * rank);
    int part = 0;
    good = good && ncclReduceScatter(parts.data(), &part, 1, kInt32, kMax, c, nullptr) == 0 && part == 300 + rank;

    int told = rank == 2 ? 77 : 0;
    return good && ncclBroadcast(&told, &told, 1, kInt32, 2, c, nullptr) == 0 && told == 77;
  }));
}

TEST_CASE("many collectives in a row do not overtake each other") {
  CHECK(in_processes(3, [](void* c, int rank) {
    bool good = true;
    for (int i = 0; i < 500; ++i) {
      int value = i + rank;
      good = good && ncclAllReduce(&value, &value, 1, kInt32, kSum, c, nullptr) == 0 && value == 3 * i + 3;
    }
    return good;
  }));
}

TEST_CASE("messages of a group pass each other, in whatever order ranks make them") {
  CHECK(in_processes(3, [](void* c, int rank) {
    std::vector<int> out{rank * 10, rank * 10 + 1, rank * 10 + 2};
    std::vector<int> in(3, -1);
    bool good = ncclGroupStart() == 0;
    for (int i = 0; i < 3; ++i) {
      const int peer = (rank + i) % 3;
      good = good && ncclRecv(&in[static_cast<std::size_t>(peer)], 1, kInt32, peer, c, nullptr) == 0;
      good = good && ncclSend(&out[static_cast<std::size_t>(peer)], 1, kInt32, peer, c, nullptr) == 0;
    }
    good = good && ncclGroupEnd() == 0;
    return good && in == std::vector<int>{rank, 10 + rank, 20 + rank};
  }));
}

TEST_CASE("communicators are split by colour, and ordered by key") {
  CHECK(in_processes(4, [](void* c, int rank) {
    void* half = nullptr;
    int ranks = 0;
    int place = -1;
    bool good = ncclCommSplit(c, rank % 2, -rank, &half, nullptr) == 0;
    good = good && ncclCommCount(half, &ranks) == 0 && ranks == 2;
    good = good && ncclCommUserRank(half, &place) == 0 && place == (rank < 2 ? 1 : 0);
    int sum = rank;
    return good && ncclAllReduce(&sum, &sum, 1, kInt32, kSum, half, nullptr) == 0 && sum == (rank % 2 == 0 ? 2 : 4);
  }));
}

TEST_CASE("large collectives are counted and left out") {
  CHECK(in_processes(2, [](void* c, int) {
    std::vector<float> data(1 << 20, 3.0F);
    return ncclAllReduce(data.data(), data.data(), data.size(), kFloat, kSum, c, nullptr) == 0 && data[0] == 3.0F &&
           std::strstr(dsplan_dry_ledger(),
                       "\"all_reduce\", \"ranks\": 2, \"dtype\": \"fp32\", \"kind\": \"data\", \"calls\": 1, "
                       "\"payload_bytes\": 4194304") != nullptr;
  }));
}

TEST_CASE("mirrored peers give what as many alike ranks would give") {
  setenv("DSPLAN_DRY_PEERS", "mirror", 1);
  NcclId id{};
  void* c = nullptr;
  CHECK(ncclCommInitRank(&c, 8, id, 5) == 0);
  float value = 3;
  CHECK(ncclAllReduce(&value, &value, 1, kFloat, kSum, c, nullptr) == 0);
  CHECK(value == 24);
  float scale = 0.125F;
  int scaled = 0;
  CHECK(ncclRedOpCreatePreMulSum(&scaled, &scale, kFloat, 1, c) == 0);
  CHECK(ncclAllReduce(&value, &value, 1, kFloat, scaled, c, nullptr) == 0);
  CHECK(value == 24);
  std::vector<float> all(8);
  CHECK(ncclAllGather(&value, all.data(), 1, kFloat, c, nullptr) == 0);
  CHECK(all == std::vector<float>(8, 24.0F));
  CHECK(ncclCommDestroy(c) == 0);
  unsetenv("DSPLAN_DRY_PEERS");
}

TEST_CASE("a rank that nobody meets gives up") {
  setenv("DSPLAN_DRY_PATIENCE", "0", 1);
  NcclId id{};
  ncclGetUniqueId(&id);
  const pid_t child = fork();
  if (child == 0) {
    void* c = nullptr;
    int value = 1;
    const bool joined = ncclCommInitRank(&c, 2, id, 0) == 0;
    const bool gave_up = joined && ncclAllReduce(&value, &value, 1, kInt32, kSum, c, nullptr) == 6;
    ncclCommDestroy(c);  // So that nothing is left behind.
    _exit(gave_up ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  unsetenv("DSPLAN_DRY_PATIENCE");
}

TEST_CASE("small floats are summed as a device sums them") {
  const auto sum = [](int type, std::uint16_t a, std::uint16_t b) {
    const std::uint16_t parts[] = {a, b};
    std::uint16_t out = 0;
    reduce(&out, 1, type, kSum, 1, 2, [&](int rank) -> const void* { return &parts[rank]; });
    return out;
  };
  CHECK(sum(kHalf, 0x3c00, 0x3c00) == 0x4000);  // 1 + 1
  CHECK(sum(kHalf, 0x0001, 0x0001) == 0x0002);  // Subnormal.
  CHECK(sum(kHalf, 0x7bff, 0x7bff) == 0x7c00);  // Infinity.
  CHECK(sum(kHalf, 0x3c00, 0x1000) == 0x3c00);  // A tie, to even.
  CHECK(sum(kBfloat16, 0x3f80, 0x3f80) == 0x4000);
  CHECK(sum(kBfloat16, 0x3f80, 0xbf80) == 0x0000);
}
