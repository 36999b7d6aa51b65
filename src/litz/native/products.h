// Products of matrices as they were tuned when the package was made: by cuBLASLt, which PyTorch has
// loaded, or by ATen.  As runtime/products.py and runtime/cublaslt.py do it in Python.
#ifndef LITZ_PRODUCTS_H
#define LITZ_PRODUCTS_H

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "cuda.h"
#include "reading.h"
#include "torch.h"

extern "C" __attribute__((weak)) int32_t torch_new_string_handle(const char*, size_t, void**);

namespace litz {

enum Role { LEFT, RIGHT, ADDED, OUT, AUX, LEFT_SCALE, RIGHT_SCALE, ROLES };

// out = epilogue(alpha * left @ right + beta * added); a role without a tensor is not there.
struct Product {
    std::array<Tensor, ROLES> of;
    double alpha = 1, beta = 1;
    bool fast = false;
    std::string epilogue;
};

// What a problem is known by: how its operands lie, its numbers, its epilogue.
using Facts = std::pair<std::vector<i64>, std::string>;

inline void add_matrix(std::vector<i64>& to, i64 dtype, const std::vector<i64>& shape,
                       const std::vector<i64>& strides, i64 aligned) {
    to.insert(to.end(), {dtype, aligned, (i64)shape.size()});
    to.insert(to.end(), shape.begin(), shape.end());
    to.insert(to.end(), strides.begin(), strides.end());
}
inline void add_numbers(std::vector<i64>& to, double alpha, double beta, bool fast) {
    i64 bits[2];
    memcpy(bits, &alpha, sizeof alpha);
    memcpy(bits + 1, &beta, sizeof beta);
    to.insert(to.end(), {bits[0], bits[1], (i64)fast});
}
inline Facts facts(const Product& p) {
    Facts all{{}, p.epilogue};
    for (const Tensor& t : p.of) {
        i64 address = t ? (i64)t.data() : 0, aligned = address & -address;
        if (!t) all.first.push_back(-1);
        else add_matrix(all.first, t.dtype(), t.shape(), t.strides(), aligned && aligned < 256 ? aligned : 256);
    }
    add_numbers(all.first, p.alpha, p.beta, p.fast);
    return all;
}
inline Facts facts(const Json& p) {
    Facts all{{}, p["epilogue"].text};
    static const Json none;
    const Json &scales = p["scales"], *two = scales.kind == Json::List ? &scales : nullptr;
    for (const Json* j : {&p["left"], &p["right"], &p["added"], &p["out"], &p["aux"], two ? &(*two)[0] : &none,
                          two ? &(*two)[1] : &none}) {
        if (j->kind != Json::Object) all.first.push_back(-1);
        else add_matrix(all.first, dtype_code((*j)["dtype"].text), (*j)["shape"].integers(),
                        (*j)["strides"].integers(), (*j)["aligned"].integer());
    }
    add_numbers(all.first, p["alpha"].real, p["beta"].real, p["fast"].number);
    return all;
}

// --- cuBLASLt ----------------------------------------------------------------------------------

// Its functions; none where PyTorch has not loaded this version.
struct Lt {
    size_t (*version)();
    int (*create)(void**);
    int (*destroy)(void*);
    int (*product)(void**, int, int);
    int (*set)(void*, int, const void*, size_t);
    int (*forget)(void*);
    int (*layout)(void**, int, uint64_t, uint64_t, i64);
    int (*set_layout)(void*, int, const void*, size_t);
    int (*forget_layout)(void*);
    int (*matmul)(void*, void*, const float*, const void*, void*, const void*, void*, const float*, const void*,
                  void*, void*, void*, const void*, void*, size_t, void*);

    static std::unique_ptr<Lt> open(size_t version) {
        std::string name = "libcublasLt.so." + std::to_string(version / 10000);
        void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
        std::unique_ptr<Lt> found(new Lt());
        void** at = (void**)found.get();
        for (const char* name :
             {"cublasLtGetVersion", "cublasLtCreate", "cublasLtDestroy", "cublasLtMatmulDescCreate",
              "cublasLtMatmulDescSetAttribute", "cublasLtMatmulDescDestroy", "cublasLtMatrixLayoutCreate",
              "cublasLtMatrixLayoutSetAttribute", "cublasLtMatrixLayoutDestroy", "cublasLtMatmul"})
            if (!library || !(*at++ = dlsym(library, name))) return nullptr;
        return found->version() == version ? std::move(found) : nullptr;
    }
    static void must(int status, const char* doing) {
        if (status) throw Error(std::string("litz: ") + doing + " failed with status " + std::to_string(status));
    }
};

// The way that was the quickest of a problem.
class Chosen {
public:
    explicit Chosen(const Json& j) : gpu_(j["gpu"].text), told_(j["told"]) {
        const Json& instance = j["instance"];
        library = instance["library"].text;
        what = instance["what"].text;
        workspace_ = instance["workspace"].integer();
        const Json& p = j["problem"];
        alpha_ = (float)p["alpha"].real;
        beta_ = (float)p["beta"].real;
    }
    ~Chosen() {
        forget();
        for (const auto& h : handles_)
            if (h.second) lt_->destroy(h.second);
    }
    Chosen(const Chosen&) = delete;

