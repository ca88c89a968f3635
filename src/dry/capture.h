// Streams that record a graph: which one, and who joined it. What is launched meanwhile is not written down.
#pragma once

#include <cstdint>
#include <mutex>

#include "dry/streams.h"

namespace dsplan::dry {

struct Graph {
  std::uint64_t id = 0;
  Stream* origin = nullptr;
  bool open = false;  // It is being recorded.
};

class Captures {
 public:
  // False: the stream records already.
  bool begin(Stream* stream);
  // nullptr: the recording did not begin on this stream.
  Graph* end(Stream* stream);
  [[nodiscard]] Graph* of(const Stream* stream);
  // Whoever waits for an event of a recording stream records with it.
  void join(Stream* later, const Event& earlier);

 private:
  std::mutex lock_;
  std::uint64_t next_ = 1;
};
[[nodiscard]] Captures& captures();

}  // namespace dsplan::dry
