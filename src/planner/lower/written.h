// A schedule as it is written, and whoever reads along (feed.h).
#pragma once

#include <string>
#include <utility>

#include "core/schedule.h"
#include "planner/lower/feed.h"

namespace dsplan {

class Written {
 public:
  // nullptr: nobody reads along.
  explicit Written(Feed* feed) : feed_(feed) {
    if (feed_ != nullptr) feed_->begin(schedule);
  }
  ~Written() { leave_unfollowed(); }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  Schedule schedule;

  template <class One>
  void append(const One& event) {
    make_room(schedule.events);
    schedule.events.emplace_back(event);
    if (feed_ != nullptr) feed_->wrote(schedule.events.size());
  }
  void touch(const Access& access) {
    make_room(schedule.accesses);
    schedule.accesses.push_back(access);
  }
  BufferId make(const Buffer& buffer) {
    make_room(schedule.buffers);
    return schedule.buffers.push(buffer);
  }
  void print(std::string text) {
    const auto add = [&] { schedule.prints.push_back({schedule.events.size(), std::move(text)}); };
    feed_ != nullptr ? feed_->moving(add) : add();
  }
  // It says now what whoever reads along should have heard of before.
  void leave_unfollowed() {
    if (feed_ != nullptr) std::exchange(feed_, nullptr)->abandon();
  }
  // There are no more events.
  void end() {
    if (feed_ != nullptr) std::exchange(feed_, nullptr)->end(schedule.events.size());
  }

 private:
  // For one more. Nobody reads what moves.
  template <class Items>
  void make_room(Items& items) {
    if (feed_ == nullptr || items.size() < items.capacity()) [[likely]]
      return;
    feed_->moving([&items] { items.reserve(2 * items.capacity() + 64); });
  }

  Feed* feed_;
};

}  // namespace dsplan
