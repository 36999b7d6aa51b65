// Running a plan (src/litz/runtime/plan.py) over PyTorch's C functions.
#ifndef LITZ_RUN_H
#define LITZ_RUN_H

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cuda.h"
#include "plan.h"
#include "products.h"
#include "reading.h"
#include "torch.h"

namespace litz {

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
    std::vector<std::unique_ptr<Kernel>> kernels;
    std::map<std::string, std::unique_ptr<Module>> bodies;
    i64 (*run_segment)(void**) = nullptr;
    const Products* products = nullptr;

    std::vector<Value> operator()(const std::vector<Value>& arguments) const;
};

// An argument of a call of Python's.
struct Any {
    Value value;
    const Object* object = nullptr;
    std::vector<Any> items;
};

// One call.
struct Run : Runner<Run> {
    const Module& m;
    const std::vector<Value>& arguments;
    std::vector<Tensor> slots;
    std::vector<i64> numbers;
    std::vector<Value> results;
    bool done = false;

    Run(const Module& module, const std::vector<Value>& given)
        : Runner<Run>{functions(), module.abi, nullptr, module.words.data()}, m(module),
          arguments(given), slots((size_t)module.n_tensors + 1), numbers(module.numbers) {
        ints = numbers.data();
        for (size_t i = 0; i < given.size(); ++i)
            if (given[i].kind == Value::IsTensor) slots.at(i) = given[i].tensor;
    }
    ~Run() { leave(); }

    Tensor& slot() { return slots[(size_t)next()]; }
    const Object& object() { return m.objects[(size_t)next()]; }

    [[noreturn]] bool error(const char* text) { throw Error(text); }
    [[noreturn]] bool raise(i64 message) { throw Error(text(message)); }
    [[noreturn]] bool refused() { throw Error(refusal()); }
    bool exhausted() { refused(); }
    bool again(i64, const i64*) { refused(); }
    void unlock() {}

    i64 code(i64 object) { return m.objects[(size_t)object].code; }
    bool nothing(i64 object) { return m.objects[(size_t)object].kind == Object::Nothing; }
    const char* text(i64 object) { return m.objects[(size_t)object].text.c_str(); }

    Handle there(i64 at) {
        Tensor& t = slots[(size_t)at];
        if (!t) error("litz: an argument or a result is no tensor");
        return t.get();
    }
    bool set(i64 to, Handle t) {
        slots[(size_t)to] = Tensor(t);
        return true;
    }
    void release(i64 at) { slots[(size_t)at] = Tensor(); }
    void move(i64 to, i64 from) { slots[(size_t)to] = std::exchange(slots[(size_t)from], Tensor()); }
    bool address(i64 at, i64 how, void** out) {
        Handle t = there(at);
        *out = slots[(size_t)at].data();
        if (how & ELSEWHERE && !*out && !without_elements(t))
            error("litz: an argument has no memory");
        return true;
    }

    void* steps(i64 which) { return m.segments[(size_t)which].get(); }
    i64 run(void** packed) { return m.run_segment(packed); }
    [[noreturn]] bool fault(i64, i64 status) {  // as litz/loading/segments.py numbers them
        i64 number = status & 0xFFFFFFFF;
        if (number == 2) error("litz: ZeroDivisionError in a compiled kernel");
        if (number > 3) error("litz: no memory for the rows that a compiled kernel keeps");
        error("litz: index out of range in a compiled kernel");
    }

    const Launcher* launcher(i64 which) { return &m.kernels.at((size_t)which)->launcher; }
    bool elsewhere(i64, const i64*, void* const*, i64) { return false; }
    bool item(i64 at, void** out) { return (*out = there(at)) != nullptr; }
    void drop(void*) {}
    bool by_value(i64 kind, void* item, i64* out) {
        double value = 0;
        *out = 0;
        must(kind == CELL_int ? aoti_torch_item_int64((Handle)item, out)
                              : aoti_torch_item_float64((Handle)item, &value));
        float narrow = (float)value;
        if (kind == CELL_f64) memcpy(out, &value, sizeof value);
        if (kind == CELL_f32) memcpy(out, &narrow, sizeof narrow);
        return true;
    }
    bool otherwise(Form& form, i64 which, const i64* grid, const i64* cells, i64* c, i64 n) {
        static_cast<Launch&>(form).run(which, grid, cells, c, n);
        return true;
    }

    void values() {  // of a result, its leaves in order
        switch (next()) {
            case VALUE_tensor: {
                i64 at = next();
                there(at);
                results.push_back(slots[(size_t)at]);
                return;
            }
            case VALUE_number: results.push_back(number()); return;
            case VALUE_object: {
                const Object& o = object();
                Value v;
                if (o.kind == Object::Constant) v = Value(o.tensor);
                else if (o.kind == Object::Number) v = Value(o.code);
                results.push_back(v);
                return;
            }
            default:
                for (i64 n = next(); n; --n) values();
        }
    }

