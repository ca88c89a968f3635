#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/format.h"
#include "io/safetensors.h"

using namespace dsplan;

namespace {

// A folder of files that is gone when the test ends.
struct Folder {
  std::string path;
  Folder()
      : path((std::filesystem::temp_directory_path() / dsplan::formatted("dsplan-safetensors-{}", ::getpid()))
                 .string()) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directory(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string whole = path + "/" + name;
    std::FILE* file = std::fopen(whole.c_str(), "wb");
    REQUIRE(file != nullptr);
    REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    std::fclose(file);
    return whole;
  }
};

std::string little_endian(std::uint64_t number) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xFF);
  return bytes;
}

std::string packed(const std::string& header, std::size_t data) {
  return little_endian(header.size()) + header + std::string(data, '\0');
}

std::string tensor(const std::string& dtype, const std::string& shape, int begin, int end) {
  return dsplan::formatted(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", dtype, shape, begin, end);
}

std::string first_message(const std::vector<std::string>& paths) {
  try {
    return dsplan::formatted("{} tensors", read_safetensors(paths).size());
  } catch (const Refusal& refused) {
    return refused.diagnostics().front().message;
  }
}

}  // namespace

TEST_CASE("a header gives names, types and shapes in the order of the data") {
  const Folder folder;
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":)" + tensor("BF16", "[1,2,3,1,2]", 8, 32) +
                             R"(,"a":)" + tensor("F32", "[2]", 0, 8) + R"(,"s":)" + tensor("I64", "[]", 32, 40) +
                             R"(,"z":)" + tensor("F64", "[0,9223372036854775807]", 40, 40) + R"(,"q":)" +
                             tensor("F4", "[4]", 40, 42) + "}   ";
  const std::string path = folder.write("model.safetensors", packed(header, 42));
  const std::vector<TensorHeader> tensors = read_safetensors_file(path);
  REQUIRE(tensors.size() == 5);
  CHECK(tensors[0].name == "a");
  CHECK(tensors[0].dtype == "F32");
  CHECK(tensors[0].shape == std::vector<std::int64_t>{2});
  CHECK(tensors[0].file == path);
  CHECK(tensors[1].shape == std::vector<std::int64_t>{1, 2, 3, 1, 2});
  CHECK(tensors[1].bytes == 24);
  CHECK(tensors[2].shape.empty());
  CHECK(tensors[3].bytes == 0);
  CHECK(tensors[4].bytes == 2);
}

