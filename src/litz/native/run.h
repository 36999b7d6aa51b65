// Running a plan (src/litz/runtime/plan.py) over PyTorch's C functions.
#ifndef LITZ_RUN_H
#define LITZ_RUN_H

#include <map>
#include <memory>
#include <set>

#include "reading.h"
#include "torch.h"

namespace litz {

// In the order of OPS, VALUES and the bits of types in shipped.py.
enum Op {
    OP_number, OP_size, OP_load, OP_allocate, OP_recycled, OP_workspace, OP_view, OP_place,
    OP_retype, OP_move, OP_free, OP_segment, OP_launch, OP_enter, OP_leave, OP_call, OP_aten,
    OP_expect, OP_equal, OP_assert, OP_return, OP_add, OP_mul, OP_floordiv, OP_mod, OP_min,
    OP_max, OP_eq, OP_ne, OP_lt, OP_le, OP_and, OP_or, OP_not, OP_skip, OP_start, OP_end
};
enum Kind { VALUE_tensor, VALUE_number, VALUE_object, VALUE_tuple, VALUE_list };
enum { OPTIONAL = 8, LIST = 16, OPTIONAL_LIST = 32, ELSEWHERE = 1 };

struct Module;

// What an instruction names: a plain value, a constant, a body of control flow, or the name of
// something of Python's ("module:path").
struct Object {
    enum { Nothing, Number, Real, Text, Constant, Body, Python } kind = Nothing;
    i64 code = 0;  // of a number, a dtype, the bits of a float
    std::string text;
    Tensor tensor;
    const Module* body = nullptr;
};

struct Step {  // as litz_rt.cpp has them
    void* kernel;
    const int32_t* table;
    i64 n_ptrs, n_ints;
};
struct Segment {
    const Step* steps;
    i64 n_steps, n_ptrs, max_ptrs, max_ints;
    std::vector<Step> own;
    std::vector<std::vector<int32_t>> tables;
};

// A plan with what it names.  bodies: those of its control flow.
struct Module {
    std::vector<Object> objects;
    std::vector<i64> numbers, words;
    i64 n_tensors = 0, abi = 0;
    std::vector<std::unique_ptr<Segment>> segments;
    std::map<std::string, std::unique_ptr<Module>> bodies;
    i64 (*run_segment)(void**) = nullptr;

    std::vector<Value> operator()(const std::vector<Value>& arguments) const;
};

// An argument of a call of Python's.
struct Any {
    Value value;
    const Object* object = nullptr;
    std::vector<Any> items;
};

// One call.
struct Run {
    const Module& m;
    std::vector<Tensor> slots;
    std::vector<i64> ints;
    const std::vector<Value>& arguments;
    const i64* w;
    std::vector<Value> results;

    i64 next() { return *w++; }
    i64& number() { return ints[(size_t)*w++]; }
    Tensor& slot() { return slots[(size_t)*w++]; }
    const Object& object() { return m.objects[(size_t)*w++]; }
    int32_t code() { return (int32_t)object().code; }

    Handle there(const Tensor& t) {
        if (!t) throw Error("litz: an argument or a result is no tensor");
        return t.get();
    }
    std::vector<i64> dims() {
        std::vector<i64> all((size_t)next());
        for (i64& n : all) n = number();
        return all;
    }

    void values() {  // of a result, its leaves in order
        Value v;
        switch (next()) {
            case VALUE_tensor: {
                Tensor& t = slot();
                there(t);
                results.push_back(t);
                return;
            }
            case VALUE_number: results.push_back(number()); return;
            case VALUE_object: {
                const Object& o = object();
                if (o.kind == Object::Constant) v = Value(o.tensor);
                else if (o.kind == Object::Number) v = Value(o.code);
                results.push_back(v);
                return;
            }
            default:
                for (i64 n = next(); n; --n) values();
        }
    }

