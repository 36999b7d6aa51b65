// Running a plan (src/litz/runtime/plan.py): what the native executor (runtime/csrc) and the library
// that runs packages (run.h) have in common.  No headers, so that compiling is quick: of PyTorch it
// takes C functions by their addresses, of CUDA the driver's launch, likewise.
#ifndef LITZ_PLAN_H
#define LITZ_PLAN_H

struct AtenTensorOpaque;  // an at::Tensor, as PyTorch's C functions take it

namespace litz {

typedef __INT64_TYPE__ i64;
typedef __INT32_TYPE__ i32;
typedef AtenTensorOpaque* Handle;

// Python's quotient, rounded down, or its remainder; b is not 0.
inline i64 floor_divide(i64 a, i64 b, bool quotient) {
    i64 r = a % b, down = r && (r < 0) != (b < 0);
    return quotient ? a / b - down : r + (down ? b : 0);
}

// In the order of OPS, VALUES, CELLS and the bits of types and pointers in runtime/shipped.py.
enum Op {
    OP_number, OP_size, OP_load, OP_allocate, OP_recycled, OP_workspace, OP_view, OP_place,
    OP_retype, OP_aligned, OP_move, OP_free, OP_segment, OP_launch, OP_enter, OP_leave, OP_call, OP_aten,
    OP_expect, OP_equal, OP_assert, OP_return, OP_add, OP_mul, OP_floordiv, OP_mod, OP_min,
    OP_max, OP_eq, OP_ne, OP_lt, OP_le, OP_and, OP_or, OP_not, OP_skip, OP_start, OP_end
};
enum Kind { VALUE_tensor, VALUE_number, VALUE_object, VALUE_tuple, VALUE_list };
enum Cell {
    CELL_plain, CELL_number, CELL_small, CELL_pointer, CELL_address, CELL_int, CELL_f32, CELL_f64
};
enum { OPTIONAL = 8, LIST = 16, OPTIONAL_LIST = 32, ELSEWHERE = 1, BY_VALUE = 2 };
enum { MOST_ARGUMENTS = 64 };

// In the order of FUNCTIONS in runtime/executor.py; each returns 0 but those that return a value.
struct Torch {
    void* (*wrap)(Handle);
    const char* (*what)();  // may be null
    i32 (*num_threads)(unsigned*);
    i32 (*erase)(Handle);
    i32 (*data_ptr)(Handle, void**);
    i32 (*dim)(Handle, i64*);
    i32 (*size)(Handle, i64, i64*);
    i32 (*strides)(Handle, i64**);
    i32 (*dtype)(Handle, i32*);
    i32 (*empty)(i64, const i64*, const i64*, i32, i32, i32, Handle*);
    i32 (*view)(Handle, i64, const i64*, const i64*, i64, Handle*);
    i32 (*place)(Handle, i64, i32, i64, const i64*, const i64*, Handle*);
    i32 (*retype)(Handle, i32, Handle*);
    i32 (*copy)(Handle, Handle, i32);
    i32 (*box)(i64**);  // may be null
    i32 (*again)(Handle, Handle*);
    i32 (*undefined)(Handle*);
    i32 (*list)(__SIZE_TYPE__, void**);
    i32 (*push)(void*, i64);
    i32 (*dispatch)(const char*, const char*, i64*, i64);
    i32 (*device_type)(Handle, i32*);
    i32 (*device_index)(Handle, i32*);
    i32 (*stream)(i32, void**);  // this and the next may be null
    i32 (*guard)(i32, void**);
    i32 (*unguard)(void*);
    bool (*watched)();  // whether somebody is told of operators that run; these may be null
    i32 (*mark)(const char*, void*, void* const*, __UINT64_TYPE__, void**);
    i32 (*unmark)(void*);
    __SIZE_TYPE__ (*bytes)(i32);  // of an element
    i32 (*biased[4])(Handle, Handle, Handle, Handle, double, double);
    i32 (*plain[4])(Handle, Handle, Handle);
};

// Tells who watches of what runs while it lives.
struct Marked {
    const Torch& torch;
    void* mark = nullptr;

