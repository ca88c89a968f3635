// The constants of c10/cuda/CUDACachingAllocator.cpp; private to the allocator's own files.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/allocator_config.h"
#include "core/units.h"
#include "sim/free_blocks.h"

namespace dsplan {

inline constexpr std::int64_t kMinBlock = 512;            // Rounding unit, and the smallest rest worth splitting off.
inline constexpr std::int64_t kSmallSize = 1 << 20;       // The largest size served by the small pool.
inline constexpr std::int64_t kSmallSegment = 2 << 20;    // Segment of the small pool, and its page.
inline constexpr std::int64_t kMinLargeAlloc = 10 << 20;  // From here on a request has its own segment.
inline constexpr std::int64_t kRoundLarge = 2 << 20;      // Rounding of such segments.
inline constexpr std::int64_t kLargestRequest = std::int64_t{1} << 60;  // Above: out of memory at once.
// Segments lie on multiples of this, as the driver's granularity has it.
inline constexpr std::int64_t kSegmentGranularity = 2 << 20;
// An expandable range is 1.125 times the device; a device without limit counts as this, so that ranges stay finite.
inline constexpr std::int64_t kLargestDevice = std::int64_t{1} << 48;

// PyTorch's CUDA caching allocator, exactly: the same blocks, segments, retries and statistics for the same requests.
// Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.6. docs/allocator.md states the rules R1 to R18 and E1 to E6
// that the comments name; equality with the real one is tested on recorded traces. CUDA graphs and user memory pools
// are not here.
//
// Blocks are ordered by a logical address that the allocator assigns itself: segments ascend in creation order on
// 2 MiB multiples and are never reused. Where memory really lies (SegmentSource) decides nothing, unless the source
// says that its pointers are the addresses to order by: a recorded run then breaks ties as the real one did.

// A stream, numbered densely from 0 by the caller.
using StreamIndex = std::uint16_t;

// What `allocate` returns for 0 bytes: nothing is held, and releasing it does nothing.
inline constexpr BlockId kNullBlock = std::numeric_limits<BlockId>::max();

struct AllocatorStatistics {
  Bytes allocated;            // Sizes of blocks handed out and not yet released by the program.
  Bytes requested;            // Bytes asked for, dropped only when the free completes.
  Bytes active;               // allocated + blocks whose free waits for other streams.
  Bytes reserved;             // Live segments and mapped pages.
  Bytes inactive_split;       // Free bytes inside partly used, not expandable segments.
  std::int64_t segments = 0;  // Not expandable ones.
  std::int64_t retries = 0;   // Times that everything cached was given back to satisfy a request.
  std::int64_t ooms = 0;
  friend bool operator==(const AllocatorStatistics&, const AllocatorStatistics&) = default;
};

// Where segments really live. Called for segments only, never per block.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Whether what `allocate` and `reserve` return orders the blocks. Asked once; otherwise pointers decide nothing.
  [[nodiscard]] virtual bool gives_addresses() const { return false; }
  // nullptr: the device has no more.
  [[nodiscard]] virtual void* allocate(Bytes size) = 0;
  virtual void free(void* segment, Bytes size) = 0;
  // Expandable segments: a range of addresses, of which pages are mapped and unmapped. `reserve` takes no memory and
  // throws where it cannot; `map` maps all or nothing.
  [[nodiscard]] virtual void* reserve(Bytes size) = 0;
  virtual void unreserve(void* range, Bytes size) = 0;
  [[nodiscard]] virtual bool map(void* range, Bytes offset, Bytes size) = 0;
  virtual void unmap(void* range, Bytes offset, Bytes size) = 0;
};

class CachingAllocator {
 public:
  static constexpr std::int64_t kMostStreams = 1024;
  static constexpr Bytes kUnlimited{std::numeric_limits<std::int64_t>::max()};

  // `capacity`: what the device can give in all. Without a source segments are made up. The source must outlive this.
  explicit CachingAllocator(const AllocatorConfig& config = {}, Bytes capacity = kUnlimited,
                            SegmentSource* source = nullptr);
  ~CachingAllocator();
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // As it stands, to go on elsewhere. Only of one whose segments are made up.
  [[nodiscard]] CachingAllocator copy() const;

  // nullopt: out of memory, after everything cached was given back; counted in `ooms`, as is a request above 2^60
  // bytes, which is not tried. `request` must not be negative.
  [[nodiscard]] std::optional<BlockId> allocate(Bytes request, StreamIndex stream);
  // A block that another stream has used stays active until that use is known to be complete.
  void release(BlockId block);
  // `block` is also used on `stream`.
  void record_stream(BlockId block, StreamIndex stream);

  // Whether uses count as complete when the allocator next asks (at the next allocation). False at the start.
  void set_events_ready(bool ready) { events_ready_ = ready; }
  // Uses on `stream` that released blocks wait for now count as complete when the allocator next asks.
  void complete_uses(StreamIndex stream);
  // Only the first `count` of those that do not count as complete yet, in the order of the frees.
  void complete_uses(StreamIndex stream, std::size_t count);
  // Waits for all uses, then gives every wholly free segment and page back.
  void empty_cache();