    void segment() {
        Segment& s = *m.segments[(size_t)next()];
        i64 n = next();
        std::vector<void*> packed(1, &s);
        for (i64 i = 0; i < n; ++i) {
            Tensor& t = slot();
            there(t);
            char* address = (char*)t.data();
            i64 offset = next();
            if (next() & ELSEWHERE && !address && nothing(t)) throw Error("litz: an argument has no memory");
            packed.push_back(address + offset);
        }
        for (i64 v : dims()) packed.push_back((void*)v);
        // PyTorch hands its number of threads on to OpenMP lazily in each thread: asking makes it so.
        unsigned threads;
        torch_get_num_threads(&threads);
        i64 status = m.run_segment(packed.data());
        if (status) fault(status & 0xFFFFFFFF);
    }
    bool nothing(const Tensor& t) {
        i64 count = 1;
        for (i64 n : t.shape()) count *= n;
        return count != 0;
    }
    [[noreturn]] void fault(i64 number) {  // as litz/loading/segments.py numbers them
        if (number == 2) throw Error("litz: ZeroDivisionError in a compiled kernel");
        if (number > 3) throw Error("litz: no memory for the rows that a compiled kernel keeps");
        throw Error("litz: index out of range in a compiled kernel");
    }

    void stable(i64 type, i64* out) {
        i64 optional = type & LIST ? OPTIONAL_LIST : OPTIONAL;
        if (w[0] == VALUE_object && m.objects[(size_t)w[1]].kind == Object::Nothing) {
            w += 2;
            *out = 0;
            return;
        }
        if (type & optional) {
            i64* box = nullptr;
            if (torch_new_stable_ivalue) must(torch_new_stable_ivalue(&box));
            else box = (i64*)malloc(sizeof(i64));
            *out = (i64)box;
            return stable(type & ~optional, box);
        }
        i64 kind = next();
        if (type & LIST) {
            i64 n = next();
            void* all;
            must(torch_new_list_reserve_size((size_t)n, &all));
            *out = (i64)all;
            for (; n; --n) {
                i64 one;
                stable(type & ~LIST, &one);
                must(torch_list_push_back(all, one));
            }
        } else if (kind == VALUE_tensor) {
            Handle own;
            must(aoti_torch_new_tensor_handle(there(slot()), &own));
            *out = (i64)own;
        } else *out = kind == VALUE_number ? number() : object().code;
    }

    void aten() {
        const char *name = object().text.c_str(), *part = object().text.c_str();
        object();
        i64 direct = next(), stack[64], n = 0;
        for (i64 count = next(); count; --count) {
            i64 type = next();
            stable(type, stack + n++);
        }
        for (i64 count = next(); count; --count) {
            object();
            i64 type = next();
            stable(type, stack + n++);
        }
        i64 made = next();
        if (direct < 0) must(torch_call_dispatcher(name, part, stack, m.abi));
        else {
            Tensor t[4];
            for (int i = 0; i < 4; ++i) t[i] = Tensor((Handle)stack[i < 1 ? 5 : i - 1]);
            double beta, alpha;
            memcpy(&beta, stack + 3, sizeof beta);
            memcpy(&alpha, stack + 4, sizeof alpha);
            auto run = direct ? aoti_torch_cpu_baddbmm_out : aoti_torch_cpu_addmm_out;
            must(run(t[0].get(), t[1].get(), t[2].get(), t[3].get(), beta, alpha));
            made = 0;
        }
        n = next();
        for (i64 i = 0; i < made; ++i) {
            Tensor one((Handle)stack[i]);
            if (i < n && w[i] >= 0) slots[(size_t)w[i]] = one;
        }
        w += n + 1;
    }

    void expect() {
        Tensor& t = slot();
        int32_t type = code();
        auto sizes = dims(), strides = dims();
        there(t);
        if (t.dtype() == type && t.strides() == strides) return;
        t = copied(t, sizes, strides, type);
    }

    // --- calls of what is Python's elsewhere ---

