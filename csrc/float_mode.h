// Denormal numbers cost a hundred cycles each and mean nothing here: they count as zero while a step runs.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lightwell {

// Sets the calling thread's mode and puts back what was there at the end of the scope.
class FlushToZero {
 public:
#if defined(__x86_64__)
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // FTZ and DAZ
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  uint32_t before_;
#elif defined(__aarch64__)
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | (uint64_t{1} << 24)));
  }
  ~FlushToZero() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  uint64_t before_;
#endif
};

}  // namespace lightwell