  // Takes effect for later requests; `config.memory_fraction` sets the fraction, its absence leaves it.
  void configure(const AllocatorConfig& config);
  [[nodiscard]] const AllocatorConfig& config() const { return config_; }
  void set_capacity(Bytes capacity);
  // set_per_process_memory_fraction: of the capacity as it is now; 0 to 1. Switches garbage collection on.
  void set_memory_fraction(double fraction);

  [[nodiscard]] AllocatorStatistics statistics() const;
  [[nodiscard]] Bytes reserved() const { return Bytes(now_.reserved); }
  [[nodiscard]] std::int64_t retries() const { return retries_; }
  // How much more could be reserved, and what a request that finds no free block would ask for.
  [[nodiscard]] Bytes left() const;
  [[nodiscard]] Bytes segment_for(Bytes request) const;
  // The largest value that each byte count has had; the three counts are as in statistics().
  [[nodiscard]] AllocatorStatistics peaks() const;
  void reset_peaks();

  [[nodiscard]] Bytes size(BlockId block) const { return Bytes(blocks_[block].size); }
  [[nodiscard]] Bytes address(BlockId block) const { return Bytes(blocks_[block].address); }
  [[nodiscard]] void* pointer(BlockId block) const;

  // The size after rounding (R2), the sum that a block of it adds to `allocated` when it is split exactly.
  [[nodiscard]] Bytes rounded(Bytes request) const { return Bytes(round(request.value())); }

  enum class BlockState : std::uint8_t { Free, Allocated, AwaitingFree, Unmapped };
  struct BlockView {
    Bytes address;
    Bytes size;
    Bytes requested;  // 0 unless allocated or awaiting its free.
    std::uint32_t segment = 0;
    StreamIndex stream = 0;
    BlockState state = BlockState::Free;
    bool large = false;
    bool expandable = false;
  };
  // Every block, by address: for snapshots, for reports on fragmentation, and for tests.
  [[nodiscard]] std::vector<BlockView> blocks() const;

  // A segment that was there before the first request: what a recording began with. An expandable one is a whole range,
  // with its holes as Unmapped blocks.
  struct AdoptedBlock {
    Bytes size;
    Bytes requested;                      // Of allocated blocks.
    BlockState state = BlockState::Free;  // Not AwaitingFree: nobody knows for what it waits.
  };
  struct AdoptedSegment {
    Bytes address;
    StreamIndex stream = 0;
    bool large = false;
    bool expandable = false;
    std::vector<AdoptedBlock> blocks;  // They follow each other; of two neighbours at most one is free.
  };
  // The blocks' names, in order. Needs a source that gives addresses, from which nothing is asked.
  std::vector<BlockId> adopt(const AdoptedSegment& segment);

 private:
  friend class AllocatorRuns;
  CachingAllocator(const CachingAllocator&) = default;

  static constexpr BlockId kNone = std::numeric_limits<BlockId>::max();

  // One cache line. Sizes are plain integers: each is at most a segment, and their sums at most what is reserved.
  struct Block {
    std::int64_t address = 0;
    std::int64_t size = 0;
    std::int64_t requested = 0;
    std::int64_t searches = 0;  // The pool's search count when it became free: its age for garbage collection.
    BlockId previous = kNone;   // Neighbours in the segment.
    BlockId next = kNone;
    std::uint32_t segment = 0;
    std::uint32_t uses = kNone;  // List of other streams that use it.
    std::uint32_t events = 0;    // Uses that its free waits for.
    StreamIndex stream = 0;
    BlockState state = BlockState::Free;
    bool large = false;
    bool expandable = false;
    [[nodiscard]] bool split() const { return previous != kNone || next != kNone; }
  };

  struct Segment {
    std::int64_t address = 0;
    std::int64_t size = 0;  // Of an expandable range: all of it.
    std::int64_t page = 0;  // Expandable only.
    BlockId first = kNone;
    void* base = nullptr;
    bool live = false;
  };

  struct Hole {  // An unmapped stretch of an expandable range.
    std::int64_t address;
    BlockId block;
  };

  // Free memory of one stream and size class.
  struct Pool {
    FreeBlocks free;
    std::vector<Hole> holes;  // By address.
  };

  struct Use {
    StreamIndex stream;
    std::uint32_t next;
  };

  struct EventQueue {
    std::deque<BlockId> waiting;
    std::size_t complete = 0;  // How many at the front count as complete.
  };

  struct Totals {
    std::int64_t allocated = 0;
    std::int64_t requested = 0;
    std::int64_t active = 0;
    std::int64_t reserved = 0;
    std::int64_t inactive_split = 0;
  };

  [[nodiscard]] std::int64_t round(std::int64_t request) const;
  [[nodiscard]] std::int64_t round_to_division(std::int64_t request) const;
  [[nodiscard]] std::int64_t segment_size(std::int64_t size) const;
  [[nodiscard]] Pool& pool(StreamIndex stream, bool large) { return pools_[stream * 2U + (large ? 1U : 0U)]; }
  [[nodiscard]] Pool& pool(const Block& block) { return pool(block.stream, block.large); }
  void ensure_stream(StreamIndex stream) {
    if (stream >= streams_) [[unlikely]]
      add_streams(stream);
  }
  void add_streams(StreamIndex up_to);

