// What the page calls in the browser: commands of the program, one after another in one process. Results go to standard
// output and refusals to standard error, as ever; the page catches both (web/worker.js).
#include <emscripten.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "cli/commands.h"
#include "cli/emitting/emit_page.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/running/machine.h"

namespace {

// One word a line.
dsplan::Words words_of(std::string_view lines) {
  dsplan::Words words;
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    words.emplace_back(lines.substr(0, end));
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
  }
  return words;
}

// The files that come with the page, and nobody else's: a page asks no hub.
void set_up() {
  ::setenv("DSPLAN_DATA", "/data", 1);
  ::setenv("HF_HUB_OFFLINE", "1", 1);
}

// Recorded addresses have 64 bits, and the browser's memory has 32: what deals in them would be wrong here.
void refuse_addresses(const dsplan::Words& words) {
  const bool replays = !words.empty() && words.front() == "replay";
  const bool snapshot = std::find(words.begin(), words.end(), "snapshot") != words.end();
  if (replays || snapshot) {
    throw dsplan::Unavailable(
        "dsplan: recorded addresses do not fit into a browser; the program reads and writes them\n");
  }
}

}  // namespace

extern "C" {

// `dsplan WORDS...`. Returns the exit code.
EMSCRIPTEN_KEEPALIVE int dsplan_answer(const char* lines) {
  set_up();
  return dsplan::exit_code_of([lines] {
    const dsplan::Words words = words_of(lines);
    refuse_addresses(words);
    return dsplan::run(words);
  });
}

// The chart of the job that WORDS of `simulate` name, for the page of another job (src/report/page/page.js, turnTo).
EMSCRIPTEN_KEEPALIVE int dsplan_chart(const char* lines) {
  set_up();
  return dsplan::exit_code_of([lines] {
    dsplan::Output output("");
    output.add(dsplan::chart_of(dsplan::parse_simulate("simulate", words_of(lines))));
    output.finish();
    return dsplan::kDone;
  });
}
}
