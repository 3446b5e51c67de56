// Python's door to the kernels. Arrays are borrowed for the length of a call; the GIL is released while computing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "cpu_features.h"
#include "limits.h"
#include "pack.h"
#include "program.h"
#include "rounding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace rooftree {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableIntTable = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<float> to_vector(const Floats& array) { return {array.data(), array.data() + array.size()}; }

std::vector<std::vector<float>> to_vectors(const std::vector<Floats>& arrays) {
    std::vector<std::vector<float>> result;
    for (const Floats& array : arrays) result.push_back(to_vector(array));
    return result;
}

void run(Program& program, MutableIntTable requests, IntTable tokens, IntTable blocks, Bytes sampling, Ints bias_ids,
         Floats bias_values, Ints banned_ids, MutableBytes results) {
    if (requests.shape(1) * sizeof(int32_t) != sizeof(StepRequest)) throw std::invalid_argument("requests need five columns");
    auto* steps = reinterpret_cast<StepRequest*>(requests.data());
    const size_t count = requests.shape(0);
    size_t samples = 0;
    for (size_t i = 0; i < count; i++) samples += steps[i].samples != 0;
    if (sampling.size() < samples * sizeof(SamplingRow) || results.size() < samples * sizeof(SampleResult))
        throw std::invalid_argument("one sampling row and one result per sampled request");
    const StepTables tables{tokens.data(), static_cast<int64_t>(tokens.shape(1)), blocks.data(), static_cast<int64_t>(blocks.shape(1))};
    const SamplingInputs inputs{bias_ids.data(), bias_values.data(), banned_ids.data()};
    nb::gil_scoped_release release;
    program.run(steps, static_cast<int>(count), tables, reinterpret_cast<const SamplingRow*>(sampling.data()), inputs,
                reinterpret_cast<SampleResult*>(results.data()));
}

void pack_rows(PackedMatrix& matrix, int64_t first, int format, Bytes stored, ThreadPool& pool, std::optional<FloatTable> scales,
               int64_t block_rows, int64_t block_columns, std::optional<std::string> isa) {
    const Format stored_format = static_cast<Format>(format);
    const int64_t row_bytes = stored_row_bytes(stored_format, matrix.k);
    const int64_t rows = row_bytes == 0 ? 0 : static_cast<int64_t>(stored.size()) / row_bytes;
    if (static_cast<int64_t>(stored.size()) != rows * row_bytes) throw std::invalid_argument("stored bytes must be whole rows");
    OuterScales outer;
    if (scales) {
        outer = {scales->data(), block_rows, block_columns, static_cast<int64_t>(scales->shape(1))};
        if (block_rows < 1 || block_columns < 1 || static_cast<int64_t>(scales->shape(0)) * block_rows < matrix.n ||
            outer.columns * block_columns < matrix.k)
            throw std::invalid_argument("the scales do not cover the matrix");
    }
    const RoundingLoops& rounding = rounding_for(isa.value_or(supported_isas().front()));
    nb::gil_scoped_release release;
    matrix.pack_rows(first, rows, {stored_format, stored.data(), outer}, rounding, pool);
}

void unpack_row(const PackedMatrix& matrix, int64_t row, MutableFloats out) {
    if (row < 0 || row >= matrix.n || static_cast<int64_t>(out.size()) != matrix.k) throw std::invalid_argument("no such row");
    matrix.unpack_row(row, out.data());
}

