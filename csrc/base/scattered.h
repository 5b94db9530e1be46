// The bit mixer of hashes and of reproducible random numbers.
#pragma once

#include <cstdint>

namespace um {

inline constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // 2^64 divided by it

// splitmix64 (Steele, Lea, Flood 2014)
inline uint64_t scattered(uint64_t number) {
  number += kGoldenRatio;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

}  // namespace um
