#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <thread>

#if defined(__GLIBC__)
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "cli/commands.h"

namespace {

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr std::uintptr_t kLargePage = 2 << 20;

// malloc has written into the first page of its range before anybody could ask for large ones: up to the second large
// page the kernel would fetch small ones, which takes longer than all the rest. What lies between stays untouched.
void pass_over_first_page() {
  void* volatile unused = std::malloc(kLargePage);
  (void)unused;  // For good.
}

// The second arena, which the first other thread makes, is one range of addresses, too (malloc/arena.c, HEAP_MAX_SIZE).
void keep_memory_of_thread() {
  constexpr std::uintptr_t kRange = 64 << 20;
  void* volatile inside = std::malloc(1 << 16);
  void* const begin = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(inside) / kRange * kRange);
  (void)madvise(begin, kRange, MADV_HUGEPAGE);
  std::free(inside);
  pass_over_first_page();
}
#endif

// A run makes a few large vectors and ends. Handing their pages back and fetching them again would cost a tenth of it,
// and fetching them one small page at a time a third: the heap is one range of addresses, of which as much as will be
// touched comes in large pages.
void keep_memory([[maybe_unused]] bool searches) {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
  (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
  (void)mallopt(M_TOP_PAD, 256 << 20);
  // Threads share it, and what one has given back serves the other; a search lowers two schedules at once.
  (void)mallopt(M_ARENA_MAX, searches ? 2 : 1);
  const auto before = reinterpret_cast<std::uintptr_t>(sbrk(0));
  const auto begin = (before + kLargePage - 1) / kLargePage * kLargePage;
  (void)sbrk(static_cast<std::intptr_t>(begin - before));  // What malloc gets from now on begins with a large page.
  void* volatile more = std::malloc(1 << 20);              // Than is there: the heap grows, and keeps what it has.
  std::free(more);
  const auto end = reinterpret_cast<std::uintptr_t>(sbrk(0)) / kLargePage * kLargePage;
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  pass_over_first_page();
  try {
    if (searches) std::thread(keep_memory_of_thread).join();
  } catch (const std::system_error&) {
    // A system may give no more threads.
  }
#endif
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A reader that goes away is seen as EPIPE.
  const dsplan::Words words(argv + (argc > 0 ? 1 : 0), argv + argc);
  keep_memory(!words.empty() && words.front() == "plan");
  return dsplan::exit_code_of([&words] { return dsplan::run(words); });
}
