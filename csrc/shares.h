// How threads divide the items of a phase: each has a share of its own, and helps the others when it is done.
// Shares are fixed ranges, so a thread meets the same weights in its cache step after step; helping keeps a thread that
// was held up by another process from holding up everybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace lightwell {

class Shares {
 public:
  explicit Shares(int threads) : threads_(threads), shares_(new Share[2 * threads]) {}

  // Sets one thread's share of a phase. A thread opens its share of the next phase while it is in this one: the two
  // sets alternate, so nobody reads the one that is being opened. `in_order` makes one share of all items, for items
  // that were sorted by size.
  void open(int64_t phase, int thread, int64_t items, bool in_order) {
    Share& share = at(phase, thread);
    share.end = in_order ? items : first(thread + 1, items);
    share.next.store(in_order ? (thread == 0 ? 0 : items) : first(thread, items), std::memory_order_relaxed);
  }

  // Calls f(item) for every item that this thread gets.
  template <typename F>
  void each(int64_t phase, int thread, F&& f) {
    for (int i = 0; i < threads_; ++i) {
      Share& share = at(phase, (thread + i) % threads_);
      if (share.next.load(std::memory_order_relaxed) >= share.end) continue;
      int64_t item;
      do {  // a share is not touched again after its last item: another thread may just be looking at it
        item = share.next.fetch_add(1, std::memory_order_relaxed);
        if (item < share.end) f(item);
      } while (item + 1 < share.end);
    }
  }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  int64_t first(int thread, int64_t items) const { return (items * thread + threads_ - 1) / threads_; }
  Share& at(int64_t phase, int thread) { return shares_[(phase & 1) * threads_ + thread]; }

  const int threads_;
  std::unique_ptr<Share[]> shares_;
};

}  // namespace lightwell
