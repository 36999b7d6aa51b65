// PyTorch's C functions, as far as packages call them: their addresses come with libtorch_cpu.
#ifndef LITZ_TORCH_H
#define LITZ_TORCH_H

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "litz.h"
#include "plan.h"

using litz::Handle;

extern "C" {
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_item_float64(Handle, double*);
int32_t aoti_torch_item_int64(Handle, int64_t*);
int32_t torch_get_num_threads(unsigned*);
int32_t aoti_torch_delete_tensor_object(Handle);
int32_t aoti_torch_new_tensor_handle(Handle, Handle*);
int32_t aoti_torch_new_uninitialized_tensor(Handle*);
int32_t aoti_torch_get_data_ptr(Handle, void**);
int32_t aoti_torch_get_dim(Handle, int64_t*);
int32_t aoti_torch_get_size(Handle, int64_t, int64_t*);
int32_t aoti_torch_get_sizes(Handle, int64_t**);
int32_t aoti_torch_get_strides(Handle, int64_t**);
int32_t aoti_torch_get_dtype(Handle, int32_t*);
int32_t aoti_torch_get_storage_offset(Handle, int64_t*);
size_t aoti_torch_dtype_element_size(int32_t);
int32_t aoti_torch_get_device_type(Handle, int32_t*);
int32_t aoti_torch_get_device_index(Handle, int32_t*);
int32_t aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
int32_t aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, Handle*);
int32_t aoti_torch__reinterpret_tensor(Handle, int64_t, const int64_t*, const int64_t*, int64_t, Handle*);
int32_t aoti_torch__alloc_from_pool(Handle, int64_t, int32_t, int64_t, const int64_t*, const int64_t*, Handle*);
int32_t aoti_torch_cpu_view_dtype(Handle, int32_t, Handle*);
int32_t aoti_torch_copy_(Handle, Handle, int32_t);
bool aoti_torch_grad_mode_is_enabled();
void aoti_torch_grad_mode_set_enabled(bool);
int32_t torch_new_list_reserve_size(size_t, void**);
int32_t torch_list_push_back(void*, int64_t);
int32_t torch_call_dispatcher(const char*, const char*, int64_t*, int64_t);
int32_t aoti_torch_cpu_addmm_out(Handle, Handle, Handle, Handle, double, double);
int32_t aoti_torch_cpu_baddbmm_out(Handle, Handle, Handle, Handle, double, double);
int32_t aoti_torch_cpu_mm_out(Handle, Handle, Handle);
int32_t aoti_torch_cpu_bmm_out(Handle, Handle, Handle);
// Of PyTorch 2.13 and later.
__attribute__((weak)) int32_t torch_new_stable_ivalue(int64_t**);
__attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
}

namespace litz {

// What PyTorch for GPUs has beside: null where that is not loaded.
template <class F> F of_cuda(F, const char* name) { return (F)dlsym(RTLD_DEFAULT, name); }

inline const Torch& functions() {
    static const Torch none{}, table = {
        nullptr, torch_exception_get_what_without_backtrace, torch_get_num_threads,
        aoti_torch_delete_tensor_object, aoti_torch_get_data_ptr, aoti_torch_get_dim,
        aoti_torch_get_size, aoti_torch_get_strides, aoti_torch_get_dtype, aoti_torch_empty_strided,
        aoti_torch__reinterpret_tensor, aoti_torch__alloc_from_pool, aoti_torch_cpu_view_dtype,
        aoti_torch_copy_, torch_new_stable_ivalue, aoti_torch_new_tensor_handle,
        aoti_torch_new_uninitialized_tensor,
        torch_new_list_reserve_size, torch_list_push_back, torch_call_dispatcher,
        aoti_torch_get_device_type, aoti_torch_get_device_index,
        of_cuda(none.stream, "aoti_torch_get_current_cuda_stream"),
        of_cuda(none.guard, "aoti_torch_create_cuda_guard"),
        of_cuda(none.unguard, "aoti_torch_delete_cuda_guard"),
        nullptr, nullptr, nullptr,  // nothing else could call products while somebody watches
        aoti_torch_dtype_element_size,
        {aoti_torch_cpu_addmm_out, of_cuda(none.biased[0], "aoti_torch_cuda_addmm_out"),
         aoti_torch_cpu_baddbmm_out, of_cuda(none.biased[0], "aoti_torch_cuda_baddbmm_out")},
        {aoti_torch_cpu_mm_out, of_cuda(none.plain[0], "aoti_torch_cuda_mm_out"),
         aoti_torch_cpu_bmm_out, of_cuda(none.plain[0], "aoti_torch_cuda_bmm_out")}};
    return table;
}

// What PyTorch said of the call that it refused last.
inline const char* refusal() {
    const char* what = functions().what ? functions().what() : "";
    return *what ? what : "litz: PyTorch refused a call";
}

inline void must(int32_t status) {
    if (status) throw Error(refusal());
}

inline int32_t dtype_code(const std::string& name) {
    auto code = (int32_t(*)())dlsym(RTLD_DEFAULT, ("aoti_torch_dtype_" + name).c_str());
    if (!code) throw Error("litz: this PyTorch has no element type " + name);
    return code();
}

struct Device {
    int32_t type, index;

    static Device cpu() { return {aoti_torch_device_type_cpu(), 0}; }
    static Device of(const std::string& text) {
        std::string name = text.substr(0, text.find(':'));
        auto code = (int32_t(*)())dlsym(RTLD_DEFAULT, ("aoti_torch_device_type_" + name).c_str());
        if (!code) throw Error("litz: this PyTorch has no device " + text);
        return {code(), name == text ? 0 : atoi(text.c_str() + name.size() + 1)};
    }
    static Device of(const Tensor& t) {
        Device found;
        must(aoti_torch_get_device_type(t.get(), &found.type));
        must(aoti_torch_get_device_index(t.get(), &found.index));
        return found;
    }
    bool operator==(const Device& o) const {
        return type == o.type && (index == o.index || type == aoti_torch_device_type_cpu());
    }
};

inline Tensor empty(const std::vector<i64>& sizes, const std::vector<i64>& strides, int32_t dtype,
                    Device on = Device::cpu()) {
    Handle made;
    must(aoti_torch_empty_strided((i64)sizes.size(), sizes.data(), strides.data(), dtype, on.type,
                                  on.index, &made));
    return Tensor(made);
}

// A copy that lies so, there.
inline Tensor copied(const Tensor& t, const std::vector<i64>& sizes, const std::vector<i64>& strides,
                     int32_t dtype, Device on) {
    Tensor made = empty(sizes, strides, dtype, on);
    must(aoti_torch_copy_(made.get(), t.get(), 0));
    return made;
}

}  // namespace litz

#endif
