#pragma once
// Sets of enumerators, as values that constants can be made of.

#include <cstdint>

namespace qplan {

// A set of enumerators of E (at most 16).
template <class E>
struct EnumSet {
  std::uint16_t bits = 0;
  [[nodiscard]] constexpr bool has(E e) const { return (bits >> static_cast<unsigned>(e)) & 1U; }
  constexpr EnumSet& add(E e) {
    bits = static_cast<std::uint16_t>(bits | (1U << static_cast<unsigned>(e)));
    return *this;
  }
  constexpr EnumSet& remove(E e) {
    bits = static_cast<std::uint16_t>(bits & ~(1U << static_cast<unsigned>(e)));
    return *this;
  }
  [[nodiscard]] constexpr bool empty() const { return bits == 0; }
  bool operator==(const EnumSet&) const = default;

  friend constexpr EnumSet operator|(EnumSet a, EnumSet b) {
    return {static_cast<std::uint16_t>(a.bits | b.bits)};
  }
  friend constexpr EnumSet operator&(EnumSet a, EnumSet b) {
    return {static_cast<std::uint16_t>(a.bits & b.bits)};
  }
  friend constexpr EnumSet operator-(EnumSet a, EnumSet b) {
    return {static_cast<std::uint16_t>(a.bits & ~b.bits)};
  }
};

template <class E, class... Rest>
constexpr EnumSet<E> set_of(E first, Rest... rest) {
  EnumSet<E> set;
  set.add(first);
  (set.add(rest), ...);
  return set;
}

}  // namespace qplan
