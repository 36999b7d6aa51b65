// The native executor: runs a plan (runtime/plan.py) with one call from Python a call of the program.
// No headers, so that compiling is quick and needs neither Python's nor PyTorch's: of Python it takes
// the limited API, whose functions resolve in the running process; of PyTorch C functions, whose
// addresses runtime/executor.py hands in; of CUDA the driver's launch, likewise.  Before it stand the
// enums that shipped.py makes of its tables.

typedef __INT64_TYPE__ i64;
typedef __INT32_TYPE__ i32;
typedef struct _object PyObject;
typedef PyObject* (*Method)(PyObject*, PyObject*);
struct PyMethodDef { const char* name; Method method; int flags; const char* doc; };

extern "C" {
extern PyObject *PyExc_RuntimeError, *PyExc_TypeError;
extern char _Py_NoneStruct;
const char* PyUnicode_AsUTF8AndSize(PyObject*, i64*);
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
void PyErr_SetString(PyObject*, const char*);
void PyErr_SetObject(PyObject*, PyObject*);
PyObject* PyErr_Occurred();
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_Restore(PyObject*, PyObject*, PyObject*);
void PyErr_Clear();
double PyFloat_AsDouble(PyObject*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
PyObject* PyObject_Type(PyObject*);
int PyType_IsSubtype(PyObject*, PyObject*);
PyObject* PyObject_Call(PyObject*, PyObject*, PyObject*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
i64 PyList_Size(PyObject*);
PyObject* PyList_New(i64);
PyObject* PyList_GetItem(PyObject*, i64);
int PyList_SetItem(PyObject*, i64, PyObject*);
int PyList_SetSlice(PyObject*, i64, i64, PyObject*);
PyObject* PyTuple_New(i64);
PyObject* PyTuple_GetItem(PyObject*, i64);
int PyTuple_SetItem(PyObject*, i64, PyObject*);
PyObject* PyDict_New();
int PyDict_SetItem(PyObject*, PyObject*, PyObject*);
PyObject* PySequence_GetItem(PyObject*, i64);
PyObject* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject*);
void* malloc(__SIZE_TYPE__);
void* calloc(__SIZE_TYPE__, __SIZE_TYPE__);
void free(void*);
void* memcpy(void*, const void*, __SIZE_TYPE__);
}

typedef void* Tensor;  // an at::Tensor*, as PyTorch's C functions take it
typedef void* const* Handle;

// In the order of FUNCTIONS in runtime/executor.py; each returns 0 but those that return a value.
struct Torch {
    PyObject* (*wrap)(Tensor);
    const char* (*what)();  // may be null
    i32 (*num_threads)(unsigned*);
    i32 (*erase)(Tensor);
    i32 (*data_ptr)(Tensor, void**);
    i32 (*dim)(Tensor, i64*);
    i32 (*size)(Tensor, i64, i64*);
    i32 (*strides)(Tensor, i64**);
    i32 (*dtype)(Tensor, i32*);
    i32 (*empty)(i64, const i64*, const i64*, i32, i32, i32, Tensor*);
    i32 (*view)(Tensor, i64, const i64*, const i64*, i64, Tensor*);
    i32 (*place)(Tensor, i64, i32, i64, const i64*, const i64*, Tensor*);
    i32 (*retype)(Tensor, i32, Tensor*);
    i32 (*copy)(Tensor, Tensor, i32);
    i32 (*box)(i64**);  // may be null
    i32 (*again)(Tensor, Tensor*);
    i32 (*list)(__SIZE_TYPE__, void**);
    i32 (*push)(void*, i64);
    i32 (*dispatch)(const char*, const char*, i64*, i64);
    i32 (*device_type)(Tensor, i32*);
    i32 (*device_index)(Tensor, i32*);
    i32 (*stream)(i32, void**);  // this and the next may be null
    i32 (*guard)(i32, void**);
    i32 (*unguard)(void*);
    i32 (*direct[4])(Tensor, Tensor, Tensor, Tensor, double, double);
};

// Of runtime/launchers.py.
struct Variant {
    i64 function, threads, shared, hidden;
};

struct Config {  // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned n_attributes;
};

struct Form {
    PyObject* call;
    i32 (*launch)(const Config*, i64, void**, void**);
    i64 device;
    Variant variants[3];
};

struct Launcher {
    const i64 *words, *numbers;
    i64 n_numbers;
    Form* const* forms;
};

// Of runtime/executor.py; behind it `segments`, `kernels`, `codes`, `numbers` and `words`.
struct Header {
    i64 n_words, n_inputs, n_tensors, n_numbers, n_objects, n_segments, n_kernels;
    i64 offset;  // bytes from a Python tensor's address to its at::Tensor
    i64 abi;
    i64 (*run_segment)(void**);
    Torch torch;
};

// What Python hands in beside the header, all alive as long as the program.
enum Helper { OBJECTS, SEGMENTS, KERNELS, TENSOR, RECYCLED, EMPTY, WORKSPACE, IN_MEMORY, N_HELPERS };

struct Program {
    Header h;
    PyObject* keep;
    PyObject* helpers[N_HELPERS];
    PyObject** objects;
    const i64 *segments, *kernels, *codes, *numbers, *words;
};

// A tensor register: the tensor belongs to `owner`, a Python object, or else to the register.
struct Slot {
    Tensor tensor;
    PyObject* owner;
};

enum { MOST_ARGUMENTS = 64 };
static const char* const NAME = "litz program";

namespace {

// What a launcher is called with: pointers, then integers; items: of values from the host.
struct Arguments {
    const i64* given;
    PyObject* const* items;
    Form* const* forms;
};

struct Run {
    const Program& p;
    const Torch& torch;
    Slot* slots;
    i64* ints;
    const i64* w;
    PyObject* result = nullptr;
    void* guard = nullptr;
    const Arguments* arguments = nullptr;

    i64 next() { return *w++; }
    i64 number() { return ints[*w++]; }
    PyObject* object() { return p.objects[*w++]; }
    Slot& slot() { return slots[*w++]; }
    i32 code() { return (i32)p.codes[*w++]; }

    bool failed() {
        const char* what = torch.what ? torch.what() : nullptr;
        PyErr_SetString(PyExc_RuntimeError, what && *what ? what : "litz: PyTorch refused a call");
        return false;
    }

    void release(Slot& s) {
        Slot old = s;
        s = Slot{nullptr, nullptr};
        if (old.owner) Py_DecRef(old.owner);
        else if (old.tensor) torch.erase(old.tensor);
    }

    bool set(Slot& s, Tensor t) {
        release(s);
        s.tensor = t;
        return true;
    }

    // Takes a reference over.  What is no tensor may be handed on, and nothing else.
    bool own(Slot& s, PyObject* o) {
        if (!o) return false;
        release(s);
        PyObject* type = PyObject_Type(o);
        bool is = type == p.helpers[TENSOR] || PyType_IsSubtype(type, p.helpers[TENSOR]);
        Py_DecRef(type);
        s.owner = o;
        s.tensor = is ? (char*)o + p.h.offset : nullptr;
        return true;
    }

    bool there(const Slot& s) {
        if (s.tensor) return true;
        PyErr_SetString(PyExc_TypeError, "litz: an argument or a result is no tensor");
        return false;
    }

    // A borrowed reference to the Python object of a register.
    PyObject* python(Slot& s) {
        if (s.owner) return s.owner;
        if (!there(s)) return nullptr;
        PyObject* o = torch.wrap(s.tensor);
        if (o) {
            torch.erase(s.tensor);
            s.owner = o;
            s.tensor = (char*)o + p.h.offset;
        }
        return o;
    }

    // Reads a Python value; a new reference.
    PyObject* value() {
        switch (next()) {
            case VALUE_tensor: {
                PyObject* o = python(slot());
                if (o) Py_IncRef(o);
                return o;
            }
            case VALUE_number: return PyLong_FromLongLong(number());
            case VALUE_object: {
                PyObject* o = object();
                Py_IncRef(o);
                return o;
            }
            case VALUE_tuple: return values(PyTuple_New, PyTuple_SetItem);
            default: return values(PyList_New, PyList_SetItem);
        }
    }

    PyObject* values(PyObject* (*make)(i64), int (*put)(PyObject*, i64, PyObject*)) {
        i64 n = next();
        PyObject* all = make(n);
        for (i64 i = 0; all && i < n; ++i) {
            PyObject* one = value();
            if (!one || put(all, i, one)) {
                Py_DecRef(all);
                return nullptr;
            }
        }
        return all;
    }

    // Reads counted numbers into memory for as many, which `ROOM` makes.
    i64 dims(i64* out) {
        i64 n = next();
        for (i64 i = 0; i < n; ++i) out[i] = number();
        return n;
    }
#define ROOM() ((i64*)__builtin_alloca((*w + 1) * sizeof(i64)))

    PyObject* tuple() {  // of counted numbers
        i64 n = next();
        PyObject* all = PyTuple_New(n);
        for (i64 i = 0; i < n; ++i) {
            i64 number_ = number();
            if (all) PyTuple_SetItem(all, i, PyLong_FromLongLong(number_));
        }
        return all;
    }

    // A tensor that Python makes by sizes, strides and as many objects as stand before them.
    bool made(Helper by, i64 count) {
        Slot& s = slot();
        PyObject* first = object();
        PyObject* second = count > 1 ? object() : nullptr;
        PyObject* sizes = tuple();
        PyObject* strides = tuple();
        PyObject* out = sizes && strides ? PyObject_CallFunctionObjArgs(
            p.helpers[by], sizes, strides, first, second, (PyObject*)nullptr) : nullptr;
        if (sizes) Py_DecRef(sizes);
        if (strides) Py_DecRef(strides);
        return own(s, out);
    }

    __attribute__((noinline)) bool allocate() {
        const i64* at = w;
        Slot& s = slot();
        i32 type = code(), place = code();
        i64* sizes = ROOM();
        i64 n = dims(sizes);
        i64* strides = ROOM();
        dims(strides);
        Tensor t;
        if (!torch.empty(n, sizes, strides, type, place >> 8, (signed char)place, &t))
            return set(s, t);
        w = at;  // Python says what there is to say, of memory that runs out above all
        return made(EMPTY, 2);
    }

    bool workspace() {
        Slot& s = slot();
        PyObject* n = PyLong_FromLongLong(number());
        if (!n) return false;
        PyObject* made =
            PyObject_CallFunctionObjArgs(p.helpers[WORKSPACE], n, (PyObject*)nullptr);
        Py_DecRef(n);
        return own(s, made);
    }

    __attribute__((noinline)) bool view() {
        Slot &s = slot(), &base = slot();
        i64* sizes = ROOM();
        i64 n = dims(sizes);
        i64* strides = ROOM();
        dims(strides);
        i64 offset = number();
        Tensor t;
        if (!there(base)) return false;
        if (torch.view(base.tensor, n, sizes, strides, offset, &t)) return failed();
        return set(s, t);
    }

    __attribute__((noinline)) bool place() {
        Slot &s = slot(), &base = slot();
        i32 type = code();
        i64* sizes = ROOM();
        i64 n = dims(sizes);
        i64* strides = ROOM();
        dims(strides);
        i64 offset = next();
        Tensor t;
        if (!there(base)) return false;
        if (torch.place(base.tensor, offset, type, n, sizes, strides, &t)) return failed();
        return set(s, t);
    }

    bool retype() {
        Slot &s = slot(), &base = slot();
        i32 type = code();
        Tensor t;
        if (!there(base)) return false;
        if (torch.retype(base.tensor, type, &t)) return failed();
        return set(s, t);
    }

    bool move() {
        Slot &to = slot(), &from = slot();
        Slot moved = from;
        from = Slot{nullptr, nullptr};
        release(to);
        to = moved;
        return true;
    }

    // The address of a tensor; one that comes from elsewhere may have no memory behind it.
    bool address(Slot& s, bool foreign, void** out) {
        if (!there(s)) return false;
        if (torch.data_ptr(s.tensor, out)) return failed();
        if (*out || !foreign) return true;
        PyObject* o = python(s);
        if (!o) return false;
        o = PyObject_CallFunctionObjArgs(p.helpers[IN_MEMORY], o, (PyObject*)nullptr);
        return own(s, o) && there(s) && (!torch.data_ptr(s.tensor, out) || failed());
    }

    __attribute__((noinline)) bool segment() {
        i64 which = next(), n = next();
        i64 count = 1 + n + w[3 * n];
        void** packed = (void**)__builtin_alloca(count * sizeof(void*));
        packed[0] = (void*)p.segments[which];
        for (i64 i = 1; i <= n; ++i) {
            Slot& s = slot();
            i64 offset = next();
            if (!address(s, next() & ELSEWHERE, packed + i)) return false;
            packed[i] = (char*)packed[i] + offset;
        }
        dims((i64*)(packed + 1 + n));
        // PyTorch hands set_num_threads() on to OpenMP lazily in each thread: asking makes it so.
        unsigned threads;
        torch.num_threads(&threads);
        void* state = PyEval_SaveThread();
        i64 status = p.h.run_segment(packed);
        PyEval_RestoreThread(state);
        if (!status) return true;
        PyObject* raise =
            PyObject_GetAttrString(PyTuple_GetItem(p.helpers[SEGMENTS], which), "raise_fault");
        PyObject* number = raise ? PyLong_FromLongLong(status) : nullptr;
        PyObject* none =
            number ? PyObject_CallFunctionObjArgs(raise, number, (PyObject*)nullptr) : nullptr;
        if (none) Py_DecRef(none);
        if (number) Py_DecRef(number);
        if (raise) Py_DecRef(raise);
        return false;
    }

    // Calls a function of numbers, of which some are objects.
    bool call_python(PyObject* f, const i64* numbers, PyObject* const* items, i64 n) {
        PyObject* all = PyTuple_New(n);
        for (i64 i = 0; all && i < n; ++i) {
            if (items[i]) Py_IncRef(items[i]);
            PyObject* one = items[i] ? items[i] : PyLong_FromLongLong(numbers[i]);
            if (!one || PyTuple_SetItem(all, i, one)) {
                Py_DecRef(all);
                return false;
            }
        }
        PyObject* none = all ? PyObject_Call(f, all, nullptr) : nullptr;
        if (all) Py_DecRef(all);
        if (none) Py_DecRef(none);
        return none;
    }

    // The number of a tensor in the host's memory; a new reference.
    PyObject* item(Slot& s) {
        PyObject* o = python(s);
        PyObject* get = o ? PyObject_GetAttrString(o, "item") : nullptr;
        PyObject* number = get ? PyObject_CallFunctionObjArgs(get, (PyObject*)nullptr) : nullptr;
        if (get) Py_DecRef(get);
        return number;
    }

    __attribute__((noinline)) bool launch() {
        i64 which = next(), n = next(), count = n + w[3 * n];
        i64* given = (i64*)__builtin_alloca((count + 1) * sizeof(i64));
        PyObject** items = (PyObject**)__builtin_alloca((count + 1) * sizeof(PyObject*));
        bool good = true;
        for (i64 i = 0; i < n; ++i) {
            Slot& s = slot();
            i64 offset = next(), how = next();
            items[i] = nullptr;
            given[i] = 0;
            if (good && how & BY_VALUE) good = (items[i] = item(s)) != nullptr;
            else if (good) good = address(s, how & ELSEWHERE, (void**)given + i);
            given[i] += offset;
        }
        for (i64 i = n; i < count; ++i) items[i] = nullptr;
        dims(given + n);
        const Launcher* launcher = *(const Launcher**)p.kernels[which];
        if (good && launcher) good = launches(*launcher, given, items, n, count);
        else if (good) {
            PyObject* f = PyTuple_GetItem(p.helpers[KERNELS], which);
            good = call_python(f, given, items, count);
        }
        for (i64 i = 0; i < n; ++i)
            if (items[i]) Py_DecRef(items[i]);
        return good;
    }

    // Runs a launcher, whose first numbers are the integers among what is given.
    bool launches(const Launcher& l, const i64* given, PyObject* const* items, i64 n, i64 count) {
        i64* own = (i64*)__builtin_alloca((l.n_numbers + 1) * sizeof(i64));
        memcpy(own, l.numbers, l.n_numbers * sizeof(i64));
        memcpy(own, given + n, (count - n) * sizeof(i64));
        Arguments now{given, items, l.forms};
        const i64* behind = w;
        i64* numbers = ints;
        w = l.words;
        ints = own;
        arguments = &now;
        bool good = true;
        while (good && *w != OP_end) good = step();
        w = behind;
        ints = numbers;
        return good;
    }

    __attribute__((noinline)) bool start() {
        i64 grid[3] = {number(), number(), number()};
        const Form& form = *arguments->forms[next()];
        i64 n = next(), pointers = 0, numbers = 0;
        const i64* cells = w;
        w += 2 * n;
        if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return true;
        bool fits = !((grid[0] | grid[1] | grid[2]) >> 32), sized = false;
        i64* c = (i64*)__builtin_alloca((n + 2) * sizeof(i64));
        void** params = (void**)__builtin_alloca((n + 2) * sizeof(void*));
        for (i64 i = 0; i < n + 2; ++i) params[i] = c + i;
        c[n] = c[n + 1] = 0;
        for (i64 i = 0; i < n; ++i) {
            i64 kind = cells[2 * i], at = cells[2 * i + 1];
            switch (kind) {
                case CELL_small:
                    fits = fits && ints[at] == (i32)ints[at];  // and further, as the next
                case CELL_number:
                    numbers |= ints[at];
                    sized = true;  // and further, as the next
                case CELL_plain: c[i] = ints[at]; break;
                case CELL_pointer: pointers |= arguments->given[at];  // and further, as the next
                case CELL_address: c[i] = arguments->given[at]; break;
                default: fits = by_value(kind, arguments->items[at], c + i) && fits;
            }
        }
        const Variant& v = form.variants[pointers & 15 ? 2 : sized && !(numbers & 15) ? 0 : 1];
        if (v.function && fits && torch.stream) {
            Config config = {{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]},
                             {(unsigned)v.threads, 1, 1}, (unsigned)v.shared};
            if (torch.stream((i32)form.device, &config.stream)) return failed();
            // Where the device's queue is full, the driver waits for what other threads may have
            // to do.
            void* state = PyEval_SaveThread();
            i32 status = form.launch(&config, v.function, params, nullptr);
            PyEval_RestoreThread(state);
            if (!status) return true;
        }
        return start_python(form.call, grid, cells, c, n);
    }

    // A launch that Python makes: of what is not loaded yet, and of what fails, again.
    bool start_python(PyObject* f, const i64* grid, const i64* cells, const i64* c, i64 n) {
        i64* numbers = (i64*)__builtin_alloca((n + 3) * sizeof(i64));
        PyObject** items = (PyObject**)__builtin_alloca((n + 3) * sizeof(PyObject*));
        memcpy(numbers, grid, 3 * sizeof(i64));
        memcpy(numbers + 3, c, n * sizeof(i64));
        for (i64 i = 0; i < n + 3; ++i) items[i] = nullptr;
        for (i64 i = 0; i < n; ++i)
            if (cells[2 * i] >= CELL_int) items[3 + i] = arguments->items[cells[2 * i + 1]];
        return call_python(f, numbers, items, n + 3);
    }

    // A Python number as a kernel takes it; false where it has no such form.
    bool by_value(i64 kind, PyObject* o, i64* out) {
        double value = kind == CELL_int ? 0 : PyFloat_AsDouble(o);
        float narrow = (float)value;
        *out = 0;
        if (kind == CELL_int) *out = PyLong_AsLongLong(o);
        else if (kind == CELL_f64) memcpy(out, &value, sizeof value);
        else memcpy(out, &narrow, sizeof narrow);
        bool good = !PyErr_Occurred();
        if (!good) PyErr_Clear();
        return good;
    }

    bool enter() {
        signed char index = (signed char)code();  // none: of the first
        return !torch.guard(index < 0 ? 0 : index, &guard) || failed();
    }

    void leave() {
        if (guard) torch.unguard(guard);
        guard = nullptr;
    }

    PyObject* keywords() {  // null without an error where there are none
        i64 n = next();
        PyObject* all = n ? PyDict_New() : nullptr;
        for (i64 i = 0; all && i < n; ++i) {
            PyObject* name = object();
            PyObject* one = value();
            bool put = one && !PyDict_SetItem(all, name, one);
            if (one) Py_DecRef(one);
            if (!put) {
                Py_DecRef(all);
                return nullptr;
            }
        }
        return all;
    }

    bool call() {
        PyObject* target = object();
        PyObject* args = values(PyTuple_New, PyTuple_SetItem);
        if (!args) return false;
        PyObject* named = keywords();
        PyObject* out = PyErr_Occurred() ? nullptr : PyObject_Call(target, args, named);
        Py_DecRef(args);
        if (named) Py_DecRef(named);
        if (!out) return false;
        return results(out);
    }

    bool results(PyObject* out) {  // takes the reference over
        i64 n = next();
        const i64* to = w;
        w += n;
        bool single = next(), good = true;
        for (i64 i = 0; good && i < n; ++i) {
            if (to[i] == -1) continue;
            if (single) Py_IncRef(out);
            PyObject* one = single ? out : PySequence_GetItem(out, i);
            if (to[i] >= 0) {
                good = own(slots[to[i]], one);
                continue;
            }
            good = one && as_number(one, ints[-2 - to[i]]);
            if (one) Py_DecRef(one);
        }
        Py_DecRef(out);
        return good;
    }

    // Reads a value as PyTorch's dispatcher takes it, which takes over what it refers to.
    bool stable(i64 type, i64* out) {
        i64 optional = type & LIST ? OPTIONAL_LIST : OPTIONAL;
        if (w[0] == VALUE_object && p.objects[w[1]] == (PyObject*)&_Py_NoneStruct) {
            w += 2;
            *out = 0;
            return true;
        }
        if (type & optional) {
            i64* box = nullptr;
            if (torch.box ? torch.box(&box) : !(box = (i64*)malloc(sizeof(i64)))) return failed();
            *out = (i64)box;
            return stable(type & ~optional, box);
        }
        i64 kind = next();
        if (type & LIST) {
            i64 n = next();
            void* all;
            if (torch.list(n, &all)) return failed();
            *out = (i64)all;
            for (i64 i = 0; i < n; ++i) {
                i64 one;
                if (!stable(type & ~LIST, &one)) return false;
                if (torch.push(all, one)) return failed();
            }
            return true;
        }
        if (kind == VALUE_tensor) {
            Slot& s = slot();
            Tensor t = nullptr;
            if (!there(s)) return false;
            if (torch.again(s.tensor, &t)) return failed();
            *out = (i64)t;
        } else *out = kind == VALUE_number ? number() : p.codes[next()];
        return true;
    }

    __attribute__((noinline)) bool aten() {
        const char* name = PyUnicode_AsUTF8AndSize(object(), nullptr);
        const char* part = PyUnicode_AsUTF8AndSize(object(), nullptr);
        PyObject* target = object();
        i64 direct = next();
        const i64* args = w;
        i64 stack[MOST_ARGUMENTS], n = 0, count;
        for (count = next(); count; --count)
            if (!stable(next(), stack + n++)) return false;
        for (count = next(); count; --count) {
            ++w;
            if (!stable(next(), stack + n++)) return false;
        }
        i64 made = next();
        i32 status = 1;
        if (direct < 0) {
            void* state = PyEval_SaveThread();
            status = torch.dispatch(name, part, stack, p.h.abi);
            PyEval_RestoreThread(state);
        } else {
            status = product(torch.direct[direct], stack);
            made = 0;
        }
        if (status) return PyErr_Occurred() ? false : again(target, args);
        n = next();
        for (i64 i = 0; i < made; ++i) {
            i64 to = i < n ? w[i] : -1;
            if (to < 0) torch.erase((Tensor)stack[i]);
            else set(slots[to], (Tensor)stack[i]);
        }
        w += n + 1;
        return true;
    }

    // A product with a bias, of (bias, left, right, beta, alpha, out), which it lets go.  What has no
    // memory (PyTorch's zero tensors) is not for it.
    i32 product(i32 (*run)(Tensor, Tensor, Tensor, Tensor, double, double), const i64* stack) {
        Tensor t[4] = {(Tensor)stack[5], (Tensor)stack[0], (Tensor)stack[1], (Tensor)stack[2]};
        double beta, alpha;
        memcpy(&beta, stack + 3, sizeof beta);
        memcpy(&alpha, stack + 4, sizeof alpha);
        void* address = nullptr;
        i32 status = 0;
        status = !run;
        for (int i = 0; !status && i < 4; ++i)
            status = torch.data_ptr(t[i], &address) || !address;
        if (!status) {
            void* state = PyEval_SaveThread();
            status = run(t[0], t[1], t[2], t[3], beta, alpha);
            PyEval_RestoreThread(state);
        }
        for (Tensor each : t) torch.erase(each);
        return status;
    }

    // The same from Python, which raises what PyTorch raises there.
    bool again(PyObject* target, const i64* args) {
        w = args;
        i64 n = next();
        PyObject* all = PyTuple_New(n);
        for (i64 i = 0; all && i < n; ++i) {
            ++w;
            PyObject* one = value();
            if (one) PyTuple_SetItem(all, i, one);
        }
        PyObject* named = PyDict_New();
        n = next();
        for (i64 i = 0; named && i < n; ++i) {
            PyObject* name = object();
            ++w;
            PyObject* one = value();
            if (one) PyDict_SetItem(named, name, one);
            if (one) Py_DecRef(one);
        }
        PyObject* out = PyErr_Occurred() ? nullptr : PyObject_Call(target, all, named);
        if (all) Py_DecRef(all);
        if (named) Py_DecRef(named);
        ++w;
        return out && results(out);
    }

    __attribute__((noinline)) bool expect() {
        Slot& s = slot();
        i32 type = code(), is;
        i64* sizes = ROOM();
        i64 n = dims(sizes), dim, *actual;
        i64* strides = ROOM();
        dims(strides);
        if (!there(s)) return false;
        if (torch.dtype(s.tensor, &is) || torch.dim(s.tensor, &dim) ||
            torch.strides(s.tensor, &actual))
            return failed();
        bool same = is == type && dim == n;
        for (i64 i = 0; same && i < n; ++i) same = actual[i] == strides[i];
        if (same) return true;
        Tensor t;
        i32 place, index;
        if (torch.device_type(s.tensor, &place) || torch.device_index(s.tensor, &index) ||
            torch.empty(n, sizes, strides, type, place, index, &t))
            return failed();
        bool copied = !torch.copy(t, s.tensor, 0);
        if (!copied) failed();
        set(s, t);
        return copied;
    }

    bool raise(PyObject* message) {
        PyErr_SetObject(PyExc_RuntimeError, message);
        return false;
    }

    bool size() {
        i64& out = ints[next()];
        Slot& s = slot();
        return there(s) && (!torch.size(s.tensor, next(), &out) || failed());
    }

    bool as_number(PyObject* o, i64& out) {
        out = PyLong_AsLongLong(o);
        return out != -1 || !PyErr_Occurred();
    }

    bool step() {
#define BINARY(name, e)                 \
    case OP_##name: {                   \
        i64& out = ints[*w++];          \
        i64 a = number(), b = number(); \
        out = e;                        \
        return true;                    \
    }
        switch (next()) {
            case OP_number: {
                i64& out = ints[next()];
                return as_number(slot().owner, out);
            }
            case OP_size: return size();
            case OP_load: {
                Slot& s = slot();
                PyObject* o = object();
                Py_IncRef(o);
                return own(s, o);
            }
            case OP_allocate: return allocate();
            case OP_recycled: return made(RECYCLED, 1);
            case OP_workspace: return workspace();
            case OP_view: return view();
            case OP_place: return place();
            case OP_retype: return retype();
            case OP_move: return move();
            case OP_free: release(slot()); return true;
            case OP_segment: return segment();
            case OP_launch: return launch();
            case OP_enter: return enter();
            case OP_leave: leave(); return true;
            case OP_start: return start();
            case OP_skip: {
                i64 good = number(), n = next();
                w += good ? 0 : n;
                return true;
            }
            case OP_call: return call();
            case OP_aten: return aten();
            case OP_expect: return expect();
            case OP_equal: {
                i64 a = number(), b = number();
                PyObject* message = object();
                return a == b || raise(message);
            }
            case OP_assert: {
                i64 good = number();
                PyObject* message = object();
                return good || raise(message);
            }
            case OP_return: return (result = value()) != nullptr;
            BINARY(add, a + b)
            BINARY(mul, a * b)
            BINARY(min, a < b ? a : b)
            BINARY(max, a > b ? a : b)
            BINARY(eq, a == b)
            BINARY(ne, a != b)
            BINARY(lt, a < b)
            BINARY(le, a <= b)
            BINARY(and, a && b)
            BINARY(or, a || b)
            case OP_floordiv:
            case OP_mod: {
                bool quotient = w[-1] == OP_floordiv;
                i64& out = ints[next()];
                i64 a = number(), b = number();
                if (!b) {
                    PyErr_SetString(PyExc_RuntimeError, "litz: a size is divided by zero");
                    return false;
                }
                i64 r = a % b, down = r && (r < 0) != (b < 0);
                out = quotient ? a / b - down : r + (down ? b : 0);
                return true;
            }
            case OP_not: {
                i64& out = ints[next()];
                out = !number();
                return true;
            }
        }
        PyErr_SetString(PyExc_RuntimeError, "litz: a plan with an unknown instruction");
        return false;
    }
};

