// The native executor: runs a plan (runtime/plan.py) with one call from Python a call of the program.
// Before it stands native/plan.h, which has all that is not Python's.  No headers, so that compiling
// is quick and needs none of Python's: it takes the limited API, whose functions resolve in the
// running process.  The addresses of PyTorch's and CUDA's functions are handed in by
// runtime/executor.py.

typedef __INT64_TYPE__ i64;
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

namespace litz {

// Of runtime/executor.py; behind it `segments`, `kernels`, `codes`, `numbers` and `words`.
struct Header {
    i64 n_words, n_inputs, n_tensors, n_numbers, n_objects, n_segments, n_kernels;
    i64 offset;  // bytes from a Python tensor's address to its at::Tensor
    i64 abi;
    i64 (*run_segment)(void**);
    struct Pool* pool;
    Torch torch;
};

// Of runtime/memory.py.
struct Block {
    i64 nbytes, stamp;
    char* base;
    i64 n;
    struct { const i64* at; i64 value; } words[];

    bool as_new() const {
        for (i64 i = 0; i < n; ++i)
            if (__atomic_load_n(words[i].at, __ATOMIC_ACQUIRE) != words[i].value) return false;
        return true;
    }
};
struct Pool {
    i64 clock, reused, busy, every;
    Block* blocks[16];  // the youngest last

    Block* unused(i64 nbytes) {  // Python's turn where there is none
        if (busy || (clock + 1) % every == 0) return nullptr;
        for (i64 i = 16; i--;)
            if (Block* b = blocks[i]; b && b->nbytes == nbytes && b->as_new()) {
                b->stamp = ++clock;
                ++reused;
                return b;
            }
        return nullptr;
    }
};

// What Python hands in beside the header, all alive as long as the program.
enum Helper { OBJECTS, SEGMENTS, KERNELS, TENSOR, RECYCLED, EMPTY, WORKSPACE, IN_MEMORY, N_HELPERS };

struct Program {
    Header h;
    PyObject* keep;
    PyObject* helpers[N_HELPERS];
    PyObject** objects;
    const char** texts;  // of the objects that are such
    const i64 *segments, *kernels, *codes, *numbers, *words;
};

// A tensor register: the tensor belongs to `owner`, a Python object, or else to the register.
struct Slot {
    Handle tensor;
    PyObject* owner;
};

static const char* const NAME = "litz program";

namespace {

struct Run : Runner<Run> {
    const Program& p;
    Slot* slots;
    PyObject* result = nullptr;
    void* unlocked = nullptr;

    Run(const Program& program, Slot* registers, i64* numbers)
        : Runner<Run>{program.h.torch, program.h.abi, numbers, program.words},
          p(program), slots(registers) {}

    PyObject* object() { return p.objects[*w++]; }
    Slot& slot() { return slots[*w++]; }

    // Python's lock is let go where something may take long, and taken again by who needs it, not
    // before: between small steps that costs as much as they do.
    void unlock() {
        if (!unlocked) unlocked = PyEval_SaveThread();
    }
    void lock() {
        if (unlocked) PyEval_RestoreThread(unlocked);
        unlocked = nullptr;
    }

    bool error(const char* text) {
        lock();
        PyErr_SetString(PyExc_RuntimeError, text);
        return false;
    }
    bool refused() {
        const char* what = torch.what ? torch.what() : nullptr;
        return error(what && *what ? what : "litz: PyTorch refused a call");
    }
    bool raise(i64 message) {
        lock();
        PyErr_SetObject(PyExc_RuntimeError, p.objects[message]);
        return false;
    }

    // --- what instructions name ---

    i64 code(i64 object) { return p.codes[object]; }
    bool nothing(i64 object) { return p.objects[object] == (PyObject*)&_Py_NoneStruct; }
    const char* text(i64 object) { return p.texts[object]; }

    // --- tensor registers ---

    void release(Slot& s) {
        Slot old = s;
        s = Slot{nullptr, nullptr};
        if (old.owner) lock(), Py_DecRef(old.owner);
        else if (old.tensor) torch.erase(old.tensor);
    }
    void release(i64 at) { release(slots[at]); }

    void move(i64 to, i64 from) {
        Slot moved = slots[from];
        slots[from] = Slot{nullptr, nullptr};
        release(to);
        slots[to] = moved;
    }

    bool set(i64 to, Handle t) {
        release(to);
        slots[to].tensor = t;
        return true;
    }

    // Takes a reference over.  What is no tensor may be handed on, and nothing else.
    bool keep(Slot& s, PyObject* o) {
        lock();
        if (!o) return false;
        release(s);
        PyObject* type = PyObject_Type(o);
        bool is = type == p.helpers[TENSOR] || PyType_IsSubtype(type, p.helpers[TENSOR]);
        Py_DecRef(type);
        s.owner = o;
        s.tensor = is ? (Handle)((char*)o + p.h.offset) : nullptr;
        return true;
    }