    Any any() {
        Any a;
        switch (next()) {
            case VALUE_tensor: a.value = Value(slot()); break;
            case VALUE_number: a.value = Value(number()); break;
            case VALUE_object:
                a.object = &object();
                if (a.object->kind == Object::Constant) a.value = Value(a.object->tensor);
                if (a.object->kind == Object::Number) a.value = Value(a.object->code);
                break;
            default:
                for (i64 n = next(); n; --n) a.items.push_back(any());
        }
        return a;
    }

    void call() {
        const Object& target = object();
        std::vector<Any> args;
        for (i64 n = next(); n; --n) args.push_back(any());
        if (next()) unknown(target);
        std::vector<i64> to((size_t)next());
        for (i64& r : to) r = next();
        bool single = next();
        auto made = perform(target, args);
        for (size_t i = 0; i < to.size(); ++i) {
            const Value& v = made.at(single ? 0 : i);
            if (to[i] >= 0) slots[(size_t)to[i]] = v.tensor;
            else if (to[i] < -1) ints[(size_t)(-2 - to[i])] = v.number;
        }
    }

    [[noreturn]] void unknown(const Object& target) {
        throw Error("litz: the program calls " + target.text + ", which needs Python");
    }

    std::vector<Value> perform(const Object& target, const std::vector<Any>& args) {
        const std::string& name = target.text;
        if (name.compare(0, 9, "operator:") == 0 && args.size() == 2) {
            std::map<std::string, i64> known{{"a", args[0].value.number}, {"b", args[1].value.number}};
            for (auto& row : {std::pair<View, View>{"add", "a + b"}, {"sub", "a - b"}, {"mul", "a * b"},
                              {"floordiv", "a // b"}, {"mod", "a % b"}})
                if (name.substr(9) == row.first) return {Formula(row.second, known).value()};
        }
        if (name == "litz.runtime.control_flow:region") return body(args.at(0), {&args.at(1)});
        if (name == "litz.runtime.control_flow:cond")
            return body(args.at(holds(args.at(2).value) ? 0 : 1), {&args.at(3)});
        if (name != "litz.runtime.control_flow:while_loop") unknown(target);
        Any state = args.at(2), first = state;
        const Any& others = args.at(3);
        while (holds((*bound(args.at(0)))(flat({&state, &others})).at(0))) {
            auto made = body(args.at(1), {&state, &others});
            state.items.assign(made.size(), Any());
            for (size_t i = 0; i < made.size(); ++i) state.items[i].value = made[i];
        }
        return apart(flat({&state}), flat({&first, &others}));
    }

    const Module* bound(const Any& a) {
        if (!a.object || !a.object->body) throw Error("litz: a package without a body of its program");
        return a.object->body;
    }
    std::vector<Value> flat(std::initializer_list<const Any*> tuples) {
        std::vector<Value> all;
        for (const Any* t : tuples)
            for (const Any& a : t->items) all.push_back(a.value);
        return all;
    }
    std::vector<Value> body(const Any& of, std::initializer_list<const Any*> operands) {
        auto taken = flat(operands);
        return apart((*bound(of))(taken), taken);
    }
    bool holds(const Value& v) {
        if (v.kind != Value::IsTensor) return v.number;
        if (aoti_torch_dtype_element_size(v.tensor.dtype()) != 1)
            throw Error("litz: a condition of the program is no bool");
        return *(const char*)v.tensor.data();
    }
    // The results, each in memory of its own: a body may return what it was given.
    std::vector<Value> apart(std::vector<Value> made, const std::vector<Value>& taken) {
        std::set<void*> known;
        for (const Value& v : taken)
            if (v.kind == Value::IsTensor) known.insert(storage(v.tensor));
        for (Value& v : made) {
            if (v.kind != Value::IsTensor) continue;
            if (known.count(storage(v.tensor)))
                v.tensor = copied(v.tensor, v.tensor.shape(), v.tensor.strides(), v.tensor.dtype());
            known.insert(storage(v.tensor));
        }
        return made;
    }
    void* storage(const Tensor& t) {
        i64 offset;
        must(aoti_torch_get_storage_offset(t.get(), &offset));
        return (char*)t.data() - offset * (i64)aoti_torch_dtype_element_size(t.dtype());
    }

