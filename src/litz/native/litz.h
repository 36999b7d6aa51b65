// Runs packages that `litz.package` wrote, without Python and without Litz: programs with a plan for
// the native executor, on CPUs and CUDA GPUs.  Link with PyTorch's libraries (libtorch_cpu, libc10; for
// GPUs libtorch_cuda too); its headers are not needed.  See docs/packages.md.
#ifndef LITZ_H
#define LITZ_H

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct AtenTensorOpaque;  // an at::Tensor, as PyTorch's C functions take it

namespace litz {

// What a package cannot be loaded for, or a call refused; the text says what to do.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A tensor; copies of it are the same tensor.
class Tensor {
public:
    Tensor() = default;
    // Takes over a new at::Tensor: `Tensor(reinterpret_cast<AtenTensorOpaque*>(new at::Tensor(t)))`.
    explicit Tensor(AtenTensorOpaque* owned);
    // A contiguous tensor over memory of the caller's, which outlives it.
    // dtype, device: PyTorch's names: "float32", "cuda:0".
    static Tensor over(void* data, const std::vector<int64_t>& shape, const std::string& dtype,
                       const std::string& device = "cpu");
    // Itself where it lies on that device, else a copy there.
    Tensor to(const std::string& device) const;

    explicit operator bool() const { return (bool)handle_; }
    AtenTensorOpaque* get() const { return handle_.get(); }
    std::vector<int64_t> shape() const;
    std::vector<int64_t> strides() const;  // in elements
    int32_t dtype() const;                 // at::ScalarType
    void* data() const;                    // of the first element

private:
    std::shared_ptr<AtenTensorOpaque> handle_;
};

// An argument or a result: a leaf of the structures that the module took and gave.
struct Value {
    enum Kind { None, IsTensor, Int, Float, Bool, Text } kind = None;
    Tensor tensor;
    int64_t number = 0;  // of Int and Bool
    double real = 0;
    std::string text;

    Value() = default;
    Value(Tensor t) : kind(IsTensor), tensor(std::move(t)) {}
    Value(int64_t n) : kind(Int), number(n) {}
};

// A loaded package.  Many threads may call it at once.
class Program {
public:
    // check: compare the SHA-256 of the constants too.
    explicit Program(const std::string& path, bool check = true);
    ~Program();

    // The results for the inputs, both in the order of the exported structures' leaves.
    std::vector<Value> operator()(const std::vector<Value>& inputs) const;

    std::vector<std::string> inputs() const;     // names
    std::vector<std::string> devices() const;    // of the inputs; "" of what is no tensor
    std::vector<std::string> constants() const;  // full names
    const std::string& target() const;           // the instruction set in use

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace litz

#endif