    Handle there(i64 at) {
        if (!slots[at].tensor) {
            lock();
            PyErr_SetString(PyExc_TypeError, "litz: an argument or a result is no tensor");
        }
        return slots[at].tensor;
    }

    // A borrowed reference to the Python object of a register.
    PyObject* python(i64 at) {
        lock();
        Slot& s = slots[at];
        if (s.owner) return s.owner;
        if (!there(at)) return nullptr;
        PyObject* o = (PyObject*)torch.wrap(s.tensor);
        if (o) {
            torch.erase(s.tensor);
            s.owner = o;
            s.tensor = (Handle)((char*)o + p.h.offset);
        }
        return o;
    }

    // The address of a tensor; one that comes from elsewhere may have no memory behind it.
    bool address(i64 at, i64 how, void** out) {
        Handle t = there(at);
        if (!t) return false;
        if (torch.data_ptr(t, out)) return refused();
        if (*out || !(how & ELSEWHERE)) return true;
        PyObject* o = python(at);
        if (!o) return false;
        o = PyObject_CallFunctionObjArgs(p.helpers[IN_MEMORY], o, (PyObject*)nullptr);
        return keep(slots[at], o) && there(at) &&
               (!torch.data_ptr(slots[at].tensor, out) || refused());
    }

    // --- Python's values ---

