// The free blocks of one pool and stream, ordered by (size, address): what PyTorch keeps in a std::set. Sizes fall
// into bins whose ranges ascend, a bitmap names the bins that hold something, and a bin is a short sorted array; so a
// search is two bit scans and a step or two, and nothing is allocated per block.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
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
    [[nodiscard]] bool valid() const { return bin < kBins; }
  };

  // `size` is a positive multiple of 512 up to 2^60 + 512.
  void insert(std::int64_t size, std::int64_t address, BlockId block) {
    if (bins_.empty()) bins_.resize(kBins);
    const std::uint32_t bin = bin_of(size);
    std::vector<Entry>& entries = bins_[bin];
    if (entries.empty()) mark(bin);
    if (entries.size() > kShort) {
      entries.insert(find(entries, size, address), {size, address, block});
      return;
    }
    // Most bins hold a few entries: moving them by hand beats a search and a call of memmove.
    entries.push_back({size, address, block});
    std::size_t at = entries.size() - 1;
    for (; at > 0 && !after(entries[at - 1], size, address); --at) entries[at] = entries[at - 1];
    entries[at] = {size, address, block};
  }

  // The block must be there.
  void erase(std::int64_t size, std::int64_t address) {
    const std::uint32_t bin = bin_of(size);
    std::vector<Entry>& entries = bins_[bin];
    std::size_t at = entries.size() - 1;
    if (entries.size() > kShort) {
      at = static_cast<std::size_t>(find(entries, size, address) - entries.begin());
    } else {
      while (entries[at].address != address) --at;
    }
    erase({bin, static_cast<std::uint32_t>(at)});
  }

  void erase(Cursor cursor) {
    std::vector<Entry>& entries = bins_[cursor.bin];
    if (entries.size() > kShort) {
      entries.erase(entries.begin() + cursor.at);
      return;
    }
    for (std::size_t at = cursor.at + 1U; at < entries.size(); ++at) entries[at - 1] = entries[at];
    entries.pop_back();
    if (entries.empty()) unmark(cursor.bin);
  }

  [[nodiscard]] bool empty() const { return summary_ == 0; }
  [[nodiscard]] const Entry& operator[](Cursor cursor) const { return bins_[cursor.bin][cursor.at]; }

  // The smallest block of at least `size`, the lowest address among equals.
  [[nodiscard]] Cursor lower_bound(std::int64_t size) const {
    const std::uint32_t bin = bin_of(size);
    if (holds(bin)) {
      const std::vector<Entry>& entries = bins_[bin];
      if (entries.back().size >= size) return last_of(bin);
      if (entries.front().size >= size) {
        const auto less = std::partition_point(entries.begin(), entries.end(),
                                               [size](const Entry& entry) { return entry.size >= size; });
        return {bin, static_cast<std::uint32_t>(less - entries.begin()) - 1};
      }
    }
    return last_of(bin_from(bin + 1));
  }

  [[nodiscard]] Cursor next(Cursor cursor) const {
    if (cursor.at > 0) return {cursor.bin, cursor.at - 1};
    return last_of(bin_from(cursor.bin + 1));
  }

  [[nodiscard]] Cursor first() const { return last_of(bin_from(0)); }

  // In ascending order. `visit` must not change the container.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (Cursor cursor = first(); cursor.valid(); cursor = next(cursor)) visit((*this)[cursor]);
  }

 private:
  static constexpr std::size_t kShort = 16;
  // 32 linear bins, then 32 for each power of two, in units of 512 bytes.
  static constexpr std::uint32_t kBins = 32 + 48 * 32;
  static constexpr std::uint32_t kWords = (kBins + 63) / 64;

  [[nodiscard]] static std::uint32_t bin_of(std::int64_t size) {
    const auto units = static_cast<std::uint64_t>(size) >> 9;
    if (units < 32) return static_cast<std::uint32_t>(units);
    const auto shift = static_cast<std::uint32_t>(std::bit_width(units)) - 6;
    return 32 + shift * 32 + (static_cast<std::uint32_t>(units >> shift) & 31U);
  }

  // Entries descend, so that the block searched for first stands last and leaves cheaply.
  [[nodiscard]] static bool after(const Entry& entry, std::int64_t size, std::int64_t address) {
    return entry.size != size ? entry.size > size : entry.address > address;
  }
  [[nodiscard]] static std::vector<Entry>::iterator find(std::vector<Entry>& entries, std::int64_t size,
                                                         std::int64_t address) {
    return std::partition_point(entries.begin(), entries.end(),
                                [=](const Entry& entry) { return after(entry, size, address); });
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

  [[nodiscard]] Cursor last_of(std::uint32_t bin) const {
    if (bin >= kBins) return {};
    return {bin, static_cast<std::uint32_t>(bins_[bin].size()) - 1};
  }

  std::vector<std::vector<Entry>> bins_;  // Empty until the first insertion.
  std::array<std::uint64_t, kWords> words_{};
  std::uint64_t summary_ = 0;
};

}  // namespace dsplan