void copy_logits(const Program& program, MutableFloats out) {
    if (!program.logits()) throw std::invalid_argument("the program has no logits");
    std::memcpy(out.data(), program.logits(), out.size() * sizeof(float));
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Rooftree's native kernels and step programs.";
    m.attr("SAMPLING_ROW_BYTES") = sizeof(SamplingRow);
    m.attr("SAMPLE_RESULT_BYTES") = sizeof(SampleResult);
    m.attr("MAX_TOP_LOGPROBS") = kMaxTopLogprobs;
    m.attr("PARTITION") = kPartition;
    m.def("supported_isas", &supported_isas);
    m.def("multiplies_bf16", [](const std::string& isa) { return kernels_for(isa).round_panel != nullptr; }, "isa"_a);
    m.def("philox_uniform", &philox_uniform, "seed"_a, "counter"_a);
    m.def("tile_bytes", [](int format, int64_t k) { return tile_bytes(static_cast<Format>(format), k); }, "format"_a, "k"_a);
    m.def("quantised_row_bytes", &quantised_row_bytes, "k"_a);
    m.def("rounded_row_bytes", &rounded_row_bytes, "k"_a);

    const nb::call_guard<nb::gil_scoped_release> no_gil;
    m.def("read_rate", nb::overload_cast<const std::string&, const Processors&, size_t, int>(&read_rate), "isa"_a, "processors"_a,
          "num_bytes"_a, "tries"_a, no_gil);
    m.def("fp32_rate", &fp32_rate, "isa"_a, "processors"_a, "rounds"_a, "tries"_a, no_gil);
    m.def("int8_rates", &int8_rates, "isa"_a, "processors"_a, "rounds"_a, "tries"_a, no_gil);

    nb::class_<ThreadPool>(m, "ThreadPool").def(nb::init<int>(), "threads"_a).def_prop_ro("size", &ThreadPool::size);

    nb::class_<WeightMemory>(m, "WeightMemory")
        .def(nb::init<>())
        .def("read_rate", [](const WeightMemory& memory, const std::string& isa, const Processors& processors, size_t bytes, int tries) {
            return read_rate(isa, processors, memory.stretches(), bytes, tries);
        }, "isa"_a, "processors"_a, "num_bytes"_a, "tries"_a, no_gil);

    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def("__init__", [](PackedMatrix* self, int format, int64_t n, int64_t k, WeightMemory& memory) {
            new (self) PackedMatrix(static_cast<Format>(format), n, k, memory);
        }, "format"_a, "n"_a, "k"_a, "memory"_a)
        .def_prop_ro("tiles", [](nb::handle_t<PackedMatrix> self) {
            const PackedMatrix& matrix = nb::cast<const PackedMatrix&>(self);
            return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(matrix.place.data, {matrix.num_bytes()}, self);
        })
        .def_prop_ro("n", [](const PackedMatrix& p) { return p.n; })
        .def_prop_ro("k", [](const PackedMatrix& p) { return p.k; })
        .def_prop_ro("nbytes", &PackedMatrix::num_bytes)
        .def("pack_rows", &pack_rows, "first"_a, "format"_a, "stored"_a, "pool"_a, "scales"_a = nb::none(),
             "block_rows"_a = 1, "block_columns"_a = 1, "isa"_a = nb::none())
        .def("unpack_row", &unpack_row, "row"_a, "out"_a);

    nb::class_<KvCache>(m, "KvCache")
        .def("__init__", [](KvCache* self, int layers, int kv_heads, int head_dim, int block_size, int format, int64_t num_blocks) {
            new (self) KvCache(layers, kv_heads, head_dim, block_size, static_cast<KvFormat>(format), num_blocks);
        }, "layers"_a, "kv_heads"_a, "head_dim"_a, "block_size"_a, "format"_a, "num_blocks"_a)
        .def("fill", &KvCache::fill, nb::call_guard<nb::gil_scoped_release>())
        .def_static("bytes_per_block", [](int layers, int kv_heads, int head_dim, int block_size, int format) {
            return KvCache::bytes_per_block(layers, kv_heads, head_dim, block_size, static_cast<KvFormat>(format));
        }, "layers"_a, "kv_heads"_a, "head_dim"_a, "block_size"_a, "format"_a);

    using Matrix = Program::Matrix;
    nb::class_<Program>(m, "Program")
        .def(nb::init<std::shared_ptr<ThreadPool>, const std::string&, int, int>(), "pool"_a, "isa"_a, "max_tokens"_a, "max_samples"_a)
        .def_prop_ro("isa", &Program::isa)
        .def_prop_ro("current_op", &Program::current_op)
        .def_prop_ro("num_ops", &Program::num_ops)
        .def("add_value", &Program::add_value, "offset"_a, "row_bytes"_a, "per_sample"_a)
        .def("add_embed", &Program::add_embed, "table"_a, "out"_a)
        .def("add_rms_norm", [](Program& p, int in, Floats w, float eps, int f, int q, int r) {
            p.add_rms_norm(in, to_vector(w), eps, {f, q, r});
        }, "x"_a, "weight"_a, "eps"_a, "out_float"_a, "out_quantised"_a, "out_rounded"_a)
        .def("add_narrow", &Program::add_narrow, "x"_a, "k"_a, "out_quantised"_a, "out_rounded"_a)
        .def("add_linear", [](Program& p, int in, std::vector<Matrix> ms, std::vector<Floats> biases, int out, int64_t column, bool accumulate) {
            p.add_linear(in, std::move(ms), to_vectors(biases), out, column, accumulate);
        }, "x"_a, "matrices"_a, "biases"_a, "out"_a, "column"_a, "accumulate"_a)
        .def("add_gated", [](Program& p, int gate_in, int up_in, Matrix gate, Matrix up, Floats gb, Floats ub, int f, int q, int r) {
            p.add_gated(gate_in, up_in, std::move(gate), std::move(up), to_vector(gb), to_vector(ub), {f, q, r});
        }, "gate_x"_a, "up_x"_a, "gate"_a, "up"_a, "gate_bias"_a, "up_bias"_a, "out_float"_a, "out_quantised"_a, "out_rounded"_a)
        .def("set_heads", [](Program& p, int heads, int kv_heads, int head_dim, Floats cos, Floats sin) {
            p.set_heads(heads, kv_heads, head_dim, to_vector(cos), to_vector(sin));
        }, "heads"_a, "kv_heads"_a, "head_dim"_a, "cos"_a, "sin"_a)
        .def("add_rope_and_cache", [](Program& p, int qkv, int layer, Floats qn, Floats kn, float eps) {
            p.add_rope_and_cache(qkv, layer, to_vector(qn), to_vector(kn), eps);
        }, "qkv"_a, "layer"_a, "q_norm"_a, "k_norm"_a, "eps"_a)
        .def("add_attention", &Program::add_attention, "qkv"_a, "layer"_a, "window"_a, "out"_a)
        .def("add_select", &Program::add_select, "x"_a, "out"_a)
        .def("add_sample", &Program::add_sample, "logits"_a, "vocab"_a)
        .def("set_kv_cache", &Program::set_kv_cache, "cache"_a)
        .def("finish", &Program::finish, "arena_bytes"_a)
        .def("run", &run, "requests"_a, "tokens"_a, "blocks"_a, "sampling"_a, "bias_ids"_a, "bias_values"_a, "banned_ids"_a, "results"_a)
        .def("copy_logits", &copy_logits, "out"_a);
}

}  // namespace rooftree