    // Reads a Python value; a new reference.
    PyObject* value() {
        switch (next()) {
            case VALUE_tensor: {
                PyObject* o = python(next());
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

    PyObject* tuple() {  // of counted numbers
        i64 n = next();
        PyObject* all = PyTuple_New(n);
        for (i64 i = 0; i < n; ++i) {
            i64 number_ = number();
            if (all) PyTuple_SetItem(all, i, PyLong_FromLongLong(number_));
        }
        return all;
    }

    bool as_number(PyObject* o, i64& out) {
        out = PyLong_AsLongLong(o);
        return out != -1 || !PyErr_Occurred();
    }

    // --- memory that Python makes ---

    // A tensor that Python makes by sizes, strides and as many objects as stand before them.
    bool by_python(Helper by, i64 count) {
        lock();
        Slot& s = slot();
        PyObject* first = object();
        PyObject* second = count > 1 ? object() : nullptr;
        PyObject* sizes = tuple();
        PyObject* strides = tuple();
        PyObject* out = sizes && strides ? PyObject_CallFunctionObjArgs(
            p.helpers[by], sizes, strides, first, second, (PyObject*)nullptr) : nullptr;
        if (sizes) Py_DecRef(sizes);
        if (strides) Py_DecRef(strides);
        return keep(s, out);
    }

    bool recycled() {
        const i64* at = w;
        i64 to = next();
        i32 type = Runner::code();
        i64* sizes = ROOM();
        i64 n = dims(sizes);
        i64* strides = ROOM();
        dims(strides);
        i64 elements = 1;
        for (i64 i = 0; i < n; ++i) elements += (sizes[i] - 1) * strides[i];
        for (i64 i = 0; i < n; ++i) elements *= sizes[i] != 0;
        Handle t;
        if (Block* b = p.h.pool->unused(elements * (i64)torch.bytes(type)))
            return made(to, torch.place((Handle)(b->base + p.h.offset), 0, type, n, sizes, strides, &t), t);
        w = at;
        return by_python(RECYCLED, 1);
    }

    // Python says what there is to say, of memory that runs out above all.
    bool exhausted() { return by_python(EMPTY, 2); }

    bool workspace() {
        Slot& s = slot();
        PyObject* n = PyLong_FromLongLong(number());
        if (!n) return false;
        PyObject* made =
            PyObject_CallFunctionObjArgs(p.helpers[WORKSPACE], n, (PyObject*)nullptr);
        Py_DecRef(n);
        return keep(s, made);
    }

    // --- kernels ---

    void* steps(i64 which) { return (void*)p.segments[which]; }
    i64 run(void** packed) { return p.h.run_segment(packed); }

    bool fault(i64 which, i64 status) {
        lock();
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

    const Launcher* launcher(i64 which) { return *(const Launcher**)p.kernels[which]; }

    // A kernel that has no launcher so far.
    bool elsewhere(i64 which, const i64* given, void* const* items, i64 count) {
        lock();
        PyObject* f = PyTuple_GetItem(p.helpers[KERNELS], which);
        return call_python(f, given, (PyObject* const*)items, count);
    }

    // Calls a function of numbers, of which some are objects.
    bool call_python(PyObject* f, const i64* numbers, PyObject* const* items, i64 n) {
        lock();
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
    bool item(i64 at, void** out) {
        PyObject* o = python(at);
        PyObject* get = o ? PyObject_GetAttrString(o, "item") : nullptr;
        *out = get ? PyObject_CallFunctionObjArgs(get, (PyObject*)nullptr) : nullptr;
        if (get) Py_DecRef(get);
        return *out;
    }
    void drop(void* item) {
        if (item) lock(), Py_DecRef((PyObject*)item);
    }

    // A Python number as a kernel takes it; false where it has no such form.
    bool by_value(i64 kind, void* item, i64* out) {
        lock();
        PyObject* o = (PyObject*)item;
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

    // A launch that Python makes: of what is not loaded yet, and of what fails, again.
    bool otherwise(Form& form, i64, const i64* grid, const i64* cells, const i64* c, i64 n) {
        i64* numbers = (i64*)__builtin_alloca((n + 3) * sizeof(i64));
        PyObject** items = (PyObject**)__builtin_alloca((n + 3) * sizeof(PyObject*));
        memcpy(numbers, grid, 3 * sizeof(i64));
        memcpy(numbers + 3, c, n * sizeof(i64));
        for (i64 i = 0; i < n + 3; ++i) items[i] = nullptr;
        for (i64 i = 0; i < n; ++i)
            if (cells[2 * i] >= CELL_int) items[3 + i] = (PyObject*)arguments->items[cells[2 * i + 1]];
        return call_python((PyObject*)form.call, numbers, items, n + 3);
    }

    // --- calls of Python's functions ---

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
                good = keep(slots[to[i]], one);
                continue;
            }
            good = one && as_number(one, ints[-2 - to[i]]);
            if (one) Py_DecRef(one);
        }
        Py_DecRef(out);
        return good;
    }

    // An operator that PyTorch refused, called from Python, which raises what PyTorch raises there.
    bool again(i64 target, const i64* args) {
        lock();
        if (PyErr_Occurred()) return false;
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
        PyObject* out = PyErr_Occurred() ? nullptr : PyObject_Call(p.objects[target], all, named);
        if (all) Py_DecRef(all);
        if (named) Py_DecRef(named);
        ++w;
        return out && results(out);
    }

    bool special(i64 op) {
        lock();
        switch (op) {
            case OP_number: {
                i64& out = ints[next()];
                return as_number(slot().owner, out);
            }
            case OP_load: {
                Slot& s = slot();
                PyObject* o = object();
                Py_IncRef(o);
                return keep(s, o);
            }
            case OP_recycled: return recycled();
            case OP_workspace: return workspace();
            case OP_call: return call();
            case OP_return: return (result = value()) != nullptr;
        }
        return error("litz: a plan with an unknown instruction");
    }
};

PyObject* call(PyObject* self, PyObject* args) {
    const Program& p = *(const Program*)PyCapsule_GetPointer(self, NAME);
    i64 n = PyList_Size(args);
    if (n != p.h.n_inputs) {
        if (n >= 0) PyErr_SetString(PyExc_TypeError, "litz: a graph takes another number of arguments");
        return nullptr;
    }
    Slot* slots = (Slot*)calloc(p.h.n_tensors + 1, sizeof(Slot));
    i64* ints = (i64*)malloc((p.h.n_numbers + 1) * sizeof(i64));
    memcpy(ints, p.numbers, p.h.n_numbers * sizeof(i64));
    Run run(p, slots, ints);
    bool good = true;
    for (i64 i = 0; i < n; ++i) {
        PyObject* o = PyList_GetItem(args, i);
        Py_IncRef(o);
        run.keep(slots[i], o);
    }
    PyList_SetSlice(args, 0, n, nullptr);
    while (good && !run.result) good = run.step();
    run.lock();
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
    free(p->texts);
    free((void*)p->segments);
    free(p);
}

PyMethodDef METHOD = {"call", call, 8 /* METH_O */, nullptr};

}  // namespace

}  // namespace litz

// A callable of a plan.  header: a Header and what stands behind it; keep: a tuple of the helpers.
extern "C" PyObject* litz_program(const i64* header, PyObject* keep) {
    using namespace litz;
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
    p->texts = (const char**)malloc((h.n_objects + 1) * sizeof(const char*));
    for (i64 i = 0; i < h.n_objects; ++i) {
        p->objects[i] = PyTuple_GetItem(p->helpers[OBJECTS], i);
        p->texts[i] = PyUnicode_AsUTF8AndSize(p->objects[i], nullptr);
        if (!p->texts[i]) PyErr_Clear();
    }
    PyObject* capsule = PyCapsule_New(p, NAME, forget);
    PyObject* made = capsule ? PyCFunction_NewEx(&METHOD, capsule, nullptr) : nullptr;
    if (capsule) Py_DecRef(capsule);
    return made;
}
