// No test asks the network but the hub's own, which has a server on the loopback.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  ::setenv("HF_HOME", "/nowhere", 1);  // Where somebody may have left models, and a configuration of accelerate.
  return doctest::Context(argc, argv).run();
}