TEST_CASE("safetensors faults") {
  struct Row {
    std::string bytes;
    std::string message;
  };
  const Row rows[] = {
      {"1234567", "too short for a safetensors file"},
      {little_endian(100'000'001) + "{}", "its header claims 100000001 bytes; safetensors allows 100000000"},
      {little_endian(~std::uint64_t{0}) + "{}",
       "its header claims 18446744073709551615 bytes; safetensors allows 100000000"},
      {little_endian(3) + "{}", "its header claims 3 bytes, but only 2 follow"},
      {packed("", 0), "the file is empty"},
      {packed("[]", 0), "a safetensors header must be an object"},
      {packed("{", 0), "the file ends inside the object opened on line 1"},
      {packed("{}", 0), "0 tensors"},
      {packed("{}", 1), "1 bytes follow the data of the last tensor"},
      {packed(R"({"a":1})", 0), "tensor \"a\" must be an object"},
      {packed(R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4), "\"dtype\" is missing"},
      {packed(R"({"a":{"dtype":1,"shape":[],"data_offsets":[0,4]}})", 4), "\"dtype\" must be a string, not an integer"},
      {packed(R"({"a":)" + tensor("F31", "[]", 0, 4) + "}", 4), "unknown safetensors type \"F31\""},
      {packed(R"({"a":)" + tensor("F32", "[-1]", 0, 4) + "}", 4),
       "a dimension must be an integer of 63 bits, not negative"},
      {packed(R"({"a":)" + tensor("F32", "[1.0]", 0, 4) + "}", 4),
       "a dimension must be an integer of 63 bits, not negative"},
      {packed(R"({"a":)" + tensor("F32", "[18446744073709551616]", 0, 4) + "}", 4),
       "a dimension must be an integer of 63 bits, not negative"},
      {packed(R"({"a":)" + tensor("F32", "[4611686018427387904,4]", 0, 4) + "}", 4),
       "the tensor's size overflows, or is not whole bytes"},
      {packed(R"({"a":)" + tensor("F4", "[3]", 0, 2) + "}", 2), "the tensor's size overflows, or is not whole bytes"},
      {packed(R"({"a":)" + tensor("F32", "[2]", 0, 4) + "}", 4), "4 bytes of data, but type and shape make 8"},
      {packed(R"({"a":)" + tensor("F32", "[1]", 4, 0) + "}", 4),
       "data offsets must ascend and lie within the file's 4 bytes of data"},
      {packed(R"({"a":)" + tensor("F32", "[2]", 0, 8) + "}", 4),
       "data offsets must ascend and lie within the file's 4 bytes of data"},
      {packed(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4), "\"data_offsets\" must be [begin, end]"},
      {packed(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"shap":1}})", 4),
       "unknown key \"shap\" in a tensor"},
      {packed(R"({"a":)" + tensor("F32", "[1]", 0, 4) + R"(,"b":)" + tensor("F32", "[1]", 0, 4) + "}", 4),
       "data of \"b\" starts at 0, but the data before it ends at 4"},
      {packed(R"({"a":)" + tensor("F32", "[1]", 0, 4) + R"(,"b":)" + tensor("F32", "[1]", 8, 12) + "}", 12),
       "data of \"b\" starts at 8, but the data before it ends at 4"},
      {packed(R"({"a":)" + tensor("F32", "[1]", 0, 4) + R"(,"a":)" + tensor("F32", "[1]", 4, 8) + "}", 8),
       "duplicate key \"a\""},
      {packed(R"({"__metadata__":{"a":1}})", 0), "\"__metadata__\" must be an object of strings"},
  };
  const Folder folder;
  for (const Row& row : rows) CHECK(first_message({folder.write("x.safetensors", row.bytes)}) == row.message);
  CHECK(first_message({folder.path + "/none.safetensors"}) == "no such file");
}

TEST_CASE("a fault in a header points at its place") {
  const Folder folder;
  const std::string path =
      folder.write("x.safetensors", packed(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4));
  try {
    (void)read_safetensors_file(path);
    FAIL("accepted");
  } catch (const Refusal& refused) {
    CHECK(std::string(refused.what()) ==
          path +
              ":1:48: error: 4 bytes of data, but type and shape make 8\n"
              "    1 | {\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}\n"
              "      |                                                ^\n");
  }
}

TEST_CASE("shards and their index") {
  const Folder folder;
  const auto one = [&](const std::string& file, const std::string& name) {
    return folder.write(file, packed("{\"" + name + "\":" + tensor("F32", "[1]", 0, 4) + "}", 4));
  };
  const std::string first = one("model-00001-of-00002.safetensors", "a");
  const std::string second = one("model-00002-of-00002.safetensors", "b");
  CHECK(safetensors_files(folder.path) == std::vector<std::string>{first, second});
  CHECK(first_message({first, second}) == "2 tensors");
  CHECK(first_message({first, first}) == "tensor \"a\" is in " + first + " too");

  const auto index = [&](const std::string& map) {
    return folder.write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
  };
  const std::string good = R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})";
  const std::string path = index(good);
  CHECK(safetensors_files(folder.path) == std::vector<std::string>{path});
  CHECK(first_message({path}) == "2 tensors");

  const std::pair<std::string, std::string> rows[] = {
      {R"({"a":"model-00001-of-00002.safetensors","b":"gone.safetensors"})", "no such file, but " + path + " names it"},
      {R"({"a":"model-00001-of-00002.safetensors","c":"model-00001-of-00002.safetensors"})",
       "tensor \"c\" is not in \"model-00001-of-00002.safetensors\""},
      {R"({"c":"model-00002-of-00002.safetensors"})", "tensor \"b\" is not in the index's weight_map for this file"},
      {R"({"a":"../model-00001-of-00002.safetensors"})", "must name a .safetensors file beside the index"},
      {R"({"a":"config.json"})", "must name a .safetensors file beside the index"},
      {R"({"a":1})", "must name a .safetensors file beside the index"},
      {"[]", "\"weight_map\" must be an object of file names"},
  };
  for (const auto& [map, message] : rows) CHECK(first_message({index(map)}) == message);
}
