#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "core/ids.h"

namespace {

using dsplan::Id;
using dsplan::IdRange;
using dsplan::Indexed;
using dsplan::kNone;

using Cat = Id<struct CatTag>;
using Dog = Id<struct DogTag, std::uint32_t>;
using Bone = Id<struct BoneTag, std::uint32_t, 0>;

template <class Table, class Key>
concept indexes = requires(Table table, Key key) {
  table[key];
};

TEST_CASE("an id is made explicitly, and is no other's") {
  static_assert(!std::is_convertible_v<int, Cat> && std::is_constructible_v<Cat, int>);
  static_assert(!std::is_convertible_v<Cat, int> && !std::is_convertible_v<Cat, Dog>);
  static_assert(!std::is_constructible_v<Cat, Dog> && !std::is_assignable_v<Cat&, Dog>);
  static_assert(indexes<Indexed<Cat, int>, Cat> && !indexes<Indexed<Cat, int>, Dog>);
  static_assert(!indexes<Indexed<Cat, int>, std::size_t> && !indexes<Indexed<Cat, int>, int>);
  static_assert(sizeof(Cat) == 4 && std::is_trivially_copyable_v<Cat>);
  CHECK(Cat(3) == Cat(3));
  CHECK(Cat(3) != Cat(4));
  CHECK(Cat(3) < Cat(4));
  CHECK(Cat(std::size_t{7}).number() == 7);
  CHECK(Dog(7).index() == 7);
}

TEST_CASE("no id: the default, by each type's own number") {
  CHECK(Cat() == kNone);
  CHECK(Cat().number() == -1);
  CHECK(Dog() == kNone);
  CHECK(Dog().number() == 0xffffffffu);
  CHECK(Bone() == kNone);
  CHECK(Bone().number() == 0);
  CHECK(Cat(0) != kNone);
  const std::int32_t layer = kNone;
  CHECK(layer == -1);
}

TEST_CASE("ids are hashed") {
  const std::unordered_set<Dog> dogs{Dog(1), Dog(2), Dog(1)};
  CHECK(dogs.size() == 2);
  CHECK(dogs.contains(Dog(2)));
  CHECK(!dogs.contains(Dog()));
}

TEST_CASE("a table says which id a new thing has") {
  Indexed<Cat, std::string> names;
  CHECK(names.next() == Cat(0));
  const Cat tom = names.push("Tom");
  const Cat felix = names.push("Felix");
  CHECK(tom == Cat(0));
  CHECK(names.last() == felix);
  CHECK(names[felix] == "Felix");
  names[tom] = "Thomas";
  CHECK(names.front() == "Thomas");
  CHECK(names.size() == 2);
  CHECK(names == Indexed<Cat, std::string>{"Thomas", "Felix"});
}

TEST_CASE("a table of flags") {
  Indexed<Dog, bool> barks(3, false);
  barks[Dog(1)] = true;
  const Indexed<Dog, bool>& seen = barks;
  CHECK(seen[Dog(1)]);
  CHECK(!seen[Dog(2)]);
}

TEST_CASE("ids in order, from one of them, and backwards") {
  const auto numbers = [](auto range) {
    std::vector<std::int64_t> result;
    for (const auto id : range) result.push_back(id.number());
    return result;
  };
  using Numbers = std::vector<std::int64_t>;
  const Indexed<Cat, int> cats(3);
  CHECK(numbers(cats.ids()) == Numbers{0, 1, 2});
  CHECK(numbers(cats.ids_from(Cat(1))) == Numbers{1, 2});
  CHECK(numbers(cats.ids().reversed()) == Numbers{2, 1, 0});
  CHECK(numbers(IdRange(Cat(1), Cat(3)).reversed()) == Numbers{2, 1});
  const Indexed<Dog, int> dogs(2);
  CHECK(numbers(dogs.ids().reversed()) == Numbers{1, 0});
  CHECK(numbers(Indexed<Dog, int>().ids()).empty());
  CHECK(numbers(Indexed<Dog, int>().ids().reversed()).empty());
}

}  // namespace
