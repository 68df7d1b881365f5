#include "bind/handles.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "base/process_id.h"
#include "base/row_chunks.h"
#include "bind/bind.h"
#include "bind/released_gil.h"
#include "quant/superblock.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// A copy of the weights as superblocks, in memory of `arena`. Raises ValueError for formats and
/// widths without superblocks.
MatrixHandle Repack(TeamHandle& team, const MatrixHandle& matrix, Arena& arena) {
  const MatrixView& source = WholeView(team, matrix);
  if (!CanRepack(source.format, source.columns)) {
    throw nb::value_error(("no superblocks for rows of " + std::to_string(source.columns) +
                           " weights in " + std::string(InfoOf(source.format).name))
                              .c_str());
  }
  ArenaBlock block = arena.Allocate(static_cast<std::size_t>(source.NumBytes()));
  MatrixView packed = source;
  packed.format = SuperblockFormat(source.format);
  packed.data = block.data;
  packed.row_bytes = RowBytes(packed.format, packed.columns);
  team.Run([&](const OpContext& context) {
    ForEachRow(context.team, source.rows, source.columns, [&](std::int64_t row) {
      RepackToSuperblocks(source.format, source.Row(row), 1, source.columns,
                          block.data + row * packed.row_bytes);
    });
  });
  return {std::move(block), packed};
}

Format CacheFormat(const std::string& name) {
  const Format format = FormatByName(name);
  if (format == Format::kF16 || format == Format::kQ8_0) return format;
  throw nb::value_error(("a KV cache is f16 or q8_0, not " + name).c_str());
}

const KernelTable& KernelsByName(const std::string& name) {
  const KernelTable* found = FindKernels(name);
  if (found != nullptr) return *found;
  std::string known;
  for (const KernelTable* table : AvailableKernels()) known += " " + std::string(table->name);
  const std::string message = "no kernels named '" + name + "' on this machine; there are:" + known;
  throw nb::value_error(message.c_str());
}

/// A new team.
std::shared_ptr<SharedTeam> StartTeam(std::int32_t num_threads, const KernelTable& kernels) {
  return std::make_shared<SharedTeam>(num_threads, kernels);
}

/// The team of this process that others joined with the same arguments, or a new one.
std::shared_ptr<SharedTeam> JoinTeam(std::int32_t num_threads, const KernelTable& kernels) {
  // A forked child has no threads of its parent's teams.
  using Key = std::tuple<std::int64_t, std::int32_t, const KernelTable*>;
  static std::map<Key, std::weak_ptr<SharedTeam>> teams;  // used with the GIL held only
  std::weak_ptr<SharedTeam>& known = teams[Key{ProcessId(), num_threads, &kernels}];
  std::shared_ptr<SharedTeam> team = known.lock();
  if (team == nullptr) known = team = StartTeam(num_threads, kernels);
  return team;
}

void BindMatrix(nb::module_& module) {
  nb::class_<MatrixHandle>(module, "Matrix")
      .def(nb::init<Array<const std::uint8_t, 1>, const std::string&, std::int64_t, std::int64_t>(),
           "data"_a.noconvert(), "format_name"_a, "rows"_a, "columns"_a)
      .def_prop_ro("rows", [](const MatrixHandle& m) { return m.view.rows; })
      .def_prop_ro("columns", [](const MatrixHandle& m) { return m.view.columns; })
      .def_prop_ro("nbytes", [](const MatrixHandle& m) { return m.view.NumBytes(); })
      .def_prop_ro("format",
                   [](const MatrixHandle& m) { return std::string(InfoOf(m.view.format).name); });
  nb::class_<Arena>(module, "Arena").def(nb::init<>());
  module.def("repack", &Repack, "team"_a, "matrix"_a, "arena"_a);
  module.def(
      "can_repack",
      [](const std::string& format_name, std::int64_t columns) {
        return CanRepack(FormatByName(format_name), columns);
      },
      "format_name"_a, "columns"_a);
}

