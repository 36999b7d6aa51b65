// Kernels for GPUs of a package: loaded by the CUDA driver, which comes by dlopen; no toolkit is
// needed.  As loading/gpu.py and runtime/triton/driver.py do it in Python.
#ifndef LITZ_CUDA_H
#define LITZ_CUDA_H

#include <memory>
#include <mutex>

#include "plan.h"
#include "reading.h"
#include "torch.h"

namespace litz {

// The driver's functions, of cuda.h.
struct Cuda {
    int (*init)(unsigned);
    int (*device)(int*, int);
    int (*attribute)(int*, int, int);
    int (*retain)(void**, int);
    int (*current)(void**);
    int (*push)(void*);
    int (*pop)(void**);
    int (*load)(void**, const void*);
    int (*function)(void**, void*, const char*);
    int (*function_attribute)(int*, int, void*);
    int (*set_attribute)(void*, int, int);
    int (*launch)(const Config*, i64, void**, void**);
    int (*text)(int, const char**);
    int (*name)(char*, int, int);

    static const Cuda& get() {
        static const Cuda found = open();
        return found;
    }

    void must(int code, const std::string& doing) const {
        const char* said = nullptr;
        if (code && text(code, &said)) said = nullptr;
        if (code) throw Error("litz: " + doing + " failed with " + (said ? said : std::to_string(code)));
    }

private:
    static Cuda open() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library) throw Error(std::string("litz: cannot load the CUDA driver: ") + dlerror());
        Cuda c;
        void** at = (void**)&c;
        for (const char* name :
             {"cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent",
              "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuModuleLoadData", "cuModuleGetFunction",
              "cuFuncGetAttribute", "cuFuncSetAttribute", "cuLaunchKernelEx", "cuGetErrorName",
              "cuDeviceGetName"})
            if (!(*at++ = dlsym(library, name)))
                throw Error(std::string("litz: the CUDA driver is too old: it has no ") + name);
        c.must(c.init(0), "starting the CUDA driver");
        return c;
    }
};

// A device by PyTorch's index, with its primary context, in which PyTorch works too.
struct Gpu {
    int index, handle = 0;
    void* context = nullptr;

    explicit Gpu(int number) : index(number) {
        const Cuda& c = Cuda::get();
        std::string doing = "taking the GPU cuda:" + std::to_string(index);
        c.must(c.device(&handle, index), doing);
        c.must(c.retain(&context, handle), doing);
    }
    int attribute(int number) const {
        int found = 0;
        Cuda::get().must(Cuda::get().attribute(&found, number, handle), "asking a GPU");
        return found;
    }
    std::string name() const {
        char found[256] = "";
        Cuda::get().must(Cuda::get().name(found, sizeof found, handle), "asking a GPU");
        return found;
    }
    int generation() const { return 10 * attribute(75) + attribute(76); }

    // Runs something with the device's context as the current one.
    template <class F> auto active(F f) const {
        struct Active {
            explicit Active(void* context) { Cuda::get().must(Cuda::get().push(context), "entering a GPU"); }
            ~Active() {
                void* old;
                Cuda::get().pop(&old);
            }
        } now(context);
        return f();
    }
};

// Of what a kernel was built for ("sm_90", "ptx_80"), what a GPU runs; see loading/gpu.py.
inline const std::string* best(const Json& entries, int generation) {
    const std::string* found = nullptr;
    int rank = -1;
    for (const auto& e : entries.fields) {
        bool ptx = e.first.compare(0, 4, "ptx_") == 0;
        int built = atoi(e.first.substr(e.first.find('_') + 1).c_str());
        bool near = built / 10 == generation / 10 && built <= generation && built < 90;
        int own = ptx ? (built <= generation ? built : -1) : built == generation || near ? 1000 + built : -1;
        if (own > rank) {
            rank = own;
            found = &e.second.text;
        }
    }
    return found;
}

// One launch of a kernel, in up to three variants, each loaded when it is first wanted.
struct Launch : Form {
    const Gpu& gpu;
    const File& file;
    std::string name;
    size_t arguments;
    std::string entries[3];  // of the package, empty where there is none
    std::string entered[3];  // names of functions
    i64 functions[3] = {};
    i64 scratch[3][2] = {};  // bytes a program of the memory that hidden parameters lead to
    std::mutex lock;

