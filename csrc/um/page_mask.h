// The pages of one 2 MiB block as bits.
#pragma once

#include <array>
#include <cstdint>

namespace um::pages {

inline constexpr uint32_t kMostPages = 512;  // 2 MiB of 4 KiB pages

struct Region {
  uint32_t first, outer;  // [first, outer)

  uint32_t pages() const { return outer - first; }
};

class PageMask {
 public:
  static PageMask of(Region region) {
    PageMask mask;
    mask.fill(region);
    return mask;
  }

  bool test(uint32_t page) const { return (words_[page / 64] >> (page % 64) & 1) != 0; }
  void set(uint32_t page) { words_[page / 64] |= uint64_t{1} << (page % 64); }
  void fill(Region region) {
    for (uint32_t word = region.first / 64; word * 64 < region.outer; ++word) words_[word] |= window(region, word);
  }

  bool empty() const {
    uint64_t any = 0;
    for (uint64_t word : words_) any |= word;
    return any == 0;
  }
  uint32_t count(Region region = {0, kMostPages}) const {
    uint32_t total = 0;
    for (uint32_t word = region.first / 64; word * 64 < region.outer; ++word)
      total += static_cast<uint32_t>(__builtin_popcountll(words_[word] & window(region, word)));
    return total;
  }

  // First page at or after `from` whose bit is `value`; kMostPages when there is none.
  uint32_t next(uint32_t from, bool value = true) const {
    for (uint32_t word = from / 64; word < words_.size(); ++word) {
      uint64_t bits = value ? words_[word] : ~words_[word];
      if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
      if (bits != 0) return word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
    }
    return kMostPages;
  }

  // work(Region) for every longest run of set bits, in order.
  template <class Work>
  void each_run(const Work& work) const {
    for (uint32_t first = next(0); first < kMostPages;) {
      const uint32_t outer = next(first, false);
      work(Region{first, outer});
      first = outer < kMostPages ? next(outer) : kMostPages;
    }
  }
  // work(page) for every set bit, in order.
  template <class Work>
  void each(const Work& work) const {
    for (uint32_t index = 0; index < words_.size(); ++index)
      for (uint64_t bits = words_[index]; bits != 0; bits &= bits - 1)
        work(index * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
  }

  PageMask& operator|=(const PageMask& other) {
    for (uint32_t word = 0; word < words_.size(); ++word) words_[word] |= other.words_[word];
    return *this;
  }
  PageMask& operator&=(const PageMask& other) {
    for (uint32_t word = 0; word < words_.size(); ++word) words_[word] &= other.words_[word];
    return *this;
  }
  PageMask& operator-=(const PageMask& other) {
    for (uint32_t word = 0; word < words_.size(); ++word) words_[word] &= ~other.words_[word];
    return *this;
  }
  friend PageMask operator|(PageMask a, const PageMask& b) { return a |= b; }
  friend PageMask operator&(PageMask a, const PageMask& b) { return a &= b; }
  friend PageMask operator-(PageMask a, const PageMask& b) { return a -= b; }
  friend bool operator==(const PageMask& a, const PageMask& b) { return a.words_ == b.words_; }

 private:
  // The bits of `region` that lie in this word.
  static uint64_t window(Region region, uint32_t word) {
    const uint32_t base = word * 64;
    uint64_t bits = ~uint64_t{0};
    if (region.first > base) bits &= ~uint64_t{0} << (region.first - base);
    if (region.outer < base + 64) bits &= (uint64_t{1} << (region.outer - base)) - 1;
    return bits;
  }

  std::array<uint64_t, kMostPages / 64> words_{};
};

}  // namespace um::pages
