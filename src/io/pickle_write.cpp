#include <bit>

#include "core/error.h"
#include "io/pickle.h"

namespace dsplan {
namespace {

// Python's own writer appends a thousand at a time, and the viewer has never seen more.
constexpr std::size_t kBatch = 1000;

}  // namespace

PickleWriter::PickleWriter() : text_("\x80\x02") {}

void PickleWriter::little_endian(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
}

// Called before each value: in a list, a full batch is handed over first.
void PickleWriter::next() {
  if (open_.empty()) return;
  Open& inner = open_.back();
  if (inner.list && inner.count == kBatch) {
    text_ += "e(";
    inner.count = 0;
  }
  ++inner.count;
}

void PickleWriter::begin_dict() {
  next();
  text_ += "}(";
  open_.push_back({false, 0});
}

void PickleWriter::begin_list() {
  next();
  text_ += "](";
  open_.push_back({true, 0});
}

void PickleWriter::end() {
  DSPLAN_CHECK(!open_.empty(), "no container is open");
  text_ += open_.back().list ? 'e' : 'u';
  open_.pop_back();
}

void PickleWriter::string(std::string_view text) {
  const auto [at, added] = strings_.try_emplace(std::string(text), memos_);
  if (!added) return share(at->second);
  next();
  text_ += 'X';
  little_endian(text.size(), 4);
  text_ += text;
  (void)remember();
}

void PickleWriter::integer(std::int64_t value) {
  next();
  if (value >= 0 && value < 0x100) {
    text_ += 'K';
    little_endian(static_cast<std::uint64_t>(value), 1);
  } else if (value >= 0 && value < 0x10000) {
    text_ += 'M';
    little_endian(static_cast<std::uint64_t>(value), 2);
  } else if (value == static_cast<std::int32_t>(value)) {
    text_ += 'J';
    little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    // As few bytes as keep the sign.
    int bytes = 8;
    while (bytes > 1 && (value >> (8 * (bytes - 1) - 1) == 0 || value >> (8 * (bytes - 1) - 1) == -1)) --bytes;
    text_ += '\x8a';
    little_endian(static_cast<std::uint64_t>(bytes), 1);
    little_endian(static_cast<std::uint64_t>(value), bytes);
  }
}

void PickleWriter::boolean(bool value) {
  next();
  text_ += value ? '\x88' : '\x89';
}

void PickleWriter::real(double value) {
  next();
  const auto bits = std::bit_cast<std::uint64_t>(value);
  text_ += 'G';
  for (int i = 7; i >= 0; --i) text_ += static_cast<char>(bits >> (8 * i) & 0xff);
}

void PickleWriter::pair(std::int64_t first, std::int64_t second) {
  next();
  open_.push_back({false, 0});  // What stands in the tuple is no item of the list around it.
  integer(first);
  integer(second);
  open_.pop_back();
  text_ += '\x86';
}

std::uint32_t PickleWriter::remember() {
  if (memos_ < 0x100) {
    text_ += 'q';
    little_endian(memos_, 1);
  } else {
    text_ += 'r';
    little_endian(memos_, 4);
  }
  return memos_++;
}

void PickleWriter::share(std::uint32_t memo) {
  next();
  if (memo < 0x100) {
    text_ += 'h';
    little_endian(memo, 1);
  } else {
    text_ += 'j';
    little_endian(memo, 4);
  }
}

std::string PickleWriter::finish() {
  DSPLAN_CHECK(open_.empty(), "a container is still open");
  return std::move(text_) + ".";
}

}  // namespace dsplan