    Launch(const Json& record, const Gpu& on, const File& package)
        : Form{}, gpu(on), file(package), name(record["name"].text),
          arguments(record["arguments"].items.size()) {
        launch = Cuda::get().launch;
        device = gpu.index;
        int generation = gpu.generation(), n = 0;
        for (const char* variant : {"even", "aligned", "general"}) {
            auto by = record["binaries"].fields.find(variant);
            const std::string* found = nullptr;
            if (by != record["binaries"].fields.end() && !(found = best(by->second, generation)))
                throw Error("litz: the package has nothing for a GPU of sm_" + std::to_string(generation));
            entries[n++] = found ? *found : "";
        }
    }

    // Loads a variant; what the plan reads of it is complete when it has a function.
    void load(i64 which) {
        std::lock_guard<std::mutex> held(lock);
        Variant& v = variants[which];
        if (v.threads) return;
        if (entries[which].empty()) throw Error("litz: a package without a variant of " + name);
        View data = file.read(entries[which]);
        size_t line = data.find('\n');
        if (line == View::npos) throw Error("litz: a package with another kernel");
        Json head = JsonReader(data.substr(0, line)).all();
        std::string code(data.substr(line + 1)), doing = "loading the kernel " + head["entry"].text;
        auto parameters = head["params"].integers();
        if (parameters.size() < arguments || parameters.size() > arguments + 2)
            throw Error("litz: a package with a kernel of other parameters");
        v.hidden = (i64)(parameters.size() - arguments);
        v.shared = head["shared"].integer();
        scratch[which][0] = head["scratch"][0].integer();
        scratch[which][1] = head["profile_scratch"][0].integer();
        entered[which] = head["entry"].text;
        const Cuda& c = Cuda::get();
        i64 threads = head["num_warps"].integer() * head["warp_size"].integer();
        void *module, *function;
        gpu.active([&] {
            int most = 0, fixed = 0;
            c.must(c.load(&module, code.c_str()), doing);
            c.must(c.function(&function, module, entered[which].c_str()), doing);
            c.must(c.function_attribute(&most, 0, function), doing);
            c.must(c.function_attribute(&fixed, 1, function), doing);
            if (threads > most || v.shared > gpu.attribute(97) - fixed)
                throw Error("litz: " + doing + " failed: the GPU has not the threads or the shared memory");
            if (v.shared > 48 << 10) c.must(c.set_attribute(function, 8, (int)v.shared), doing);
        });
        functions[which] = (i64)function;
        v.threads = threads;
        // Launches that need memory of their own are not for the plan.
        if (!scratch[which][0] && !scratch[which][1]) __atomic_store_n(&v.function, (i64)function, __ATOMIC_RELEASE);
    }

    // A launch that the plan could not make: of what is not loaded, needs memory, or fails.
    void run(i64 which, const i64* grid, const i64* cells, i64* c, i64 n) {
        for (i64 i = 0; i < n; ++i)
            if (cells[2 * i] == CELL_small && c[i] != (i32)c[i]) throw Error("litz: a number too large for " + name);
        if ((grid[0] | grid[1] | grid[2]) >> 32) throw Error("litz: a grid too large for " + name);
        load(which);
        const Variant& v = variants[which];
        Config config{{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]}, {(unsigned)v.threads, 1, 1},
                      (unsigned)v.shared, nullptr, nullptr, 0};
        must(litz::functions().stream(gpu.index, &config.stream));
        std::vector<Tensor> memory;
        std::vector<void*> params;
        for (i64 i = 0; i < 2 && i < v.hidden; ++i) {
            if (!scratch[which][i]) continue;
            memory.push_back(empty({grid[0] * grid[1] * grid[2] * scratch[which][i]}, {1}, dtype_code("uint8"),
                                   Device{aoti_torch_device_type_cuda(), gpu.index}));
            c[n + i] = (i64)memory.back().data();
        }
        for (i64 i = 0; i < n + 2; ++i) params.push_back(c + i);
        gpu.active([&] {
            Cuda::get().must(launch(&config, functions[which], params.data(), nullptr),
                             "launching the kernel " + entered[which]);
        });
    }
};

// A kernel with its launches, as a plan calls it.
struct Kernel {
    std::vector<std::unique_ptr<Launch>> launches;
    std::vector<Form*> forms;
    std::vector<i64> words, numbers;
    Launcher launcher{};

    Kernel(const Json& record, const Gpu& gpu, const File& file) : words(record["words"].integers()) {
        if (!functions().stream || !functions().guard)
            throw Error("litz: the program is for GPUs: link PyTorch's libtorch_cuda");
        for (const Json& n : record["numbers"].items) numbers.push_back(n.number);
        for (const Json& l : record["launches"].items) {
            launches.emplace_back(new Launch(l, gpu, file));
            forms.push_back(launches.back().get());
        }
        launcher = {words.data(), numbers.data(), (i64)numbers.size(), forms.data()};
    }
};

}  // namespace litz

#endif
