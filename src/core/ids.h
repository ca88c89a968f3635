// Numbers of things: an id of its own type for each table, so that a tensor's cannot stand where a storage's is meant,
// and the table that is indexed by it. An id is made explicitly, compared and hashed; there is no arithmetic with it.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace dsplan {

// What stands for no id, of whatever type. An index that has no type of its own (a layer's) holds -1 then.
struct None {
  constexpr operator std::int32_t() const { return -1; }
};
inline constexpr None kNone;

// `none` is the number that no thing has: the default, and what kNone becomes.
template <class Tag, class Rep = std::int32_t, Rep none = static_cast<Rep>(-1)>
class Id {
 public:
  using Number = Rep;

  constexpr Id() = default;
  constexpr Id(None) {}
  template <std::integral T>
  constexpr explicit Id(T number) : number_(static_cast<Rep>(number)) {}

  [[nodiscard]] constexpr Rep number() const { return number_; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(number_); }

  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  Rep number_ = none;
};

// The ids from `first` up to `end`, without it; reversed, from the last one down to `first`.
template <class I>
class IdRange {
 public:
  class Iterator {
   public:
    constexpr Iterator(typename I::Number number, bool down) : number_(number), down_(down) {}
    constexpr I operator*() const { return I(number_); }
    constexpr Iterator& operator++() {
      down_ ? --number_ : ++number_;
      return *this;
    }
    friend constexpr bool operator==(const Iterator&, const Iterator&) = default;

   private:
    typename I::Number number_;
    bool down_;
  };

  constexpr IdRange(I first, I end) : begin_(first.number(), false), end_(end.number(), false) {}
  [[nodiscard]] constexpr IdRange reversed() const {
    auto last = (*end_).number();
    auto before = (*begin_).number();
    return IdRange(Iterator(--last, true), Iterator(--before, true));
  }
  [[nodiscard]] constexpr Iterator begin() const { return begin_; }
  [[nodiscard]] constexpr Iterator end() const { return end_; }

 private:
  constexpr IdRange(Iterator begin, Iterator end) : begin_(begin), end_(end) {}

  Iterator begin_;
  Iterator end_;
};

// A vector in which only an id of type I finds anything.
template <class I, class T>
class Indexed : private std::vector<T> {
  using Items = std::vector<T>;

 public:
  using typename Items::const_iterator;
  using typename Items::iterator;
  using typename Items::value_type;

  using Items::assign;
  using Items::back;
  using Items::begin;
  using Items::clear;
  using Items::empty;
  using Items::end;
  using Items::front;
  using Items::Items;
  using Items::reserve;
  using Items::resize;
  using Items::size;

  // Bits have no addresses: libc++ leaves the name out of std::vector<bool>.
  [[nodiscard]] T* data() requires(!std::is_same_v<T, bool>) { return Items::data(); }
  [[nodiscard]] const T* data() const requires(!std::is_same_v<T, bool>) { return Items::data(); }
  [[nodiscard]] decltype(auto) operator[](I id) { return Items::operator[](id.index()); }
  [[nodiscard]] decltype(auto) operator[](I id) const { return Items::operator[](id.index()); }

  // Adds one behind the others, and says which it is.
  I push(T item) {
    Items::push_back(std::move(item));
    return last();
  }
  // Makes room up to `id`, filled with `rest`, where there is none.
  void reach(I id, const T& rest = T()) {
    if (!has(id)) resize(id.index() + 1, rest);
  }
  [[nodiscard]] bool has(I id) const { return id.index() < size(); }
  [[nodiscard]] I last() const { return I(size() - 1); }
  [[nodiscard]] I next() const { return I(size()); }  // Which the next one will be.
  [[nodiscard]] IdRange<I> ids() const { return {I(0), next()}; }
  [[nodiscard]] IdRange<I> ids_from(I first) const { return {first, next()}; }

  friend bool operator==(const Indexed& a, const Indexed& b) {
    return static_cast<const Items&>(a) == static_cast<const Items&>(b);
  }
};

}  // namespace dsplan

template <class Tag, class Rep, Rep none>
struct std::hash<dsplan::Id<Tag, Rep, none>> {
  std::size_t operator()(dsplan::Id<Tag, Rep, none> id) const { return std::hash<Rep>()(id.number()); }
};
