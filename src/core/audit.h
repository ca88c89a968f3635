// The naive auditor: reads a schedule event by event and says what is illegal. It knows buffers, contents, releases,
// collectives and markers; it does not know models, autograd or ZeRO, and shares no code with the lowering, so that
// what it accepts was accepted twice.
//
// Judged by `audit`:
//   buffers      allocated once, released at most once, touched only in between; survivors are exactly the unreleased,
//                ascending; accesses lie inside; the largest extent touched is the size, except for capacities; sizes
//                and offsets are multiples of the dtype
//   contents     made once, the writes of one work apart; a read finds exactly what it expects; every byte that a
//                compute made is read before it is overwritten or released. Except: scratch; padding in flat buffers
//                that survive; copies of what other ranks sent; gathered parameters (modules are gathered whole); what
//                an early stop leaves behind
//   releases     directly after their cause, with only releases in between (core/schedule.h, Release)
//   collectives  payload against bytes read and written; dtype of the buffers; a group of more than one rank; within
//                one buffer in place, or the share where this rank's share lies
//   streams      a read comes after what made it, a write after all that read and made what it overwrites: on the same
//                stream, or by waits for events that were recorded before; the first use
//                of a buffer after all that the allocating stream was given before; a buffer is released on the stream
//                it was allocated on (its memory is not used again before other streams are done: core/schedule.h)
//   modules      entered and left in pairs, properly nested; abandoned only in recomputation; each work carries the
//                innermost module and its pass; marks of the loop lie outside modules
//   promises     what each step must update, and what survivors must hold after the last event
// Judged by `audit_ranks`: ranks are distinct and of one world, and their collectives match one by one.
//
// NOT judged:
//   - what work means: whether a compute reads all that its operator needs and the right part of a flat tensor, whether
//     sizes are those of the operator (the catalogue and its witnesses), whether a capacity is the configured one;
//   - when an allocation is made, as long as it precedes the first touch; the order of adjacent releases;
//   - contents that a collective made and nobody reads (other ranks' shares): `audit_ranks` sees the collective, but a
//     collective that all ranks lack is missed by both;
//   - labels, roles, spaces, the numbering of micro-batches and the order of the loop's marks;
//   - waits on which nothing but the end of frees depends; the stream that survivors were allocated on;
//   - whether a promise was forgotten by who lays out the trained parameters;
//   - where inside a promised range a step writes: only the sum of bytes is compared.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/schedule.h"

namespace dsplan {

struct Finding {
  std::size_t event = 0;  // Index into Schedule::events; their number for what is wrong with the whole.
  std::string text;
};
inline constexpr std::size_t kMostFindings = 20;

// Findings in order of events; stops after `most`. Empty: legal. Accepts any schedule, however broken, as long as its
// spans lie in its pool of accesses (else that is the finding).
[[nodiscard]] std::vector<Finding> audit(const Schedule& schedule, std::size_t most = kMostFindings);

// Schedules of some or all data-parallel ranks of one job, in any order; each is compared with the first. Does not
// audit them one by one.
[[nodiscard]] std::vector<Finding> audit_ranks(std::span<const Schedule> ranks, std::size_t most = kMostFindings);

}  // namespace dsplan