PyObject* call(PyObject* self, PyObject* args) {
    const Program& p = *(const Program*)PyCapsule_GetPointer(self, NAME);
    i64 n = PyList_Size(args);
    if (n != p.h.n_inputs) {
        if (n >= 0) PyErr_SetString(PyExc_TypeError, "litz: a graph takes another number of arguments");
        return nullptr;
    }
    Slot* slots = (Slot*)calloc(p.h.n_tensors + 1, sizeof(Slot) + 0);
    i64* ints = (i64*)malloc((p.h.n_numbers + 1) * sizeof(i64));
    memcpy(ints, p.numbers, p.h.n_numbers * sizeof(i64));
    Run run{p, p.h.torch, slots, ints, p.words};
    bool good = true;
    for (i64 i = 0; i < n; ++i) {
        PyObject* o = PyList_GetItem(args, i);
        Py_IncRef(o);
        run.own(slots[i], o);
    }
    PyList_SetSlice(args, 0, n, nullptr);
    while (good && !run.result) good = run.step();
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    if (!good) PyErr_Fetch(&type, &value, &trace);
    run.leave();
    for (i64 i = 0; i < p.h.n_tensors; ++i) run.release(slots[i]);
    if (!good) PyErr_Restore(type, value, trace);
    free(slots);
    free(ints);
    return run.result;
}

