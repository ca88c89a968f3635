#include <doctest/doctest.h>

#include "core/error.h"
#include "core/units.h"

using namespace dsplan;

TEST_CASE("sizes never wrap: an overflow is refused") {
  CHECK_THROWS_AS((void)(Bytes(INT64_MAX) + Bytes(1)), Refusal);
  CHECK_THROWS_AS((void)(Bytes(INT64_MAX / 2 + 1) * 2), Refusal);
  CHECK_THROWS_AS((void)storage(Elements(INT64_MAX / 2), DType::Float32), Refusal);
  CHECK(storage(Elements(1'000'000'000'000'000), DType::Float32) == Bytes(4'000'000'000'000'000));
  CHECK_THROWS_AS((void)(Bytes(INT64_MIN) - Bytes(1)), Refusal);
  CHECK_THROWS_AS((void)(Bytes(0) - Bytes(INT64_MIN)), Refusal);
  CHECK(Bytes(-1) - Bytes(INT64_MIN) == Bytes(INT64_MAX));
  CHECK_THROWS_AS((void)round_up(Bytes(INT64_MAX), 512), Refusal);
}

TEST_CASE("division says how it rounds") {
  CHECK(div_ceil(Elements(22), 8) == Elements(3));
  CHECK(div_floor(Elements(22), 8) == Elements(2));
  CHECK(div_ceil(Elements(24), 8) == Elements(3));
  CHECK(div_ceil(Elements(-4), 2) == Elements(-2));
  CHECK(div_ceil(Bytes(INT64_MAX), 512) == Bytes(INT64_MAX / 512 + 1));
  CHECK(div_ceil(Bytes(INT64_MAX), INT64_MAX) == Bytes(1));
  CHECK(round_up(Elements(22), 8) == Elements(24));
  CHECK(rounded_to_block(Bytes(1)) == Bytes(512));
  CHECK(rounded_to_block(Bytes(512)) == Bytes(512));
  CHECK(rounded_to_block(Bytes(0)) == Bytes(0));
}

TEST_CASE("bytes are printed with a labelled unit") {
  CHECK(human(Bytes(0)) == "0 B");
  CHECK(human(Bytes(1023)) == "1023 B");
  CHECK(human(Bytes(16'060'522'496)) == "14.96 GiB");
  CHECK(human(Bytes(-512)) == "-512 B");
  CHECK(grouped(1'003'782'656) == "1,003,782,656");
  CHECK(grouped(-1000) == "-1,000");
  CHECK(grouped(12) == "12");
}
