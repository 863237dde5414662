#include "pool.h"

#include <sched.h>

#include <chrono>

namespace lightwell {
namespace {

constexpr int kSpins = 2000;                                 // tens of microseconds
constexpr auto kPatience = std::chrono::microseconds(1000);  // then a worker without a job goes to sleep

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Of a barrier: in each, a thread hears from twice as many.
int rounds(int threads) {
  int count = 0;
  while ((1 << count) < threads) ++count;
  return count;
}

// Waiting that never keeps a core from somebody who needs it: another process may be running where a thread that we
// wait for should be, and only yielding lets it come back.
class Waiting {
 public:
  void once() {
    if (spins_ < kSpins) {
      ++spins_;
      pause();
    } else {
      sched_yield();
    }
  }

 private:
  int spins_ = 0;
};

}  // namespace

Pool::Pool(int threads)
    : threads_(threads), signals_(new Signal[rounds(threads) * threads]), passed_(new Count[threads]) {
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Pool::~Pool() {
  stopping_ = true;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run(const std::function<void(int)>& job) {
  job_ = &job;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  job(0);
  barrier(0);
}

// A dissemination barrier (Hensgen, Finkel and Manber, 1988): in each round a thread tells one other that it is here,
// twice as far away each time. Nothing is written by two threads, and two threads need a single message each way.
void Pool::barrier(int thread) {
  const uint32_t barrier = ++passed_[thread].barriers;
  Signal* round = signals_.get();
  for (int step = 1; step < threads_; step *= 2, round += threads_) {
    round[(thread + step) % threads_].barrier.store(barrier, std::memory_order_release);
    const auto heard = [&] {
      return static_cast<int32_t>(round[thread].barrier.load(std::memory_order_acquire) - barrier) >= 0;
    };
    for (Waiting waiting; !heard();) waiting.once();
  }
}

void Pool::work(int thread) {
  for (uint32_t seen = 0;;) {
    seen = next_job(seen);
    if (stopping_) return;
    (*job_)(thread);
    barrier(thread);
  }
}

uint32_t Pool::next_job(uint32_t last) const {
  const auto asleep_at = std::chrono::steady_clock::now() + kPatience;
  Waiting waiting;
  while (jobs_.load(std::memory_order_acquire) == last) {
    waiting.once();
    if (std::chrono::steady_clock::now() > asleep_at) jobs_.wait(last, std::memory_order_acquire);
  }
  return jobs_.load(std::memory_order_acquire);
}

}  // namespace lightwell
