#include "dry/capture.h"

namespace dsplan::dry {

bool Captures::begin(Stream* stream) {
  const std::lock_guard guard(lock_);
  if (stream->capture != nullptr && stream->capture->open) return false;
  stream->capture = new Graph{next_++, stream, true};
  return true;
}

Graph* Captures::end(Stream* stream) {
  const std::lock_guard guard(lock_);
  Graph* const graph = stream->capture;
  if (graph == nullptr || graph->origin != stream) return nullptr;
  graph->open = false;
  stream->capture = nullptr;
  return graph;
}

Graph* Captures::of(const Stream* stream) {
  const std::lock_guard guard(lock_);
  return stream->capture != nullptr && stream->capture->open ? stream->capture : nullptr;
}

void Captures::join(Stream* later, const Event& earlier) {
  const std::lock_guard guard(lock_);
  if (earlier.on == nullptr || earlier.on->capture == nullptr || !earlier.on->capture->open) return;
  if (later->capture == nullptr || !later->capture->open) later->capture = earlier.on->capture;
}

Captures& captures() {
  static auto* const all = new Captures;
  return *all;
}

}  // namespace dsplan::dry
