// The free blocks of one pool and stream, ordered by (size, address): what PyTorch keeps in a std::set. Sizes fall
// into bins whose ranges ascend, a bitmap names the bins that hold something, and a bin is a short sorted array; so a
// search is two bit scans and a step or two, and nothing is allocated per block. The block that came last is in no bin
// yet: most of those are taken, or swallowed by a neighbour, before another one comes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsplan {

using BlockId = std::uint32_t;

class FreeBlocks {
 public:
  struct Entry {
    std::int64_t size;
    std::int64_t address;
    BlockId block;
  };
  // A place in the order; `valid()` is false past either end.
  struct Cursor {
    std::uint32_t bin = kBins;
    std::uint32_t at = 0;
    [[nodiscard]] bool valid() const { return bin != kBins; }
    [[nodiscard]] bool last() const { return bin == kLast; }
    friend bool operator==(const Cursor&, const Cursor&) = default;
  };

  // `size` is a positive multiple of 512 up to 2^60 + 512.
  void insert(std::int64_t size, std::int64_t address, BlockId block) {
    if (last_.size != 0) put_away(last_);
    last_ = {size, address, block};
  }

  // The block must be there.
  void erase(std::int64_t size, std::int64_t address) {
    if (last_.address == address && last_.size == size) {
      last_.size = 0;
      return;
    }
    const std::uint32_t bin = bin_of(size);
    erase({bin, static_cast<std::uint32_t>(bins_[bin].find(size, address))});
  }

  void erase(Cursor cursor) {
    if (cursor.last()) {
      last_.size = 0;
      return;
    }
    Bin& own = bins_[cursor.bin];
    const auto place = own.entries.begin() + static_cast<std::ptrdiff_t>(cursor.at);
    if (cursor.at - own.head < own.entries.size() - cursor.at) {
      if (cursor.at > own.head) std::move_backward(own.begin(), place, place + 1);
      ++own.head;
    } else {
      own.entries.erase(place);
    }
    if (!own.empty()) return;
    own.entries.clear();
    own.head = 0;
    unmark(cursor.bin);
  }

  [[nodiscard]] bool empty() const { return summary_ == 0 && last_.size == 0; }
  [[nodiscard]] const Entry& operator[](Cursor cursor) const {
    return cursor.last() ? last_ : bins_[cursor.bin].entries[cursor.at];
  }

  // The smallest block of at least `size`, the lowest address among equals.
  [[nodiscard]] Cursor lower_bound(std::int64_t size) const {
    return last_.size >= size ? first_of_two(binned_from(size, 0)) : binned_from(size, 0);
  }

  [[nodiscard]] Cursor next(Cursor cursor) const {
    const Entry& here = (*this)[cursor];
    const Cursor behind = binned_from(here.size, here.address + 1);
    return before(here, last_.size, last_.address) ? first_of_two(behind) : behind;
  }

