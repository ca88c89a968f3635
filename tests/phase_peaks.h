// The peaks of each phase of a predicted run, as the programs on the dry device write them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dsplan::test {

// "1.forward", "2.step", ...: requested, allocated and reserved. `prediction` is what `simulate --format json` printed;
// where outputs are released is part of backward.
std::map<std::string, std::vector<std::int64_t>> peaks_of(const std::string& prediction);

}  // namespace dsplan::test
