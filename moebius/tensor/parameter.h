// The one table of parameters: names, shapes, owners, decay, and where each lies in the flat buffers of
// weights, gradients, masters and moments. Optimizer, norm and checkpoint ask only it.
//
// Life: declare (no memory) → place (flat buffers, views into them) → fill (from the seed, or from a
// checkpoint).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moebius/tensor/state.h"
#include "moebius/tensor/tensor.h"

namespace moebius {

enum class Owner { World, Expert };  // replicated over all ranks, or one part an expert-parallel rank
enum class Init { Zeros, Ones, Normal };

struct ParameterSpec {
    std::string name;  // global, unique: "layers.0.mlp.gate_up"
    Shape shape;       // global, row-major
    Owner owner = Owner::World;
    Init init = Init::Normal;
    double init_std = 0.02;
    int64_t zero_row = -1;  // this row starts at zero (the padding token of an embedding)
    bool decay = true;      // weight decay applies
};

struct Parameter {
    ParameterSpec spec;
    GlobalSlice slice;  // what this rank holds
    View value;         // of the model's dtype
    View main_grad;     // of the gradients' dtype; empty where nothing is trained
    View master, m, v;  // f32 (moments: the state dtype); master is value itself where that is f32
    View remainder;     // i16; with value it is the master (Masters::Remainders)
    // Set before place: value is f32 and its own master, whatever the others' dtype. Of parameters that
    // products read in a form made from them.
    bool wide = false;
    int64_t offset = 0;    // of the first element in the flat buffers
    uint64_t version = 1;  // counts updates of value
    bool fresh = true;     // no gradient was written in this step yet

    // What the next writer of main_grad multiplies the old contents by: 0 for the step's first, 1 afterwards.
    float take_fresh() {
        const float beta = fresh ? 0.0f : 1.0f;
        fresh = false;
        return beta;
    }
};

// How fp32 masters of bf16 values are kept. f32 values are their own masters.
enum class Masters {
    Float32,
    Remainders,  // the value, rounded half away from zero, and 16 bits: the same masters in half the memory
    None,        // values are updated in place and rounded
};

struct PlaceOptions {
    DType dtype = DType::F32;        // of values
    DType grad_dtype = DType::F32;   // of main_grad
    DType state_dtype = DType::F32;  // of moments
    Masters masters = Masters::Float32;
    bool train = true;            // gradients, masters, moments too
    bool gradients_only = false;  // with train: gradients without masters and moments
};

// What `place` allocates for a parameter.
int64_t bytes_per_parameter(const PlaceOptions& options);

// Contiguous elements of the flat buffers that share an owner and a decay group.
struct Segment {
    int64_t begin = 0, count = 0;
    Owner owner = Owner::World;
    bool decay = true;
    bool wide = false;  // Parameter::wide
};

class ParameterSet {
  public:
    // The pointer stays valid for the set's life. Aborts on a name that exists.
    Parameter* declare(ParameterSpec spec);
    void place(const PlaceOptions& options, const Exec& exec);
    // Initial values: element i of parameter p from (seed, p's name, i) alone.
    void fill(uint64_t seed, const Exec& exec);
    // Masters from values (after weights were loaded without an optimizer's state).
    void masters_from_values(const Exec& exec);

    void begin_step();  // every gradient is fresh
    void touch();  // values were, or are about to be, written by somebody else: every version counts one up
    void finish_gradients(const Exec& exec);  // a gradient that nothing wrote becomes zero

    const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
    Parameter* find(const std::string& name) const;  // null if there is none
    int64_t numel() const { return numel_; }
    std::vector<Segment> segments() const;
    const PlaceOptions& options() const { return options_; }
    // Flat buffers; empty where `place` made none. `masters` is `values` for f32, and empty where they are
    // held as remainders or not at all. Wide parameters come last, and `values` ends before them.
    View values() const { return values_; }
    View gradients() const { return gradients_; }
    View masters() const { return masters_; }
    View remainders() const { return remainders_; }
    View first_moments() const { return m_; }
    View second_moments() const { return v_; }

    // What a checkpoint holds: weights; with `optimizer`, masters (where there are some beside the weights)
    // and moments. Masters held as remainders set the weights too, so they are read after them.
    std::vector<StateEntry> state(bool optimizer) const;

  private:
    void fill_split(uint64_t seed, const Exec& exec);
    std::vector<Parameter*> in_order() const;  // of the flat buffers

    std::vector<std::unique_ptr<Parameter>> parameters_;
    PlaceOptions options_;
    int64_t numel_ = 0, narrow_ = 0;  // of all; before the wide ones
    Tensor values_, gradients_, masters_, remainders_, m_, v_;
};

}  // namespace moebius
