// The names that messages offer.
#include <doctest/doctest.h>

#include "core/document.h"

using namespace dsplan;

TEST_CASE("nearest name: letters that changed places are one slip") {
  struct Row {
    const char* a;
    const char* b;
    std::size_t distance;
  };
  for (const Row& row : {Row{"", "", 0}, Row{"", "ab", 2}, Row{"rtx4009", "rtx4090", 1}, Row{"rtx4009", "rtx4080", 2},
                         Row{"teh", "the", 1}, Row{"ab", "ba", 1}, Row{"abcd", "badc", 2}, Row{"kitten", "sitting", 3},
                         Row{"gpu", "gpus", 1}, Row{"micro_batch", "micro-batch", 1}}) {
    CAPTURE(row.a);
    CAPTURE(row.b);
    CHECK(edit_distance(row.a, row.b) == row.distance);
    CHECK(edit_distance(row.b, row.a) == row.distance);
  }
  CHECK(nearest("rtx4009", {"rtx4080", "rtx4090"}) == "rtx4090");
  CHECK(nearest("h100", {"a10", "b200"}) == "a10");
  CHECK(nearest("x", {"yz"}).empty());
  CHECK(did_you_mean("") == "");
}