  // In ascending order. `visit` must not change the container.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (Cursor cursor = lower_bound(1); cursor.valid(); cursor = next(cursor)) visit((*this)[cursor]);
  }

 private:
  static constexpr std::size_t kShort = 16;

  void put_away(const Entry& made) {
    if (bins_.empty()) bins_.resize(kBins);
    const std::uint32_t bin = bin_of(made.size);
    Bin& own = bins_[bin];
    const std::int64_t size = made.size;
    const std::int64_t address = made.address;
    if (own.empty()) {
      mark(bin);
      own.entries.push_back(made);
      return;
    }
    // Blocks come back in the order of their addresses, or against it: the ends are looked at first.
    if (before(own.entries.back(), size, address)) return own.append(made);
    const std::size_t at = before(own.front(), size, address) ? own.find(size, address) : own.head;
    const auto place = own.entries.begin() + static_cast<std::ptrdiff_t>(at);
    if (own.head == 0 || at - own.head > own.entries.size() - at) {
      own.entries.insert(place, made);
      return;
    }
    std::move(own.begin(), place, own.begin() - 1);
    --own.head;
    own.entries[at - 1] = made;
  }

  // The first in a bin that is not before this.
  [[nodiscard]] Cursor binned_from(std::int64_t size, std::int64_t address) const {
    const std::uint32_t bin = bin_of(size);
    if (holds(bin)) {
      const Bin& own = bins_[bin];
      if (!before(own.front(), size, address)) return {bin, own.head};
      if (!before(own.entries.back(), size, address)) {
        const auto found = std::partition_point(own.begin(), own.entries.end(),
                                                [=](const Entry& entry) { return before(entry, size, address); });
        return {bin, static_cast<std::uint32_t>(found - own.entries.begin())};
      }
    }
    const std::uint32_t next = bin_from(bin + 1);
    return next < kBins ? Cursor{next, bins_[next].head} : Cursor{};
  }

  // Of it and the block that came last.
  [[nodiscard]] Cursor first_of_two(Cursor binned) const {
    const bool comes_first = !binned.valid() || before(last_, (*this)[binned].size, (*this)[binned].address);
    return comes_first ? Cursor{kLast, 0} : binned;
  }

  [[nodiscard]] static bool before(const Entry& entry, std::int64_t size, std::int64_t address) {
    return entry.size != size ? entry.size < size : entry.address < address;
  }

  // Ascending from `head` on; what lies in front of it is room.
  struct Bin {
    std::vector<Entry> entries;
    std::uint32_t head = 0;

    [[nodiscard]] bool empty() const { return head == entries.size(); }
    [[nodiscard]] const Entry& front() const { return entries[head]; }
    [[nodiscard]] std::vector<Entry>::iterator begin() { return entries.begin() + head; }
    [[nodiscard]] std::vector<Entry>::const_iterator begin() const { return entries.begin() + head; }
    void append(const Entry& made) {
      if (entries.size() == entries.capacity() && 2 * head >= entries.size()) {  // Half of it is room.
        entries.erase(entries.begin(), begin());
        head = 0;
      }
      entries.push_back(made);
    }
    // Where the first entry stands that is not before it. Most bins hold a few, which are sooner looked at one by one.
    [[nodiscard]] std::size_t find(std::int64_t size, std::int64_t address) const {
      std::size_t at = head;
      if (entries.size() - head <= kShort) {
        while (before(entries[at], size, address)) ++at;
        return at;
      }
      const auto place = std::partition_point(begin(), entries.end(),
                                              [=](const Entry& entry) { return before(entry, size, address); });
      return static_cast<std::size_t>(place - entries.begin());
    }
  };

  // 32 linear bins, then 32 for each power of two, in units of 512 bytes.
  static constexpr std::uint32_t kBins = 32 + 48 * 32;
  static constexpr std::uint32_t kLast = kBins + 1;  // In a cursor: the block that came last.
  static constexpr std::uint32_t kWords = (kBins + 63) / 64;

  [[nodiscard]] static std::uint32_t bin_of(std::int64_t size) {
    const auto units = static_cast<std::uint64_t>(size) >> 9;
    if (units < 32) return static_cast<std::uint32_t>(units);
    const auto shift = static_cast<std::uint32_t>(std::bit_width(units)) - 6;
    return 32 + shift * 32 + (static_cast<std::uint32_t>(units >> shift) & 31U);
  }

  [[nodiscard]] bool holds(std::uint32_t bin) const { return (words_[bin / 64] >> (bin % 64) & 1U) != 0; }
  void mark(std::uint32_t bin) {
    words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    summary_ |= std::uint64_t{1} << (bin / 64);
  }
  void unmark(std::uint32_t bin) {
    words_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
    if (words_[bin / 64] == 0) summary_ &= ~(std::uint64_t{1} << (bin / 64));
  }

  // The first bin from `bin` on that holds something, or kBins.
  [[nodiscard]] std::uint32_t bin_from(std::uint32_t bin) const {
    if (bin >= kBins) return kBins;
    const std::uint32_t word = bin / 64;
    const std::uint64_t here = words_[word] & (~std::uint64_t{0} << (bin % 64));
    if (here != 0) return word * 64 + static_cast<std::uint32_t>(std::countr_zero(here));
    const std::uint64_t later = summary_ & (~std::uint64_t{1} << word);
    if (later == 0) return kBins;
    const auto found = static_cast<std::uint32_t>(std::countr_zero(later));
    return found * 64 + static_cast<std::uint32_t>(std::countr_zero(words_[found]));
  }

  Entry last_{};           // Of size 0: there is none.
  std::vector<Bin> bins_;  // Empty until the first block is put away.
  std::array<std::uint64_t, kWords> words_{};
  std::uint64_t summary_ = 0;
};

}  // namespace dsplan
