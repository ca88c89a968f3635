// What an embedding's backward makes, in order, as PyTorch made it on the dry device
// (tests/data/embedding-backward.csv, by tools/oracles/embedding_backward.py).
#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/kernel_scratch.h"
#include "paths.h"

using namespace dsplan;

TEST_CASE("embedding: backward makes what PyTorch made, device by device") {
  std::ifstream file(test_paths::source_dir() + "/tests/data/embedding-backward.csv");
  std::size_t compared = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("capability")) continue;
    CAPTURE(line);
    for (char& c : line) c = c == ',' ? ' ' : c;
    std::istringstream words(line);
    std::int64_t capability = 0;
    std::int64_t indices = 0;
    std::int64_t rows = 0;
    std::int64_t width = 0;
    words >> capability >> indices >> rows >> width;
    std::vector<std::int64_t> measured;
    for (std::int64_t bytes = 0; words >> bytes;) measured.push_back(bytes);
    const DeviceThreads device{.multiprocessors = 100, .capability = capability};
    const EmbeddingBackward made = embedding_backward(indices, rows, width, device);
    std::vector<std::int64_t> ours{rows * width * 2};
    if (indices > 3072) {
      const std::int64_t n = made.sorted.value();
      const std::int64_t segments = made.segments.value();
      ours = {n,
              n,
              n,
              made.sort.value(),
              rows * width * 2,
              n,
              8,
              n,
              made.unique.value(),
              segments,
              segments,
              made.scan.value(),
              8,
              made.parts.value(),
              made.sums.value()};
    }
    CHECK(ours == measured);
    ++compared;
  }
  CHECK(compared == 36);
  CHECK(sort_pairs_scratch(4096, DeviceThreads{}) == Bytes(0));
}
