#include "io/png.h"

#include <dlfcn.h>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

// A program's own library, which stays loaded.
class Loaded {
 public:
  explicit Loaded(const char* name) : name_(name), library_(::dlopen(name, RTLD_NOW | RTLD_GLOBAL)) {
    if (library_ == nullptr) {
      throw Refusal("--format png", formatted("{} cannot be loaded, and it draws the pixels", name),
                    "install librsvg (librsvg2-2), or write --format svg");
    }
  }
  template <class Function>
  Function* find(const char* symbol) const {
    auto* found = reinterpret_cast<Function*>(::dlsym(library_, symbol));
    if (found == nullptr) throw Refusal("--format png", formatted("{} has no {}", name_, symbol), "write --format svg");
    return found;
  }

 private:
  const char* name_;
  void* library_;
};

// The numbers of cairo.h, which its interface fixes for good.
constexpr int kArgb32 = 0;
constexpr int kSuccess = 0;

struct Rectangle {
  double x, y, width, height;
};

int append(void* into, const unsigned char* data, unsigned size) {
  static_cast<std::string*>(into)->append(reinterpret_cast<const char*>(data), size);
  return kSuccess;
}

}  // namespace

std::string png_of(const std::string& svg) {
  const Loaded rsvg("librsvg-2.so.2");
  const Loaded cairo("libcairo.so.2");
  auto* read = rsvg.find<void*(const unsigned char*, std::size_t, void*)>("rsvg_handle_new_from_data");
  auto* size = rsvg.find<int(void*, double*, double*)>("rsvg_handle_get_intrinsic_size_in_pixels");
  auto* draw = rsvg.find<int(void*, void*, const Rectangle*, void*)>("rsvg_handle_render_document");
  auto* surface_of = cairo.find<void*(int, int, int)>("cairo_image_surface_create");
  auto* begin = cairo.find<void*(void*)>("cairo_create");
  auto* write = cairo.find<int(void*, int (*)(void*, const unsigned char*, unsigned), void*)>(
      "cairo_surface_write_to_png_stream");
  auto* end = cairo.find<void(void*)>("cairo_destroy");
  auto* drop = cairo.find<void(void*)>("cairo_surface_destroy");
  auto* forget = rsvg.find<void(void*)>("g_object_unref");
  void* handle = read(reinterpret_cast<const unsigned char*>(svg.data()), svg.size(), nullptr);
  if (handle == nullptr) throw Refusal("--format png", "librsvg does not read the picture", "write --format svg");
  Rectangle whole{0, 0, 0, 0};
  std::string png;
  bool good = size(handle, &whole.width, &whole.height) != 0;
  if (good) {
    void* surface = surface_of(kArgb32, static_cast<int>(whole.width), static_cast<int>(whole.height));
    void* context = begin(surface);
    good = draw(handle, context, &whole, nullptr) != 0;
    end(context);
    good = good && write(surface, append, &png) == kSuccess;
    drop(surface);
  }
  forget(handle);
  if (!good) throw Refusal("--format png", "librsvg does not draw the picture", "write --format svg");
  return png;
}

}  // namespace dsplan
