/* bolt_numba.hpp: the library in C++17, header only.  Objects own what they hold; errors are exceptions.

       bolt_numba::Model model("digits.bolt");
       bolt_numba::Session session(model);
       auto x = session.input<float>(0);
       std::fill(x.begin(), x.end(), 0.5f);
       session.run();
       for (float y : session.output<float>(0)) std::cout << y << '\n';

   What the functions do is said in bolt_numba.h. */

#ifndef BOLT_NUMBA_HPP
#define BOLT_NUMBA_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "bolt_numba.h"

namespace bolt_numba {

/* What a call refused, with its status. */
class Error : public std::runtime_error {
public:
    Error(bn_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    bn_status status() const noexcept { return status_; }

private:
    bn_status status_;
};

/* Numbers in memory of somebody else's. */
template <typename T> class Span {
public:
    Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t index) const noexcept { return data_[index]; }

private:
    T *data_;
    std::size_t size_;
};

/* The dtype of a C++ number; bool is a byte, f16 and bf16 are std::uint16_t, which stands for u16 here. */
template <typename T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr bn_dtype value = BN_FLOAT; };
template <> struct dtype_of<double> { static constexpr bn_dtype value = BN_DOUBLE; };
template <> struct dtype_of<std::int8_t> { static constexpr bn_dtype value = BN_INT8; };
template <> struct dtype_of<std::int16_t> { static constexpr bn_dtype value = BN_INT16; };
template <> struct dtype_of<std::int32_t> { static constexpr bn_dtype value = BN_INT32; };
template <> struct dtype_of<std::int64_t> { static constexpr bn_dtype value = BN_INT64; };
template <> struct dtype_of<std::uint8_t> { static constexpr bn_dtype value = BN_UINT8; };
template <> struct dtype_of<std::uint16_t> { static constexpr bn_dtype value = BN_UINT16; };
template <> struct dtype_of<std::uint32_t> { static constexpr bn_dtype value = BN_UINT32; };
template <> struct dtype_of<std::uint64_t> { static constexpr bn_dtype value = BN_UINT64; };
template <> struct dtype_of<bool> { static constexpr bn_dtype value = BN_BOOL; };

struct Info {
    std::string name;
    bn_dtype dtype;
    std::vector<std::int64_t> shape;
    std::size_t nbytes;
};

namespace detail {

inline void check(bn_status status, const bn_session *session = nullptr) {
    if (status != BN_OK) throw Error(status, bn_error_message(session));
}

inline Info told(const bn_info &info) { return {info.name, info.dtype, {info.dims, info.dims + info.rank}, info.nbytes}; }

template <typename T> Span<T> span(void *data, const bn_info &info) {
    const bool halves = (info.dtype == BN_FLOAT16 || info.dtype == BN_BFLOAT16) && sizeof(T) == 2;
    if (info.dtype != dtype_of<std::remove_const_t<T>>::value && !halves)
        throw Error(BN_ARGUMENT, std::string(info.name) + ": got a span of another dtype");
    return {static_cast<T *>(data), info.nbytes / sizeof(T)};
}

} // namespace detail

class Model {
public:
    explicit Model(const std::string &path) {
        bn_model *made = nullptr;
        detail::check(bn_model_open(path.c_str(), &made));
        model_.reset(made);
    }
    Model(const void *data, std::size_t nbytes) {
        bn_model *made = nullptr;
        detail::check(bn_model_from_memory(data, nbytes, &made));
        model_.reset(made);
    }
    /* Of the function of an exported library: Model(digits_open). */
    explicit Model(bn_status (*open)(bn_model **)) {
        bn_model *made = nullptr;
        detail::check(open(&made));
        model_.reset(made);
    }

    std::string target() const { return bn_model_target(get()); }
    int plans() const { return bn_model_plans(get()); }
    bn_model *get() const noexcept { return model_.get(); }

private:
    struct Close {
        void operator()(bn_model *model) const { bn_model_close(model); }
    };
    std::unique_ptr<bn_model, Close> model_;
};

