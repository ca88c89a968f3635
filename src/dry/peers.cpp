#include "dry/peers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "dry/memory.h"

namespace dsplan::dry {
namespace {

using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free);

struct alignas(64) RankState {
  Counter laid;    // How often this rank has laid down,
  Counter looked;  // and looked.
};
struct alignas(64) Letterbox {
  Counter sent;
  Counter received;
};

// Shared memory: the states of all ranks, two places for what each lays down, and a letterbox from each to each.
class Meeting : public Peers {
 public:
  Meeting(std::string name, char* base, int ranks, int rank)
      : name_(std::move(name)), base_(base), ranks_(ranks), rank_(rank) {
    // Nobody else will come: the name is not needed any more.
    if (arrived().fetch_add(1) + 1 == static_cast<std::uint64_t>(ranks_)) shm_unlink(name_.c_str());
  }
  ~Meeting() override {
    if (arrived().load() < static_cast<std::uint64_t>(ranks_)) shm_unlink(name_.c_str());
    munmap(base_, size(ranks_));
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  static std::size_t size(int ranks) {
    const auto n = static_cast<std::size_t>(ranks);
    return round_up(kHead + n * sizeof(RankState) + n * n * sizeof(Letterbox), 4096) + (2 * n + n * n) * copy_limit();
  }

  bool lay_down(const void* mine, std::size_t bytes) override {
    const std::uint64_t turn = state(rank_).laid.load() + 1;
    for (int r = 0; r < ranks_; ++r) {
      if (state(r).looked.load() + 2 < turn) return false;
    }
    if (bytes > 0) std::memcpy(place(rank_, turn), mine, bytes);
    state(rank_).laid.store(turn);
    return true;
  }
  bool all_lie() override {
    for (int r = 0; r < ranks_; ++r) {
      if (state(r).laid.load() < state(rank_).laid.load()) return false;
    }
    return true;
  }
  const char* of(int rank) const override { return place(rank, state(rank_).laid.load()); }
  void looked() override { state(rank_).looked.store(state(rank_).laid.load()); }

  bool send(int to, const void* message, std::size_t bytes) override {
    Letterbox& box = letterbox(rank_, to);
    if (box.sent.load() != box.received.load()) return false;
    if (bytes > 0) std::memcpy(content(rank_, to), message, bytes);
    box.sent.fetch_add(1);
    return true;
  }
  bool receive(int from, void* message, std::size_t bytes) override {
    Letterbox& box = letterbox(from, rank_);
    if (box.sent.load() == box.received.load()) return false;
    if (bytes > 0) std::memcpy(message, content(from, rank_), bytes);
    box.received.fetch_add(1);
    return true;
  }

 private:
  static constexpr std::size_t kHead = 64;

  [[nodiscard]] static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  [[nodiscard]] Counter& arrived() const { return *reinterpret_cast<Counter*>(base_); }
  [[nodiscard]] RankState& state(int rank) const { return reinterpret_cast<RankState*>(base_ + kHead)[rank]; }
  [[nodiscard]] Letterbox& letterbox(int from, int to) const {
    return reinterpret_cast<Letterbox*>(base_ + kHead + at(ranks_) * sizeof(RankState))[at(from) * at(ranks_) + at(to)];
  }
  [[nodiscard]] char* contents() const {
    return base_ + size(ranks_) - (2 * at(ranks_) + at(ranks_) * at(ranks_)) * copy_limit();
  }
  [[nodiscard]] char* place(int rank, std::uint64_t turn) const {
    return contents() + (2 * at(rank) + turn % 2) * copy_limit();
  }
  [[nodiscard]] char* content(int from, int to) const {
    return contents() + (2 * at(ranks_) + at(from) * at(ranks_) + at(to)) * copy_limit();
  }

  std::string name_;
  char* base_;
  int ranks_;
  int rank_;
};

class Mirror : public Peers {
 public:
  bool lay_down(const void* mine, std::size_t bytes) override {
    const auto* first = static_cast<const char*>(mine);
    mine_.assign(first, first + bytes);
    return true;
  }
  bool all_lie() override { return true; }
  const char* of(int) const override { return mine_.data(); }
  void looked() override {}
  // What this rank sends to one, that one sends to it.
  bool send(int to, const void* message, std::size_t bytes) override {
    const auto* first = static_cast<const char*>(message);
    sent_[to].assign(first, first + bytes);
    return true;
  }
  bool receive(int from, void* message, std::size_t bytes) override {
    const auto found = sent_.find(from);
    if (found != sent_.end() && found->second.size() == bytes && bytes > 0) {
      std::memcpy(message, found->second.data(), bytes);
    }
    return true;
  }

 private:
  std::vector<char> mine_;
  std::map<int, std::vector<char>> sent_;
};

}  // namespace

std::string new_meeting_name() {
  unsigned char bytes[8] = {};
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) std::memset(bytes, getpid() & 255, sizeof bytes);
  const char* run = std::getenv("DSPLAN_DRY_RUN");
  std::string name = std::string("/dsplan-dry-") + (run != nullptr ? run : "alone") + "-";
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) name += "0123456789abcdef"[digit];
  }
  return name.substr(0, kMeetingName - 1);
}

bool peers_are_mirrored() {
  const char* said = std::getenv("DSPLAN_DRY_PEERS");
  return said != nullptr && std::strcmp(said, "mirror") == 0;
}

std::unique_ptr<Peers> meet(const std::string& name, int ranks, int rank) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0) return nullptr;
  void* base = MAP_FAILED;
  const std::size_t bytes = Meeting::size(ranks);
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  close(file);
  if (base == MAP_FAILED) return nullptr;
  return std::make_unique<Meeting>(name, static_cast<char*>(base), ranks, rank);
}

std::unique_ptr<Peers> mirrored() { return std::make_unique<Mirror>(); }

}  // namespace dsplan::dry
