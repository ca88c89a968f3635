// Text and numbers as one field of a table: what the writers of CSV and of Markdown share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsplan::detail {

// A field of CSV, in quotes only where it must be (RFC 4180).
[[nodiscard]] std::string quoted(const std::string& text);

// A cell of a Markdown table: it must neither end the cell nor become a tag.
[[nodiscard]] std::string cell(std::string_view text);

// "+1,234", "-1,234", "0".
[[nodiscard]] std::string signed_number(std::int64_t value);

// "+1.50 GiB", "-512 B".
[[nodiscard]] std::string signed_size(std::int64_t bytes);

// "first step" of "first_step": a name in JSON as people read it.
[[nodiscard]] std::string spaced(std::string_view name);

}  // namespace dsplan::detail