    std::string library, what;

    // Whether it is one of cuBLASLt's, and that is there as it was, on such a GPU.
    bool ready(i64 index) {
        if (told_.kind != Json::Object) return false;
        std::lock_guard<std::mutex> held(lock_);
        auto known = handles_.find(index);
        if (known != handles_.end()) return known->second;
        void* handle = nullptr;
        if (Gpu((int)index).name() == gpu_) {
            if (!lt_) lt_ = Lt::open((size_t)atoll(library.substr(library.find(' ') + 1).c_str()));
            if (lt_ && !described_) describe();
            if (lt_) Lt::must(lt_->create(&handle), "cublasLtCreate");
        }
        handles_[index] = handle;  // an error is told again at the next call
        return handle;
    }

    void run(const Product& p) {
        const Tensor& out = p.of[OUT];
        Device on = Device::of(out);
        Tensor room = empty({workspace_}, {1}, dtype_code("uint8"), on);
        void* stream;
        must(functions().stream(on.index, &stream));
        bool whole = told_["whole"].number;
        float beta = whole ? beta_ : 0;
        std::lock_guard<std::mutex> held(lock_);  // addresses are part of what all calls share
        for (const auto& pointer : pointers_) {
            void* address = p.of[pointer.second].data();
            Lt::must(lt_->set(product_, pointer.first, &address, sizeof address), "describing a product");
        }
        Lt::must(lt_->matmul(handles_[on.index], product_, &alpha_, p.of[RIGHT].data(), layouts_[0], p.of[LEFT].data(),
                             layouts_[1], &beta, p.of[whole ? ADDED : OUT].data(), layouts_[2], out.data(),
                             layouts_[3], algorithm_, room.data(), (size_t)workspace_, stream),
                 "cublasLtMatmul");
    }

private:
    std::string gpu_;
    Json told_;
    i64 workspace_;
    float alpha_, beta_;
    std::unique_ptr<Lt> lt_;
    std::map<i64, void*> handles_;  // by devices
    void* product_ = nullptr;
    bool described_ = false;
    std::vector<void*> layouts_;
    std::vector<std::pair<int, Role>> pointers_;
    uint64_t algorithm_[8] = {};
    std::mutex lock_;

    void describe() {
        forget();  // what an attempt that failed has left
        if (what.size() != 128 || told_["layouts"].items.size() != 4) throw Error("litz: a package with another product");
        for (int i = 0; i < 64; ++i)
            ((unsigned char*)algorithm_)[i] = (unsigned char)strtoul(what.substr(2 * i, 2).c_str(), nullptr, 16);
        Lt::must(lt_->product(&product_, (int)told_["compute"].integer(), 0), "describing a product");
        for (const Json& s : told_["settings"].items) {
            i64 value = s[1].integer(), size = s[2].integer();
            if (size < 1 || size > 8) throw Error("litz: a package with another product");
            Lt::must(lt_->set(product_, (int)s[0].integer(), &value, (size_t)size), "describing a product");
        }
        for (const Json& l : told_["layouts"].items) {
            auto n = l.integers();
            if (n.size() != 6) throw Error("litz: a package with another product");
            void*& made = layouts_.emplace_back();
            Lt::must(lt_->layout(&made, (int)n[0], (uint64_t)n[1], (uint64_t)n[2], n[3]), "describing a matrix");
            int batches = (int)n[4];
            if (!batches) continue;
            Lt::must(lt_->set_layout(made, 5, &batches, sizeof batches), "describing a matrix");
            Lt::must(lt_->set_layout(made, 6, &n[5], sizeof n[5]), "describing a matrix");
        }
        for (const Json& p : told_["pointers"].items)
            pointers_.emplace_back((int)p[0].integer(), p[1].text == "aux" ? AUX : p[1].text == "added" ? ADDED
                                                        : p[1].text == "left scale" ? LEFT_SCALE : RIGHT_SCALE);
        described_ = true;
    }