void forget(PyObject* capsule) {
    Program* p = (Program*)PyCapsule_GetPointer(capsule, NAME);
    Py_DecRef(p->keep);
    free(p->objects);
    free((void*)p->segments);
    free(p);
}

PyMethodDef METHOD = {"call", call, 8 /* METH_O */, nullptr};

}  // namespace

// A callable of a plan.  header: a Header and what stands behind it; keep: a tuple of the helpers.
extern "C" PyObject* litz_program(const i64* header, PyObject* keep) {
    Program* p = (Program*)calloc(1, sizeof(Program));
    memcpy(&p->h, header, sizeof(Header));
    const Header& h = p->h;
    i64 n = h.n_segments + h.n_kernels + h.n_objects + h.n_numbers + h.n_words;
    i64* rest = (i64*)malloc((n + 1) * sizeof(i64));
    memcpy(rest, (const char*)header + sizeof(Header), n * sizeof(i64));
    p->segments = rest;
    p->kernels = p->segments + h.n_segments;
    p->codes = p->kernels + h.n_kernels;
    p->numbers = p->codes + h.n_objects;
    p->words = p->numbers + h.n_numbers;
    p->keep = keep;
    Py_IncRef(keep);
    for (i64 i = 0; i < N_HELPERS; ++i) p->helpers[i] = PyTuple_GetItem(keep, i);
    p->objects = (PyObject**)malloc((h.n_objects + 1) * sizeof(PyObject*));
    for (i64 i = 0; i < h.n_objects; ++i)
        p->objects[i] = PyTuple_GetItem(p->helpers[OBJECTS], i);
    PyObject* capsule = PyCapsule_New(p, NAME, forget);
    PyObject* made = capsule ? PyCFunction_NewEx(&METHOD, capsule, nullptr) : nullptr;
    if (capsule) Py_DecRef(capsule);
    return made;
}
