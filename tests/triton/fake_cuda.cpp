// A stand-in for the CUDA driver and for what PyTorch has for GPUs, whose device is the CPU: loaded
// ahead of the others, it takes their place.  Launches compute what FAKE_KERNEL names, on rows of 96
// columns; all that is asked for goes to standard error.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

struct Config {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned n_attributes;
};

static int number(const char* name, int otherwise) {
    const char* found = getenv(name);
    return found ? atoi(found) : otherwise;
}

extern "C" {
int aoti_torch_device_type_cuda() { return 0; }
int aoti_torch_get_current_cuda_stream(int, void** out) { return *out = (void*)0x77, 0; }
int aoti_torch_create_cuda_guard(int index, void** out) {
    fprintf(stderr, "enter %d\n", index);
    return *out = (void*)0x99, 0;
}
int aoti_torch_delete_cuda_guard(void*) { return fprintf(stderr, "leave\n"), 0; }

int aoti_torch_cpu__addmm_activation(void*, void*, void*, double, double, int, void**);
int aoti_torch_cuda__addmm_activation(void* row, void* left, void* right, double beta, double alpha,
                                      int gelu, void** out) {
    fprintf(stderr, "product and activation\n");
    return aoti_torch_cpu__addmm_activation(row, left, right, beta, alpha, gelu, out);
}

int aoti_torch_cpu_mm_out(void*, void*, void*);
int aoti_torch_cuda_mm_out(void* out, void* left, void* right) {
    return aoti_torch_cpu_mm_out(out, left, right);
}

int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* out, int index) { return *out = index, index > 0; }
int cuDeviceGetAttribute(int* out, int which, int) {
    *out = which == 75 ? number("FAKE_MAJOR", 9) : which == 97 ? 227 << 10 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** out, int) { return *out = (void*)1000, 0; }
int cuCtxGetCurrent(void** out) { return *out = nullptr, 0; }
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** out, const char* code) {
    fprintf(stderr, "load %s\n", memcmp(code, "\x7f" "ELF", 4) ? "ptx" : "cubin");
    return *out = (void*)1, 0;
}
int cuModuleGetFunction(void** out, void*, const char*) {
    static long functions = 0;
    return *out = (void*)++functions, 0;
}
int cuFuncGetAttribute(int* out, int which, void*) { return *out = which ? 0 : 1024, 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuDeviceGetName(char* out, int, int) { return strcpy(out, "a GPU"), 0; }
int cuGetErrorName(int, const char** out) { return *out = "CUDA_ERROR_BROKEN", 0; }

int cuLaunchKernelEx(const Config* c, void* function, void** params, void**) {
    fprintf(stderr, "launch %ld grid %u %u %u block %u stream %lx\n", (long)function, c->grid[0], c->grid[1],
            c->grid[2], c->block[0], (long)c->stream);
    if (number("FAKE_FAIL", 0)) return 700;
    const float *x = *(const float**)params[0], *y = *(const float**)params[1];
    float* out = *(float**)params[number("FAKE_PARAMS", 0) == 2 ? 1 : 2];
    if (number("FAKE_PARAMS", 0) == 2) {  // x, out, by how much
        float scale = *(const float*)params[2];
        for (int i = 0; i < 4 * 96; ++i) out[i] = x[i] * scale;
        return 0;
    }
    for (int row = 0; row < *(const int*)params[3]; ++row, x += 96, y += 96, out += 96) {
        float most = -INFINITY, sum = 0;
        for (int i = 0; i < 96; ++i) most = fmaxf(most, x[i] + y[i]);
        for (int i = 0; i < 96; ++i) sum += out[i] = expf(x[i] + y[i] - most);
        for (int i = 0; i < 96; ++i) out[i] /= sum;
    }
    return 0;
}
}
