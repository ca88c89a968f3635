#include "exec/stream_clock.h"

namespace dsplan::exec {

StreamClock::~StreamClock() {
  for (const Pair& pair : pairs_) {
    device_.destroy_event(pair.begin);
    device_.destroy_event(pair.end);
  }
}

void StreamClock::begin(StreamId stream) {
  if (used_ == pairs_.size()) {
    pairs_.emplace_back();
    pairs_.back().begin = device_.create_event();
    pairs_.back().end = device_.create_event();
  }
  device_.record(pairs_[used_].begin, stream);
}

void StreamClock::end(StreamId stream) { device_.record(pairs_[used_++].end, stream); }

void StreamClock::settle() {
  for (std::size_t at = 0; at < used_; ++at) nanoseconds_ += device_.elapsed(pairs_[at].begin, pairs_[at].end);
  used_ = 0;
}

}  // namespace dsplan::exec