  // The steps of an allocation.
  [[nodiscard]] BlockId take_free(StreamIndex stream, bool large, std::int64_t size);
  [[nodiscard]] FreeBlocks::Cursor best_fit(const FreeBlocks& free, std::int64_t size) const;
  [[nodiscard]] FreeBlocks::Cursor best_expandable(const FreeBlocks& free, FreeBlocks::Cursor cursor) const;
  [[nodiscard]] BlockId obtain(StreamIndex stream, bool large, std::int64_t size);
  [[nodiscard]] BlockId new_memory(StreamIndex stream, bool large, std::int64_t size);
  void place(BlockId block, std::int64_t size, std::int64_t request);

  // Freeing.
  void free_block(BlockId block);
  void insert_free(BlockId block);
  [[nodiscard]] BlockId merge(BlockId block);
  [[nodiscard]] BlockId join(BlockId left, BlockId right);
  void wait_for_uses(BlockId block);
  void process_events();
  void complete_event(BlockId block);

  // Giving memory back.
  void release_all_cached();
  [[nodiscard]] bool release_oversize(StreamIndex stream, bool large, std::int64_t size);
  void collect_garbage();
  void release_segment(BlockId block);

  // Expandable segments (allocator_expandable.cpp).
  [[nodiscard]] BlockId take_expandable(StreamIndex stream, bool large, std::int64_t size);
  [[nodiscard]] BlockId find_expandable(StreamIndex stream, bool large, std::int64_t size);
  [[nodiscard]] BlockId new_range(StreamIndex stream, bool large);
  [[nodiscard]] BlockId map_block(BlockId block, std::int64_t size);
  [[nodiscard]] BlockId unmap_block(BlockId block);
  void release_range(BlockId block);
  void insert_hole(BlockId block);
  void erase_hole(BlockId block);

  [[nodiscard]] BlockId new_block();
  [[nodiscard]] std::uint32_t new_segment(std::int64_t size, std::int64_t page, void* base);
  [[nodiscard]] BlockId whole_segment(std::uint32_t segment, StreamIndex stream, bool large);
  [[nodiscard]] BlockId split_after(BlockId block, std::int64_t size);

  AllocatorConfig config_;
  bool any_division_ = false;
  bool events_ready_ = false;
  bool limited_ = false;  // A memory fraction is set.
  bool given_addresses_ = false;
  std::int64_t allowed_ = 0;
  std::int64_t capacity_;
  std::int64_t next_address_;
  SegmentSource* source_;

  std::vector<Pool> pools_;  // Two for each stream: small, large.
  std::vector<Block> blocks_;
  std::vector<BlockId> spare_blocks_;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> spare_segments_;
  std::vector<Use> uses_;
  std::vector<std::uint32_t> spare_uses_;
  std::vector<EventQueue> events_;  // By stream.
  StreamIndex streams_ = 0;
  std::size_t pending_events_ = 0;
  bool any_complete_ = false;               // Of the uses that are waited for, since the allocator last asked.
  std::array<std::int64_t, 2> searches_{};  // Of the small and the large pool.

  Totals now_;
  Totals peak_;
  std::int64_t segment_count_ = 0;
  std::int64_t retries_ = 0;
  std::int64_t ooms_ = 0;
};

// Several requests at once: what the allocator would give, or take back, one by one. DeepSpeed pads a gradient for each
// of hundreds of ranks with a tensor of its own, which makes most of a large schedule's requests.
class AllocatorRuns {
 public:
  explicit AllocatorRuns(CachingAllocator& allocator) : own_(allocator) {}

  // For `requests`, one after another, into `blocks`: as many of them as are of the first one's rounded size and are
  // cut from the same free block of the small pool. Returns how many; 0: the next one has to be asked for by itself.
  // None may be of 0 bytes.
  [[nodiscard]] std::size_t allocate(std::span<const Bytes> requests, StreamIndex stream, std::span<BlockId> blocks);
  // One after another. Neighbours go at once.
  void release(std::span<const BlockId> blocks);

  // Up to `most` requests that the smallest block serves each, as one block that stands for as many as it has room for;
  // `ask` says what they ask for. `count` 0: the next one has to be asked for by itself.
  struct Together {
    BlockId block = kNullBlock;
    std::size_t count = 0;
  };
  [[nodiscard]] Together allocate_together(std::size_t most, StreamIndex stream);
  void ask(BlockId block, Bytes requested);
  void release_together(const Together& together);

 private:
  using Block = CachingAllocator::Block;

  [[nodiscard]] BlockId take(std::int64_t size, StreamIndex stream);
  [[nodiscard]] FreeBlocks::Cursor smallest(const FreeBlocks& free, std::int64_t size) const;
  void count(const Block& cut, std::int64_t size, std::int64_t taken);
  [[nodiscard]] std::size_t neighbours(std::span<const BlockId> blocks) const;
  void unite(std::span<const BlockId> blocks);

  CachingAllocator& own_;
};

}  // namespace dsplan