void BindKVLayer(nb::module_& module) {
  nb::class_<KVCache>(module, "KVLayer")
      .def(
          "__init__",
          [](KVCache* self, std::int64_t num_blocks, std::int64_t block_size,
             std::int64_t num_kv_heads, std::int64_t head_dim, const std::string& format) {
            const KVShape shape{num_blocks, block_size, num_kv_heads, head_dim};
            new (self) KVCache(shape, CacheFormat(format));
          },
          "num_blocks"_a, "block_size"_a, "num_kv_heads"_a, "head_dim"_a, "format_name"_a)
      .def_prop_ro("head_dim", [](const KVCache& c) { return c.Shape().head_dim; })
      .def_prop_ro("num_kv_heads", [](const KVCache& c) { return c.Shape().num_kv_heads; })
      .def_prop_ro("nbytes", &KVCache::NumBytes)
      .def(
          "copy_block",
          [](const KVCache& self, std::int64_t source, std::int64_t target) {
            const ReleasedGil released;
            self.CopyBlock(source, target);
          },
          "source"_a, "target"_a);
}

}  // namespace

const MatrixView& WholeView(TeamHandle& team, const MatrixHandle& matrix) {
  if (matrix.lazy != nullptr && !matrix.lazy->IsFull()) {
    const ReleasedGil released;
    team.shared.Run([&](const OpContext& context) { matrix.lazy->FillAll(context); });
  }
  return matrix.view;
}

Format FormatByName(const std::string& name) {
  for (std::size_t i = 0; i < kFormatInfo.size(); ++i) {
    if (kFormatInfo[i].name == name) return static_cast<Format>(i);
  }
  throw nb::value_error(("there are no kernels for the format '" + name + "'").c_str());
}

TeamHandle::TeamHandle(std::int32_t num_threads, const std::optional<std::string>& kernels,
                       bool joins)
    : owner((joins ? JoinTeam : StartTeam)(
          num_threads, kernels ? KernelsByName(*kernels) : *AvailableKernels().front())),
      shared(*owner) {}

VectorHandle::VectorHandle(Array<const float, 1> values) : array(std::move(values)) {}

const float* VectorHandle::Checked(const char* what, const VectorHandle* vector,
                                   std::int64_t length) {
  if (vector == nullptr) return nullptr;
  if (vector->Length() != length) {
    RaiseShapeError(std::string(what) + " has " + std::to_string(vector->Length()) +
                    " entries, must have " + std::to_string(length));
  }
  return vector->Data();
}

MatrixHandle::MatrixHandle(Array<const std::uint8_t, 1> data, const std::string& format,
                           std::int64_t rows, std::int64_t columns)
    : owner(nb::find(data).release().ptr()), array(std::move(data)) {
  const Format id = FormatByName(format);
  const FormatInfo& info = InfoOf(id);
  if (rows < 1 || columns < 1 || columns % info.block_size != 0) {
    RaiseShapeError("a " + format + " matrix needs rows and a multiple of " +
                    std::to_string(info.block_size) + " columns, got [" + std::to_string(rows) +
                    ", " + std::to_string(columns) + "]");
  }
  // Compared block by block first and then by division: products of hostile sizes may not fit.
  const std::int64_t size = Size(array, 0);
  const bool is_too_long = columns / info.block_size > size;
  const std::int64_t row_bytes = is_too_long ? 1 : RowBytes(id, columns);
  if (is_too_long || size % row_bytes != 0 || size / row_bytes != rows) {
    RaiseShapeError("[" + std::to_string(rows) + ", " + std::to_string(columns) + "] in " + format +
                    " does not fit " + std::to_string(size) + " bytes");
  }
  view = {id, array.data(), rows, columns, row_bytes};
}

