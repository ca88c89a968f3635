// Snapshots of real GPUs (in tests/receipts, recorded by tools/frameworks/snapshots): every segment and block of
// them is where the allocator's rules put it. None are kept yet; what the test would say is tried on a made-up one.
#include <doctest/doctest.h>

#include <filesystem>

#include "io/pickle.h"
#include "io/snapshot.h"
#include "io/text.h"
#include "paths.h"
#include "sim/snapshot_replay.h"

using namespace dsplan;

namespace {

// What is not explained, in words; empty if all is.
std::string unexplained(const std::string& path) {
  std::string text;
  for (const DeviceReplay& device : replay_snapshot(read_snapshot(path, read_file(path, kLargestPickle)), path)) {
    if (!device.difference) continue;
    text += "recorded " + device.difference->recorded + ", predicted " + device.difference->predicted + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("real snapshots are explained to the last block") {
  const std::filesystem::path folder = test_paths::source_dir() + "/tests/receipts";
  if (!std::filesystem::exists(folder)) return;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".pickle") continue;
    const std::string text = unexplained(entry.path().string());
    CHECK_MESSAGE(text.empty(), entry.path().string() << ": " << text);
  }
}

TEST_CASE("a block that lies elsewhere is told apart from one that is in its place") {
  CHECK(unexplained(test_paths::source_dir() + "/tests/data/snapshots/run-protocol4.pickle").empty());
  CHECK(unexplained(test_paths::source_dir() + "/tests/data/snapshots/run-moved.pickle").find("placed at") !=
        std::string::npos);
}