class Session {
public:
    /* threads: 0 for as many as the program was planned for.  The model may go before its sessions. */
    explicit Session(const Model &model, int threads = 0) {
        const bn_options options = {threads};
        bn_session *made = nullptr;
        detail::check(bn_session_create(model.get(), &options, &made));
        session_.reset(made);
    }

    Session clone() const {
        bn_session *made = nullptr;
        detail::check(bn_session_clone(get(), &made));
        return Session(made);
    }

    int inputs() const { return bn_session_inputs(get()); }
    int outputs() const { return bn_session_outputs(get()); }

    Info input_info(int input) const {
        bn_info info;
        check(bn_session_input_info(get(), input, &info));
        return detail::told(info);
    }
    Info output_info(int output) const {
        bn_info info;
        check(bn_session_output_info(get(), output, &info));
        return detail::told(info);
    }

    /* Bytes that an output takes at most. */
    std::size_t output_capacity(int output) const { return bn_session_output_capacity(get(), output); }

    /* The buffer that the next run reads, or writes.  T is the type of its numbers. */
    template <typename T> Span<T> input(int input) {
        bn_info info;
        check(bn_session_input_info(get(), input, &info));
        return detail::span<T>(present(bn_session_input(get(), input)), info);
    }
    template <typename T> Span<const T> output(int output) {
        bn_info info;
        check(bn_session_output_info(get(), output, &info));
        return detail::span<const T>(present(bn_session_output(get(), output)), info);
    }

    /* A value by its name: kept at export, a state, an input or an output. */
    template <typename T> Span<const T> find(const std::string &name) {
        bn_info info;
        const void *data = bn_session_find(get(), name.c_str(), &info);
        return detail::span<const T>(present(const_cast<void *>(data)), info);
    }

    /* Memory of the caller's, which must outlive its use. */
    template <typename T> void bind_input(int input, Span<T> memory) {
        check(bn_session_bind_input(get(), input, memory.data(), memory.size() * sizeof(T)));
    }
    template <typename T> void bind_output(int output, Span<T> memory) {
        check(bn_session_bind_output(get(), output, memory.data(), memory.size() * sizeof(T)));
    }

    /* A shape for each input. */
    void resize(const std::vector<std::vector<std::int64_t>> &shapes) {
        std::vector<const std::int64_t *> places;
        for (std::size_t i = 0; i < shapes.size(); i++) {
            const std::size_t rank = input_info(static_cast<int>(i)).shape.size();
            if (shapes[i].size() != rank) throw Error(BN_ARGUMENT, "resize: got a shape of another rank");
            places.push_back(shapes[i].data());
        }
        if (places.size() != static_cast<std::size_t>(inputs()))
            throw Error(BN_ARGUMENT, "resize: wanted a shape for each input");
        check(bn_session_resize(get(), places.data()));
    }

    /* The shape of one input; the others keep theirs. */
    void set_input_shape(int input, const std::vector<std::int64_t> &shape) {
        check(bn_session_set_input_shape(get(), input, shape.data(), static_cast<int>(shape.size())));
    }

    void set_threads(int threads) { check(bn_session_set_threads(get(), threads)); }
    void set_time_limit(double seconds) { check(bn_session_set_time_limit(get(), seconds)); }
    void reset_state() { check(bn_session_reset_state(get())); }
    void run() { check(bn_session_run(get())); }
    bn_session *get() const noexcept { return session_.get(); }

private:
    explicit Session(bn_session *made) : session_(made) {}
    void check(bn_status status) const { detail::check(status, get()); }
    void *present(void *data) const {
        if (data == nullptr) throw Error(BN_ARGUMENT, bn_error_message(get()));
        return data;
    }

    struct Destroy {
        void operator()(bn_session *session) const { bn_session_destroy(session); }
    };
    std::unique_ptr<bn_session, Destroy> session_;
};

} // namespace bolt_numba

#endif
