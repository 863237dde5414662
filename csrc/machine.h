// What this machine can do at most: bytes read from memory and operations of its arithmetic instructions in a second.
// A measured speed is a share of these limits. Threads are pinned, one to each CPU that is named.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lightwell {

// Bytes per second of reading `bytes` bytes, laid out as packed weights are, again and again: one value a run.
// Throws std::invalid_argument where there are fewer than 64 KiB a thread, or no CPU.
std::vector<double> read_rates(int64_t bytes, const std::vector<int>& cpus, int runs);

// (instruction set, number format) pairs whose peak can be measured here, in the order of available_isas().
std::vector<std::pair<std::string, std::string>> peak_formats();

// Multiplications and additions per second of that format's instructions from registers: one value a run.
// Throws std::invalid_argument for a pair that is not in peak_formats(), or no CPU.
std::vector<double> operation_rates(const std::string& isa, const std::string& format, const std::vector<int>& cpus,
                                    int runs);

}  // namespace lightwell
