#include "io/space.h"

#include <string>

#include "core/format.h"
#include "io/own_file.h"
#include "io/place.h"

namespace dsplan {
namespace {

void read_axis(const Document& document, Axis axis, const Value& list, Diagnostics& faults, ListedSpace& into) {
  ListedAxis listed;
  listed.axis = axis;
  listed.place = place_at(document, list.offset);
  for (const Value& item : list.items) {
    const Place place = place_at(document, item.offset);
    if (item.is(Value::Kind::Integer)) {
      listed.values.push_back({std::to_string(item.integer), place});
    } else if (item.is(Value::Kind::String)) {
      listed.values.push_back({item.string, place});
    } else {
      faults.add(document.at(item.offset, formatted("a value of \"{}\" is a whole number or a word, not {}", name(axis),
                                                    describe(item.kind))));
    }
  }
  into.axes.push_back(std::move(listed));
}

}  // namespace

ListedSpace read_space(const Document& document) {
  expect_object(document, "a space");
  Diagnostics faults;
  ObjectReader reader(document, document.root, faults);
  (void)read_head(reader, "space");
  ListedSpace space;
  for (std::size_t i = 0; i < kAxes; ++i) {
    const Axis axis = static_cast<Axis>(i);
    if (const Value* list = reader.array(name(axis))) read_axis(document, axis, *list, faults, space);
  }
  constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
  if (const auto rows = reader.integer("global_batch", 1, kMostRows)) {
    space.global_batch = {*rows, place_at(document, reader.find("global_batch")->offset)};
  }
  reader.refuse_unread("a space");
  faults.throw_if_any();
  return space;
}

}  // namespace dsplan
