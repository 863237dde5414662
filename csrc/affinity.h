// Keeping a thread on one CPU, so that its caches stay its own.
#pragma once

#if defined(__linux__)
#include <sched.h>
#endif

namespace lightwell {

#if defined(__linux__)
// The calling thread. False where the system does not allow it.
inline bool pin_thread(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

// The calling thread's CPUs, given back at the end.
class SavedAffinity {
 public:
  SavedAffinity() { sched_getaffinity(0, sizeof saved_, &saved_); }
  ~SavedAffinity() { sched_setaffinity(0, sizeof saved_, &saved_); }
  SavedAffinity(const SavedAffinity&) = delete;
  SavedAffinity& operator=(const SavedAffinity&) = delete;

 private:
  cpu_set_t saved_;
};
#else
inline bool pin_thread(int) { return false; }  // no such call there
struct SavedAffinity {};
#endif

}  // namespace lightwell
