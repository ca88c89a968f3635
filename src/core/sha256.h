// SHA-256 (FIPS 180-4), for fingerprints. Sixty lines of our own rather than a cryptographic library: nothing here is
// secret, and start-up time counts.
#pragma once

#include <string>
#include <string_view>

namespace dsplan {

// 64 lower-case hexadecimal digits.
[[nodiscard]] std::string sha256(std::string_view data);

}  // namespace dsplan