    Marked(const Torch& t, const char* name) : torch(t) {
        if (t.watched && t.mark && t.unmark && name && t.watched())
            if (t.mark(name, nullptr, nullptr, 0, &mark)) mark = nullptr;
    }
    ~Marked() {
        if (mark) torch.unmark(mark);
    }
};

// Of runtime/launchers.py.
struct Variant {
    i64 function, threads, shared, hidden, attributes;
};

struct Config {  // CUlaunchConfig
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned n_attributes;
};

struct Form {
    void* call;  // whose turn it is where the driver does not launch
    i32 (*launch)(const Config*, i64, void**, void**);
    i64 device;
    Variant variants[3];
};

struct Launcher {
    const i64 *words, *numbers;
    i64 n_numbers;
    Form* const* forms;
};

// What a launcher is called with: pointers, then integers; items: of values from the host.
struct Arguments {
    const i64* given;
    void* const* items;
    Form* const* forms;
};

// A call of a plan.  `Own` derives from it, holds the tensor registers, and says what is its own:
// - there(register): the tensor, or null behind an error; set(register, tensor), which takes it over;
//   release(register); move(to, from); address(register, how, &out);
// - code(object), nothing(object), text(object): of what instructions name;
// - error(text), refused(), raise(object), exhausted(), again(target, args): false, or another way;
// - unlock(): before what may take long; who needs Python's lock then takes it again;
// - steps(which), run(packed), fault(which, status): segments;
// - launcher(which), elsewhere(..), item(..), drop(item), by_value(..), otherwise(..): kernels on GPUs;
// - special(instruction): all others.
// What says no has said why.
template <class Own> struct Runner {
    const Torch& torch;
    i64 abi;
    i64* ints;
    const i64* w;
    void* guard = nullptr;
    const Arguments* arguments = nullptr;

    Own& own() { return *static_cast<Own*>(this); }
    i64 next() { return *w++; }
    i64 number() { return ints[*w++]; }
    i32 code() { return (i32)own().code(*w++); }

    // Reads counted numbers into memory for as many, which `ROOM` makes.
    i64 dims(i64* out) {
        i64 n = next();
        for (i64 i = 0; i < n; ++i) out[i] = number();
        return n;
    }
#define ROOM() ((i64*)__builtin_alloca((*w + 1) * sizeof(i64)))

    bool made(i64 to, i32 status, const Handle& t) {
        return status ? own().refused() : own().set(to, t);
    }

    // --- memory ---

    __attribute__((noinline)) bool allocate() {
        const i64* at = w;
        i64 to = next();
        i32 type = code(), place = code();
        i64* sizes = ROOM();
        i64 n = dims(sizes);
        i64* strides = ROOM();
        dims(strides);
        Handle t;
        if (!torch.empty(n, sizes, strides, type, place >> 8, (signed char)place, &t))
            return own().set(to, t);
        w = at;
        return own().exhausted();
    }

    __attribute__((noinline)) bool view() {
        i64 to = next();
        Handle base = own().there(next()), t;
        i64* sizes = ROOM();
        i64 n = dims(sizes);
        i64* strides = ROOM();
        dims(strides);
        i64 offset = number();
        return base && made(to, torch.view(base, n, sizes, strides, offset, &t), t);
    }

    __attribute__((noinline)) bool place() {
        i64 to = next();
        Handle base = own().there(next()), t;
        i32 type = code();
        i64* sizes = ROOM();
        i64 n = dims(sizes);
        i64* strides = ROOM();
        dims(strides);
        i64 offset = next();
        return base && made(to, torch.place(base, offset, type, n, sizes, strides, &t), t);
    }

    bool retype() {
        i64 to = next();
        Handle base = own().there(next()), t;
        i32 type = code();
        return base && made(to, torch.retype(base, type, &t), t);
    }

    __attribute__((noinline)) bool expect() {
        i64 to = next();
        Handle base = own().there(to), t;
        i32 type = code(), is, place, index;
        i64* sizes = ROOM();
        i64 n = dims(sizes), dim, *actual;
        i64* strides = ROOM();
        dims(strides);
        if (!base) return false;
        if (torch.dtype(base, &is) || torch.dim(base, &dim) || torch.strides(base, &actual))
            return own().refused();
        bool same = is == type && dim == n;
        for (i64 i = 0; same && i < n; ++i) same = actual[i] == strides[i];
        if (same) return true;
        if (torch.device_type(base, &place) || torch.device_index(base, &index) ||
            torch.empty(n, sizes, strides, type, place, index, &t))
            return own().refused();
        i32 status = torch.copy(t, base, 0);
        if (status) torch.erase(t);
        return made(to, status, t);
    }

    __attribute__((noinline)) bool aligned() {
        i64 to = next(), n, all = 1, one = 1, *steps;
        Handle base = own().there(next()), t = nullptr, part = nullptr, room = nullptr;
        void* begin;
        i32 type, place, index;
        if (!base) return false;
        if (torch.data_ptr(base, &begin)) return own().refused();
        if (!((i64)begin & 15)) return made(to, torch.again(base, &t), t);
        if (torch.dtype(base, &type) || torch.dim(base, &n) || torch.strides(base, &steps))
            return own().refused();
        if (torch.device_type(base, &place) || torch.device_index(base, &index))
            return own().refused();
        i64* sizes = (i64*)__builtin_alloca((n + 1) * sizeof(i64));
        for (i64 i = 0; i < n; ++i) {
            if (torch.size(base, i, sizes + i)) return own().refused();
            all += (sizes[i] - 1) * steps[i];
        }
        // All that lies between the first element and the last, flat: gaps and overlaps too.
        i32 status = torch.view(base, 1, &all, &one, 0, &part) ||
                     torch.empty(1, &all, &one, type, place, index, &room) ||
                     torch.copy(room, part, 0) || torch.view(room, n, sizes, steps, 0, &t);
        if (part) torch.erase(part);
        if (room) torch.erase(room);
        return made(to, status, t);
    }

    bool size() {
        i64& out = ints[next()];
        Handle t = own().there(next());
        i64 dim = next();
        return t && (!torch.size(t, dim, &out) || own().refused());
    }

    // --- kernels ---

    __attribute__((noinline)) bool segment() {
        const char* mark = own().text(next());
        i64 which = next(), n = next();
        i64 count = 1 + n + w[3 * n];
        void** packed = (void**)__builtin_alloca(count * sizeof(void*));
        packed[0] = own().steps(which);
        for (i64 i = 1; i <= n; ++i, w += 3) {
            if (!own().address(w[0], w[2], packed + i)) return false;
            packed[i] = (void*)((i64)packed[i] + w[1]);
        }
        dims((i64*)(packed + 1 + n));
        // PyTorch hands set_num_threads() on to OpenMP lazily in each thread: asking makes it so.
        unsigned threads;
        torch.num_threads(&threads);
        own().unlock();
        Marked marked(torch, mark);
        i64 status = own().run(packed);
        return !status || own().fault(which, status);
    }

    __attribute__((noinline)) bool launch() {
        const char* mark = own().text(next());
        i64 which = next(), n = next(), count = n + w[3 * n];
        i64* given = (i64*)__builtin_alloca((count + 1) * sizeof(i64));
        void** items = (void**)__builtin_alloca((count + 1) * sizeof(void*));
        bool good = true;
        for (i64 i = 0; i < n; ++i, w += 3) {
            items[i] = nullptr;
            given[i] = 0;
            if (good && w[2] & BY_VALUE) good = own().item(w[0], items + i);
            else if (good) good = own().address(w[0], w[2], (void**)given + i);
            given[i] += w[1];
        }
        for (i64 i = n; i < count; ++i) items[i] = nullptr;
        dims(given + n);
        const Launcher* launcher = good ? own().launcher(which) : nullptr;
        Marked marked(torch, mark);
        if (launcher) good = launches(*launcher, given, items, n, count);
        else if (good) good = own().elsewhere(which, given, items, count);
        for (i64 i = 0; i < n; ++i) own().drop(items[i]);
        return good;
    }

    // Runs a launcher, whose first numbers are the integers among what is given.
    bool launches(const Launcher& l, const i64* given, void* const* items, i64 n, i64 count) {
        i64* numbers = (i64*)__builtin_alloca((l.n_numbers + 1) * sizeof(i64));
        __builtin_memcpy(numbers, l.numbers, l.n_numbers * sizeof(i64));
        __builtin_memcpy(numbers, given + n, (count - n) * sizeof(i64));
        Arguments now{given, items, l.forms};
        const i64* behind = w;
        i64* outside = ints;
        w = l.words;
        ints = numbers;
        arguments = &now;
        bool good = true;
        while (good && *w != OP_end) good = step();
        w = behind;
        ints = outside;
        return good;
    }

    __attribute__((noinline)) bool start() {
        i64 grid[3] = {number(), number(), number()};
        Form& form = *arguments->forms[next()];
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
                default: fits = own().by_value(kind, arguments->items[at], c + i) && fits;
            }
        }
        i64 which = pointers & 15 ? 2 : sized && !(numbers & 15) ? 0 : 1;
        const Variant& v = form.variants[which];
        i64 function = __atomic_load_n(&v.function, __ATOMIC_ACQUIRE);
        if (function && fits && torch.stream) {
            Config config = {{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]},
                             {(unsigned)v.threads, 1, 1}, (unsigned)v.shared, nullptr, (void*)v.attributes, v.attributes != 0};
            if (torch.stream((i32)form.device, &config.stream)) return own().refused();
            // Where the device's queue is full, the driver waits for what other threads may have
            // to do.
            own().unlock();
            if (!form.launch(&config, function, params, nullptr)) return true;
        }
        return own().otherwise(form, which, grid, cells, c, n);
    }

    bool enter() {
        signed char index = (signed char)code();  // none: of the first
        if (!torch.guard) return own().error("litz: this PyTorch has no GPUs");
        return !torch.guard(index < 0 ? 0 : index, &guard) || own().refused();
    }

    void leave() {
        if (guard) torch.unguard(guard);
        guard = nullptr;
    }

    // --- operators ---

    // Reads a value as PyTorch's dispatcher takes it, which takes over what it refers to.
    bool stable(i64 type, i64* out) {
        i64 optional = type & LIST ? OPTIONAL_LIST : OPTIONAL;
        if (w[0] == VALUE_object && own().nothing(w[1])) {
            w += 2;
            *out = 0;
            return type || !torch.undefined((Handle*)out) || own().refused();
        }
        if (type & optional) {
            i64* box = nullptr;
            if (torch.box ? torch.box(&box) : !(box = (i64*)__builtin_malloc(sizeof(i64))))
                return own().refused();
            *out = (i64)box;
            return stable(type & ~optional, box);
        }
        i64 kind = next();
        if (type & LIST) {
            i64 n = next();
            void* all;
            if (torch.list(n, &all)) return own().refused();
            *out = (i64)all;
            for (i64 i = 0; i < n; ++i) {
                i64 one;
                if (!stable(type & ~LIST, &one)) return false;
                if (torch.push(all, one)) return own().refused();
            }
            return true;
        }
        if (kind == VALUE_tensor) {
            Handle base = own().there(next()), t = nullptr;
            if (!base) return false;
            if (torch.again(base, &t)) return own().refused();
            *out = (i64)t;
        } else *out = kind == VALUE_number ? number() : own().code(next());
        return true;
    }

    __attribute__((noinline)) bool aten() {
        const char* name = own().text(next());
        const char* part = own().text(next());
        i64 target = next(), direct = next();
        const i64* args = w;
        if (direct >= 0) return product(direct) || own().again(target, args);
        i64 stack[MOST_ARGUMENTS], n = 0, count;
        for (count = next(); count; --count) {
            i64 type = next();
            if (!stable(type, stack + n++)) return false;
        }
        for (count = next(); count; --count) {
            ++w;
            i64 type = next();
            if (!stable(type, stack + n++)) return false;
        }
        i64 results = next();
        own().unlock();
        if (torch.dispatch(name, part, stack, abi)) return own().again(target, args);
        n = next();
        for (i64 i = 0; i < results; ++i) {
            i64 to = i < n ? w[i] : -1;
            if (to < 0) torch.erase((Handle)stack[i]);
            else own().set(to, (Handle)stack[i]);
        }
        w += n + 1;
        return true;
    }

    bool without_elements(Handle t) {
        i64 dim = 0, n = 1;
        torch.dim(t, &dim);
        for (i64 i = 0; n && i < dim; ++i) torch.size(t, i, &n);
        return !n;
    }

    // A matrix product by its own function: of (left, right, out), or (bias, left, right, beta, alpha,
    // out).  No where that has to be called otherwise: what has elements and no memory (PyTorch's zero
    // tensors) is not for it, and a profiler sees what the dispatcher calls.
    bool product(i64 direct) {
        Handle t[4];
        double numbers[2];
        i64 tensors = 0, read = 0;
        for (int named = 0; named < 2; ++named)
            for (i64 count = next(); count; --count) {
                w += 1 + named;  // its name and type
                if (next() == VALUE_tensor) {
                    Handle one = own().there(next());
                    void* address;
                    if (!one || torch.data_ptr(one, &address) || !(address || without_elements(one)))
                        return false;
                    t[tensors++] = one;
                } else {
                    i64 bits = own().code(next());
                    __builtin_memcpy(numbers + read++, &bits, sizeof bits);
                }
            }
        auto biased = direct < 4 ? torch.biased[direct] : nullptr;
        auto plain = direct < 4 ? nullptr : torch.plain[direct - 4];
        if (!(biased || plain) || (torch.watched && torch.watched())) return false;
        own().unlock();
        i32 status = biased ? biased(t[3], t[0], t[1], t[2], numbers[0], numbers[1])
                            : plain(t[2], t[0], t[1]);
        w += 1;  // how many results it has
        w += next() + 1;
        return !status;
    }

    // --- instructions ---

    bool arithmetic(i64 op) {
        i64& out = ints[next()];
        i64 a = number();
        if (op == OP_not) return out = !a, true;
        i64 b = number();
        switch (op) {
            case OP_add: out = a + b; return true;
            case OP_mul: out = a * b; return true;
            case OP_min: out = a < b ? a : b; return true;
            case OP_max: out = a > b ? a : b; return true;
            case OP_eq: out = a == b; return true;
            case OP_ne: out = a != b; return true;
            case OP_lt: out = a < b; return true;
            case OP_le: out = a <= b; return true;
            case OP_and: out = a && b; return true;
            case OP_or: out = a || b; return true;
        }
        if (!b) return own().error("litz: a size is divided by zero");
        out = floor_divide(a, b, op == OP_floordiv);
        return true;
    }

    bool step() {
        i64 op = next();
        switch (op) {
            case OP_size: return size();
            case OP_allocate: return allocate();
            case OP_view: return view();
            case OP_place: return place();
            case OP_retype: return retype();
            case OP_move: own().move(w[0], w[1]); w += 2; return true;
            case OP_free: own().release(next()); return true;
            case OP_segment: return segment();
            case OP_launch: return launch();
            case OP_enter: return enter();
            case OP_leave: leave(); return true;
            case OP_start: return start();
            case OP_aten: return aten();
            case OP_expect: return expect();
            case OP_aligned: return aligned();
            case OP_skip: {
                i64 good = number(), n = next();
                w += good ? 0 : n;
                return true;
            }
            case OP_equal:
            case OP_assert: {
                i64 a = number(), good = op == OP_assert ? a : a == number(), message = next();
                return good || own().raise(message);
            }
        }
        if (op >= OP_add && op <= OP_not) return arithmetic(op);
        return own().special(op);
    }
};

}  // namespace litz

#endif
