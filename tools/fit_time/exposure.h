// What a clock over the schedule leaves of collectives beside computation, held against the formula's overlap: the
// figures of docs/decisions/0024.
#pragma once

#include <vector>

#include "time_rows.h"

void report_exposure(const std::vector<time_rows::Case>& cases);