RopeHandle::RopeHandle(Array<const float, 2> cos, Array<const float, 2> sin, bool is_interleaved)
    : cos_array(std::move(cos)), sin_array(std::move(sin)) {
  CheckShape("sin", Size(sin_array, 0), Size(sin_array, 1), Size(cos_array, 0), Size(cos_array, 1));
  view = {cos_array.data(), sin_array.data(), Size(cos_array, 0), Size(cos_array, 1),
          is_interleaved};
}

BatchHandle::BatchHandle(Array<const std::int32_t, 1> positions,
                         Array<const std::int32_t, 1> sequences,
                         Array<const std::int32_t, 2> block_tables, RowMarks is_prompt)
    : positions_array(std::move(positions)),
      sequences_array(std::move(sequences)),
      tables_array(std::move(block_tables)),
      marks_array(std::move(is_prompt)) {
  if (Size(sequences_array, 0) != Size(positions_array, 0)) {
    RaiseShapeError("a batch has " + std::to_string(Size(positions_array, 0)) + " positions and " +
                    std::to_string(Size(sequences_array, 0)) + " sequences");
  }
  view = {positions_array.data(),
          sequences_array.data(),
          tables_array.data(),
          Size(positions_array, 0),
          Size(tables_array, 0),
          Size(tables_array, 1),
          CheckedMarks(marks_array, Size(positions_array, 0))};
}

void BatchHandle::SetStates(Array<const std::int32_t, 1> sources,
                            Array<const std::int32_t, 1> targets) {
  for (const auto* slots : {&sources, &targets}) {
    if (Size(*slots, 0) == view.num_sequences) continue;
    RaiseShapeError("a batch of " + std::to_string(view.num_sequences) + " sequences names " +
                    std::to_string(Size(*slots, 0)) + " slots of states, must name one each");
  }
  sources_array = std::move(sources);
  targets_array = std::move(targets);
  view.state_sources = sources_array.data();
  view.state_targets = targets_array.data();
}

void BindHandles(nb::module_& module) {
  nb::class_<TeamHandle>(module, "ThreadTeam")
      .def(nb::init<std::int32_t, const std::optional<std::string>&, bool>(), "num_threads"_a,
           "kernels"_a.none() = nb::none(), "joins"_a = false)
      .def_prop_ro("num_threads", [](const TeamHandle& t) { return t.shared.NumThreads(); })
      .def_prop_ro("kernels",
                   [](const TeamHandle& t) { return std::string(t.shared.Kernels().name); })
      .def_prop_ro("busy_s", [](const TeamHandle& t) { return t.shared.BusySeconds(); })
      .def(
          "pin",
          [](TeamHandle& t, const std::vector<std::int32_t>& cpus) {
            const ReleasedGil released;
            return t.shared.Pin(cpus);
          },
          "cpus"_a)
      .def("spoil_record", &TeamHandle::Spoil)
      .def("unpin", [](TeamHandle& t) {
        const ReleasedGil released;
        t.shared.Unpin();
      });
  nb::class_<VectorHandle>(module, "Vector")
      .def(nb::init<Array<const float, 1>>(), "values"_a.noconvert())
      .def("__len__", &VectorHandle::Length)
      .def_prop_ro("values", [](const VectorHandle& v) { return v.array; });
  BindMatrix(module);
  BindKVLayer(module);
  nb::class_<RopeHandle>(module, "RopeTable")
      .def(nb::init<Array<const float, 2>, Array<const float, 2>, bool>(), "cos"_a.noconvert(),
           "sin"_a.noconvert(), "is_interleaved"_a);
  nb::class_<BatchHandle>(module, "Batch")
      .def(nb::init<Array<const std::int32_t, 1>, Array<const std::int32_t, 1>,
                    Array<const std::int32_t, 2>, RowMarks>(),
           "positions"_a.noconvert(), "sequences"_a.noconvert(), "block_tables"_a.noconvert(),
           "is_prompt"_a.noconvert() = nb::none())
      .def("set_states", &BatchHandle::SetStates, "sources"_a.noconvert(), "targets"_a.noconvert());
}

}  // namespace powerinfer