    bool special(i64 op) {
        switch (op) {
            case OP_number: {
                i64& out = ints[next()];
                out = arguments[(size_t)next()].number;
                return true;
            }
            case OP_load: {
                Tensor& t = slot();
                t = object().tensor;
                return (bool)t || error("litz: an argument or a result is no tensor");
            }
            case OP_recycled: {
                Tensor& t = slot();
                int32_t type = Runner::code();
                auto sizes = counted(), strides = counted();
                t = empty(sizes, strides, type);
                return true;
            }
            case OP_workspace: {
                Tensor& t = slot();
                t = empty({number()}, {1}, dtype_code("uint8"));
                return true;
            }
            case OP_call: call(); return true;
            case OP_return: values(); return done = true;
        }
        error("litz: a plan with an unknown instruction");
    }
    std::vector<i64> counted() {
        std::vector<i64> all((size_t)*w);
        dims(all.data());
        return all;
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
        std::map<std::string, Any> named;
        for (i64 n = next(); n; --n) {
            const std::string& name = object().text;
            named[name] = any();
        }
        std::vector<i64> to((size_t)next());
        for (i64& r : to) r = next();
        bool single = next();
        if (!named.empty()) return product(target, args, named);
        auto made = perform(target, args);
        for (size_t i = 0; i < to.size(); ++i) {
            const Value& v = made.at(single ? 0 : i);
            if (to[i] >= 0) slots[(size_t)to[i]] = v.tensor;
            else if (to[i] < -1) ints[(size_t)(-2 - to[i])] = v.number;
        }
    }

    // What is called with names: a product, which writes its result.
    void product(const Object& target, const std::vector<Any>& args, const std::map<std::string, Any>& named) {
        bool fused = target.text == "ops.aten._addmm_activation.out";
        if ((!fused && target.text != "litz.runtime.products:product") || args.size() + !fused < 3) unknown(target);
        Product p;
        for (size_t i = 0; i < 3 && i < args.size(); ++i)
            p.of[fused ? (i ? i - 1 : ADDED) : i] = args[i].value.tensor;
        bool by_gelu = false;
        for (const auto& n : named) {
            const Object* o = n.second.object;
            const std::vector<Any>& items = n.second.items;
            if (n.first == "out") p.of[OUT] = n.second.value.tensor;
            else if (n.first == "aux") p.of[AUX] = n.second.value.tensor;
            else if (n.first == "scales" && items.size() == 2)
                for (int i : {0, 1}) p.of[LEFT_SCALE + i] = items[(size_t)i].value.tensor;
            else if (n.first == "epilogue" && o) p.epilogue = o->text;
            else if (n.first == "fast" && o) p.fast = o->code;
            else if (n.first == "use_gelu" && o) by_gelu = o->code;
            else if ((n.first == "alpha" || n.first == "beta") && o) {
                double real = (double)o->code;
                if (o->kind == Object::Real) memcpy(&real, &o->code, sizeof real);
                (n.first == "alpha" ? p.alpha : p.beta) = real;
            } else unknown(target);
        }
        if (!p.of[OUT] || !p.of[LEFT] || !p.of[RIGHT]) unknown(target);
        if (fused) add_and_activate(p, by_gelu);
        else (*m.products)(p, abi);
    }

    [[noreturn]] void unknown(const Object& target) {
        throw Error("litz: the program calls " + target.text + ", which needs Python");
    }

    std::vector<Value> perform(const Object& target, const std::vector<Any>& args) {
        const std::string& name = target.text;
        if (name.compare(0, 9, "operator:") == 0 && args.size() == 2) {
            i64 a = args[0].value.number, b = args[1].value.number;
            View of = View(name).substr(9);
            if (of == "add") return {a + b};
            if (of == "sub") return {a - b};
            if (of == "mul") return {a * b};
            if (of == "floordiv" || of == "mod") return {divide(a, b, of == "floordiv")};
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
        i64 found;
        must(aoti_torch_item_int64(v.tensor.get(), &found));
        return found;
    }
    // The results, each in memory of its own: a body may return what it was given.
    std::vector<Value> apart(std::vector<Value> made, const std::vector<Value>& taken) {
        std::set<void*> known;
        for (const Value& v : taken)
            if (v.kind == Value::IsTensor) known.insert(storage(v.tensor));
        for (Value& v : made) {
            if (v.kind != Value::IsTensor) continue;
            if (known.count(storage(v.tensor)))
                v.tensor = copied(v.tensor, v.tensor.shape(), v.tensor.strides(), v.tensor.dtype(),
                                  Device::of(v.tensor));
            known.insert(storage(v.tensor));
        }
        return made;
    }
    void* storage(const Tensor& t) {
        i64 offset;
        must(aoti_torch_get_storage_offset(t.get(), &offset));
        return (char*)t.data() - offset * (i64)aoti_torch_dtype_element_size(t.dtype());
    }
};

inline std::vector<Value> Module::operator()(const std::vector<Value>& arguments) const {
    Run run(*this, arguments);
    while (!run.done) run.step();
    return run.results;
}

}  // namespace litz

#endif
