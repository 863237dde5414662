// A small pool of threads that run one job together, the caller among them.
// Workers wait for the next job by spinning for a moment, then yielding, then sleeping: a step follows a step within
// microseconds while the server is busy, and an idle server must leave the cores alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace lightwell {

class Pool {
 public:
  explicit Pool(int threads);  // the caller and threads - 1 workers
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Runs job(thread) once on every thread 0..threads - 1, the caller being thread 0, and returns when all are done.
  // One caller at a time; a job must not throw.
  void run(const std::function<void(int)>& job);

  // Inside a job: waits until every thread has come here.
  void barrier(int thread);

 private:
  void work(int thread);
  uint32_t next_job(uint32_t last) const;

  const int threads_;
  const std::function<void(int)>* job_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<uint32_t> jobs_{0};  // how many were started; workers sleep on it
  struct alignas(64) Signal {
    std::atomic<uint32_t> barrier{0};  // the last one that it was given for
  };
  struct alignas(64) Count {
    uint32_t barriers = 0;
  };
  std::unique_ptr<Signal[]> signals_;  // [round of a barrier][receiving thread]
  std::unique_ptr<Count[]> passed_;    // by thread
  std::vector<std::thread> workers_;
};

}  // namespace lightwell
