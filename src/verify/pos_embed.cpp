// Positional tables: pos.<width>_<grid>, and pos.<width>_<grid>.f64 where the file has it.
#include <charconv>
#include <optional>

#include "ditrain/base/error.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

struct TableSize {
  int64_t width, grid;
};

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

TableSize parse_name(const std::string& name) {
  const std::string_view sizes = std::string_view(name).substr(std::string_view("pos.").size());
  const size_t cut = sizes.find('_');
  const auto width = number(sizes.substr(0, cut));
  const auto grid = cut == sizes.npos ? std::nullopt : number(sizes.substr(cut + 1));
  const bool possible =
      width && grid && *width >= 4 && *width <= 65536 && *width % 4 == 0 && *grid >= 1 && *grid <= 1024;
  if (!possible)
    throw InputError({.where = "pos_embed", .what = "no sizes in the name", .got = name, .expected = "pos.384_16"});
  return {*width, *grid};
}

}  // namespace

void verify_pos_embed(Verification& v) {
  for (const std::string& name : v.names()) {
    if (!name.starts_with("pos.") || name.ends_with(".f64")) continue;
    const TableSize size = parse_name(name);
    const Shape shape{size.grid * size.grid, size.width};
    v.f64(name, shape);  // the file's shape bounds what is allocated next
    const auto table = nn::sincos_position_table(size.width, size.grid, size.grid);
    v.check(name, shape, to_f64(table), kTableTolerance, Per::unit());
    if (v.has(name + ".f64")) v.check(name + ".f64", shape, to_f64(table), kTableTolerance, Per::unit());
  }
}

}  // namespace ditrain::verify