    bool step() {  // false at the end
        Handle made;
        switch (i64 op = next()) {
            case OP_number: {
                i64& out = number();
                out = arguments[(size_t)next()].number;
                return true;
            }
            case OP_size: {
                i64& out = number();
                Handle t = there(slot());
                must(aoti_torch_get_size(t, next(), &out));
                return true;
            }
            case OP_load: {
                Tensor& t = slot();
                t = object().tensor;
                there(t);
                return true;
            }
            case OP_allocate:
            case OP_recycled: {
                Tensor& t = slot();
                int32_t type = code();
                if (op == OP_allocate) object();  // the device: the CPU
                auto sizes = dims(), strides = dims();
                t = empty(sizes, strides, type);
                return true;
            }
            case OP_workspace: {
                Tensor& t = slot();
                t = empty({number()}, {1}, dtype_code("uint8"));
                return true;
            }
            case OP_view: {
                Tensor &t = slot(), &base = slot();
                auto sizes = dims(), strides = dims();
                must(aoti_torch__reinterpret_tensor(there(base), (i64)sizes.size(), sizes.data(),
                                                    strides.data(), number(), &made));
                t = Tensor(made);
                return true;
            }
            case OP_place: {
                Tensor &t = slot(), &base = slot();
                int32_t type = code();
                auto sizes = dims(), strides = dims();
                must(aoti_torch__alloc_from_pool(there(base), next(), type, (i64)sizes.size(),
                                                 sizes.data(), strides.data(), &made));
                t = Tensor(made);
                return true;
            }
            case OP_retype: {
                Tensor &t = slot(), &base = slot();
                must(aoti_torch_cpu_view_dtype(there(base), code(), &made));
                t = Tensor(made);
                return true;
            }
            case OP_move: {
                Tensor &to = slot(), &from = slot();
                to = std::move(from);
                from = Tensor();
                return true;
            }
            case OP_free: slot() = Tensor(); return true;
            case OP_segment: segment(); return true;
            case OP_call: call(); return true;
            case OP_aten: aten(); return true;
            case OP_expect: expect(); return true;
            case OP_equal:
            case OP_assert: {
                i64 a = number(), good = op == OP_assert ? a : a == number();
                const Object& message = object();
                if (!good) throw Error(message.text);
                return true;
            }
            case OP_return: values(); return false;
            case OP_not: {
                i64& out = number();
                out = !number();
                return true;
            }
            case OP_launch:
            case OP_enter:
            case OP_leave: throw Error("litz: kernels for GPUs run from Python alone");
            default: return arithmetic(op);
        }
    }

    bool arithmetic(i64 op) {
        i64& out = number();
        i64 a = number(), b = number();
        if ((op == OP_floordiv || op == OP_mod) && !b) throw Error("litz: a size is divided by zero");
        switch (op) {
            case OP_add: out = a + b; break;
            case OP_mul: out = a * b; break;
            case OP_min: out = a < b ? a : b; break;
            case OP_max: out = a > b ? a : b; break;
            case OP_eq: out = a == b; break;
            case OP_ne: out = a != b; break;
            case OP_lt: out = a < b; break;
            case OP_le: out = a <= b; break;
            case OP_and: out = a && b; break;
            case OP_or: out = a || b; break;
            case OP_floordiv:
            case OP_mod: {
                i64 r = a % b, down = r && (r < 0) != (b < 0);
                out = op == OP_floordiv ? a / b - down : r + (down ? b : 0);
                break;
            }
            default: throw Error("litz: a plan with an unknown instruction");
        }
        return true;
    }
};

inline std::vector<Value> Module::operator()(const std::vector<Value>& arguments) const {
    Run run{*this, std::vector<Tensor>((size_t)n_tensors + 1), numbers, arguments, words.data(), {}};
    for (size_t i = 0; i < arguments.size(); ++i)
        if (arguments[i].kind == Value::IsTensor) run.slots.at(i) = arguments[i].tensor;
    while (run.step()) {
    }
    return run.results;
}

}  // namespace litz

#endif