    void forget() {
        for (void* made : layouts_)
            if (made) lt_->forget_layout(made);
        if (product_) lt_->forget(product_);
        layouts_.clear();
        pointers_.clear();
        product_ = nullptr;
    }
};

// --- ATen --------------------------------------------------------------------------------------

template <class F> F aten_of_cuda(F, const char* name) {
    F found = of_cuda(F(), name);
    if (!found) throw Error(std::string("litz: this PyTorch has no ") + name);
    return found;
}

// An activation in its form by tanh: tensors, then that word, then where the result goes.
inline void gelu(i64 abi, const char* name, const char* overload, std::vector<Tensor> given, Tensor out) {
    if (!torch_new_string_handle) throw Error(std::string("litz: the program calls ") + name + ", which needs Python");
    i64 stack[4], n = 0;
    auto add = [&](const Tensor& t) { must(aoti_torch_new_tensor_handle(t.get(), (Handle*)&stack[n++])); };
    for (const Tensor& t : given) add(t);
    must(torch_new_string_handle("tanh", 4, (void**)&stack[n++]));
    if (out) add(out);
    must(torch_call_dispatcher(name, overload, stack, abi));
    aoti_torch_delete_tensor_object((Handle)stack[0]);
}

inline void add_and_activate(const Product& p, bool by_gelu) {
    i32 (*both)(Handle, Handle, Handle, double, double, i32, Handle*) = nullptr;
    Handle made;
    both = aten_of_cuda(both, "aoti_torch_cuda__addmm_activation");
    must(both(p.of[ADDED].get(), p.of[LEFT].get(), p.of[RIGHT].get(), p.beta, p.alpha, by_gelu, &made));
    must(aoti_torch_copy_(p.of[OUT].get(), Tensor(made).get(), 0));
}

inline void multiply(const Product& p, const Tensor& out) {
    bool cuda = !(Device::of(out) == Device::cpu()), batches = out.shape().size() == 3;
    const Torch& t = functions();
    Handle left = p.of[LEFT].get(), right = p.of[RIGHT].get();
    if (p.of[LEFT_SCALE]) {
        i32 (*scaled)(Handle, Handle, Handle, Handle, Handle, Handle*, Handle*, i32*, i32) = nullptr;
        scaled = aten_of_cuda(scaled, "aoti_torch_cuda__scaled_mm_out");
        Handle bias = p.of[ADDED].get();
        i32 type = out.dtype();
        must(scaled(out.get(), left, right, p.of[LEFT_SCALE].get(), p.of[RIGHT_SCALE].get(),
                    bias ? &bias : nullptr, nullptr, &type, p.fast));
        return;
    }
    auto biased = t.biased[2 * batches + cuda];
    auto plain = t.plain[2 * batches + cuda];
    if (!biased || !plain) throw Error("litz: this PyTorch has no functions for products on GPUs");
    must(p.of[ADDED] ? biased(out.get(), p.of[ADDED].get(), left, right, p.beta, p.alpha)
                     : plain(out.get(), left, right));
    if (p.of[ADDED] || p.alpha == 1) return;
    i32 (*times)(Handle, double, Handle*) = nullptr;
    Handle made;
    must(aten_of_cuda(times, "aoti_torch_cuda_mul_Scalar")(out.get(), p.alpha, &made));
    must(aoti_torch_copy_(out.get(), Tensor(made).get(), 0));
}

inline void by_aten(const Product& p, i64 abi) {
    const Tensor &out = p.of[OUT], &aux = p.of[AUX];
    bool keeps = aux && p.epilogue == "gelu";
    multiply(p, keeps ? aux : out);
    if (keeps) gelu(abi, "aten::gelu", "out", {aux}, out);
    else if (aux) gelu(abi, "aten::gelu_backward", "grad_input", {out, aux}, out);
    else if (p.epilogue == "gelu") gelu(abi, "aten::gelu_", "", {out}, Tensor());
    else if (p.epilogue == "relu") {
        i64 stack[1];
        must(aoti_torch_new_tensor_handle(out.get(), (Handle*)stack));
        must(torch_call_dispatcher("aten::relu_", "", stack, abi));
        aoti_torch_delete_tensor_object((Handle)stack[0]);
    }
}

// --- the products of a package -----------------------------------------------------------------

class Products {
public:
    void load(const Json& record) {
        for (const auto& entry : record.fields)
            if (!entry.second["problem"]["tf32"].number)  // nobody asks for fewer bits here
                known_[facts(entry.second["problem"])].reset(new Chosen(entry.second));
    }
    void operator()(const Product& p, i64 abi) const {
        auto found = known_.empty() ? known_.end() : known_.find(facts(p));
        Chosen* c = found == known_.end() ? nullptr : found->second.get();
        if (c && c->ready(Device::of(p.of[OUT]).index)) c->run(p);
        else if (c && c->what == "fused" && c->library.compare(0, 5, "aten ") == 0)
            add_and_activate(p, p.epilogue == "gelu");
        else by_aten(p, abi);
    }

private:
    std::map<Facts, std::unique_ptr<Chosen>> known_;
};

}  // namespace litz

#endif
